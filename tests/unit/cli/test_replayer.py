"""The replay's book-keeping: events in any order, what is sent, what the summary makes of it and of the audit."""

import json
from dataclasses import replace

import pytest

from muster.api.v1 import events_pb2, job_pb2
from muster.cli import summary
from muster.cli.errors import Exit
from muster.cli.replayer import Outcome, Tracked, Tracker, job_spec, quantile
from muster.cli.traces import GIB, TraceJob, TraceTask
from muster.client import Event, Job
from muster.sim.cluster.audit import Record

ONE_GPU = TraceJob("a", "ls", 0.0, 2.5, (TraceTask("main", 1, 4000, GIB, 1000),))
STATES = {name.removeprefix("JOB_STATE_").capitalize(): value for name, value in job_pb2.JobState.items()}


def event(name, state, sequence, *, at=0, exit_code=0):
    proto = events_pb2.JobEvent(
        type=f"job.{state.lower()}",
        job_id="id-" + name,
        name=name,
        state=STATES[state],
        ledger_sequence=sequence,
        exit_code=exit_code,
    )
    proto.time.seconds = at
    return Event(proto)


@pytest.fixture
def tracker():
    return Tracker({"r-a": Tracked(ONE_GPU, sent_s=99.0)})


def test_a_job_from_queue_to_end(tracker):
    for step in (event("r-a", "Queued", 1, at=100), event("r-a", "Placed", 2, at=101), event("r-a", "Running", 3)):
        tracker.event(step)
    now = tracker.snapshot(1.0, 2.0)
    assert (now.queued, now.starting, now.running, now.done, now.gpu_millis) == (0, 0, 1, 0, 1000)
    assert now.wait_p50_s == 2.0  # from the submission, so that the time in the inbox counts
    tracker.event(event("r-a", "Succeeded", 4))
    now = tracker.snapshot(1.0, 2.0)
    assert (now.running, now.done, now.gpu_millis) == (0, 1, 0)
    assert tracker.unfinished == 0


def test_an_event_may_come_before_the_answer_to_the_submission(tracker):
    tracker.event(event("r-a", "Running", 3))
    tracker.accepted(tracker.jobs["r-a"], "id-r-a")
    assert tracker.jobs["r-a"].state == "Running"


def test_events_of_the_past_change_nothing(tracker):
    tracker.event(event("r-a", "Running", 3))
    tracker.event(event("r-a", "Placed", 2))
    tracker.event(event("other", "Placed", 9))
    assert tracker.jobs["r-a"].state == "Running"
    assert tracker.gpu_millis == 1000


def test_a_refusal_by_the_cell_after_the_acceptance(tracker):
    tracker.accepted(tracker.jobs["r-a"], "id-r-a")
    proto = events_pb2.JobEvent(type="command.refused", job_id="id-r-a", message="queue is closed", ledger_sequence=5)
    tracker.event(Event(proto))
    assert (tracker.jobs["r-a"].state, tracker.jobs["r-a"].refused) == ("Refused", "queue is closed")
    assert tracker.unfinished == 0


def test_a_list_corrects_what_the_watch_did_not_tell(tracker):
    tracker.event(event("r-a", "Running", 3))
    proto = job_pb2.Job(id="id-r-a", spec={"name": "r-a"}, status={"state": STATES["Failed"], "exit_code": 1})
    tracker.listed(Job(proto))
    assert (tracker.jobs["r-a"].state, tracker.jobs["r-a"].exit_code, tracker.gpu_millis) == ("Failed", 1, 0)


def test_what_is_sent():
    share = TraceTask("main", 2, 500, GIB, 460, ("T4", "P100"))
    spec = job_spec("r-a", TraceJob("a", "ls", 0, 2.5, (share,), priority=5, exit_code=3), "openb")
    assert (spec.name, spec.queue, spec.priority) == ("r-a", "openb/ls", 5)
    (task,) = spec.tasks
    assert dict(task.resources) == {"cpu": "500m", "memory": str(GIB), "muster.io/gpu-milli": "460"}
    (rule,) = task.affinity[0].requirements
    assert (rule.key, rule.operator, list(rule.values)) == ("nvidia.com/gpu.product", "In", ["T4", "P100"])
    annotations = json.loads(spec.template)["metadata"]["annotations"]
    assert annotations == {"sim.muster.io/run-seconds": "2.500", "sim.muster.io/exit-code": "3"}
    whole = job_spec("r-b", replace(ONE_GPU, tasks=(TraceTask("main", 1, 4000, GIB, 8000),)), "openb")
    assert whole.tasks[0].resources["nvidia.com/gpu"] == "8"


def record(seq, verb, job, **fields):
    values = {
        "time_ms": 1000 * seq,
        "uid": f"u-{job}-{fields.get('epoch', '1')}",
        "code": 201 if verb == "create" else 0,
    }
    values |= {"epoch": "1", "attempt": "0", "pod": "0", "phase": "Running", **fields}
    return Record(
        seq=seq - 1,
        cluster="sim-a",
        verb=verb,
        resource="pods",
        namespace="default",
        name=f"pod-{job}",
        user_agent="test",
        job=job,
        **values,
    )


def outcome(**states):
    failing = replace(ONE_GPU, exit_code=1)
    jobs = []
    for name, (state, designed, code) in states.items():
        job = failing if designed else ONE_GPU
        jobs.append(Tracked(replace(job, name=name), state=state, id=name, sent_s=0.5, placed_s=0.6, exit_code=code))
    return Outcome("r", "q", jobs, 10.0, 5.0, [0.1])


def test_a_clean_run():
    ended = outcome(a=("Succeeded", False, 0), b=("Failed", True, 1))
    seen = summary.witness(
        [record(1, "create", "a"), record(2, "run", "a"), record(3, "create", "b")], {"a": 1, "b": 1}
    )
    assert summary.exit_code(ended, seen) is Exit.OK
    text = "\n".join(summary.lines(ended, seen))
    assert "2 jobs: 1 succeeded, 1 failed by design, 0 lost, 0 run twice" in text
    assert summary.data(ended, seen)["submit_to_bound_p99_seconds"] == 2.5


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({"a": ("Running", False, 0)}, "0 lost, 0 run twice, 1 not ended"),
        ({"a": ("Succeeded", False, 0), "b": ("Succeeded", False, 0)}, "1 lost"),  # b never ran, says the cluster
        ({"a": ("Failed", False, 7)}, "1 unexpected end"),
        ({"a": ("Succeeded", True, 0)}, "1 unexpected end"),
        ({"a": ("Refused", False, 0)}, "1 refused"),
    ],
)
def test_what_breaks_a_run(states, said):
    ended = outcome(**states)
    seen = summary.witness([record(1, "create", "a"), record(2, "run", "a")], {"a": 1})
    assert summary.exit_code(ended, seen) is Exit.BROKEN
    assert said in "\n".join(summary.lines(ended, seen))


def test_a_job_the_cell_does_not_know_is_lost():
    ended = outcome(a=("Running", False, 0))
    ended.jobs[0].unknown = True
    seen = summary.witness([record(1, "create", "a"), record(2, "run", "a")], {"a": 1})
    assert summary.exit_code(ended, seen) is Exit.BROKEN
    assert "1 lost" in "\n".join(summary.lines(ended, seen))


def test_a_job_that_ran_twice_is_told_by_the_audit():
    log = [
        record(1, "create", "a"),
        record(2, "run", "a"),
        record(3, "create", "a", epoch="2"),
        record(4, "run", "a", epoch="2"),
    ]
    seen = summary.witness(log, {"a": 1})
    assert set(seen.doubled) == {"a"}
    ended = outcome(a=("Succeeded", False, 0))
    assert summary.exit_code(ended, seen) is Exit.BROKEN
    assert "1 run twice" in "\n".join(summary.lines(ended, seen))
    assert seen.bound_s["a"] == 1.0  # the first gang counts, not the second


def test_without_an_audit_nothing_is_claimed():
    text = "\n".join(summary.lines(outcome(a=("Succeeded", False, 0)), summary.Witness()))
    assert "no audit to ask" in text
    assert "bound" not in text


def test_quantiles():
    assert quantile([], 0.5) == 0.0
    assert quantile([1, 2, 3, 4], 0.5) == 3
    assert quantile([1, 2, 3, 4], 0.99) == 4
