"""Names, labels and manifests of pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.core.model import EVERY_INDEX, GroupPlacement, JobSpec, NodeSpec, Requirement, TaskGroup, Toleration
from muster_binder import names
from muster_binder.manifest import BadTemplate, Gang
from muster_binder.names import PodKey

ID = "0123456789abcdef" * 2
GPU = "nvidia.com/gpu"


def gang(
    template: dict[str, Any] | bytes | None,
    *,
    requests: tuple[tuple[str, int], ...] = (("cpu", 1500),),
    placement: GroupPlacement | None = None,
    trace: str = "",
    replicas: int = 2,
    completion: str = "",
    **group: Any,
) -> Gang:
    raw = template if isinstance(template, bytes) else json.dumps(template).encode() if template is not None else b""
    task = TaskGroup("worker", replicas, replicas, requests, template=raw, **group)
    spec = JobSpec(ID, "team-a", "bert", "research/vision", (task,), trace=trace, completion=completion)
    nodes = [NodeSpec("sim-a", "n0", ()), NodeSpec("sim-b", "n1", ())]
    placement = placement or GroupPlacement(0, ((0, 1), (1, replicas - 1)))
    return Gang("main", spec, 3, (placement,), nodes.__getitem__, default_image="pause")


def pod(made: Gang, position: int = 0) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(made.manifest(made.slots[position]))
    return decoded


def test_a_template_is_passed_through_with_ours_added() -> None:
    template = {
        "metadata": {
            "labels": {"app": "x", names.JOB: "forged"},
            "annotations": {"a": "b"},
            "name": "n",
            "finalizers": ["f"],
        },
        "spec": {
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {GPU: "1"}}}],
            "restartPolicy": "OnFailure",
            "nodeName": "elsewhere",
            "schedulerName": "default-scheduler",
            "priorityClassName": "high",
        },
    }
    made = pod(gang(template, trace="00-aa-bb-01"), 1)
    assert made["metadata"] == {
        "namespace": "team-a",
        "name": "bert-01234567-worker-1-3-0",
        "finalizers": ["f"],
        "labels": {
            "app": "x",
            "muster.io/cell": "main",
            "muster.io/job": ID,
            "muster.io/job-name": "bert",
            "muster.io/group": "worker",
            "muster.io/epoch": "3",
            "muster.io/queue": "research.vision",
            "muster.io/pod": "1",
            "muster.io/index": "1",
            "muster.io/attempt": "0",
        },
        "annotations": {"a": "b", "muster.io/trace": "00-aa-bb-01"},
    }
    assert made["spec"] == template["spec"] | {"nodeName": "n1", "schedulerName": "muster"}
    assert (made["apiVersion"], made["kind"]) == ("v1", "Pod")


def test_slots_know_their_cluster() -> None:
    assert [slot.cluster for slot in gang({}).slots.values()] == ["sim-a", "sim-b"]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ((("cpu", 1500), ("memory", 3 << 30)), {"requests": {"cpu": "1.5", "memory": "3Gi"}}),
        ((("cpu", 2000), (GPU, 2000)), {"requests": {"cpu": "2", GPU: "2"}, "limits": {GPU: "2"}}),
        (
            ((GPU, 460),),
            {"requests": {"muster.io/gpu-milli": "460"}, "limits": {"muster.io/gpu-milli": "460"}},
        ),
    ],
)
def test_requests_of_the_group_stand_in_where_no_container_asks(
    requests: tuple[tuple[str, int], ...], expected: dict[str, Any]
) -> None:
    made = pod(gang({"spec": {"containers": [{"name": "c", "image": "i"}]}}, requests=requests))
    assert made["spec"]["containers"][0]["resources"] == expected


def test_what_the_group_asks_of_nodes_is_asked_by_its_pods() -> None:
    asks: dict[str, Any] = {
        "node_selector": (("pool", "a"),),
        "affinity": ((Requirement("zone", "In", ("x", "y")), Requirement("gpu", "Exists")),),
        "tolerations": (Toleration("spot", "Exists", "", "NoExecute"), Toleration("team", "Equal", "v", "")),
    }
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}, "podAffinity": {}}
    made = pod(gang({"spec": {"affinity": preferred}}, **asks))["spec"]
    terms = [
        {
            "matchExpressions": [
                {"key": "zone", "operator": "In", "values": ["x", "y"]},
                {"key": "gpu", "operator": "Exists"},
            ]
        }
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    assert made["nodeSelector"] == {"pool": "a"}
    assert made["affinity"] == preferred | {"nodeAffinity": preferred["nodeAffinity"] | required}
    assert made["tolerations"] == [
        {"key": "spot", "operator": "Exists", "effect": "NoExecute"},
        {"key": "team", "operator": "Equal", "value": "v"},
    ]
    stated = {"nodeSelector": {"pool": "a"}, "tolerations": [{"operator": "Exists"}]}
    kept = pod(gang({"spec": stated}, **asks))["spec"]
    assert {field: kept[field] for field in stated} == stated


def test_without_a_template_there_is_still_a_pod() -> None:
    made = pod(gang(None))
    assert made["spec"]["containers"] == [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1.5"}}}]


def test_devices_are_named_pod_by_pod() -> None:
    placement = GroupPlacement(0, ((0, 2),), devices=bytes([0, 3, 4, 7]))
    made = gang({}, placement=placement)
    assert [pod(made, n)["metadata"]["annotations"]["muster.io/devices"] for n in (0, 1)] == ["0,3", "4,7"]


@pytest.mark.parametrize("template", [b"[]", b"{", b'"existingPod"'])
def test_a_template_that_is_no_object_is_refused_when_it_is_used(template: bytes) -> None:
    made = gang(template)
    with pytest.raises(BadTemplate, match="worker"):
        made.manifest(made.slots[0])


def test_existing_pods_are_called_by_index_when_there_are_several() -> None:
    many, one = (
        gang({"existingPod": "rank"}),
        gang({"existingPod": "rank"}, replicas=1, placement=GroupPlacement(0, ((0, 1),))),
    )
    assert [slot.name for slot in many.slots.values()] == ["rank-0", "rank-1"]
    assert [slot.name for slot in one.slots.values()] == ["rank"]
    assert one.binds_existing(one.slots[0])
    patch = json.loads(many.adoption(many.slots[1]))
    assert patch["metadata"]["labels"][names.POD] == "1"


def test_names_are_dns_labels_and_unique() -> None:
    long_job, long_group = "j" * 63, "g" * 63
    made = {
        names.pod_name(ID, job, group, number, (index, epoch, 0))
        for job in ("bert", long_job)
        for number, group in enumerate(("w", long_group, long_group[:-1] + "h"))
        for index in (0, 39_999)
        for epoch in (1, 1000)
    }
    assert len(made) == 24
    assert all(len(name) <= 63 and "01234567" in name for name in made)
    assert names.pod_name(ID, "bert", "w", 0, (2, 1, 0)) == "bert-01234567-w-2-1-0"


def test_label_values_are_legal() -> None:
    assert names.label_value("research.vision") == "research.vision"
    assert names.label_value("/a b/") == "a_b"
    long = [names.label_value("q" * 100 + end) for end in ("a", "b")]
    assert all(len(value) == 63 for value in long)
    assert long[0] != long[1]


@pytest.mark.parametrize("missing", [names.JOB, names.EPOCH, names.POD, names.ATTEMPT])
def test_only_complete_labels_name_a_pod(missing: str) -> None:
    labels = {names.JOB: ID, names.EPOCH: "2", names.POD: "7", names.ATTEMPT: "0"}
    assert names.key_of(labels) == PodKey(ID, 2, 7, 0)
    assert names.key_of({k: v for k, v in labels.items() if k != missing}) is None
    assert names.key_of(labels | {missing: "x"}) is None
    assert names.key_of(None) is None


def test_the_pods_of_an_array_job_find_their_index_in_the_environment() -> None:
    own = {"name": "JOB_COMPLETION_INDEX", "value": "mine"}
    template = {
        "spec": {
            "initContainers": [{"name": "i", "env": [{"name": "A", "value": "b"}]}],
            "containers": [{"name": "c"}, {"name": "d", "env": [own]}],
        }
    }
    index = {
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['muster.io/index']"}},
    }
    made = pod(gang(template, completion=EVERY_INDEX), 1)["spec"]
    assert made["initContainers"][0]["env"] == [{"name": "A", "value": "b"}, index]
    assert [container["env"] for container in made["containers"]] == [[index], [own]]
    assert "env" not in pod(gang(template), 1)["spec"]["containers"][0]


def test_indices_that_had_succeeded_have_no_pod() -> None:
    made = gang({}, replicas=5, placement=GroupPlacement(0, ((0, 1), (1, 2)), skipped=((0, 1), (2, 1))))
    assert [(slot.position, slot.name[-7:], slot.node) for slot in made.slots.values()] == [
        (1, "r-1-3-0", "n0"),
        (3, "r-3-3-0", "n1"),
        (4, "r-4-3-0", "n1"),
    ]
