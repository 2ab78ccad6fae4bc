"""Suspects of jobs that grow, and in plans of preemption (rules L3, G1, P6)."""

from __future__ import annotations

import pytest
from tests.unit.core.preempting import GONE, RUNNING
from tests.unit.core.refusing import SUCCEEDED, add, nodes_of, often_refused, refuse

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.decide import next_wake_ms
from muster.core.explain import explain
from muster.core.limits import RETRY_FIRST_MS
from muster.core.model import GroupPlacement
from muster.core.preemption import NO_VICTIMS, ROOM_COMES, Planner

# --- growth ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def growing(world):
    """Two replicas run on good nodes, a third one was refused on the third node again and again."""
    world.nodes(3, cpu=1000)
    world.submit("e", replicas=3, least=2)
    world.pods("e", RUNNING, 0, 1)
    for _ in range(5):
        refuse(world, "e", 2)
        world.cell.wait(world.job("e").suspects_until_ms - world.cell.now_ms)
    refuse(world, "e", 2)
    world.cell.wait(RETRY_FIRST_MS)
    return world


def test_it_grows_on_another_node_at_once(growing):
    job = growing.job("e")
    assert (job.unplaced, job.suspects, job.suspects_until_ms - growing.cell.now_ms) == (1, (2,), 31_000)
    add(growing, "fourth", cpu=1000)
    assert nodes_of(growing, "e") == [0, 1, 3]


def test_it_grows_on_its_suspect_when_the_pause_is_over(growing):
    told = explain(growing.state, growing.id("e")).summary
    assert told.endswith("; wants 1 more replica: there is room for one more only where some failed to start: "
                         "tried there again in 31 s")  # fmt: skip
    assert not [t for t in growing.cell.wait(30_999) if isinstance(t, tr.JobGrown)]
    assert [t.job for t in growing.cell.wait(1) if isinstance(t, tr.JobGrown)] == [growing.id("e")]
    assert nodes_of(growing, "e") == [0, 1, 2]


def test_a_later_epoch_grows_on_its_suspect_when_the_pause_is_over(growing):
    """The gang goes down and comes back while the node is still closed to it."""
    until_ms = growing.job("e").suspects_until_ms
    growing.pods("e", GONE, 0, 1)
    done = growing.cell.wait(until_ms - growing.cell.now_ms)
    assert [type(t) for t in done if isinstance(t, tr.JobPlaced | tr.JobGrown)] == [tr.JobPlaced, tr.JobGrown]
    assert growing.state.now_ms == until_ms


def test_nobody_wakes_for_a_job_that_waits_longer_for_another_reason(growing, around):
    growing.queue("research", preemption="LOWER_PRIORITY")
    add(growing, "aside", cpu=500)
    growing.submit("short", cpu=500, max_runtime_ms=10_000)  # its timer is ahead of the other
    growing.submit("high", replicas=3, priority=5)
    around.calm()
    job = growing.job("e")
    assert around.evicted == [job.id]
    assert job.suspects_until_ms < job.not_before_ms
    growing.cell.wait(10_000)
    growing.pods("short", GONE)
    assert next_wake_ms(growing.state) == job.not_before_ms


def test_a_position_that_failed_less_often_does_not_shorten_the_pause(world):
    world.nodes(3, cpu=2000)
    world.submit("e", replicas=4, least=2)
    world.pods("e", RUNNING, 0, 1)
    world.submit("filler", cpu=2000)
    for _ in range(4):
        refuse(world, "e", 3)
        world.cell.wait(world.job("e").suspects_until_ms - world.cell.now_ms)
    refuse(world, "e", 3)
    until_ms = world.job("e").suspects_until_ms
    refuse(world, "e", 2)
    assert world.job("e").suspects_until_ms == until_ms == world.cell.now_ms + 16_000


def test_who_keeps_off_a_node_does_not_close_it_to_others_that_grow(world):
    """In one pass that looks at both, the one that keeps off first."""
    add(world, "both", cpu=2000)
    add(world, "aside", cpu=500)
    for name, amount in (("filler", 1000), ("small", 500)):
        world.submit(name, cpu=amount)
    world.submit("e", replicas=2, least=1)
    assert [nodes_of(world, name) for name in ("filler", "small", "e")] == [[0], [1], [0]]
    world.pods("e", RUNNING, 0)
    add(world, "bad", cpu=1000)
    for _ in range(7):
        refuse(world, "e", 1)
        world.cell.wait(world.job("e").suspects_until_ms - world.cell.now_ms)
    refuse(world, "e", 1)
    add(world, "bad", cpu=1000, cordoned=True)
    ended = tuple(c.PodFact(world.id(name), 1, 0, SUCCEEDED) for name in ("filler", "small"))
    world.cell.send(c.PodsObserved("sim-a", ended[:1]), c.SubmitJob(world.spec("f", replicas=2, least=1)))
    world.pods("f", RUNNING, 0)
    world.cell.wait(RETRY_FIRST_MS)
    add(world, "bad", cpu=1000)
    refuse(world, "f", 1)
    world.cell.now_ms = world.job("f").suspects_until_ms
    done = world.cell.send(c.PodsObserved("sim-a", ended[1:]))
    assert world.job("e").suspects == world.job("f").suspects == (2,)
    assert world.job("e").suspects_until_ms > world.state.now_ms > world.job("e").grow_after_ms
    assert [t.job for t in done if isinstance(t, tr.JobGrown)] == [world.id("f")]


# --- preemption -----------------------------------------------------------------------------------------------------


def test_a_plan_makes_room_on_other_nodes_only(world, around):
    world.nodes(1)
    world.submit("low-0", cpu=4000)
    add(world, "other")
    world.submit("low-1", cpu=4000)
    world.pods("low-0", SUCCEEDED)
    world.queue("research", preemption="NEVER")
    world.submit("high", cpu=4000, priority=5)
    assert nodes_of(world, "high") == [0]
    often_refused(world, "high")
    world.submit("low-2", cpu=4000)
    assert nodes_of(world, "low-2") == [0]
    world.queue("research", preemption="LOWER_PRIORITY")
    ask = world.state.asks[world.id("high")]
    on_suspect = (GroupPlacement(0, ((0, 1),)),)
    done = world.cell.send(c.PreemptionPlanned(world.id("high"), ask.request, ((world.id("low-2"), 1),), on_suspect))
    assert [t.reason for t in done if isinstance(t, tr.PreemptionAnswered)] == [
        "the job does not go now where it failed to start"
    ]
    around.wait(3000)
    assert around.evicted == [world.id("low-1")]
    assert nodes_of(world, "high") == [1]


def test_room_on_a_node_that_is_closed_to_it_is_no_reason_to_plan_nothing(world):
    world.nodes(1)
    world.queue("research", preemption="LOWER_PRIORITY")
    world.submit("high", cpu=4000, priority=5)
    often_refused(world, "high")
    assert Planner(world.state).plan(world.id("high")).reason == NO_VICTIMS
    world.state.now_ms = world.job("high").suspects_until_ms
    assert Planner(world.state).plan(world.id("high")).reason == ROOM_COMES


def test_when_one_of_two_may_go_to_its_suspect_again_both_are_looked_at(world, around):
    """In the pass at that very moment, in which it has no place either: plans are asked for both."""
    world.nodes(1)
    for name, times, priority in (("other", 7, 5), ("first", 5, 6)):
        world.submit(name, cpu=4000, priority=priority)
        often_refused(world, name, times)
    add(world, "small", cpu=500)
    for name, amount in (("filler", 4000), ("low", 400), ("ends", 100)):
        world.submit(name, cpu=amount, priority=0 if name == "low" else 9)
    world.queue("research", preemption="LOWER_PRIORITY")
    around.calm()
    assert [len(found) for found in world.state.pending.classes.values()] == [2]
    world.cell.wait(world.job("first").suspects_until_ms - world.cell.now_ms - 1)
    assert all(ask.answered for ask in world.state.asks.values())
    world.cell.now_ms += 1
    world.cell.write(c.PodsObserved("sim-a", (c.PodFact(world.id("ends"), 1, 0, SUCCEEDED),)))
    asked = [t.job for t in world.cell.step() if isinstance(t, tr.PreemptionRequested)]
    assert asked == [world.id("first"), world.id("other")]


def test_a_plan_is_asked_for_again_at_the_time_when_its_suspects_are_open_again(world, around):
    """Both times are the same: whoever looks for the job finds it in the class that it has then."""
    world.nodes(1)
    world.queue("research", preemption="LOWER_PRIORITY")
    world.submit("high", cpu=4000, priority=5)
    often_refused(world, "high", times=4)
    until_ms = world.job("high").suspects_until_ms
    world.submit("low", cpu=4000)
    ask = world.state.asks[world.id("high")]
    again_ms = until_ms - world.cell.now_ms
    world.cell.by_hand(tr.PreemptionAnswered(world.id("high"), ask.request, "none", again_ms - 1, True))
    world.cell.now_ms = until_ms  # both at once
    around.calm()
    assert around.requests == 1
    assert world.job("high").suspects_until_ms == world.state.now_ms
