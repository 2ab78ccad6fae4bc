"""The state as parts, and back: LOG-6."""

from __future__ import annotations

import pytest

from muster.core import commands as c
from muster.core import snapshot
from muster.core.model import JobState, Zone
from muster.core.preemption import plan_preemption
from muster.core.snapshot import IncompleteSnapshot, dump, load
from muster.wire import codec


@pytest.fixture
def busy(world):
    """A state with something of everything."""
    world.nodes(2, gpus=2)
    world.cell.send(c.NodesReported("sim-a", removed=("node-1",)))
    world.cell.send(c.NodeTopologyReported("sim-a", "node-0", (Zone(0, devices=(0, 1)),)))
    world.cell.send(c.NodesReported("sim-b", (world.node("b", cluster="sim-b"),), first=True))  # an open list
    world.cell.send(c.EntitlementsComputed(1, (c.Entitlement("q1", (("cpu", 5),)),)))
    world.queue("research/vision")
    world.queue("research/vision", to="images")
    for n in range(3):
        world.submit(f"low-{n}", queue="images", cpu=1000, replicas=2, max_runtime_ms=10**7)
    world.pods("low-0", 2, 0)
    world.pods("low-0", 3, 1)
    world.submit("gpu", queue="images", requests=(("nvidia.com/gpu", 460),))
    world.submit("high", queue="images", cpu=3000, priority=5)
    plan = plan_preemption(world.state, world.id("high"))
    world.cell.send(c.PreemptionPlanned(world.id("high"), world.state.requests, plan.victims, plan.placement))
    world.submit("more", queue="images", cpu=3500, priority=6)
    world.submit("gone", queue="images", cpu=10)
    world.cell.send(c.CancelJob(world.id("gone")))
    world.pods("gone", 5)
    world.cell.wait(3600 * 1000)
    assert world.state.holds or world.state.asks
    assert world.state.forgotten
    return world


def through_bytes(state):
    return load(codec.decode_snapshot_part(codec.encode_snapshot_part(part)) for part in dump(state))


def encoded(state):
    return [codec.encode_snapshot_part(part) for part in dump(state)]


def test_what_is_loaded_is_what_was_dumped(busy):
    loaded = through_bytes(busy.state)
    assert encoded(loaded) == encoded(busy.state)
    table, other = busy.state.nodes, loaded.nodes
    assert [table.free_amounts(n) for n in range(len(table))] == [other.free_amounts(n) for n in range(len(other))]
    assert [q.usage for q in busy.state.queues.subtree()] == [q.usage for q in loaded.queues.subtree()]


def test_both_go_on_alike(busy):
    twin = through_bytes(busy.state)
    original = busy.cell.state
    log_length, now_ms = len(busy.cell.log), original.now_ms

    def go_on(state):
        busy.cell.state = state
        busy.cell.now_ms = now_ms
        del busy.cell.log[log_length:]
        busy.cell.start_term()
        busy.cell.write(c.SubmitJob(busy.spec("later", queue="images", cpu=100)))
        busy.cell.settle()
        busy.nodes(3, gpus=1)
        busy.cell.wait(10**7)
        return busy.cell.log[log_length:]

    inbox_length = len(busy.cell.inbox)
    first = go_on(twin)
    del busy.cell.inbox[inbox_length:]
    assert go_on(original) == first
    assert len(first) > 5


def test_parts_are_bounded(world, monkeypatch):
    monkeypatch.setattr(snapshot, "JOBS_PER_PART", 10)
    for n in range(25):
        world.submit(f"job-{n}")
    sizes = [len(part.jobs) for part in dump(world.state) if isinstance(part, snapshot.JobsPart)]
    assert sizes == [10, 10, 5]
    assert all(job.state is JobState.QUEUED for job in through_bytes(world.state).jobs.values())


def test_missing_parts_are_noticed(busy):
    parts = list(dump(busy.state))
    for missing in range(len(parts)):
        with pytest.raises(IncompleteSnapshot):
            load(parts[:missing] + parts[missing + 1 :])
    with pytest.raises(IncompleteSnapshot):
        load([])
