"""What the cell takes and what it refuses: rules Q1, Q2, LOG-9, LOG-11."""

from __future__ import annotations

import pytest

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.errors import Code, Rejected
from muster.core.limits import JOB_BYTES_MAX
from muster.core.model import JobOptions, JobState, Requirement, TaskGroup
from muster.core.submission import UNBUILT, check_spec


def kinds(transitions):
    return [type(t).__name__ for t in transitions if not isinstance(t, tr.CyclePaused)]


def test_a_job_is_queued_and_remembers_where_it_came_from(world):
    assert kinds(world.submit("a")) == ["JobQueued"]
    job = world.job("a")
    assert job.state is JobState.QUEUED
    assert (job.submit_position.seq, job.submit_position.item) == (2, 0)
    assert job.submit_ms == world.cell.now_ms


def test_the_same_request_again_changes_nothing(world):
    world.submit("a")
    assert world.submit("a") == []


def test_the_same_request_twice_in_one_message_is_one_job(world):
    done = world.cell.send(c.SubmitJob(world.spec("a")), c.SubmitJob(world.spec("a")))
    assert kinds(done) == ["JobQueued"]


def test_the_same_request_with_another_body_is_refused(world):
    world.submit("a")
    refusal = world.reject(world.submit("a", digest="another"))
    assert (refusal.code, refusal.field, refusal.rule) == ("ALREADY_EXISTS", "request_id", "LOG-11")
    assert "request-a" in refusal.message
    assert world.id("a") in refusal.message


def test_a_request_is_remembered_after_its_job_is_forgotten_and_forgotten_in_the_end(world):
    world.submit("a")
    world.cell.send(c.CancelJob(world.id("a")))
    world.cell.wait(3601 * 1000)
    assert world.id("a") not in world.state.jobs
    assert world.submit("a") == []
    assert world.reject(world.submit("a", digest="another")).code == "ALREADY_EXISTS"
    world.cell.wait(7 * 24 * 3600 * 1000 + 1000)
    assert not world.state.forgotten
    assert kinds(world.submit("a")) == ["JobQueued"]


def test_names_are_unique_among_live_jobs(world):
    world.submit("a")
    refusal = world.reject(world.submit("b", name="a"))
    assert (refusal.code, refusal.field) == ("ALREADY_EXISTS", "name")
    world.cell.send(c.CancelJob(world.id("a")))
    assert kinds(world.submit("c", name="a")) == ["JobQueued"]


def test_a_cancel_and_a_new_job_of_the_name_in_one_message(world):
    world.submit("a")
    done = world.cell.send(c.CancelJob(world.id("a")), c.SubmitJob(world.spec("b", name="a")))
    assert kinds(done) == ["JobCancelled", "JobQueued"]


def test_an_unknown_queue_is_refused_with_the_nearest_name(world):
    refusal = world.reject(world.submit("a", queue="reserch"))
    assert refusal.message == 'queue "reserch" does not exist (did you mean "research"?)'
    assert (refusal.code, refusal.field, refusal.subject) == ("NOT_FOUND", "queue", world.id("a"))


def test_jobs_go_to_leaves_only(world):
    world.queue("research/vision")
    assert world.reject(world.submit("a")).code == "FAILED_PRECONDITION"


@pytest.mark.parametrize("state", ["CLOSED", "DRAINING"])
def test_a_closed_queue_takes_no_jobs(world, state):
    world.queue("research", state=state)
    refusal = world.reject(world.submit("a"))
    assert state.lower() in refusal.message


def test_a_job_larger_than_a_limit_on_its_path_is_refused(world):
    world.queue("research", limit=(("cpu", 4000),))
    world.queue("research/vision")
    refusal = world.reject(world.submit("a", queue="research/vision", cpu=1500, replicas=3))
    assert refusal.rule == "Q2"
    assert refusal.message == 'the job needs 4.5 cpu, the limit of queue "research" is 4'


def test_the_minimum_counts_for_what_can_never_run(world):
    world.queue("research", limit=(("cpu", 4000),))
    assert kinds(world.submit("a", cpu=1500, replicas=3, least=2)) == ["JobQueued"]


def test_hardware_counts_only_once_a_cluster_is_synced(world):
    assert kinds(world.submit("a", cpu=9000)) == ["JobQueued"]
    world.cell.send(c.NodesReported("sim-a", (world.node("node-0"),), first=True))
    assert kinds(world.submit("b", cpu=9000)) == ["JobQueued"]
    world.cell.send(c.NodesReported("sim-a", complete=True))
    refusal = world.reject(world.submit("c", cpu=9000))
    assert (refusal.code, refusal.rule) == ("FAILED_PRECONDITION", "Q2")
    assert "9 cpu" in refusal.message
    assert world.job("a").state is JobState.QUEUED  # what waits already goes on waiting


def test_a_job_can_name_its_cluster(world):
    world.nodes(cluster="sim-a")
    world.nodes(cluster="sim-b", cpu=64_000)
    world.submit("a", cluster_selector=(("muster.io/cluster", "sim-b"),))
    assert world.state.nodes.spec(world.job("a").placement[0].runs[0][0]).cluster == "sim-b"
    small = (("muster.io/cluster", "sim-a"),)
    assert world.reject(world.submit("b", cpu=9000, cluster_selector=small)).rule == "Q2"
    other = (("muster.io/cluster", "sim-x"),)
    assert "sim-a, sim-b" in world.reject(world.submit("c", cluster_selector=other)).message
    assert world.reject(world.submit("d", cluster_selector=(("zone", "a"),))).code == "INVALID_ARGUMENT"


def test_reserved_fields_are_refused_by_name(world):
    refusal = world.reject(world.submit("a", options=JobOptions(("deadline", "topology"))))
    assert (refusal.code, refusal.field) == ("UNIMPLEMENTED", "deadline")
    assert {"deadline", "topology", "near"} <= set(UNBUILT)


@pytest.mark.parametrize(
    "command",
    [
        c.UpdateJob("x"),
        c.SuspendJob("x"),
        c.ResumeJob("x"),
        c.RequeueJob("x"),
        c.UpsertReservation("x"),
        c.DeleteReservation("x"),
        c.CordonNode("sim-a", "x"),
    ],
)
def test_reserved_commands_are_refused(world, command):
    refusal = world.reject(world.cell.send(command))
    assert (refusal.code, refusal.command, refusal.subject) == ("UNIMPLEMENTED", type(command).__name__, "x")


GOOD = TaskGroup("main", 2, 1, (("cpu", 1000),))


@pytest.mark.parametrize(
    ("field", "tasks"),
    [
        ("tasks", ()),
        ("tasks", (GOOD,) * 65),
        ("tasks[1].name", (GOOD, GOOD)),
        ("tasks[0].name", (TaskGroup("Main", 1, 1, ()),)),
        ("tasks[0].replicas", (TaskGroup("main", 0, 0, ()),)),
        ("tasks[0].min_replicas", (TaskGroup("main", 2, 3, ()),)),
        ("tasks[0].min_replicas", (TaskGroup("main", 2, 0, ()),)),
        ("tasks[0].resources.cpu", (TaskGroup("main", 1, 1, (("cpu", -1),)),)),
        ("tasks[0].resources.cpu", (TaskGroup("main", 1, 1, (("cpu", 1 << 60),)),)),
        ("tasks[0].resources", (TaskGroup("main", 1, 1, (("memory", 1), ("cpu", 1))),)),
        ("tasks[0].resources.nvidia.com/gpu", (TaskGroup("main", 1, 1, (("nvidia.com/gpu", 1500),)),)),
        ("tasks[0].policy", (TaskGroup("main", 1, 1, (), policy="BEST"),)),
        ("tasks[0].affinity", (TaskGroup("main", 1, 1, (), affinity=((Requirement("a", "Like"),),)),)),
        ("tasks", (TaskGroup("main", 40_001, 1, ()),)),
    ],
)
def test_task_groups_that_cannot_be_a_job_are_refused_by_field(world, field, tasks):
    with pytest.raises(Rejected) as refused:
        check_spec(world.spec("a", tasks=tasks))
    assert refused.value.field == field
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert world.reject(world.submit("a", tasks=tasks)).field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "xyz"),
        ("name", "a_b"),
        ("namespace", ""),
        ("priority", 2_000_000_000),
        ("max_runtime", -1),
        ("labels", tuple((str(i), "") for i in range(100, 200))),
    ],
)
def test_other_fields_are_refused_by_name(world, field, value):
    attribute = {"max_runtime": "max_runtime_ms"}.get(field, field)
    assert world.reject(world.submit("a", **{attribute: value})).field == field


def test_a_job_that_is_too_large_is_refused(world):
    tasks = (TaskGroup("main", 1, 1, (), template=b"x" * JOB_BYTES_MAX),)
    assert world.reject(world.submit("a", tasks=tasks)).rule == "LOG-8"


def test_bytes_that_cannot_be_read_are_refused_one_by_one(world):
    from muster.wire import codec  # the shell's part of it

    good = codec.encode_inbox((c.SubmitJob(world.spec("a")),))
    world.cell.write_bytes(b"\xc1 no message")
    world.cell.write_bytes(good.replace(b"SubmitJob", b"SubmatJob"))
    world.cell.write_bytes(good)
    done = world.cell.settle()
    refused = [t for t in done if isinstance(t, tr.CommandRefused)]
    assert [(t.command, t.rule, t.position.seq) for t in refused] == [
        ("Undecodable", "LOG-9", 2),
        ("Undecodable", "LOG-9", 3),
    ]
    assert world.job("a").state is JobState.QUEUED


# --- cancel ---------------------------------------------------------------------------------------------------------


def test_cancelling_a_queued_job_ends_it_at_once(world):
    world.submit("a")
    assert kinds(world.cell.send(c.CancelJob(world.id("a"), actor="ann", reason="typo"))) == ["JobCancelled"]
    assert world.job("a").message == "cancelled by ann: typo"
    assert world.cell.send(c.CancelJob(world.id("a"))) == []


def test_cancelling_a_placed_job_keeps_its_quota_until_its_pods_are_gone(world):
    world.nodes()
    world.submit("a")
    assert kinds(world.cell.send(c.CancelJob(world.id("a")))) == ["JobStopping"]
    assert world.cell.send(c.CancelJob(world.id("a"))) == []
    assert world.state.queues.find("research").usage == {"cpu": 1000, "pods": 1}
    assert kinds(world.pods("a", 5)) == ["PodsChanged", "JobCancelled"]
    assert world.state.queues.find("research").usage == {}


def test_a_cancel_overrides_a_requeue(world):
    world.nodes()
    world.submit("a")
    world.cell.send(c.PlacementRejected("sim-a", world.id("a"), 1, 0, "Invalid", "no"))
    assert world.job("a").next_state == "Queued"
    world.cell.send(c.CancelJob(world.id("a")))
    world.pods("a", 5)
    assert world.job("a").state is JobState.CANCELLED


def test_cancelling_what_is_not_there_is_refused(world):
    assert world.reject(world.cell.send(c.CancelJob("f" * 32))).code == "NOT_FOUND"
    world.nodes()
    world.submit("a")
    world.pods("a", 3)
    assert world.reject(world.cell.send(c.CancelJob(world.id("a")))).code == "FAILED_PRECONDITION"
