"""Priority preemption inside one queue: rules P2b, P3, P5, P6."""

from __future__ import annotations

import random

import pytest

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.limits import HOLD_TTL_MS, PREEMPTION_RETRY_MAX_MS
from muster.core.model import GroupPlacement, JobState, TaskGroup
from muster.core.preemption import plan_preemption
from muster.core.preemption_rules import Ground, ground
from muster.core.requests import may_displace


def kinds(transitions):
    return [type(t).__name__ for t in transitions if not isinstance(t, tr.CyclePaused)]


def answer(world, name, **changes):
    """What a preemptor would send now."""
    job = world.id(name)
    plan = plan_preemption(world.state, job)
    fields = {
        "job": job,
        "request": world.state.asks[job].request if job in world.state.asks else 1,
        "victims": plan.victims if plan else (),
        "placement": plan.placement if plan else (),
    }
    return world.cell.send(c.PreemptionPlanned(**{**fields, **changes}))


@pytest.fixture
def full(world):
    """Two nodes of 4 cpu, full of low-priority jobs of 2 cpu: low-0 (oldest) to low-3."""
    world.nodes(2)
    for n in range(4):
        world.submit(f"low-{n}", cpu=2000)
        world.cell.now_ms += 10
    assert all(job.state is JobState.PLACED for job in world.state.jobs.values())
    return world


def test_a_job_that_may_preempt_asks_once(full):
    done = full.submit("high", cpu=2000, priority=5)
    assert [t for t in done if isinstance(t, tr.PreemptionRequested)] == [tr.PreemptionRequested(full.id("high"), 1)]
    full.submit("other", cpu=2000)
    assert full.state.requests == 1


@pytest.mark.parametrize("change", [{"preemption": "NEVER"}, {"ordering": "FIFO"}])
def test_a_queue_may_forbid_it(full, change):
    full.queue("research", **change)
    assert "PreemptionRequested" not in kinds(full.submit("high", cpu=2000, priority=5))
    assert plan_preemption(full.state, full.id("high")) is None


def test_equal_priority_other_queues_and_protected_jobs_are_safe(world):
    world.nodes(1)
    world.queue("other")
    world.submit("same", cpu=1000, priority=5)
    world.submit("elsewhere", cpu=1000, queue="other")
    world.submit("protected", cpu=2000, preemptible=False)
    assert "PreemptionRequested" not in kinds(world.submit("high", cpu=1000, priority=5))
    assert plan_preemption(world.state, world.id("high")) is None


def test_the_newest_of_the_lowest_goes_first_and_no_more_than_needed(full):
    full.submit("high", cpu=2000, priority=5)
    plan = plan_preemption(full.state, full.id("high"))
    assert plan.victims == ((full.id("low-3"), 1),)
    full.submit("huge", cpu=4000, priority=6)
    assert len(plan_preemption(full.state, full.id("huge")).victims) == 2


def test_a_plan_names_no_victim_it_does_not_need(world):
    """The cheapest alone do not help: they sit on the wrong node."""
    world.cell.send(
        c.NodesReported(
            "sim-a", (world.node("small", cpu=1000), world.node("large", cpu=4000)), first=True, complete=True
        )
    )
    world.submit("on-large", cpu=4000, priority=1)
    world.submit("on-small", cpu=1000)
    world.submit("high", cpu=3000, priority=5)
    plan = plan_preemption(world.state, world.id("high"))
    assert [victim for victim, _ in plan.victims] == [world.id("on-large")]


def test_victims_leave_the_room_is_held_and_the_preemptor_gets_it(full):
    full.submit("high", cpu=2000, priority=5)
    done = answer(full, "high")
    assert kinds(done) == ["JobPreempted", "HoldMade"]
    victim = full.job("low-3")
    assert (victim.state, victim.next_state, victim.preemptions) == (JobState.STOPPING, "Queued", 1)
    assert victim.not_before_ms == full.cell.now_ms + 60_000
    full.submit("thief", cpu=2000, priority=9)  # of the same queue, and higher, but the room is held
    done = full.pods("low-3", 5)
    assert kinds(done)[:2] == ["PodsChanged", "JobRequeued"]
    assert full.job("high").state is JobState.PLACED
    assert full.job("thief").state is JobState.QUEUED
    assert not full.state.holds
    assert full.job("low-3").attempts[0].reason == "Preempted"


def test_what_is_held_is_held_pod_by_pod(world):
    """A gang of four leaves one pod at a time: nobody else gets a freed place."""
    world.nodes(1)
    world.submit("gang", replicas=4)
    world.submit("high", cpu=4000, priority=5)
    answer(world, "high")
    world.submit("small", cpu=1000)
    for pod in range(3):
        world.pods("gang", 5, pod)
        assert world.job("small").state is JobState.QUEUED
    world.pods("gang", 5, 3)
    assert world.job("high").state is JobState.PLACED


def test_devices_are_held_as_well(world):
    world.nodes(1, gpus=2, cpu=64_000)
    share = (("cpu", 1000), ("nvidia.com/gpu", 500))
    for n in range(4):
        world.submit(f"share-{n}", requests=share)
    whole = (("cpu", 1000), ("nvidia.com/gpu", 2000))
    world.submit("high", requests=whole, priority=5)
    done = answer(world, "high")
    assert kinds(done) == ["JobPreempted"] * 4 + ["HoldMade"]
    world.submit("small", requests=share)
    for n in range(4):
        assert world.job("small").state is JobState.QUEUED
        world.pods(f"share-{n}", 5)
    assert world.job("high").placement[0].devices == b"\x00\x01"


def test_the_quota_of_a_hold_is_kept_too(world):
    world.nodes(4)
    world.queue("research", limit=(("cpu", 2000),))
    world.submit("low", cpu=2000)
    world.submit("high", cpu=1500, priority=5)
    assert kinds(answer(world, "high")) == ["JobPreempted", "HoldMade"]
    world.submit("small", cpu=1000)
    world.pods("low", 5)
    assert world.job("high").state is JobState.PLACED
    assert world.job("small").state is JobState.QUEUED
    world.submit("tiny", cpu=500)
    assert world.job("tiny").state is JobState.PLACED


def test_a_hold_expires(full):
    full.submit("high", cpu=2000, priority=5)
    answer(full, "high")
    full.cell.send(c.NodesReported("sim-a", tuple(full.node(f"node-{n}", cpu=3000) for n in range(2))))
    full.pods("low-3", 5)
    assert full.state.holds
    done = full.cell.wait(HOLD_TTL_MS)
    assert "HoldReleased" in kinds(done)
    assert not full.state.holds


def test_a_hold_goes_with_its_job(full):
    full.submit("high", cpu=2000, priority=5)
    full.submit("next", cpu=2000)
    answer(full, "high")
    full.cell.send(c.CancelJob(full.id("high")))
    assert not full.state.holds
    full.pods("low-3", 5)
    assert full.job("next").state is JobState.PLACED


@pytest.mark.parametrize("state", ["STOPPED", "DRAINING"])
def test_a_hold_goes_when_its_queue_starts_nothing_any_more(full, state):
    """Q1: others need not wait until it expires. Opened again, the job asks anew."""
    full.queue("other")
    full.submit("high", cpu=2000, priority=5)
    answer(full, "high")
    full.submit("next", cpu=2000, queue="other")
    assert "HoldReleased" in kinds(full.queue("research", state=state))
    full.pods("low-3", 5)
    assert full.job("next").state is JobState.PLACED
    assert full.state.queues.find("research").held == {}
    full.queue("research", state="OPEN")
    asks_again = [t.job for t in full.cell.wait(PREEMPTION_RETRY_MAX_MS) if isinstance(t, tr.PreemptionRequested)]
    assert asks_again == ([full.id("high")] if state == "STOPPED" else [])  # what drained makes room


def test_no_plan_is_answered_and_asked_again_later_if_something_changed(full):
    full.submit("high", cpu=2000, priority=5)
    done = full.cell.send(c.PreemptionPlanned(full.id("high"), 1))
    assert kinds(done) == ["PreemptionAnswered"]
    assert (done[0].reason, done[0].retry_after_ms) == ("no plan", 1000)
    assert kinds(full.cell.wait(5000)) == []  # nothing changed
    full.cell.send(c.NodesReported("sim-a", (full.node("node-0", labels=(("a", "b"),)),)))
    assert full.state.asks[full.id("high")].request == 2
    full.cell.send(c.PreemptionPlanned(full.id("high"), 2))
    full.cell.send(c.NodesReported("sim-a", (full.node("node-0", labels=(("a", "c"),)),)))
    assert full.state.asks[full.id("high")].request == 2  # in backoff, twice as long now
    assert kinds(full.cell.wait(1999)) == []
    assert kinds(full.cell.wait(1)) == ["PreemptionRequested"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"victims": (("f" * 32, 1),)}, "a victim is no longer running"),
        ({"placement": ()}, "the placement is not the job's gang"),
        ({"placement": (GroupPlacement(0, ((0, 1),) * 60_000),)}, "the plan is too large for a transaction"),  # LOG-8
    ],
)
def test_a_plan_that_does_not_hold_is_dropped_whole(full, change, reason):
    full.submit("high", cpu=2000, priority=5)
    (answered,) = answer(full, "high", **change)
    assert isinstance(answered, tr.PreemptionAnswered)
    assert answered.reason == reason
    assert full.job("low-3").state is JobState.PLACED


def test_a_plan_is_checked_against_what_happened_since(full):
    """P6: epochs, priorities, fit, and that the job still waits."""
    full.submit("high", cpu=2000, priority=5)
    high = full.id("high")
    plan = plan_preemption(full.state, high)
    old = tuple((victim, epoch + 1) for victim, epoch in plan.victims)
    (answered,) = answer(full, "high", victims=old)
    assert answered.reason == "a victim is no longer running"
    full.cell.send(c.NodesReported("sim-a", removed=("node-0", "node-1")))
    full.cell.wait(1000)
    if high in full.state.asks and not full.state.asks[high].answered:
        done = full.cell.send(c.PreemptionPlanned(high, full.state.asks[high].request, plan.victims, plan.placement))
        assert "JobPreempted" not in kinds(done)


def test_a_plan_is_checked_against_what_the_same_message_says_of_nodes(full):
    """P6: its node was cordoned just before it; the victim would leave for nothing."""
    full.submit("high", cpu=2000, priority=5)
    plan = plan_preemption(full.state, full.id("high"))
    ((index, _),) = plan.placement[0].runs
    cordoned = full.node(full.state.nodes.spec(index).name, cordoned=True)
    planned = c.PreemptionPlanned(full.id("high"), 1, plan.victims, plan.placement)
    done = full.cell.send(c.NodesReported("sim-a", (cordoned,)), planned)
    assert "JobPreempted" not in kinds(done)
    assert [t.reason for t in done if isinstance(t, tr.PreemptionAnswered)] == [
        "the job would not fit after the eviction"
    ]


@pytest.mark.parametrize(
    ("victim", "reason"),
    [
        ({"priority": 5}, "a victim may not be preempted by this job"),
        ({"preemptible": False}, "a victim is protected"),
        ({"queue": "other"}, "the job's queue is not below its entitlement"),
    ],
)
def test_a_plan_with_a_victim_that_is_safe_is_dropped(world, victim, reason):
    world.nodes(1)
    world.queue("research", guaranteed=(("cpu", 2000),))  # so that a job that cannot be preempted may start (P4)
    world.queue("other")
    world.submit("safe", cpu=2000, **victim)
    world.submit("low", cpu=2000)
    world.submit("high", cpu=2000, priority=5)
    plan = plan_preemption(world.state, world.id("high"))
    assert plan.victims == ((world.id("low"), 1),)
    (answered,) = answer(world, "high", victims=((world.id("safe"), 1),))
    assert answered.reason == reason
    assert world.job("safe").state is JobState.PLACED


def test_a_plan_that_frees_too_little_or_passes_a_limit_is_dropped(full):
    full.submit("high", cpu=4000, priority=5)
    plan = plan_preemption(full.state, full.id("high"))
    (answered,) = answer(full, "high", victims=plan.victims[:1])
    assert answered.reason == "the job would not fit after the eviction"
    full.queue("research", limit=(("cpu", 6000),))
    full.cell.wait(1000)
    (answered,) = [t for t in answer(full, "high", victims=plan.victims, placement=plan.placement) if kinds([t])]
    assert answered.reason == "queue research would exceed its limit"


def test_an_answer_to_an_old_request_is_ignored(full):
    full.submit("high", cpu=2000, priority=5)
    assert full.cell.send(c.PreemptionPlanned(full.id("high"), 99)) == []
    assert full.cell.send(c.PreemptionPlanned(full.id("low-0"), 1)) == []
    answer(full, "high")
    assert full.cell.send(c.PreemptionPlanned(full.id("high"), 1)) == []


def test_two_plans_in_one_message_do_not_take_the_same_room(full):
    full.submit("high-1", cpu=2000, priority=5)
    full.submit("high-2", cpu=2001, priority=5)
    plans = []
    for name in ("high-1", "high-2"):
        job = full.id(name)
        plan = plan_preemption(full.state, job)
        plans.append(c.PreemptionPlanned(job, full.state.asks[job].request, plan.victims, plan.placement))
    done = full.cell.send(*plans)
    assert kinds(done).count("HoldMade") == 1
    assert [t.reason for t in done if isinstance(t, tr.PreemptionAnswered)] == ["a victim is no longer running"]


def test_nobody_leaves_for_an_elastic_part(full):
    tasks = (TaskGroup("main", 4, 1, (("cpu", 2000),)),)
    full.submit("high", tasks=tasks, priority=5)
    assert len(plan_preemption(full.state, full.id("high")).victims) == 1


def test_a_lower_job_placed_later_in_the_same_pass_can_be_preempted(world):
    """The high job was looked at before there was anybody to preempt."""
    world.submit("high", cpu=4000, replicas=2, priority=5)
    world.cell.now_ms += 10
    world.submit("low", cpu=3000)
    world.nodes(1)
    assert world.job("low").state is JobState.PLACED
    assert world.id("high") in world.state.asks


def test_the_state_is_not_changed_by_planning(full):
    from muster.core import snapshot

    full.submit("high", cpu=2000, priority=5)
    before = list(snapshot.dump(full.state))
    assert plan_preemption(full.state, full.id("high")) is not None
    assert plan_preemption(full.state, full.id("low-0")) is None
    assert plan_preemption(full.state, "x") is None
    assert list(snapshot.dump(full.state)) == before


def test_a_hold_that_turned_out_unnecessary_frees_those_who_waited_for_it(world):
    """The holder finds another place; who was looked at before it in the same pass is looked at again."""
    special = (("kind", "special"),)
    nodes = (world.node("plain"), world.node("special", labels=special))
    world.cell.send(c.NodesReported("sim-a", nodes, first=True, complete=True))
    world.queue("research", guaranteed=(("cpu", 8000),))
    world.queue("first", priority=1)
    on_special = (TaskGroup("main", 1, 1, (("cpu", 4000),), node_selector=special),)
    world.submit("low", tasks=on_special)
    world.submit("other", cpu=4000, preemptible=False)
    world.submit("high", cpu=4000, priority=5)
    answer(world, "high")
    world.submit("waiting", queue="first", tasks=on_special)  # in front of the holder in the order of the cell
    over = [c.PodFact(world.id(name), 1, 0, 3) for name in ("low", "other")]
    done = world.cell.send(c.PodsObserved("sim-a", tuple(over)))
    assert [t.job for t in done if isinstance(t, tr.JobPlaced)] == [world.id("high"), world.id("waiting")]
    assert world.job("high").placement[0].runs == ((0, 1),)


@pytest.mark.parametrize("seed", range(3))
def test_who_could_give_way_is_known_without_looking_at_all_that_runs(world, seed):
    """Rule P2b: asked of the newest that runs of each priority, which follows what starts and ends."""
    draw = random.Random(seed)
    world.queue("research", preemption="ANY")
    world.nodes(2, cpu=8000)
    queue = world.state.queues.find("research")
    for n in range(40):
        world.cell.now_ms += draw.choice((0, 5))
        world.submit(f"job-{n}", priority=draw.choice((0, 0, 3)))
        for job in [job for job in world.state.jobs.values() if job.charged and draw.random() < 0.15]:
            world.pods(job.spec.name, draw.choice((3, 5)))  # some end, some come back later with their old age
        jobs = world.state.jobs
        for job in [job for job in jobs.values() if job.state is JobState.QUEUED]:
            naive = any(ground(job, queue, jobs[running]) is not Ground.NONE for running in queue.running)
            assert may_displace(job, queue, jobs) == naive
