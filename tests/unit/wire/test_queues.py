"""Queues on the wire: what is set comes back, and a mask changes what it names."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.api.v1 import queue_pb2
from muster.core.errors import Rejected
from muster.core.history import History
from muster.core.model import Allowance, QueueSpec
from muster.core.queue_changes import Difference
from muster.core.queues import Queue
from muster.core.standing import Standing
from muster.wire import forecasts
from muster.wire import queues as wire

WEEK_MS = 7 * 24 * 3600 * 1000
SPEC = QueueSpec(
    id="",
    name="research",
    parent="",
    weight=3,
    ordering="FAIR",
    fair_by="USER",
    guaranteed=(("cpu", 2000),),
    limit=(("cpu", 0),),
    per_user=Allowance(running_jobs=2),
    min_runtime_ms=1500,
    half_life_ms=WEEK_MS,
)
NOTHING = Standing((), (), (), (), (), 0, 0)


def test_what_is_set_comes_back():
    assert wire.to_core(wire.spec_to_proto("research", SPEC)) == SPEC


@pytest.mark.parametrize("field", ["guaranteed", "limit", "lending_limit"])
def test_a_share_of_a_device_is_a_part_of_it_and_comes_back(field):
    spec = wire.to_core(queue_pb2.Queue(path="a", **{field: {"muster.io/gpu-milli": "500"}}))
    assert getattr(spec, field) == (("nvidia.com/gpu", 500),)
    assert dict(getattr(wire.spec_to_proto("a", spec), field)) == {"nvidia.com/gpu": "0.5"}
    assert wire.to_core(wire.spec_to_proto("a", spec)) == spec


def test_so_it_is_in_allowances():
    allowance = queue_pb2.Allowance(resources={"muster.io/gpu-milli": "1500"})
    spec = wire.to_core(queue_pb2.Queue(path="a", per_user=allowance, per_namespace=allowance))
    assert spec.per_user.resources == spec.per_namespace.resources == (("nvidia.com/gpu", 1500),)
    both = queue_pb2.Allowance(resources={"muster.io/gpu-milli": "1500", "nvidia.com/gpu": "2"})
    with pytest.raises(Rejected) as refused:
        wire.to_core(queue_pb2.Queue(path="a", per_user=both))
    assert refused.value.field.startswith("per_user.resources.")
    assert refused.value.rule == "Q1"


def test_a_mask_changes_what_it_names():
    message = queue_pb2.Queue(path="research")
    message.half_life.FromMilliseconds(0)
    assert wire.changed(SPEC, message, ["half_life"]) == replace(SPEC, half_life_ms=0)


def test_shares_say_what_is_left_of_the_past():
    queue = Queue(SPEC)
    queue.usage = {"cpu": 1000}
    assert not any(share.decayed for share in wire.shares_to_proto(queue, NOTHING, WEEK_MS).resources)
    queue.history = History.beginning(WEEK_MS, {"cpu": 3000}, WEEK_MS)
    shares = wire.shares_to_proto(queue, NOTHING, 2 * WEEK_MS)
    (cpu,) = [share for share in shares.resources if share.resource == "cpu"]
    assert (cpu.usage, cpu.decayed) == ("1", "2")  # half of 3 is left, and half of 1 has come


def test_changed_durations_are_told_as_queue_files_take_them():
    change = Difference("research", "changed", (("half_life_ms", 0, WEEK_MS), ("min_runtime_ms", 1500, 2000)))
    (told,) = forecasts.changes_to_proto([change])
    assert [(field.field, field.before, field.after) for field in told.fields] == [
        ("half_life", "none", "7d"),
        ("min_runtime", "1500ms", "2s"),
    ]


def told(name, before, after):
    ((field,),) = [
        change.fields for change in forecasts.changes_to_proto([Difference("a", "changed", ((name, before, after),))])
    ]
    return field.before, field.after


def test_what_was_not_set_is_not_told_as_nothing():
    assert told("preemption_backoff_ms", 0, 600_000) == ("inherited (at the root 60s)", "10m")
    assert told("preemption_backoff_max_ms", 5_400_000, 0) == ("90m", "inherited (at the root 1h)")
    assert told("min_runtime_ms", 0, 90_000) == ("none", "90s")


def test_what_differs_does_not_read_the_same():
    gib = 1 << 30
    assert told("limit", (("memory", gib),), (("memory", 2 * gib),)) == ("1Gi memory", "2Gi memory")
    assert told("limit", (("memory", 1_500_000_000),), (("memory", 1_510_000_000),)) == ("1500M memory", "1510M memory")
    assert told("limit", (("memory", 3 * gib // 2),), (("memory", 2 * gib - 1024),)) == (
        "1.5Gi memory",
        "2097151Ki memory",
    )
    assert told("limit", (("memory", gib),), (("memory", gib + 1),)) == ("1Gi memory", f"{gib + 1} memory")
    allowance = Allowance(running_jobs=2, resources=(("memory", gib),))
    changed = replace(allowance, resources=(("memory", gib + 1024),))
    assert told("per_user", allowance, changed) == (
        "running_jobs 2, 1Gi memory",
        "running_jobs 2, 1048577Ki memory",
    )
