"""P5: what is held for a job is filled by what leaves for it, and by nothing else."""

from __future__ import annotations

from muster.core import commands as c
from muster.core.jobs import RUNNING_STATES
from muster.core.model import JobState


def test_replicas_that_leave_for_one_job_make_no_room_for_another(world, around):
    """Shrunk for one, then preempted whole for another: each hold is filled by its own part (rule P5)."""
    world.nodes(1, cpu=7500)
    world.submit("elastic", replicas=7, least=2)
    around.calm()
    world.submit("first", cpu=5000, priority=5)
    around.answer()
    world.submit("second", cpu=2500, priority=6)
    around.answer()
    assert (around.shrunk, around.evicted) == ([(world.id("elastic"), 5)], [world.id("elastic")])
    world.submit("thief", cpu=500, priority=9)
    assert world.job("thief").state is JobState.QUEUED
    around.obey()
    assert world.job("first").state in RUNNING_STATES
    assert world.job("second").state in RUNNING_STATES


def test_replicas_that_leave_a_second_time_make_no_room_for_who_they_left_for_first(world, around):
    """They left for `first`, which waits for somebody else too; they grew again elsewhere and leave for `second`."""

    def nodes(*cores):
        specs = tuple(world.node(f"node-{n}", cpu=cpu) for n, cpu in enumerate(cores))
        world.cell.send(c.NodesReported("sim-a", specs, first=True, complete=True))

    nodes(6000)
    world.queue("research", limit=(("cpu", 8000),))
    world.submit("elastic", replicas=4, least=2)
    world.cell.now_ms += 1
    world.submit("slow", cpu=2000)
    world.submit("first", cpu=4000, priority=5)
    around.answer()
    assert (around.shrunk, around.evicted) == ([(world.id("elastic"), 2)], [world.id("slow")])
    left = world.job("elastic").leaving
    world.pods("elastic", 5, *left)
    nodes(6000, 2000)
    assert all(world.job("elastic").attempt_of(position) == 1 for position in left)
    world.submit("second", cpu=2000, priority=6)
    around.answer()
    assert world.job("elastic").leaving == left
    nodes(6000, 2000, 500)
    world.submit("thief", cpu=500, priority=9)
    assert world.job("thief").state is JobState.QUEUED  # 2 of 8 are used by elastic, 4 and 2 are held
    around.obey()
    assert world.job("first").state in RUNNING_STATES
    assert world.job("second").state in RUNNING_STATES
