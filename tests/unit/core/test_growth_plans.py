"""Entitled growth takes back what others borrow, within E, from other queues only: rules P1, P2a, P5, P6, F6."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.core.preempting import Around, cpu, many, planned

from muster.core import commands as c
from muster.core import invariants, snapshot
from muster.core import transitions as tr
from muster.core.limits import HOLD_TTL_MS
from muster.core.model import EVERY_INDEX, Allowance, JobState, TaskGroup
from muster.core.preemption import Planner, plan_preemption
from muster.wire import codec

BORROWED = 6
RUNNING, GONE = 2, 5


def lending(world, around, lender_policy="ANY", **elastic):
    """Eight cores; six of them are borrowed when a job of the lender comes that may have all of them."""
    world.nodes(4, cpu=2000)
    world.queue("lender", preemption=lender_policy, guaranteed=cpu(8000))
    world.queue("borrower", preemption="ANY")
    many(world, "b", 8, "borrower")
    for n in range(2):
        world.pods(f"b-{n}", 3)
    world.submit("e", queue="lender", **{"replicas": 8, "least": 2, **elastic})
    around.entitle(lender=cpu(8000), borrower=())


def live(world, name="e"):
    job = world.job(name)
    return sum(phase < 3 for phase in job.phases) - len(job.leaving)


@pytest.mark.parametrize(
    "elastic",
    [{}, {"replicas": 8, "least": 1, "completion": EVERY_INDEX}],
    ids=["elastic", "array"],
)
def test_a_lender_gets_all_that_it_is_entitled_to(world, around, elastic):
    lending(world, around, **elastic)
    around.calm()
    assert (live(world), around.used("lender"), around.used("borrower")) == (8, 8000, 0)
    assert around.plans == 1  # for all six at once
    assert len(around.evicted) == BORROWED
    around.wait(8 * 3600 * 1000, 400_000)
    assert (around.plans, len(around.evicted)) == (1, BORROWED)
    assert not world.state.holds
    assert not world.state.asks


def kinds(transitions):
    return [type(t).__name__ for t in transitions]


def answer(world, around):
    """What becomes of the open requests."""
    before = len(world.cell.log)
    assert around.answer()
    return [t for data in world.cell.log[before:] for t in codec.decode_transaction(data).transitions]


def planned_for(world):
    """The lender's job holds room for six more replicas; nobody has left yet."""
    assert kinds(answer(world, Around(world.cell))).count("JobPreempted") == BORROWED
    assert sum(count for _, count in world.state.holds[world.id("e")].placement[0].runs) == BORROWED


def leaves(world, *names):
    """These jobs' pods are gone."""
    for name in names:
        world.pods(name, GONE)


@pytest.fixture
def lender(world, around):
    lending(world, around)
    return world


def test_what_the_victims_free_is_held_until_all_of_it_is_there(lender):
    planned_for(lender)
    queue = lender.state.queues.find("lender")
    assert (queue.usage["cpu"], queue.committed["cpu"]) == (2000, 8000)
    lender.submit("other", queue="borrower")
    leaves(lender, *(f"b-{n}" for n in range(2, 7)))
    assert live(lender) == 2
    assert lender.job("other").state is JobState.QUEUED
    done = lender.pods("b-7", GONE)
    assert [sum(c for _, c in t.groups[0].runs) for t in done if isinstance(t, tr.JobGrown)] == [BORROWED]
    assert (live(lender), lender.state.holds) == (8, {})
    assert (queue.usage["cpu"], queue.committed["cpu"]) == (8000, 8000)


def test_a_job_that_cannot_be_reclaimed_from_grows_within_what_is_its_own(world, around):
    lending(world, around, preemptible=False)
    planned_for(world)
    around.calm()
    assert live(world) == 8


def test_one_request_for_one_job(lender, around):
    asks = dict(lender.state.asks)
    assert list(asks) == [lender.id("e")]
    lender.submit("noise", queue="borrower", cpu=100_000)
    lender.cell.settle()
    assert lender.state.asks == asks


@pytest.mark.parametrize("how", ["cancelled", "lost a replica", "requeued", "ending", "draining"])
def test_a_job_that_grows_no_more_gives_back_what_it_holds(world, around, how):
    lending(world, around, least=1)
    planned_for(world)
    world.pods("e", RUNNING, 0, 1)
    if how == "cancelled":
        world.cell.send(c.CancelJob(world.id("e")))
    elif how == "lost a replica":
        assert "JobShrunk" in kinds(world.pods("e", GONE, 1))
    elif how == "requeued":
        assert "JobStopping" in kinds(world.pods("e", GONE, 0, 1))
    elif how == "ending":
        world.pods("e", 3, 0)
    else:
        world.queue("lender", preemption="ANY", guaranteed=cpu(8000), state="DRAINING")
        world.cell.settle()
    assert not world.state.holds
    world.queue("lender", preemption="ANY", guaranteed=cpu(8000), state="STOPPED")
    world.submit("other", queue="borrower")
    leaves(world, "b-2")
    assert world.job("other").charged


def test_a_hold_that_expires_is_given_back_and_the_next_plan_waits(lender, around):
    planned_for(lender)
    lender.pods("e", RUNNING, 0, 1)
    for _ in range(20):
        done = lender.cell.wait(HOLD_TTL_MS)
        if "HoldReleased" in kinds(done):
            break
    assert not lender.state.holds
    assert "PreemptionRequested" not in kinds(done)
    leaves(lender, *(f"b-{n}" for n in range(2, 8)))
    assert live(lender) == 8  # what is free it gets as anybody would


def plan_of(world, around):
    """The preemptor's message, not sent yet."""
    ((job, ask),) = world.state.asks.items()
    return planned(Planner(world.state), job, ask.request)


def refusal(world, fact):
    (answered,) = [t for t in world.cell.send(fact) if isinstance(t, tr.PreemptionAnswered)]
    assert not world.state.holds
    return answered.reason


def test_a_plan_is_dropped_when_a_victim_has_ended(lender, around):
    fact = plan_of(lender, around)
    lender.queue("borrower", preemption="ANY", state="STOPPED")
    lender.queue("lender", preemption="ANY", guaranteed=cpu(8000), limit=cpu(2000))
    lender.pods("b-2", 3)
    assert refusal(lender, fact) == "a victim is no longer running"


def test_a_plan_is_dropped_when_the_job_runs_in_another_epoch(lender, around):
    fact = plan_of(lender, around)
    lender.pods("e", GONE, 0)
    lender.pods("e", GONE, 1)
    assert not kinds(lender.cell.send(fact))
    assert not lender.state.holds


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"entitled": 7000}, "the job's queue is not so far below its entitlement"),
        ({"entitled": 2000}, "the job's queue is not so far below its entitlement"),
        ({"limit": 7000}, "queue lender would exceed its limit"),
        ({"more": 3}, "the job does not want these replicas any more"),
        ({"groups": 2}, "the placement is not growth of the job"),
        ({"elsewhere": True}, "the placement is not in the cluster of the job"),
        ({"fewer": 1}, "the job would not fit after the eviction"),
    ],
)
def test_the_leader_checks_what_matters(lender, around, change, why):
    """P6, also for what no preemptor would write."""
    fact = plan_of(lender, around)
    (group,) = fact.placement
    if "entitled" in change:
        around.entitle(lender=cpu(change["entitled"]), borrower=cpu(1000))
    if "limit" in change:
        lender.queue("lender", preemption="ANY", guaranteed=cpu(2000), limit=cpu(change["limit"]))
    if "more" in change:
        (node, count), *rest = group.runs
        fact = replace(fact, placement=(replace(group, runs=((node, count + change["more"]), *rest)),))
    if "groups" in change:
        fact = replace(fact, placement=fact.placement * 2)
    if "elsewhere" in change:
        lender.nodes(1, cpu=9000, cluster="sim-b")
        fact = replace(fact, placement=(replace(group, runs=((len(lender.state.nodes) - 1, BORROWED),)),))
    if "fewer" in change:
        fact = replace(fact, victims=fact.victims[1:])
    assert refusal(lender, fact) == why


def test_the_leader_takes_nobody_of_its_own_queue(world, around):
    world.nodes(1, cpu=4000)
    world.queue("lender", preemption="ANY")
    world.queue("borrower")
    many(world, "b", 2, "borrower")
    world.submit("mine", queue="lender", priority=-1)
    world.submit("e", queue="lender", replicas=2, least=1)
    around.entitle(lender=cpu(4000), borrower=())
    fact = replace(plan_of(world, around), victims=((world.id("mine"), 1),))
    assert refusal(world, fact) == "a victim may not be preempted by this job"


def test_who_holds_something_is_nobodys_victim(lender, around):
    planned_for(lender)
    lender.submit("high", queue="lender", cpu=2000, priority=5)
    assert plan_preemption(lender.state, lender.id("high")) is None
    request = lender.state.asks[lender.id("high")].request
    where = lender.job("e").placement
    fact = c.PreemptionPlanned(lender.id("high"), request, ((lender.id("e"), 1),), where)
    (answered,) = [t for t in lender.cell.send(fact) if isinstance(t, tr.PreemptionAnswered)]
    assert answered.reason == "a victim waits for room that is held for it"
    around.calm()
    around.wait(120_000)
    assert lender.job("high").charged
    assert live(lender) == 6


def test_a_queue_that_preempts_nobody_or_is_entitled_to_no_more_does_not_ask(world, around):
    lending(world, around, lender_policy="NEVER")
    assert not world.state.asks
    around.entitle(lender=cpu(2000))
    world.queue("lender", preemption="ANY")
    assert not world.state.asks
    around.entitle(lender=cpu(2001))
    assert list(world.state.asks) == [world.id("e")]


def test_nobody_of_its_own_queue_leaves_for_an_elastic_part(world, around):
    """P2: within a queue an elastic part is not worth a job, of whatever priority."""
    world.nodes(1, cpu=4000)
    world.queue("research", preemption="ANY")
    world.submit("low", cpu=2000, priority=-5)
    around.entitle(research=cpu(2000))
    world.submit("e", replicas=4, least=1, priority=5)
    around.entitle(research=cpu(4000))
    around.calm()
    assert (live(world), around.plans, around.requests) == (2, 0, 0)
    world.submit("more", cpu=1000, priority=-5, queue="research")
    around.entitle(research=cpu(9000))
    around.calm()
    assert (live(world), around.plans, around.requests > 0) == (2, 0, True)


def test_it_asks_again_when_a_protection_ends(world, around):
    world.nodes(4, cpu=2000)
    world.queue("lender", preemption="ANY")
    world.queue("borrower", min_runtime_ms=60_000)
    many(world, "b", 6, "borrower")
    world.submit("e", queue="lender", replicas=8, least=2)
    around.entitle(lender=cpu(8000), borrower=())
    around.calm()
    assert live(world) == 2
    around.wait(59_000)
    assert around.evicted == []
    around.wait(2_000)
    assert live(world) == 8


def test_it_asks_for_less_when_not_enough_may_leave(world, around):
    world.nodes(4, cpu=2000)
    world.queue("lender", preemption="ANY")
    world.queue("borrower")
    around.entitle(borrower=cpu(8000))
    many(world, "kept", 3, "borrower", preemptible=False)
    many(world, "b", 3, "borrower")
    world.submit("e", queue="lender", replicas=8, least=2)
    around.entitle(lender=cpu(8000), borrower=())
    around.calm()
    assert live(world) == 5
    assert around.plans == 1
    assert around.dropped == ["nobody who may be preempted would make enough room"]


@pytest.mark.parametrize(("entitled", "replicas"), [(5500, 3), (5000, 2), (4000, 2)])
def test_the_replica_that_crosses_the_entitlement_is_weighed_by_itself(world, around, entitled, replicas):
    """E is no whole number of replicas: whether one more is worth it is up to P1, not to those before it."""
    world.nodes(1, cpu=8000)
    world.queue("lender", preemption="ANY")
    world.queue("borrower", preemption="ANY")
    many(world, "b", 3, "borrower", cpu=2000)
    world.submit("e", queue="lender", cpu=2000, replicas=4, least=1)
    around.entitle(lender=cpu(entitled), borrower=cpu(8000 - entitled))
    around.calm()
    around.wait(4 * 3600 * 1000, 400_000)
    assert live(world) == replicas


def test_it_may_grow_although_its_user_may_start_no_further_job(world, around):
    lending(world, around)
    world.queue("lender", preemption="ANY", per_user=Allowance(running_jobs=1))
    around.entitle(lender=cpu(8000), borrower=())
    around.calm()
    assert live(world) == 8


def test_growth_waits_for_what_is_leaving_anyway(lender, around):
    lender.queue("borrower", preemption="ANY", state="DRAINING")
    lender.cell.settle()
    assert around.answer()
    assert around.dropped == ["there is room for it once what is leaving is gone"]
    around.calm()
    assert (live(lender), around.plans) == (8, 0)


def test_several_groups_one_after_the_other(world, around):
    world.nodes(1, cpu=8000)
    world.queue("lender", preemption="ANY")
    world.queue("borrower")
    many(world, "b", 6, "borrower")
    tasks = (TaskGroup("ps", 2, 1, cpu(1000)), TaskGroup("worker", 6, 1, cpu(1000)))
    world.cell.send(c.SubmitJob(world.spec("e", queue="lender", tasks=tasks)))
    around.entitle(lender=cpu(8000), borrower=())
    around.calm()
    assert (live(world), around.plans) == (8, 2)


def test_a_hold_of_a_placed_job_outlives_a_restart(lender):
    planned_for(lender)
    parts = [codec.encode_snapshot_part(part) for part in snapshot.dump(lender.state)]
    lender.cell.state = snapshot.load(map(codec.decode_snapshot_part, parts))
    invariants.check(lender.state)
    lender.cell.start_term()
    leaves(lender, *(f"b-{n}" for n in range(2, 8)))
    assert live(lender) == 8


def test_no_request_is_lost_when_a_pass_is_paused(world, around):
    """What one transaction found blocked, the next one does not look at again."""
    world.nodes(1, cpu=8000)
    world.queue("lender", preemption="ANY")
    world.queue("borrower")
    many(world, "b", 8, "borrower")
    for n in range(4):
        world.submit(f"e-{n}", queue="lender", replicas=4, least=1)
        world.pods(f"b-{n}", 3)
    assert [live(world, f"e-{n}") for n in range(4)] == [1] * 4
    world.submit("first", queue="lender", cpu=8000, priority=5)
    world.submit("second", queue="lender", cpu=7000, priority=5)
    world.cell.work_limit = 3
    around.entitle(lender=cpu(8000), borrower=())
    around.note(world.cell.settle())
    assert sorted(world.state.asks) == sorted(map(world.id, ("first", "second", *(f"e-{n}" for n in range(4)))))
    asked = sorted((ask.request, job) for job, ask in world.state.asks.items())
    assert {job for _, job in asked[:2]} == {world.id("first"), world.id("second")}


def test_a_job_that_goes_back_when_it_would_ask_again_waits_out_its_pause(world, around):
    """Its request is due at the moment at which its pods are lost: it is in no line yet."""
    lending(world, around)
    for n in range(2, 8):
        world.pods(f"b-{n}", RUNNING)
    around.entitle(lender=cpu(8000), borrower=cpu(8000))  # nobody is above that, so there is no plan
    answer(world, around)
    retry_ms = world.state.asks[world.id("e")].retry_at_ms
    assert retry_ms > world.cell.now_ms
    world.cell.now_ms = retry_ms
    assert "JobPlaced" not in kinds(world.pods("e", GONE))
    assert world.job("e").state is JobState.QUEUED
    assert world.job("e").not_before_ms > world.state.now_ms
    world.cell.wait(60_000)
    assert world.job("e").charged
