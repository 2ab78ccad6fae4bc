"""Requests for preemption plans are repeated when entitlements have changed (rule P2a), whoever's they were."""

from __future__ import annotations

import pytest
from tests.unit.core.preempting import cpu

from muster.core import commands as c
from muster.core.explain import explain
from muster.core.jobs import RUNNING_STATES


def many(world, prefix, count, queue, **more):
    world.cell.send(*[c.SubmitJob(world.spec(f"{prefix}-{n}", queue=queue, **more)) for n in range(count)])


def test_a_request_that_came_before_the_entitlements_is_repeated_when_they_have_come(world, around):
    """Fair-share is a moment behind: nobody borrowed yet when the first request was answered, and then nothing else
    happened that would have made the leader ask again."""
    world.nodes(1)
    for name in ("theirs", "mine"):
        world.queue(name, guaranteed=cpu(2000), preemption="ANY")
    around.entitle(theirs=cpu(4000))
    many(world, "t", 2, "theirs", cpu=2000)
    around.calm()
    world.submit("mine", cpu=2000, queue="mine")
    around.calm()
    assert around.dropped == ["nobody who may be preempted would make enough room"]
    around.entitle(theirs=cpu(2000), mine=cpu(2000))
    around.wait(1000)
    assert world.job("mine").state in RUNNING_STATES
    assert len(around.evicted) == 1


@pytest.mark.parametrize("pause_ms", [0, 5000])
def test_a_request_is_repeated_when_only_somebody_else_is_entitled_to_less(world, around, pause_ms):
    """What the asking queue is entitled to has not changed, but now there is somebody to take it from."""
    world.nodes(1)
    for name in ("theirs", "mine", "third"):
        world.queue(name, preemption="ANY")
    around.entitle(theirs=cpu(4000), mine=cpu(2000), third=())
    many(world, "t", 2, "theirs", cpu=2000)
    around.calm()
    world.submit("mine", cpu=2000, queue="mine")
    around.calm()
    assert len(around.dropped) == 1
    world.cell.wait(pause_ms)
    around.entitle(theirs=cpu(2000))
    around.wait(1000)
    assert world.job("mine").state in RUNNING_STATES


def test_a_request_is_not_repeated_for_entitlements_that_give_nobody_away(world, around):
    """The queue that is full is entitled to what it has, whatever happens to the others."""
    world.nodes(1)
    for name in ("theirs", "mine", "third"):
        world.queue(name, preemption="ANY")
    around.entitle(theirs=cpu(4000), mine=cpu(2000), third=cpu(3000))
    many(world, "t", 2, "theirs", cpu=2000)
    around.calm()
    world.submit("mine", cpu=2000, queue="mine")
    around.calm()
    world.cell.wait(5000)
    around.entitle(third=cpu(1000))
    around.wait(1000)
    assert world.state.requests == 1


def test_a_job_says_why_its_request_came_to_nothing(world, around):
    world.nodes(1)
    for name in ("theirs", "mine"):
        world.queue(name, preemption="ANY")
    around.entitle(theirs=cpu(4000), mine=cpu(100))
    many(world, "t", 2, "theirs", cpu=2000)
    around.calm()
    world.submit("tiny", cpu=100, queue="mine")
    assert explain(world.state, world.id("tiny")).preemption == "a preemption plan has been asked for"
    around.entitle(theirs=cpu(3900), mine=cpu(100))
    around.wait(5000)
    assert around.evicted == []
    told = explain(world.state, world.id("tiny")).preemption
    assert told == "not preempting: the potential would not rise"
