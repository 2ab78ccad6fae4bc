"""Array jobs: every index succeeds once, and what has succeeded is never run again (rules G1, L5, F1, I2)."""

from __future__ import annotations

import pytest
from tests.unit.core.preempting import Around
from tests.unit.core.test_turns import entitle

from muster.core import commands as c
from muster.core import layout, snapshot
from muster.core import transitions as tr
from muster.core.demand import demand
from muster.core.explain import explain
from muster.core.model import EVERY_INDEX, JobState, PodPhase, Reason, TaskGroup
from muster.wire import codec

SUCCEEDED, GONE = int(PodPhase.SUCCEEDED), int(PodPhase.GONE)


def array(world, name="a", /, *, replicas=6, least=1, parallel=0, **more):
    return world.submit(name, replicas=replicas, least=least, completion=EVERY_INDEX, max_parallel=parallel, **more)


def live(world, name="a"):
    return [position for position, phase in enumerate(world.job(name).phases) if phase < SUCCEEDED]


def asked(world, path="research"):
    queue = world.state.queues.find(path)
    (flow,) = demand(world.state).get(queue.id, ((),))
    assert dict(flow) == queue.asked
    return queue.asked.get("cpu", 0)


def kinds(transitions):
    return [type(t).__name__ for t in transitions if isinstance(t, (tr.JobPlaced, tr.JobGrown, tr.JobRequeued))]


def take_down(world, *, not_before_ms=0):
    """The transition is written by hand, as if the queue had been drained for a moment."""
    job = world.job("a")
    world.cell.by_hand(
        tr.JobStopping(job.id, job.epoch, JobState.QUEUED, Reason.QUEUE_DRAINED, not_before_ms=not_before_ms)
    )


@pytest.fixture
def three(world):
    """Job `a`: six indices, three at once, on a node that would take eight."""
    world.nodes(1, cpu=8000)
    array(world, parallel=3)
    return world


def test_no_more_run_at_once_than_max_parallel(three):
    assert live(three) == [0, 1, 2]
    assert three.state.queues.find("research").usage["cpu"] == 3000


def test_an_index_that_succeeded_makes_room_for_the_next(three):
    three.pods("a", 2, 0, 1, 2)
    done = three.pods("a", SUCCEEDED, 1)
    assert kinds(done) == ["JobGrown"]
    assert live(three) == [0, 2, 3]
    assert three.job("a").state is JobState.RUNNING
    assert three.job("a").attempt_of(3) == 0


def test_the_job_succeeds_when_every_index_has(three):
    for position in (0, 1, 2, 3, 4):
        three.pods("a", SUCCEEDED, position)
        assert three.job("a").live
    done = three.pods("a", SUCCEEDED, 5)
    assert any(isinstance(t, tr.JobSucceeded) for t in done)
    assert three.state.queues.find("research").usage == {}
    assert asked(three) == 0


def test_demand_counts_what_has_not_succeeded_and_may_run_at_once(three):
    """F1."""
    seen = [asked(three)]
    for position in range(6):
        three.pods("a", SUCCEEDED, position)
        seen.append(asked(three))
    assert seen == [3000, 3000, 3000, 3000, 2000, 1000, 0]


def test_without_a_bound_it_asks_for_all_that_is_left(world):
    world.nodes(1, cpu=2000)
    array(world)
    assert (live(world), asked(world)) == ([0, 1], 6000)
    world.pods("a", SUCCEEDED, 0)
    assert (live(world), asked(world)) == ([1, 2], 5000)


def test_an_index_that_fails_fails_the_job(three):
    three.pods("a", SUCCEEDED, 0)
    three.pods("a", 4, 1, exit_code=3)
    assert (three.job("a").state, three.job("a").next_state) == (JobState.STOPPING, JobState.FAILED)
    three.pods("a", GONE, 2, 3)
    assert (three.job("a").state, three.job("a").exit_code) == (JobState.FAILED, 3)


def test_it_starts_when_the_minimum_of_every_group_has_a_place(world):
    tasks = (TaskGroup("x", 3, 2, (("cpu", 1000),)), TaskGroup("y", 2, 1, (("cpu", 1000),)))
    world.submit("a", tasks=tasks, completion=EVERY_INDEX)
    world.nodes(1, cpu=2000)
    assert world.job("a").state is JobState.QUEUED
    world.nodes(1, cpu=3000)
    assert live(world) == [0, 1, 3]


def test_what_succeeded_counts_towards_the_minimum(world):
    """I2: with two of three done, losing a pod is no reason to take the job down."""
    world.nodes(2, cpu=2000)
    array(world, replicas=5, least=3)
    world.pods("a", 2)
    world.pods("a", SUCCEEDED, 0, 1)
    assert live(world) == [2, 3, 4]
    done = world.pods("a", GONE, 3)
    assert [t.pods for t in done if isinstance(t, tr.JobShrunk)] == [(3,)]
    assert (world.job("a").state, world.job("a").epoch) == (JobState.RUNNING, 1)


def test_a_lost_last_pod_requeues_the_rest(world):
    world.nodes(1, cpu=1000)
    array(world, replicas=3)
    world.pods("a", 2, 0)
    world.pods("a", SUCCEEDED, 0)
    assert live(world) == [1]
    world.pods("a", GONE, 1)
    job = world.job("a")
    assert (job.state, job.reason, bytes(job.phases)) == (JobState.QUEUED, Reason.POD_GONE, bytes([3, 5, 5]))
    assert asked(world) == 2000
    world.cell.wait(10_000)
    assert (world.job("a").epoch, live(world)) == (2, [1])


def test_an_array_job_that_was_taken_down_places_only_the_rest(three):
    """G1, P5: the new epoch passes over what has succeeded."""
    three.pods("a", 2, 0, 1, 2)
    three.pods("a", SUCCEEDED, 1, 0)
    assert live(three) == [2, 3, 4]
    take_down(three)
    three.pods("a", SUCCEEDED, 3)  # it ended by itself before it was stopped
    done = three.pods("a", GONE, 2, 4)
    assert kinds(done) == ["JobRequeued", "JobPlaced", "JobGrown"]
    job = three.job("a")
    assert (job.epoch, live(three)) == (2, [2, 4, 5])
    assert job.placement[0].skipped == ((0, 2), (3, 1))
    assert [pod.replica for pod in layout.each_pod(job.spec.tasks, job.placement)] == [2, 4, 5]
    for position in (4, 2, 5):
        three.pods("a", SUCCEEDED, position)
    assert three.job("a").state is JobState.SUCCEEDED


def test_a_succeeded_index_stays_so_however_its_pod_was_asked_to_leave(world):
    world.nodes(1, cpu=3000)
    array(world)
    world.pods("a", 2, 0, 1, 2)
    job = world.job("a")
    world.cell.by_hand(tr.JobShrunk(job.id, job.epoch, (2,)))
    world.pods("a", SUCCEEDED, 2)
    assert world.job("a").phases[2] == SUCCEEDED
    assert (world.job("a").leaving, live(world)) == ((), [0, 1, 3])


def test_when_others_took_the_room_it_waits_in_the_queue_as_old_as_it_is(world):
    """Nothing of it runs, so it holds nothing, and it is placed again before those that came later."""
    world.nodes(1, cpu=1000)
    array(world, replicas=2, parallel=1)
    world.cell.now_ms += 1
    world.submit("later")
    world.cell.now_ms += 1
    world.submit("last")
    entitle(world, research=9000)
    world.pods("a", 2, 0)
    done = world.pods("a", SUCCEEDED, 0)  # an entitled start goes before growth (F6)
    assert [t.reason for t in done if isinstance(t, tr.JobRequeued)] == [Reason.WAITS_FOR_ROOM]
    job = world.job("a")
    assert (job.state, job.requeues, job.not_before_ms) == (JobState.QUEUED, 0, 0)
    assert world.job("later").charged
    world.pods("later", SUCCEEDED)
    assert (world.job("a").charged, live(world)) == (True, [1])
    assert world.job("last").state is JobState.QUEUED


def test_it_runs_again_only_when_something_of_this_epoch_does(world):
    """The minimum is met by what succeeded before, and yet nothing runs."""
    world.nodes(1, cpu=1000)
    array(world, replicas=3)
    world.pods("a", SUCCEEDED, 0)
    world.pods("a", GONE, 1)
    world.cell.wait(10_000)
    assert world.job("a").state is JobState.PLACED
    world.pods("a", 1, 1)
    assert world.job("a").state is JobState.STARTING
    world.pods("a", 2, 1)
    assert world.job("a").state is JobState.RUNNING


def test_an_idle_array_job_can_be_cancelled(world):
    """Between two indices nothing of it is there; its place is free at once."""
    world.nodes(1, cpu=2000)
    array(world, parallel=1)
    world.queue("research", state="STOPPED")
    world.pods("a", 2, 0)
    world.cell.write(c.PodsObserved("sim-a", (c.PodFact(world.id("a"), 1, 0, SUCCEEDED),)), c.CancelJob(world.id("a")))
    world.cell.settle()
    assert world.job("a").state is JobState.CANCELLED


@pytest.mark.parametrize("least", [1, 6])
def test_a_stopped_queue_gets_back_what_ran(world, least):
    world.nodes(1, cpu=8000)
    array(world, least=least)
    world.queue("research", state="STOPPED")
    world.pods("a", SUCCEEDED)
    assert world.job("a").state is JobState.SUCCEEDED


def test_draining_requeues_the_rest(three):
    three.pods("a", SUCCEEDED, 0)
    three.queue("research", state="DRAINING")
    three.pods("a", GONE, *live(three))
    assert (three.job("a").state, bytes(three.job("a").phases)) == (JobState.QUEUED, bytes([3, 5, 5, 5, 5, 5]))


@pytest.mark.parametrize("moment", ["placed", "queued"])
def test_a_snapshot_keeps_it_exactly(three, moment):
    three.pods("a", 2, 0, 1, 2)
    three.pods("a", SUCCEEDED, 1, 2)
    if moment == "queued":
        take_down(three, not_before_ms=three.cell.now_ms + 60_000)
        three.pods("a", GONE, 0, 3, 4)
    loaded = snapshot.load(
        codec.decode_snapshot_part(codec.encode_snapshot_part(part)) for part in snapshot.dump(three.state)
    )
    job, twin = three.job("a"), loaded.jobs[three.id("a")]
    assert (twin.phases, twin.placement, twin.began) == (job.phases, job.placement, job.began)
    assert (twin.asks.tasks, twin.asks is twin.gang) == (job.asks.tasks, job.asks is job.gang)
    assert loaded.queues.find("research").asked == three.state.queues.find("research").asked


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("completion", {"completion": "SOME"}),
        ("array.max_parallel", {"max_parallel": 2}),
        ("array.max_parallel", {"max_parallel": 2, "completion": EVERY_INDEX, "replicas": 4, "least": 3}),
        ("array.max_parallel", {"max_parallel": -1, "completion": EVERY_INDEX}),
    ],
)
def test_what_makes_no_sense_is_refused(world, field, more):
    assert world.reject(world.submit("a", **more)).field == field


def test_it_is_preempted_as_a_whole_or_shrunk_and_keeps_what_is_done(world):
    """P2c, P3: what it has beyond its minimum goes first; in the end every index has succeeded once."""
    world.nodes(1, cpu=4000)
    array(world, least=2)
    world.pods("a", 2, 0, 1, 2, 3)
    world.pods("a", SUCCEEDED, 0)
    around = Around(world.cell)
    around.note(world.submit("high", priority=5, cpu=2000))
    around.calm()
    assert (around.evicted, [count for _, count in around.shrunk]) == ([], [2])
    assert world.job("high").charged
    world.pods("high", SUCCEEDED)
    for _ in range(6):
        for position in live(world):
            world.pods("a", SUCCEEDED, position, attempt=world.job("a").attempt_of(position))
    assert world.job("a").state is JobState.SUCCEEDED


def test_explain_counts_the_indices_that_have_succeeded(three):
    three.pods("a", 2, 0, 1, 2)
    three.pods("a", SUCCEEDED, 0, 1)
    assert explain(three.state, three.id("a")).summary == (
        "Running for 0 s: 3 pods on 1 node, epoch 1; 2 of 6 indices have succeeded"
    )
    take_down(three, not_before_ms=three.cell.now_ms + 60_000)
    three.pods("a", GONE, *live(three))
    told = explain(three.state, three.id("a"))
    assert told.summary.endswith("2 of 6 indices have succeeded")
    assert [(need.min_replicas, need.replicas) for need in told.needs] == [(1, 3)]


def test_usage_is_what_runs_and_accounts_are_exact(three):
    """L5: pod by pod, with nothing charged between two indices."""
    three.pods("a", 2, 0, 1, 2)
    three.cell.wait(10_000)
    three.pods("a", SUCCEEDED, 0)
    three.cell.wait(5_000)
    three.pods("a", SUCCEEDED, 1, 2, 3)
    three.pods("a", SUCCEEDED, 4, 5)
    (tally,) = three.state.accounts.report(0, three.cell.now_ms).tallies.values()
    assert (tally.usage["cpu"], tally.succeeded) == (3 * 1000 * 15_000, 1)
