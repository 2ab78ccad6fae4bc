"""What facts about pods do to their gang: LOG-15, rules G1, I2, L3, L5."""

from __future__ import annotations

import pytest

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.limits import START_TIMEOUT_MS
from muster.core.model import JobState, TaskGroup


def kinds(transitions):
    return [type(t).__name__ for t in transitions if not isinstance(t, tr.CyclePaused)]


@pytest.fixture
def gang(world):
    """A job `a` of three pods, two of them needed, on two nodes."""
    world.nodes(2, cpu=2000)
    world.submit("a", replicas=3, least=2)
    assert world.job("a").state is JobState.PLACED
    return world


@pytest.fixture
def rigid(world):
    """A job `a` of three pods, all of them needed, on two nodes."""
    world.nodes(2, cpu=2000)
    world.submit("a", replicas=3)
    return world


def test_a_gang_starts_runs_and_succeeds(gang):
    assert kinds(gang.pods("a", 1, 0)) == ["PodsChanged", "JobStarting"]
    assert kinds(gang.pods("a", 2, 0)) == ["PodsChanged"]
    assert kinds(gang.pods("a", 2, 2)) == ["PodsChanged", "JobRunning"]  # its minimum runs
    assert gang.job("a").started_ms == gang.cell.now_ms
    assert kinds(gang.pods("a", 3, 0, 1)) == ["PodsChanged"]
    assert gang.state.queues.find("research").usage == {"cpu": 1000, "pods": 1}  # L5: pod by pod
    assert kinds(gang.pods("a", 3, 2)) == ["PodsChanged", "JobSucceeded"]
    job = gang.job("a")
    assert (job.state, job.reason, job.placement) == (JobState.SUCCEEDED, "AllPodsSucceeded", ())
    assert [(a.epoch, a.reason) for a in job.attempts] == [(1, "AllPodsSucceeded")]


def test_pods_that_come_and_go_between_two_reports(gang):
    assert kinds(gang.pods("a", 3)) == ["PodsChanged", "JobSucceeded"]


def test_phases_only_move_forward_and_end_for_good(gang):
    gang.pods("a", 2, 0)
    assert gang.pods("a", 1, 0) == []
    gang.pods("a", 3, 0)
    assert gang.pods("a", 5, 0) == []  # cleaned away after it succeeded
    assert gang.pods("a", 4, 0, exit_code=1) == []
    assert gang.job("a").phases[0] == 3


def test_several_reports_of_a_pod_in_one_fact_count_once(gang):
    job = gang.job("a")
    facts = tuple(c.PodFact(job.id, 1, 0, phase) for phase in (1, 3, 2, 5))
    (changed, _) = gang.cell.send(c.PodsObserved("sim-a", facts))
    assert [(change.pod, change.phase) for change in changed.pods] == [(0, 3)]


@pytest.mark.parametrize("fact", [{"epoch": 0}, {"epoch": 2}])
def test_facts_of_another_epoch_are_ignored(gang, fact):
    assert gang.pods("a", 4, **fact) == []


def test_facts_that_make_no_sense_are_ignored(gang):
    job = gang.job("a")
    nonsense = [
        c.PodFact(job.id, 1, 3, 2),
        c.PodFact(job.id, 1, -1, 2),
        c.PodFact(job.id, 1, 0, 9),
        c.PodFact("x", 1, 0, 2),
    ]
    assert gang.cell.send(c.PodsObserved("sim-a", tuple(nonsense))) == []


def test_a_failed_pod_fails_the_job_when_the_others_are_over(gang):
    gang.pods("a", 2)
    assert kinds(gang.pods("a", 4, 1, exit_code=137, reason="OOMKilled")) == ["PodsChanged", "JobStopping"]
    job = gang.job("a")
    assert (job.state, job.next_state, job.exit_code) == (JobState.STOPPING, "Failed", 137)
    assert job.message == "pod main-1 failed with exit code 137 (OOMKilled)"
    assert gang.state.queues.find("research").usage == {"cpu": 2000, "pods": 2}
    assert kinds(gang.pods("a", 5, 0)) == ["PodsChanged"]
    assert kinds(gang.pods("a", 3, 2)) == ["PodsChanged", "JobFailed"]
    assert (gang.job("a").state, gang.job("a").exit_code) == (JobState.FAILED, 137)


def test_a_job_whose_other_pods_are_over_fails_at_once(gang):
    gang.pods("a", 3, 0, 2)
    assert kinds(gang.pods("a", 4, 1, exit_code=1)) == ["PodsChanged", "JobStopping", "JobFailed"]


def test_a_pod_that_others_delete_takes_the_gang_down_and_it_waits_again(rigid):
    gang = rigid
    gang.pods("a", 2)
    done = gang.pods("a", 5, 1)
    assert kinds(done) == ["PodsChanged", "JobStopping"]
    assert (done[1].reason, done[1].next) == ("PodDeletedByOthers", "Queued")
    assert kinds(gang.pods("a", 5)) == ["PodsChanged", "JobRequeued"]
    job = gang.job("a")
    assert (job.state, job.not_before_ms) == (JobState.QUEUED, gang.cell.now_ms + 1000)
    assert gang.cell.settle() == []  # in backoff
    assert kinds(gang.cell.wait(1000)) == ["JobPlaced"]
    assert gang.job("a").epoch == 2
    assert gang.job("a").submit_ms < gang.cell.now_ms


def test_what_succeeds_while_it_is_stopped_for_a_requeue_has_succeeded(rigid):
    gang = rigid
    gang.pods("a", 2)
    gang.cell.send(c.PlacementRejected("sim-a", gang.id("a"), 1, 0, "Forbidden", "quota"))
    assert kinds(gang.pods("a", 3)) == ["PodsChanged", "JobSucceeded"]


def test_a_rejected_placement_is_tried_elsewhere_without_the_node(rigid):
    gang = rigid
    rejected_on = gang.job("a").placement[0].runs[0][0]
    done = gang.cell.send(c.PlacementRejected("sim-a", gang.id("a"), 1, 0, "Invalid", "name too long"))
    assert (done[0].reason, done[0].suspects) == ("PlacementRejected", (rejected_on,))
    assert done[0].message == "Invalid: name too long"
    gang.pods("a", 5)
    gang.nodes(3, cpu=3000)
    gang.cell.wait(1000)
    assert rejected_on not in dict(gang.job("a").placement[0].runs)


def test_a_node_that_rejected_a_job_is_better_than_none(world):
    world.nodes(1)
    world.submit("a")
    world.cell.send(c.PlacementRejected("sim-a", world.id("a"), 1, 0))
    world.pods("a", 5)
    world.cell.wait(1000)
    assert world.job("a").epoch == 2
    assert world.job("a").suspects == (0,)


def test_a_rejection_of_an_old_epoch_or_of_a_stopping_job_is_ignored(gang):
    assert gang.cell.send(c.PlacementRejected("sim-a", gang.id("a"), 0, 0)) == []
    gang.cell.send(c.CancelJob(gang.id("a")))
    assert gang.cell.send(c.PlacementRejected("sim-a", gang.id("a"), 1, 0)) == []


def test_a_kubelet_that_refuses_a_pod_does_not_fail_the_job(rigid):
    gang = rigid
    done = gang.pods("a", 4, 0, reason="OutOfcpu")
    assert (done[1].reason, done[1].next) == ("PlacementRejected", "Queued")


def test_backoff_doubles_up_to_an_hour(world):
    world.nodes(1)
    world.submit("a")
    waits = []
    for _ in range(14):
        world.cell.send(c.PlacementRejected("sim-a", world.id("a"), world.job("a").epoch, 0))
        world.pods("a", 5)
        assert world.job("a").not_before_ms == world.cell.now_ms + 1000  # as for any other node
        waits.append(world.job("a").suspects_until_ms - world.cell.now_ms)
        world.cell.wait(waits[-1])
    assert waits[:4] == [1000, 2000, 4000, 8000]
    assert waits[-1] == 3600 * 1000
    assert len(world.job("a").attempts) == 8
    assert world.job("a").attempts[-1].epoch == 14


# --- nodes ----------------------------------------------------------------------------------------------------------


def test_pods_of_a_node_that_is_not_ready_may_still_run(gang):
    gang.pods("a", 2)
    node = gang.node("node-0", cpu=2000, ready=False)
    assert kinds(gang.cell.send(c.NodesReported("sim-a", (node,)))) == ["NodeUpserted"]
    assert gang.job("a").state is JobState.RUNNING


def test_a_removed_node_takes_its_gangs_down_without_backoff(rigid):
    gang = rigid
    gang.pods("a", 2)
    done = gang.cell.send(c.NodesReported("sim-a", removed=("node-1",)))
    assert kinds(done) == ["NodeRemoved", "PodsChanged", "JobStopping"]
    stopping = done[-1] if isinstance(done[-1], tr.JobStopping) else done[-2]
    assert (stopping.reason, stopping.next) == ("NodeLost", "Queued")
    gang.nodes(2, cpu=2000)
    assert gang.job("a").state is JobState.STOPPING
    assert kinds(gang.pods("a", 5)) == ["PodsChanged", "JobRequeued", "JobPlaced"]


def test_a_node_that_is_gone_and_back_before_anybody_looked_keeps_its_pods(gang):
    gang.pods("a", 2)
    node = gang.node("node-1", cpu=2000)
    gang.cell.send(c.NodesReported("sim-a", removed=("node-1",)), c.NodesReported("sim-a", (node,)))
    assert gang.job("a").state is JobState.RUNNING


def test_many_lost_pods_are_spread_over_transactions(world):
    world.nodes(1, cpu=4_000_000)
    world.cell.send(*[c.SubmitJob(world.spec(f"job-{n}", cpu=1)) for n in range(100)])
    assert sum(job.state is JobState.PLACED for job in world.state.jobs.values()) == 100
    world.cell.work_limit = 40
    before = world.state.ledger_seq
    world.cell.send(c.NodesReported("sim-a", removed=("node-0",)))
    assert world.state.ledger_seq - before >= 3
    assert {job.reason for job in world.state.jobs.values()} == {"NodeLost"}


# --- time -----------------------------------------------------------------------------------------------------------


def test_max_runtime_is_enforced_from_the_placement_on(world):
    world.nodes()
    world.submit("a", max_runtime_ms=60_000)
    world.pods("a", 2)
    assert kinds(world.cell.wait(59_999)) == []
    done = world.cell.wait(1)
    assert (done[0].next, done[0].reason) == ("Failed", "MaxRuntimeExceeded")
    world.pods("a", 5)
    assert world.job("a").state is JobState.FAILED


def test_a_gang_that_does_not_start_in_time_is_taken_down_and_suspects_its_nodes(gang):
    gang.pods("a", 1)
    gang.pods("a", 2, 0)
    done = gang.cell.wait(START_TIMEOUT_MS)
    assert (done[0].reason, done[0].next) == ("StartTimeout", "Queued")
    assert done[0].message == "2 of 3 pods did not start in 600 s"
    runs = gang.job("a").placement[0].runs
    late = {node for node, _ in runs} if runs[0][1] > 1 else {node for node, _ in runs[1:]}
    assert set(done[0].suspects) == late
    assert done[0].not_before_ms == gang.cell.now_ms + 1000
    assert done[0].suspects_until_ms == gang.cell.now_ms + 60_000


def test_a_gang_that_runs_has_no_start_timeout(gang):
    gang.pods("a", 2)
    assert kinds(gang.cell.wait(START_TIMEOUT_MS)) == []


def test_a_gang_has_as_many_pods_as_fit_between_its_bounds(world):
    world.nodes(1, cpu=2500)
    spec = world.spec("a", tasks=(TaskGroup("ps", 1, 1, (("cpu", 500),)), TaskGroup("worker", 4, 1, (("cpu", 1000),))))
    world.cell.send(c.SubmitJob(spec))
    job = world.job("a")
    assert (job.state, job.unplaced) == (JobState.PLACED, 2)
    assert list(job.phases) == [0, 0, 0, 5, 5]
    assert world.state.queues.find("research").usage == {"cpu": 2500, "pods": 3}
    world.pods("a", 3, 0, 1, 2)
    assert world.job("a").state is JobState.SUCCEEDED
