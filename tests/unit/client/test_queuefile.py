"""Queue files: read, written, and mistakes named by line."""

from __future__ import annotations

import pytest

from muster.api.v1 import queue_pb2
from muster.client import JobFileError, queuefile

TEXT = """
queues:
  research:
    weight: 2
    guaranteed: {gpu: 64, cpu: 500}
    per_namespace: {running_jobs: 3, resources: {gpu: 8}}
    min_runtime: 10m
    half_life: 7d1h1s
    queues:
      vision: {ordering: fair, fair_by: USER, labels: {team: a}}
      nlp:
  batch/night:
    weight: 0
    state: CLOSED
moves:
  - {path: team-a, new_path: research/team-a}
"""


def test_a_tree_becomes_queues_parents_first():
    request = queuefile.parse(TEXT)
    assert [q.path for q in request.queues] == ["research", "research/vision", "research/nlp", "batch/night"]
    research, vision, nlp, night = request.queues
    assert dict(research.guaranteed) == {"nvidia.com/gpu": "64", "cpu": "500"}
    assert dict(research.per_namespace.resources) == {"nvidia.com/gpu": "8"}
    assert research.per_namespace.running_jobs == 3
    assert not research.per_namespace.HasField("pending_jobs")
    assert research.min_runtime.ToSeconds() == 600
    assert research.half_life.ToSeconds() == 7 * 86_400 + 3601
    assert (vision.ordering, vision.fair_by) == (queue_pb2.QUEUE_ORDERING_FAIR, queue_pb2.QUEUE_FAIR_BY_USER)
    assert nlp == queue_pb2.Queue(path="research/nlp")
    assert night.HasField("weight")
    assert night.weight == 0
    assert [(move.path, move.new_path) for move in request.moves] == [("team-a", "research/team-a")]


def test_the_revision_of_the_tree_is_read_and_written():
    request = queuefile.parse(TEXT + "revision: 812\n")
    assert request.expected_revision == 812
    assert queuefile.parse(queuefile.dump(request.queues, 812)).expected_revision == 812
    assert not queuefile.parse(queuefile.dump(request.queues)).HasField("expected_revision")


def test_what_is_written_reads_back():
    request = queuefile.parse(TEXT)
    again = queuefile.parse(queuefile.dump(request.queues))
    assert list(again.queues) == list(request.queues)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("queues:\n  a: {wieght: 2}", ':2: unknown key "wieght" in a (did you mean "weight"?)'),
        ("queue: {}", ':1: unknown key "queue" in the file (did you mean "queues"?)'),
        ("queues:\n  a: 3", ":2: a must be a mapping"),
        ("queues:\n  a: {}\n  a: {}", 'key "a" of queues is there twice'),
        ("queues:\n  a: {state: OPNE}", ":2: a.state must be one of OPEN"),
        ("queues:\n  a: {weight: -1}", ":2: a.weight is out of range: -1 is not between 0 and 1000000"),
        ("queues:\n  a:\n    per_user: {running_jobs: -3}", ":3: a.per_user.running_jobs is out of range: -3"),
        ("queues:\n  a: {half_life: 9999999999999d}", ":2: a.half_life: '9999999999999d' is longer than"),
        ("queues:\n  a: {limit: {gpu: 3, nvidia.com/gpu: 4}}", ':2: "nvidia.com/gpu" of a.limit is there twice'),
        ("queues:\n  a:\n    limit:\n      gpu: 3\n      muster.io/gpu-milli: 4", ":5: "),
        (
            "queues:\n  a: {per_user: {resources: {mem: 1, memory: 2}}}",
            '"memory" of a.per_user.resources is there twice',
        ),
        ('queues:\n  a:\n    limit: {"foo bar": 3}', ':3: a.limit: "foo bar" is not the name of a resource'),
        ('queues:\n  a: {guaranteed: {"": 3}}', ':2: a.guaranteed: "" is not the name of a resource'),
        (
            "queues:\n  a: {lending_limit: {memori: 3}}",
            '"memori" is not the name of a resource (did you mean "memory"?)',
        ),
        ("queues:\n  a: {per_user: {resources: {cpuu: 3}}}", 'a.per_user.resources: "cpuu" is not the name'),
        ("revision: -1\nqueues:\n  a: {}", ":1: revision is out of range"),
        ("revision: 1\n---\nqueues:\n  a: {}\nrevision: 2", ':5: key "revision" of the file is there twice'),
        (f"queues:\n  a: {{weight: {10**18}}}", "1000000000000000000 is not between 0 and 1000000"),
        ("moves: {a: b}", ":1: moves must be a list, each item a mapping with path, new_path"),
        ("moves: []", "names no queues"),
        ("- a", "a queue file is a mapping"),
    ],
)
def test_a_mistake_names_its_line(text, says):
    with pytest.raises(JobFileError) as caught:
        queuefile.parse(text, source="tree.yaml")
    assert says in str(caught.value)


def test_what_the_server_says_of_the_request_becomes_a_place_in_the_file():
    tree = queuefile.read(TEXT, source="tree.yaml")
    for said, told in (
        ("queues[0].limit", "tree.yaml:3: research.limit"),
        ("queues[0].guaranteed.cpu: is odd", "tree.yaml:5: research.guaranteed.cpu: is odd"),
        (
            "queues[0].per_namespace.resources.nvidia.com/gpu: no",
            "tree.yaml:6: research.per_namespace.resources.nvidia.com/gpu: no",
        ),
        ("queues.queues[1].fair_by", "tree.yaml:10: research/vision.fair_by"),
        ("queues[2].path: is not a name", 'tree.yaml:11: queue "research/nlp": is not a name'),
        (
            "queues[3].weight: 5 (and queues[2].path)",
            'tree.yaml:13: batch/night.weight: 5 (and tree.yaml:11: queue "research/nlp")',
        ),
        ("moves[0].new_path", "tree.yaml:16: moves[0].new_path"),
        ("queues: too many", "queues: too many"),
        ("queues[9].weight", "queues[9].weight"),
    ):
        assert tree.placed(said) == told
