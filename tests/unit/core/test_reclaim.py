"""Reclaim, elastic shrink, protection: rules P2 to P5, with the cases of the acceptance list."""

from __future__ import annotations

import pytest
from tests.unit.core.preempting import cpu, many

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.jobs import RUNNING_STATES
from muster.core.model import JobState, TaskGroup
from muster.core.preemption import Planner, plan_preemption

GPU = "nvidia.com/gpu"


def test_exactly_what_was_lent_comes_back(world, around):
    """pr-reclaim-exact: 8 from each borrower, and then silence."""
    world.nodes(16, cpu=4000)
    for name, guaranteed in (("a", 32_000), ("b", 16_000), ("c", 16_000)):
        world.queue(name, guaranteed=cpu(guaranteed), preemption="ANY")
    around.entitle(a=cpu(16_000), b=cpu(24_000), c=cpu(24_000))
    many(world, "a", 16, "a")
    for n in range(24):
        many(world, f"b{n}", 1, "b")
        many(world, f"c{n}", 1, "c")
    around.calm()
    assert [around.used(q) for q in "abc"] == [16_000, 24_000, 24_000]
    around.entitle(a=cpu(32_000), b=cpu(16_000), c=cpu(16_000))
    many(world, "more", 16, "a")
    around.calm()
    evicted = [world.state.jobs[job] for job in around.evicted]
    assert [sum(world.state.queues.path(j.queue) == q for j in evicted) for q in "abc"] == [0, 8, 8]
    assert [around.used(q) for q in "abc"] == [32_000, 16_000, 16_000]
    around.wait(300_000, 3000)
    assert len(around.evicted) == 16
    assert [around.used(q) for q in "abc"] == [32_000, 16_000, 16_000]


def test_who_cannot_be_preempted_is_passed_over(world, around):
    """pr-reclaim-skips-protected."""
    world.nodes(2, cpu=2000)
    for name in ("q3", "q4"):
        world.queue(name, guaranteed=cpu(2000), preemption="ANY")
    around.entitle(q3=cpu(2000), q4=())
    world.submit("p5", cpu=2000, queue="q3", preemptible=False)
    world.submit("p6", cpu=2000, queue="q3")
    around.entitle(q3=cpu(2000), q4=cpu(2000))
    world.submit("mine", cpu=2000, queue="q4")
    around.calm()
    assert around.evicted == [world.id("p6")]
    assert world.job("mine").placement[0].runs == ((1, 1),)


def test_nobody_leaves_for_a_job_above_its_limit(world, around):
    """pr-no-reclaim-above-entitlement."""
    from muster.core.explain import explain

    world.nodes(4, cpu=1000)
    world.queue("small", guaranteed=cpu(1000), limit=cpu(1000), preemption="ANY")
    world.queue("other")
    around.entitle(small=cpu(1000), other=cpu(3000))
    world.submit("first", queue="small")
    many(world, "other", 3, "other")
    world.cell.now_ms += 1
    world.submit("second", queue="small")
    around.wait(60_000)
    assert around.evicted == []
    blocker = explain(world.state, world.id("second")).blockers[0]
    assert (blocker.kind, blocker.missing) == ("queue-limit", 1000)


def test_the_newer_of_two_equals_leaves_and_is_back_before_who_came_later(world, around):
    """pr-mcad-demo."""
    world.cell.send(c.NodesReported("sim-a", (world.node("a", cpu=8000),), first=True, complete=True))
    world.cell.send(c.NodesReported("sim-b", (world.node("b", cpu=8000, cluster="sim-b"),), first=True, complete=True))
    world.cell.send(c.SubmitJob(world.spec("job-1", cpu=6000)))
    world.cell.now_ms += 1
    world.cell.send(c.SubmitJob(world.spec("job-2", cpu=6000)))
    world.cell.now_ms += 1000
    world.submit("job-3", cpu=6000)
    world.cell.now_ms += 1000
    world.submit("job-4", cpu=6000, priority=5)
    around.calm()
    assert around.evicted == [world.id("job-2")]
    assert world.job("job-4").state in RUNNING_STATES
    around.wait(61_000)
    world.pods("job-4", 3)
    assert world.job("job-2").state in RUNNING_STATES
    assert world.job("job-3").state is JobState.QUEUED


def test_elastic_replicas_go_first_and_come_back(world, around):
    """pr-elastic-first."""
    world.nodes(1, gpus=8, cpu=64_000)
    gpu = (("cpu", 1000), (GPU, 1000))
    world.submit("elastic", replicas=10, least=5, requests=gpu)
    around.calm()
    assert around.live(world.job("elastic")) == 8
    world.submit("high", requests=(("cpu", 1000), (GPU, 2000)), priority=5)
    around.calm()
    assert around.evicted == []
    assert around.shrunk == [(world.id("elastic"), 2)]
    assert around.live(world.job("elastic")) == 6
    assert world.job("high").state in RUNNING_STATES
    world.pods("high", 3)
    around.wait(120_000, 5000)
    assert around.live(world.job("elastic")) == 8


def test_shares_by_weight(world, around):
    """pr-queue-weights."""
    world.nodes(6, cpu=1000)
    world.queue("q1", weight=2, preemption="ANY")
    world.queue("q2", preemption="ANY")
    around.entitle(q1=cpu(6000), q2=())
    many(world, "a", 6, "q1")
    assert around.used("q1") == 6000
    around.entitle(q1=cpu(4000), q2=cpu(2000))
    many(world, "b", 4, "q2")
    around.calm()
    around.wait(120_000, 5000)
    assert (around.used("q1"), around.used("q2")) == (4000, 2000)
    assert len(around.evicted) == 2


def test_a_dozen_equal_jobs_get_their_plans_at_once(world, around):
    """Only the first of a class used to ask, and the rest stayed blocked behind its hold."""
    world.nodes(12, cpu=1000)
    many(world, "low", 12, "research")
    many(world, "high", 12, "research", priority=5)
    around.calm()
    assert around.plans == 12
    assert sum(job.spec.priority == 5 for job in around.running()) == 12


def test_a_plan_that_was_overtaken_is_asked_for_again_although_nothing_else_happens(world, around):
    world.nodes(1)
    world.submit("low", cpu=4000)
    world.submit("high", cpu=4000, priority=5)
    high = world.id("high")
    world.cell.send(c.PreemptionPlanned(high, 1, ((world.id("low"), 9),), ()))
    done = world.cell.wait(1000)
    assert [t.request for t in done if isinstance(t, tr.PreemptionRequested)] == [2]
    around.calm()
    assert world.job("high").state in RUNNING_STATES


def test_min_runtime_protects_and_its_end_is_not_missed(world, around):
    """P4: nothing changes when the protection ends, and the request is repeated all the same."""
    world.nodes(1)
    world.queue("research", min_runtime_ms=100_000)
    world.submit("low", cpu=4000)
    world.submit("high", cpu=4000, priority=5)
    around.calm()
    around.wait(99_000)
    assert around.evicted == []
    assert world.state.requests == 1
    around.wait(2000)
    assert around.evicted == [world.id("low")]


def test_who_was_preempted_often_enough_only_yields_to_priority(world, around):
    """P4, and a borrower does not become immune: it may not start above its entitlement any more."""
    world.nodes(1)
    for name in ("lender", "borrower"):
        world.queue(name, preemption="ANY")
    around.entitle(lender=(), borrower=())
    world.submit("often", cpu=4000, queue="borrower")
    for n in range(5):
        around.entitle(lender=cpu(4000))
        world.submit(f"own-{n}", cpu=4000, queue="lender")
        around.calm()
        assert len(around.evicted) == n + 1
        world.pods(f"own-{n}", 3)
        around.entitle(lender=())
        pause_ms = (60_000 << n) + 1000  # rule P5
        around.wait(pause_ms, pause_ms)
        if n < 4:
            world.pods("often", 2)
    assert world.job("often").preemptions == 5
    assert world.job("often").state is JobState.QUEUED
    around.entitle(borrower=cpu(4000))
    around.calm()
    assert world.job("often").state in RUNNING_STATES
    around.entitle(borrower=(), lender=cpu(4000))
    world.submit("same", cpu=4000, queue="lender")
    around.wait(10_000)
    assert len(around.evicted) == 5
    world.submit("higher", cpu=4000, queue="lender", priority=1)
    around.wait(10_000)
    assert len(around.evicted) == 6


def test_a_queue_within_its_guarantee_is_touched_by_its_last_victim_only(world, around):
    """P2a: two jobs of 3 in a queue that is guaranteed 4 and uses 6: one of them at most."""
    world.nodes(1, cpu=6000)
    for name in ("a", "b"):
        world.queue(name, preemption="ANY")
    world.queue("b", guaranteed=cpu(4000))
    around.entitle(a=(), b=cpu(6000))
    many(world, "b", 2, "b", cpu=3000)
    around.entitle(a=cpu(6000), b=cpu(4000))
    world.submit("big", cpu=6000, queue="a")
    around.wait(5000)
    assert around.evicted == []
    world.submit("half", cpu=3000, queue="a")
    around.wait(5000)
    assert len(around.evicted) == 1


def test_equal_swaps_are_forbidden(world, around):
    """P1: B is entitled to 5 and runs one job of 8; A is entitled to 3 with one job of 8: nobody would gain."""
    world.nodes(1, cpu=8000)
    for name in ("a", "b"):
        world.queue(name, preemption="ANY")
    around.entitle(a=(), b=cpu(8000))
    world.submit("theirs", cpu=8000, queue="b")
    around.entitle(a=cpu(3000), b=cpu(5000))
    world.submit("mine", cpu=8000, queue="a")
    around.wait(10_000)
    assert around.evicted == []
    assert around.dropped[0] == "the potential would not rise"


def test_a_job_larger_than_its_entitlement_takes_its_place_once(world, around):
    """The reverse of the above raises the potential, and cannot be reversed again."""
    world.nodes(1, cpu=8000)
    for name in ("a", "b"):
        world.queue(name, preemption="ANY")
    around.entitle(a=cpu(3000), b=cpu(5000))
    world.submit("mine", cpu=8000, queue="a")
    world.submit("theirs", cpu=8000, queue="b")
    around.wait(200_000, 5000)
    assert around.evicted == [] or around.evicted == [world.id("mine")]
    assert world.job("theirs").state in RUNNING_STATES
    assert around.plans == 1


def test_several_requests_answered_at_once_share_no_victim(world, around):
    world.nodes(4, cpu=4000)
    many(world, "low", 16, "research")
    for n in range(4):
        world.cell.write(c.SubmitJob(world.spec(f"high-{n}", cpu=2000 + n, priority=5)))
    around.note(world.cell.settle())
    planner = Planner(world.state)
    plans = [planner.plan(world.id(f"high-{n}")).plan for n in range(4)]
    named = [victim for plan in plans if plan for victim, _ in plan.victims]
    assert len(named) == len(set(named))
    around.calm()
    assert around.dropped == []
    assert sum(job.spec.priority == 5 for job in around.running()) == 4


def test_no_bundle_goes_where_one_is_enough(world, around):
    """A gang of four on one node and a single job on another: the single job leaves, not the gang."""
    world.nodes(2, cpu=4000)
    world.submit("gang", replicas=4)
    world.submit("single", cpu=4000)
    world.submit("high", cpu=1000, priority=5)
    plan = plan_preemption(world.state, world.id("high"))
    assert len(plan.victims) == 1


def test_nobody_leaves_while_room_is_on_its_way(world, around):
    """A job that was cancelled still has its pods: that is room enough."""
    world.nodes(1)
    world.submit("cancelled", cpu=2000)
    world.submit("low", cpu=2000)
    world.cell.send(c.CancelJob(world.id("cancelled")))
    world.submit("high", cpu=2000, priority=5)
    around.answer()
    assert around.evicted == []
    around.calm()
    assert world.job("high").state in RUNNING_STATES
    assert world.job("low").state in RUNNING_STATES


def test_a_limit_on_the_path_is_made_room_under(world, around):
    """The nodes have room, the queue has not: only who is below the limit is of use."""
    world.nodes(8)
    world.queue("top", limit=cpu(4000))
    world.queue("top/a", preemption="ANY")
    world.queue("top/b")
    world.queue("other")
    around.entitle(top=cpu(4000), top_a=cpu(2000), top_b=cpu(2000), other=())
    many(world, "b", 4, "top/b")
    many(world, "o", 4, "other")
    many(world, "a", 1, "top/a", cpu=2000)
    around.calm()
    assert sorted(around.evicted) == sorted(world.id(f"b-{n}") for n in range(4) if world.job(f"b-{n}").preemptions)
    assert len(around.evicted) == 2
    assert around.used("top/a") == 2000


def test_gangs_of_several_groups_find_their_room(world, around):
    world.nodes(3, gpus=2, cpu=8000)
    many(world, "low", 6, "research", requests=(("cpu", 2000), (GPU, 1000)))
    tasks = (
        TaskGroup("ps", 1, 1, (("cpu", 6000),)),
        TaskGroup("worker", 2, 2, (("cpu", 1000), (GPU, 2000))),
    )
    world.submit("gang", tasks=tasks, priority=5)
    around.calm()
    assert world.job("gang").state in RUNNING_STATES
    assert len(around.evicted) == 4  # the parameter server goes to a node of the workers


def test_borrowed_before_own_then_priority_then_the_newer(world, around):
    """P3: of the two queues that are near, the one that borrows gives first, its least important job first of all."""
    world.nodes(1, cpu=6000)
    world.queue("a", preemption="ANY")
    world.queue("b")
    around.entitle(a=cpu(2000), b=cpu(4000))
    world.submit("b-important", queue="b", priority=3)
    for n in range(5):
        world.cell.now_ms += 10
        world.submit(f"b-{n}", queue="b")
    around.entitle(a=cpu(2000), b=cpu(4000))
    world.submit("mine", queue="a")
    plan = plan_preemption(world.state, world.id("mine"))
    assert plan.victims == ((world.id("b-4"), 1),)


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_of_equal_losses_the_newer_leave_whatever_their_nodes(world, around, wanted):
    """P3: placed at one moment, so nobody loses more than another; the oldest got the first node."""
    for n in range(4):
        world.submit(f"low-{n}", cpu=4000)
        world.cell.now_ms += 10
    world.nodes(4)
    around.start()
    assert [world.job(f"low-{n}").placement[0].runs for n in range(4)] == [((n, 1),) for n in range(4)]
    world.cell.now_ms += 60_000
    world.submit("high", cpu=3000, replicas=wanted, priority=5)
    plan = plan_preemption(world.state, world.id("high"))
    assert sorted(victim for victim, _ in plan.victims) == sorted(world.id(f"low-{n}") for n in range(4 - wanted, 4))


def test_who_leaves_as_a_whole_is_counted_with_what_it_could_spare(world, around):
    """P3: the gang's spare replica goes with the rest of it, so that one of the others may stay."""
    world.nodes(1, cpu=8000)
    for name in ("top", "top/mine", "top/near", "far"):
        world.queue(name, preemption="ANY")
    around.entitle(top=cpu(8000), top_mine=cpu(8000), top_near=(), far=())
    world.submit("gang", replicas=4, least=3, queue="far", priority=2)
    world.submit("small", queue="top/near", preemptible=True)
    world.submit("pair", replicas=2, queue="top/near")
    world.submit("fixed", cpu=1000, queue="top/mine")
    around.start()
    assert len(around.running()) == 4
    world.submit("wants", cpu=3000, replicas=2, queue="top/mine", priority=2)
    plan = plan_preemption(world.state, world.id("wants"))
    assert [victim for victim, _ in plan.victims] == [world.id("pair"), world.id("gang")]
    assert plan.shrinks == ()
