"""What has no place for the rest of a pass is set aside, and nothing else is (rules F6, G4, P5)."""

from __future__ import annotations

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.model import JobState
from muster.core.preemption import plan_preemption

QUEUES = [f"q{n:02}" for n in range(20)]


def waiting_everywhere(world, **more):
    """One job of a core in each of twenty queues, one after the other."""
    for queue in QUEUES:
        world.queue(queue)
    for queue in QUEUES:
        world.cell.now_ms += 1
        world.submit(f"{queue}-one", queue=queue, **more)


def test_in_a_full_cell_those_start_for_whom_something_becomes_free_in_their_order(world):
    world.nodes(1, cpu=2000)
    world.submit("a")
    world.submit("b")
    waiting_everywhere(world)
    done = world.cell.send(c.PodsObserved("sim-a", tuple(c.PodFact(world.id(name), 1, 0, 3) for name in ("a", "b"))))
    assert [t.job for t in done if isinstance(t, tr.JobPlaced)] == [world.id("q00-one"), world.id("q01-one")]


def test_a_job_that_needs_less_starts_behind_many_that_have_no_place(world):
    world.nodes(1, cpu=2000)
    world.submit("a", cpu=1500)
    waiting_everywhere(world, cpu=1000)
    world.submit("small", cpu=500)
    assert world.job("small").state is JobState.PLACED
    assert all(world.job(f"{queue}-one").state is JobState.QUEUED for queue in QUEUES)


def test_a_job_with_a_hold_starts_although_its_equals_have_no_place(world):
    world.nodes(1, cpu=1000)
    world.queue("research", preemption="ANY")
    world.submit("victim")
    waiting_everywhere(world, preemptible=True)
    world.submit("holder", priority=5)
    ask = world.state.asks[world.id("holder")]
    found = plan_preemption(world.state, world.id("holder"))
    world.cell.send(c.PreemptionPlanned(world.id("holder"), ask.request, found.victims, found.placement))
    assert world.id("holder") in world.state.holds
    world.pods("victim", 5)
    assert world.job("holder").state is JobState.PLACED
