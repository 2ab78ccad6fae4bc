"""Job files: Muster's YAML and batch/v1 Jobs, and errors that name key, line and nearest known key."""

from __future__ import annotations

import json
from pathlib import Path

import protovalidate
import pytest
from tests.architecture.repository import ROOT

from muster import client
from muster.api.v1 import job_pb2
from muster.core.submission import check_spec
from muster.wire.jobs import JobReader, Origin

EXAMPLES = ROOT / "docs" / "examples"

GANG = """\
name: bert-large
queue: research/vision
priority: 50
max_runtime: 4h
labels: {team: vision}
preemptible: false
tasks:
  - name: ps
    replicas: 2
    resources: {cpu: 4, memory: 16Gi}
  - name: worker
    replicas: 8
    min_replicas: 4
    policy: spread
    resources: {cpu: 12, memory: 96Gi, nvidia.com/gpu: 1}
    near: ps
    node_selector: {zone: a}
    tolerations: [{key: gpu, operator: Exists}]
    affinity: [{requirements: [{key: model, operator: In, values: [A100]}]}]
topology: {require: block, prefer: rack}
not_before: 2026-01-31T18:00:00+01:00
template:
  spec: {containers: [{name: main, image: "registry.example/bert:1", command: [train],
                       env: [{name: D, value: 2026-01-02}]}]}
"""


def test_musters_own_form() -> None:
    (job,) = client.parse(GANG)
    assert (job.name, job.queue, job.priority, job.max_runtime.seconds) == ("bert-large", "research/vision", 50, 14400)
    assert job.HasField("preemptible")
    assert not job.preemptible
    ps, worker = job.tasks
    assert dict(ps.resources) == {"cpu": "4", "memory": "16Gi"}
    assert not ps.HasField("min_replicas")
    assert (worker.replicas, worker.min_replicas, worker.near) == (8, 4, "ps")
    assert worker.policy == job_pb2.PLACEMENT_POLICY_SPREAD
    assert worker.tolerations[0].operator == "Exists"
    assert list(worker.affinity[0].requirements[0].values) == ["A100"]
    assert job.topology.require == "block"
    assert job.not_before.ToJsonString() == "2026-01-31T17:00:00Z"
    container = json.loads(job.template)["spec"]["containers"][0]
    assert container["command"] == ["train"]
    assert container["env"][0]["value"] == "2026-01-02"  # text, as Kubernetes reads it


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("name: a\nqeue: b\n", 2, ['"qeue"', 'did you mean "queue"']),
        ("name: a\ntasks:\n  - name: w\n    replica: 3\n", 4, ['"replica"', "tasks[0]", 'did you mean "replicas"']),
        ("name: a\nsubmitter: root\n", 2, ['"submitter"']),
        ("name: a\nmax_runtime: 90\n", 2, ["max_runtime", "90s"]),
        ("name: a\npriority: high\n", 2, ["priority", "whole number"]),
        ("name: a\npriority: 99999999999\n", 2, ["out of range"]),
        ("name: a\narray:\n  size: 0\n", 3, ["array.size must be at least 1"]),
        ("name: a\narray: {max_parallel: 2, size: 0}\n", 2, ["array.size must be at least 1"]),
        ("name: a\ntasks: {name: a}\n", 2, ["tasks must be a list, each item a mapping with name, "]),
        ("name: a\npreemptible: maybe\n", 2, ["true or false"]),
        ("name: a\nname: b\n", 2, ["twice"]),
        ("name: a\ntasks: 3\n", 2, ["tasks must be a list"]),
        ("name: a\ntemplate: text\n", 2, ["template must be a mapping"]),
        ("name: a\nlabels: [x]\n", 2, ["labels must be a mapping"]),
        ("name: a\ntasks: [{name: w, policy: pile}]\n", 2, ["PACK, SPREAD", "'pile'"]),
        ("name: a\nnot_before: soon\n", 2, ["not_before must be a time"]),
        ("name: a\nnot_before: 2026-01-31T18:00:00\n", 2, ["time zone"]),
        ("name: [\n", 2, ["not YAML"]),
        ("- name: a\n", 1, ["a job is a mapping"]),
        ("apiVersion: v1\nkind: Pod\n", 1, ["v1 Pod is not understood"]),
        ("---\nname: a\n---\nnam: b\n", 4, ['did you mean "name"']),
    ],
)
def test_mistakes_name_their_line(text: str, line: int, words: list[str]) -> None:
    with pytest.raises(client.JobFileError) as caught:
        client.parse(text, source="job.yaml")
    assert str(caught.value).startswith(f"job.yaml:{line}: ")
    for word in words:
        assert word in str(caught.value)


def test_many_documents_and_a_default_queue() -> None:
    jobs = client.parse("name: a\n---\n---\nname: b\nqueue: other\n", queue="research")
    assert [(job.name, job.queue) for job in jobs] == [("a", "research"), ("b", "other")]


def test_load_wants_exactly_one_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text("name: a\n---\nname: b\n")
    assert len(client.load_all(path)) == 2
    with pytest.raises(client.JobFileError, match="holds 2 jobs"):
        client.load(path)


KUBE = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: pi
  namespace: science
  labels: {app: pi, muster.io/queue: research.vision}
  annotations: {muster.io/priority: "7"}
  uid: 1234
spec:
  parallelism: 3
  activeDeadlineSeconds: 60
  backoffLimit: 0
  suspend: false
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: perl}]}}
"""


def test_a_batch_job_is_a_gang_of_its_parallelism() -> None:
    (job,) = client.parse(KUBE)
    assert (job.name, job.namespace, job.queue, job.priority) == ("pi", "science", "research/vision", 7)
    assert (job.tasks[0].name, job.tasks[0].replicas, job.max_runtime.seconds) == ("main", 3, 60)
    assert json.loads(job.tasks[0].template)["spec"]["restartPolicy"] == "Never"
    assert not job.HasField("array")
    assert job.max_retries == 0
    assert not job.suspend


def test_the_class_of_a_batch_job_is_its_template_s() -> None:
    named = KUBE.replace("template: {spec: {", "template: {spec: {priorityClassName: urgent, ")
    (job,) = client.parse(named.replace('{muster.io/priority: "7"}', "{}"))
    assert (job.priority_class, job.priority) == ("urgent", 0)
    assert json.loads(job.tasks[0].template)["spec"]["priorityClassName"] == "urgent"
    (both,) = client.parse(named)  # what is written for Muster goes first
    assert (both.priority_class, both.priority) == ("", 7)
    (neither,) = client.parse(KUBE.replace('{muster.io/priority: "7"}', "{}"))
    assert neither.priority_class == ""


def test_more_completions_than_parallelism_are_an_array() -> None:
    """Kubernetes starts each pod as it fits, so no minimum is stated: one index is enough to start."""
    (job,) = client.parse(KUBE.replace("parallelism: 3", "parallelism: 3\n  completions: 9\n  completionMode: Indexed"))
    assert (job.array.size, job.array.max_parallel, job.tasks[0].replicas) == (9, 3, 9)
    assert not job.tasks[0].HasField("min_replicas")
    assert job.completion == job_pb2.COMPLETION_EVERY_INDEX


def test_an_array_says_how_many_replicas_there_are() -> None:
    (job,) = client.parse("name: sweep\nqueue: q\narray: {size: 40, max_parallel: 8}\ntasks: [{name: main}]\n")
    assert (job.array.size, job.array.max_parallel, job.tasks[0].replicas) == (40, 8, 40)


def test_what_a_batch_job_asks_beyond_that_goes_to_the_reserved_fields() -> None:
    text = KUBE.replace("parallelism: 3", "parallelism: 3\n  ttlSecondsAfterFinished: 5")
    text = text.replace("backoffLimit: 0", "backoffLimit: 4").replace("suspend: false", "suspend: true")
    (job,) = client.parse(text)
    assert (job.max_retries, job.suspend, job.ttl_after_finished.seconds) == (4, True, 5)


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("parallelism", "paralelism"), 10, 'did you mean "parallelism"'),
        (("backoffLimit: 0", "podFailurePolicy: {}"), 12, '"podFailurePolicy"'),
        (("  name: pi\n", ""), 4, "metadata needs a name"),
        (('"7"', "high"), 7, "whole number"),
    ],
)
def test_mistakes_in_a_batch_job(change: tuple[str, str], line: int, words: str) -> None:
    with pytest.raises(client.JobFileError) as caught:
        client.parse(KUBE.replace(*change))
    assert caught.value.line == line
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("90s", 90_000), ("1h30m", 5_400_000), ("250ms", 250), ("2d", 172_800_000)]
)
def test_durations(text: str, milliseconds: int) -> None:
    from muster.client.durations import format_duration, parse_duration_ms

    assert parse_duration_ms(text) == milliseconds
    assert parse_duration_ms(format_duration(milliseconds)) == milliseconds


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_a_job_that_admission_takes(path: Path) -> None:
    for index, spec in enumerate(client.load_all(path)):
        assert protovalidate.collect_violations(spec) == []
        check_spec(JobReader().to_core(spec, index, Origin("main", "r1", "ann")))
