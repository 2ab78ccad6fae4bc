"""Jobs of the API in the core's form: what is taken, derived, and refused with its field."""

from __future__ import annotations

import json

import pytest
from google.protobuf import duration_pb2

from muster.api.v1 import job_pb2
from muster.core.errors import Code, Rejected
from muster.core.limits import JOB_BYTES_MAX, PREEMPTIONS_MAX
from muster.core.model import Requirement, Toleration
from muster.core.submission import UNBUILT, check_spec
from muster.wire import ids, reserved
from muster.wire.jobs import JobReader, Origin

ORIGIN = Origin(cell="main", request_id="exp-17", submitter="ann", trace="00-0-0-01")
GIB = 1 << 30


def spec(**fields: object) -> job_pb2.JobSpec:
    base: dict[str, object] = {
        "name": "train",
        "queue": "research/vision",
        "tasks": [job_pb2.TaskGroup(name="worker", replicas=2, resources={"cpu": "500m", "memory": "1Gi"})],
    }
    return job_pb2.JobSpec(**(base | fields))  # type: ignore[arg-type]


def template(*containers: dict[str, object], **pod: object) -> str:
    return json.dumps({"spec": {"containers": list(containers), **pod}})


def container(**requests: object) -> dict[str, object]:
    return {"name": "main", "image": "x", "resources": {"requests": requests}}


def one_group(**fields: object) -> job_pb2.JobSpec:
    return spec(tasks=[job_pb2.TaskGroup(name="worker", replicas=1, **fields)])  # type: ignore[arg-type]


def refusal(job: job_pb2.JobSpec) -> Rejected:
    with pytest.raises(Rejected) as caught:
        JobReader().to_core(job, 0, ORIGIN)
    return caught.value


def test_a_plain_job_becomes_the_cores_spec() -> None:
    job = JobReader().to_core(
        spec(
            priority=5,
            labels={"team": "v", "a": "b"},
            max_runtime=duration_pb2.Duration(seconds=90),
            cluster_selector={"muster.io/cluster": "sim-a"},
            preemptible=False,
            max_preemptions=0,
        ),
        0,
        ORIGIN,
    )
    check_spec(job)
    assert (job.namespace, job.name, job.queue, job.priority) == ("default", "train", "research/vision", 5)
    assert job.tasks[0].requests == (("cpu", 500), ("memory", GIB))
    assert (job.tasks[0].replicas, job.tasks[0].min_replicas) == (2, 2)
    assert job.labels == (("a", "b"), ("team", "v"))
    assert job.max_runtime_ms == 90_000
    assert not job.preemptible
    assert job.max_preemptions == 0  # said, not taken for absent
    assert (job.submitter, job.request_id, job.trace) == ("ann", "exp-17", "00-0-0-01")


def test_absent_optional_fields_have_their_defaults() -> None:
    job = JobReader().to_core(spec(), 0, ORIGIN)
    assert job.preemptible
    assert (job.max_preemptions, job.priority_class, job.min_runtime_ms) == (PREEMPTIONS_MAX, "", 0)
    assert (job.max_runtime_ms, job.max_wait_ms, job.labels) == (0, 0, ())


def test_a_class_is_read_and_with_a_priority_refused() -> None:
    assert JobReader().to_core(spec(priority_class="high"), 0, ORIGIN).priority_class == "high"
    error = refusal(spec(priority_class="high", priority=3))
    assert (error.code, error.field, error.rule) == (Code.INVALID_ARGUMENT, "priority_class", "P4")
    assert error.message == '"high" says what the priority is, and priority says 3: give one of the two'


# --- identity, LOG-11 -----------------------------------------------------------------------------------------------


def test_ids_follow_from_cell_namespace_request_and_index() -> None:
    reader = JobReader()
    first = reader.to_core(spec(), 0, ORIGIN).id
    assert first == reader.to_core(spec(), 0, ORIGIN).id
    others = {
        reader.to_core(spec(), 1, ORIGIN).id,
        reader.to_core(spec(namespace="other"), 0, ORIGIN).id,
        reader.to_core(spec(), 0, Origin(cell="two", request_id="exp-17", submitter="ann")).id,
        reader.to_core(spec(), 0, Origin(cell="main", request_id="exp-18", submitter="ann")).id,
    }
    assert len(others | {first}) == 5


def test_ids_do_not_run_into_each_other() -> None:
    assert ids.job_id("a", "b", "c1", 2) != ids.job_id("a", "b", "c", 12)


def test_the_digest_is_of_the_body_and_not_of_the_trace() -> None:
    plain, traced, other = spec(), spec(trace_context="00-1-1-01"), spec(priority=1)
    assert ids.body_digest(plain) == ids.body_digest(traced)
    assert ids.body_digest(plain) != ids.body_digest(other)
    assert traced.trace_context  # the request itself stays as it was


def test_map_order_does_not_change_the_digest() -> None:
    forward, backward = spec(labels={"a": "1", "b": "2"}), spec(labels={"b": "2", "a": "1"})
    assert ids.body_digest(forward) == ids.body_digest(backward)


# --- reserved fields ------------------------------------------------------------------------------------------------

RESERVED_VALUES: dict[str, object] = {
    "on_behalf_of": "ann",
    "account": "a",
    "suspend": True,
    "holds": ["h"],
    "not_before": {"seconds": 1},
    "deadline": {"seconds": 1},
    "depends_on": [{"job": "x"}],
    "job_set": "s",
    "array": {"size": 3},
    "completion": job_pb2.COMPLETION_EVERY_INDEX,
    "success_policies": [{"count": 1}],
    "failure_policy": {"max_failed_pods": 1},
    "lifecycle_policies": [{"action": "RestartJob"}],
    "checkpoint": {"signal": "SIGUSR1"},
    "environment": {"rank": True},
    "resource_claims": [{"name": "c"}],
    "may_span_clusters": True,
    "exclusive_node": True,
    "topology": {"require": "rack"},
    "reservation": "r",
    "licences": {"solver": 1},
    "max_retries": 1,
    "ttl_after_finished": {"seconds": 1},
    "objects": ["{}"],
    "expected_runtime": {"seconds": 1},
    "node_lost_timeout": {"seconds": 1},
}


@pytest.mark.parametrize("field", sorted(reserved.JOB_FIELDS))
def test_each_reserved_field_of_a_job_is_refused_by_name(field: str) -> None:
    error = refusal(spec(**{field: RESERVED_VALUES[field]}))
    assert (error.code, error.field) == (Code.UNIMPLEMENTED, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("near", "ps"),
        ("topology", {"require": "rack"}),
        ("alternatives", [{"resources": {"cpu": "1"}}]),
        ("gpu_models", ["A100"]),
        ("resource_claims", [{"name": "c"}]),
    ],
)
def test_each_reserved_field_of_a_group_is_refused_by_name(field: str, value: object) -> None:
    error = refusal(one_group(**{field: value}))
    assert (error.code, error.field) == (Code.UNIMPLEMENTED, f"tasks[0].{field}")


def test_the_core_reserves_the_same_fields() -> None:
    of_checkpoints = {f"checkpoint.{field}" for field in reserved.CHECKPOINT_FIELDS}
    assert set(UNBUILT) == reserved.JOB_FIELDS | reserved.TASK_FIELDS | of_checkpoints


def test_reserved_names_are_fields_of_the_api() -> None:
    assert set(job_pb2.JobSpec.DESCRIPTOR.fields_by_name) >= reserved.JOB_FIELDS
    assert set(job_pb2.TaskGroup.DESCRIPTOR.fields_by_name) >= reserved.TASK_FIELDS


# --- template -------------------------------------------------------------------------------------------------------


def test_requests_come_from_the_template_when_the_job_states_none() -> None:
    job = JobReader().to_core(
        spec(tasks=[{"name": "w", "replicas": 1}], template=template(container(cpu=2))), 0, ORIGIN
    )
    assert job.tasks[0].requests == (("cpu", 2000),)
    assert json.loads(job.tasks[0].template)["spec"]["containers"][0]["name"] == "main"


def test_a_groups_own_template_replaces_the_jobs() -> None:
    own = template(container(cpu="3"))
    job = JobReader().to_core(
        spec(tasks=[{"name": "w", "replicas": 1, "template": own}], template=template(container(cpu=2))), 0, ORIGIN
    )
    assert job.tasks[0].requests == (("cpu", 3000),)


def test_requests_that_agree_with_the_template_are_taken_and_others_refused() -> None:
    agreeing = one_group(resources={"cpu": "2000m"}, template=template(container(cpu=2)))
    assert JobReader().to_core(agreeing, 0, ORIGIN).tasks[0].requests == (("cpu", 2000),)
    differing = refusal(one_group(resources={"cpu": "3"}, template=template(container(cpu=2))))
    assert differing.field == "tasks[0].resources"
    assert "3 cpu" in differing.message
    assert "2 cpu" in differing.message


def test_selectors_affinity_and_tolerations_come_from_the_template() -> None:
    pod = template(
        container(cpu=1),
        nodeSelector={"zone": "a"},
        tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}],
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "m", "operator": "In", "values": ["x"]}]}]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
            }
        },
    )
    group = JobReader().to_core(one_group(template=pod), 0, ORIGIN).tasks[0]
    assert group.node_selector == (("zone", "a"),)
    assert group.affinity == ((Requirement("m", "In", ("x",)),),)
    assert group.tolerations == (Toleration("gpu", "Exists", "", "NoSchedule"),)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"node_selector": {"zone": "b"}}, "tasks[0].node_selector"),
        ({"tolerations": [{"key": "other", "operator": "Exists"}]}, "tasks[0].tolerations"),
        (
            {"affinity": [{"requirements": [{"key": "m", "operator": "Exists"}]}]},
            "tasks[0].affinity",
        ),
    ],
)
def test_a_constraint_that_differs_from_the_template_is_refused(fields: dict[str, object], where: str) -> None:
    pod = template(
        container(cpu=1),
        nodeSelector={"zone": "a"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "m", "operator": "In", "values": ["x"]}]}]
                }
            }
        },
    )
    assert refusal(one_group(template=pod, **fields)).field == where


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "field", "code"),
    [
        (one_group(resources={"cpu": "-1"}), "tasks[0].resources.cpu", Code.INVALID_ARGUMENT),
        (one_group(resources={"cpu": "lots"}), "tasks[0].resources.cpu", Code.INVALID_ARGUMENT),
        (one_group(resources={"nvidia.com/gpu": "1", "amd.com/gpu": "1"}), "tasks[0].resources", Code.INVALID_ARGUMENT),
        (one_group(min_replicas=2), "tasks[0].min_replicas", Code.INVALID_ARGUMENT),
        (one_group(affinity=[{}]), "tasks[0].affinity[0]", Code.INVALID_ARGUMENT),
        (one_group(template="[]"), "tasks[0].template", Code.INVALID_ARGUMENT),
        (one_group(template="{"), "tasks[0].template", Code.INVALID_ARGUMENT),
        (spec(template='{"spec": 3}'), "template.spec", Code.INVALID_ARGUMENT),
        (spec(submitter="root"), "submitter", Code.INVALID_ARGUMENT),
        (spec(labels={"bad key!": "x"}), "labels.bad key!", Code.INVALID_ARGUMENT),
        (spec(labels={"k": "x" * 64}), "labels.k", Code.INVALID_ARGUMENT),
        (spec(max_runtime=duration_pb2.Duration(seconds=-1)), "max_runtime", Code.INVALID_ARGUMENT),
        (spec(max_wait=duration_pb2.Duration()), "max_wait", Code.INVALID_ARGUMENT),
        (spec(tasks=[{"name": "w", "replicas": 1}] * 2), "tasks[1].name", Code.INVALID_ARGUMENT),
        (spec(tasks=[{"name": n, "replicas": 30_000} for n in "ab"]), "tasks", Code.INVALID_ARGUMENT),
    ],
)
def test_mistakes_are_refused_with_their_field(job: job_pb2.JobSpec, field: str, code: Code) -> None:
    error = refusal(job)
    assert (error.code, error.field) == (code, field)


def test_a_job_over_the_size_limit_is_refused() -> None:
    large = template(container(cpu=1), volumes=[{"name": "x" * JOB_BYTES_MAX}])
    error = refusal(one_group(template=large))
    assert error.rule == "LOG-8"
    assert "256 KiB" in error.message


def test_a_template_of_the_job_counts_once_for_each_group() -> None:
    large = template(container(cpu=1), volumes=[{"name": "x" * (JOB_BYTES_MAX // 3)}])
    assert JobReader().to_core(spec(template=large, tasks=[{"name": "a", "replicas": 1}]), 0, ORIGIN)
    groups = [{"name": f"g{n}", "replicas": 1} for n in range(4)]
    assert refusal(spec(template=large, tasks=groups)).rule == "LOG-8"


# --- memory of groups -----------------------------------------------------------------------------------------------


def test_equal_groups_are_one_object() -> None:
    reader = JobReader()
    first, second = reader.to_core(spec(), 0, ORIGIN), reader.to_core(spec(name="other"), 1, ORIGIN)
    assert first.tasks[0] is second.tasks[0]


def test_groups_that_differ_in_the_jobs_template_only_are_two() -> None:
    reader = JobReader()
    group = [{"name": "w", "replicas": 1}]
    one = reader.to_core(spec(tasks=group, template=template(container(cpu=1))), 0, ORIGIN)
    two = reader.to_core(spec(tasks=group, template=template(container(cpu=2))), 1, ORIGIN)
    assert one.tasks[0].requests != two.tasks[0].requests


def test_a_mistake_in_a_remembered_group_names_its_place_each_time() -> None:
    reader = JobReader()
    bad = {"name": "w", "replicas": 1, "resources": {"cpu": "-1"}}
    fine = {"name": "v", "replicas": 1}
    for tasks, place in (([bad], "tasks[0]"), ([fine, bad], "tasks[1]")):
        with pytest.raises(Rejected) as caught:
            reader.to_core(spec(tasks=tasks), 0, ORIGIN)
        assert caught.value.field == f"{place}.resources.cpu"


# --- memory of jobs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", ["", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"])
def test_a_job_that_is_known_but_for_its_name_reads_as_if_it_were_new(trace: str) -> None:
    reader = JobReader()
    fields: dict[str, object] = {"labels": {"team": "vision"}, "priority": 3, "trace_context": trace}
    later = Origin(cell="main", request_id="exp-18", submitter="bob", trace="00-2-2-01")
    reader.to_core(spec(**fields), 0, ORIGIN)
    for number, name in enumerate(("train", "eval", "train-2")):
        job = spec(name=name, **fields)
        assert reader.to_core(job, number, later) == JobReader().to_core(job, number, later)
        assert job.name == name
    assert reader.to_core(spec(**fields | {"priority": 4}), 0, later).priority == 4


@pytest.mark.parametrize(
    "trace", ["bogus", "00-" + "0" * 32 + "-" + "2" * 16 + "-01", "ff-" + "1" * 32 + "-" + "2" * 16 + "-01"]
)
def test_a_trace_that_nobody_could_follow_is_refused(trace: str) -> None:
    assert refusal(spec(trace_context=trace)).field == "trace_context"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"annotations": {"a": "y" * (1 << 19)}}, "annotations"),
        ({"template": '{"spec": {"x": "' + "y" * (1 << 19) + '"}}'}, "template"),
    ],
)
def test_a_job_that_is_too_large_names_what_makes_it_so(fields: dict[str, object], field: str) -> None:
    error = refusal(spec(**fields))
    assert (error.field, error.rule) == (field, "LOG-8")


def test_of_the_groups_of_a_large_job_the_template_is_named() -> None:
    job = one_group()
    job.tasks[0].template = '{"spec": {"x": "' + "y" * (1 << 19) + '"}}'
    assert refusal(job).field == "tasks[0].template"
