"""One queue for people, and the fields that options give."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from muster.api.v1 import queue_pb2
from muster.cli import queue_options, queues, trees, whatif
from muster.cli.errors import CliError, Exit
from muster.client import Queue

QUEUE = """
path: "research" id: "q1" revision: 2 ordering: QUEUE_ORDERING_FAIR preemption: QUEUE_PREEMPTION_ANY
"""
SHARES = """
path: "research"
resources { resource: "cpu" usage: "1" entitled: "4" }
resources { resource: "pods" usage: "1" }
"""


def lines(queue=QUEUE, shares=SHARES):
    found = text_format.Parse(queue, queue_pb2.Queue()), text_format.Parse(shares, queue_pb2.QueueShares())
    return queues.portrait(Queue(found[0]), found[1])


def test_a_queue_without_a_past_shows_none():
    told = "\n".join(lines())
    assert "half-life" not in told
    assert "DECAYED" not in told
    assert "pods" not in told


def test_a_queue_with_a_half_life_shows_what_is_left():
    shares = SHARES.replace('usage: "1" entitled', 'usage: "1" decayed: "2500m" entitled')
    told = lines(QUEUE + "half_life { seconds: 604800 }", shares)
    assert told[1].endswith("half-life 7 d")
    assert told[-2].split()[-1] == "DECAYED"
    assert told[-1].split()[-1] == "2.5"


def test_a_question_about_a_queue_changes_what_is_given_and_nothing_else():
    current = queue_pb2.Queue(path="research", weight=2, priority=1, limit={"cpu": "8", "nvidia.com/gpu": "4"})
    wanted = whatif.changed(current, {"weight": 0, "limit": {"nvidia.com/gpu": "none", "memory": "1Gi"}})
    assert wanted == queue_pb2.Queue(path="research", weight=0, priority=1, limit={"cpu": "8", "memory": "1Gi"})
    assert current.weight == 2


RECLAIMABLE = """
reclaimable { %s usage { key: "nvidia.com/gpu" value: "12" } queue: "team/el" }
"""


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ('jobs: 1 job_ids: "0123456789"', "1 running job of team/el (01234567)"),
        ('shrunk_jobs: 1 replicas: 12 shrunk_job_ids: "aa"', "12 replicas of 1 elastic job of team/el (aa)"),
        (
            'jobs: 7 job_ids: "aa" job_ids: "bb" shrunk_jobs: 2 replicas: 1 shrunk_job_ids: "cc"',
            "7 running jobs of team/el (aa, bb, ...) and 1 replica of 2 elastic jobs (cc, ...)",
        ),
    ],
)
def test_who_becomes_reclaimable(found, told):
    forecast = text_format.Parse(RECLAIMABLE % found, queue_pb2.TreeForecast())
    assert trees.forecast(forecast) == [f"reclaimable  {told} with 12 gpu"]


def test_every_field_has_an_option_of_its_name():
    assert list(queue_options.FIELDS) == list(queues.Fields.__dataclass_fields__)
    assert set(queue_options.FIELDS) < set(queue_pb2.Queue.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize(("field", "value"), [("half_life", "0s"), ("weight", 0), ("fair_by", "USER")])
def test_what_is_given_is_sent_even_if_it_is_nothing(field, value):
    assert queues.Fields(**{field: value}).given() == {field: value}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"min_runtime": "-5m"}, "--min-runtime: '-5m' is not a duration"),
        ({"min_runtime": "5"}, "--min-runtime: '5' is not a duration"),
        ({"half_life": "xx"}, "--half-life: 'xx' is not a duration"),
        ({"half_life": "99999999999d"}, "--half-life: '99999999999d' is longer than"),
        ({"state": "OPNE"}, "--state: must be one of OPEN, CLOSED"),
        ({"weight": 1 << 40}, "--weight: 1099511627776 is not between 0 and 1000000"),
        ({"per_user": ["running_jobs=-3"]}, '--per-user: running_jobs "-3" is not a number of jobs'),
        ({"per_namespace": ["pending_jobs=99999999999"]}, "--per-namespace: "),
        ({"limit": ["gpu"]}, '--limit "gpu" is not key=value'),
        (
            {"per_user": ["runing_jobs=3"]},
            '--per-user: "runing_jobs" is not the name of a resource (did you mean "running',
        ),
        ({"per_namespace": ["foo=3"]}, '--per-namespace: "foo" is not the name of a resource (known: cpu, memory'),
        ({"limit": ["running_jobs=3"]}, '--limit: "running_jobs" is not the name of a resource (known: '),
        ({"limit": ["gpu=3,gpu=5"]}, '--limit names "gpu" twice'),
        ({"limit": ["cpu=3", "cpu=5"]}, '--limit names "cpu" twice'),
        ({"guaranteed": ["gpu=1,nvidia.com/gpu=2"]}, '--guaranteed names "nvidia.com/gpu" twice'),
        ({"limit": ["gpu=1,muster.io/gpu-milli=500"]}, '--limit names "nvidia.com/gpu" twice'),
        ({"per_user": ["running_jobs=1,running_jobs=2"]}, '--per-user names "running_jobs" twice'),
    ],
)
def test_a_wrong_option_is_named(fields, said):
    with pytest.raises(CliError) as caught:
        queues.Fields(**fields).given()
    assert caught.value.message.startswith(said)
    assert caught.value.code == Exit.USAGE


def test_of_what_each_user_may_have_the_parts_that_are_given_change():
    current = queue_pb2.Queue(
        path="a", per_user=queue_pb2.Allowance(pending_jobs=5, running_jobs=2, resources={"cpu": "8"})
    )
    given = queues.Fields(per_user=["running_jobs=3,gpu=4", "cpu=none"]).given()
    after = queues.settled(current, given)["per_user"]
    assert after == {"pending_jobs": 5, "running_jobs": 3, "resources": {"nvidia.com/gpu": "4"}}
    wanted = whatif.changed(current, given)
    assert wanted.per_user == queue_pb2.Allowance(pending_jobs=5, running_jobs=3, resources={"nvidia.com/gpu": "4"})


def test_a_share_takes_the_place_of_whole_devices():
    current = queue_pb2.Queue(path="a", limit={"nvidia.com/gpu": "2", "cpu": "8"})
    assert whatif.changed(current, queues.Fields(limit=["muster.io/gpu-milli=1500"]).given()).limit == {
        "nvidia.com/gpu": "1500m",
        "cpu": "8",
    }
    assert whatif.changed(current, queues.Fields(limit=["muster.io/gpu-milli=none"]).given()).limit == {"cpu": "8"}


def test_a_name_that_is_no_resource_can_be_taken_away():
    current = queue_pb2.Queue(path="a", limit={"foo": "2", "cpu": "8"})
    assert whatif.changed(current, queues.Fields(limit=["foo=none"]).given()).limit == {"cpu": "8"}
