"""Who starts, or asks for a plan, when entitlements leave less than a job or a plan makes room in them (P1, P4)."""

from __future__ import annotations

from tests.unit.core.preempting import cpu, many

from muster.core import commands as c
from muster.core.model import JobState
from muster.core.preemption import Planner

GPU = "nvidia.com/gpu"


def test_who_may_start_only_within_the_entitlement_starts_when_a_plan_makes_room_in_it(world, around):
    """P4, Q3: committed usage falls with the plan, long before its victims' pods are gone."""
    world.queue("a")
    world.queue("b", preemption="ANY")
    nodes = (world.node("large", cpu=6000), world.node("small", cpu=1000))
    world.cell.send(c.NodesReported("sim-a", nodes, first=True, complete=True))
    around.entitle(a=cpu(3000), b=cpu(4000))
    many(world, "v", 3, "a", cpu=2000)
    around.start()
    world.submit("kept", cpu=1000, queue="a", preemptible=False)
    assert not world.job("kept").charged  # a has more than its entitlement already, although a node is free
    world.submit("mine", cpu=4000, queue="b")
    assert around.answer()
    assert len(around.evicted) == 2
    assert world.job("kept").charged
    assert not world.job("mine").charged


def test_as_many_plans_are_asked_for_as_the_queue_needs_to_reach_its_entitlement(world, around):
    """Ten wait; two and a half cores are missing: three may start, so three are asked for."""
    world.nodes(1, cpu=8000)
    for name in ("a", "b"):
        world.queue(name, preemption="ANY")
    around.entitle(a=cpu(8000), b=())
    many(world, "a", 8, "a")
    many(world, "b", 10, "b")
    around.entitle(a=cpu(5500), b=cpu(2500))
    assert around.requests == 3
    around.calm()
    assert [around.used(q) for q in "ab"] == [6000, 2000]


def test_nobody_leaves_where_every_queue_is_less_than_a_job_above_its_entitlement(world, around):
    """One borrows half a core, the other misses 0.4: a job that moved would bring nobody nearer."""
    world.nodes(1, cpu=8000)
    for name in ("a", "b"):
        world.queue(name, preemption="ANY")
    around.entitle(a=cpu(5500), b=cpu(2400))
    many(world, "a", 6, "a")
    many(world, "b", 4, "b")
    first = min(job.id for job in world.state.jobs.values() if job.state is JobState.QUEUED)
    answer = Planner(world.state).plan(first)
    assert answer.plan is None
    assert answer.reason == "the potential would not rise"
    around.wait(300_000, 3000)
    assert around.evicted == []


def test_planning_changes_nothing(world, around):
    from muster.core import snapshot

    world.nodes(4)
    world.queue("a", preemption="ANY")
    world.queue("b")
    many(world, "b", 16, "b")
    around.entitle(a=cpu(8000), b=cpu(8000))
    many(world, "a", 3, "a", cpu=2000)
    before = list(snapshot.dump(world.state))
    planner = Planner(world.state)
    assert all(planner.plan(world.id(f"a-{n}")).plan for n in range(3))
    assert list(snapshot.dump(world.state)) == before
