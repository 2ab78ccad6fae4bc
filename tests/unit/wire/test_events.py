"""Public events: one story for the event stream and for watches, in the protobuf JSON mapping (LOG-13)."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from muster.api.v1 import events_pb2
from muster.core import transitions as tr
from muster.core.model import (
    GroupPlacement,
    InboxPosition,
    JobSpec,
    JobState,
    PriorityClass,
    QueueSpec,
    Reason,
    TaskGroup,
)
from muster.wire import events
from muster.wire.event_data import JobData

NOW_MS = 1_800_000_000_250
AT = InboxPosition(7, 2)


class KnownNames:
    """One job and one queue."""

    def job(self, job: str) -> events.JobFacts | None:
        if job != "j1":
            return None
        return events.JobFacts("train", "ns", "research/vision", "ann", "00-1-2-01", (("team", "v"),))

    def queue(self, queue: str) -> str | None:
        return "research/vision" if queue == "q1" else None


def spec(job: str) -> JobSpec:
    return JobSpec(
        id=job, namespace="ns", name=f"name-{job}", queue="research/vision", tasks=(TaskGroup("w", 1, 1, ()),)
    )


ALL: list[tuple[tr.AnyTransition, str]] = [
    (tr.JobQueued(spec("j2"), "q1", AT), "job.queued"),
    (tr.JobPlaced("j1", 1, ()), "job.placed"),
    (tr.JobStarting("j1", 1), "job.starting"),
    (tr.JobRunning("j1", 1), "job.running"),
    (tr.JobStopping("j1", 1, JobState.QUEUED, Reason.NODE_LOST, "gone", NOW_MS + 1000), "job.stopping"),
    (tr.JobPreempted("j1", 1, "j9", NOW_MS + 1000), "job.preempted"),
    (tr.JobGrown("j1", 1, (GroupPlacement(0, ((3, 2),)),)), "job.grown"),
    (tr.JobShrunk("j1", 1, (4, 5), "j9"), "job.shrunk"),
    (tr.JobShrunk("j1", 1, (4,), reason=Reason.NODE_LOST, message="lost worker-4"), "job.shrunk"),
    (tr.JobRequeued("j1", Reason.PREEMPTED), "job.requeued"),
    (tr.JobSucceeded("j1", 2), "job.succeeded"),
    (tr.JobFailed("j1", Reason.POD_FAILED, "exit", 3), "job.failed"),
    (tr.JobCancelled("j1", Reason.CANCELLED_BY_USER, "by ann"), "job.cancelled"),
    (tr.CommandRefused(AT, "SubmitJob", "j3", "r", "NOT_FOUND", "queue", "no such queue", "Q1"), "command.refused"),
    (tr.QueueUpserted(QueueSpec("q1", "vision", "q0", 3)), "queue.updated"),
    (tr.QueueRemoved("q1"), "queue.deleted"),
    (tr.PriorityClassUpserted(PriorityClass("high", 5, (), 1500)), "priority-class.updated"),
    (tr.PriorityClassUpserted(PriorityClass("low", -5, (("a", "b"),), 600_000)), "priority-class.updated"),
    (tr.PriorityClassRemoved("high"), "priority-class.deleted"),
    (tr.LeaderElected(4, "qm-1"), "cell.leader"),
    (tr.InboxItemQuarantined(AT, "died twice"), "cell.quarantined"),
]
SILENT: list[tr.AnyTransition] = [tr.CyclePaused(), tr.JobForgotten("j1"), tr.ClusterSynced("c"), tr.NodeRemoved(1)]


def transaction(*transitions: tr.AnyTransition) -> tr.Transaction:
    header = tr.Header(1, "1-1", 11, 1, NOW_MS, InboxPosition(1, 0), InboxPosition(1, 0), 0, 0)
    return tr.Transaction(header, transitions)


def made(*transitions: tr.AnyTransition) -> list[events.PublicEvent]:
    return events.public_events(transaction(*transitions), 12, KnownNames(), "main")


def message_for(kind: str) -> Message:
    families: dict[str, type[Message]] = {
        "job": events_pb2.JobEvent,
        "command": events_pb2.CommandEvent,
        "queue": events_pb2.QueueEvent,
        "priority-class": events_pb2.PriorityClassEvent,
        "cell": events_pb2.CellEvent,
    }
    return families[kind.partition(".")[0]]()


@pytest.mark.parametrize(("transition", "kind"), ALL, ids=[kind for _, kind in ALL])
def test_the_data_is_the_protobuf_json_mapping(transition: tr.AnyTransition, kind: str) -> None:
    (event,) = made(transition)
    _, headers, data = events.cloud_event(event, "main")
    message = json_format.Parse(data, message_for(kind))  # unknown fields and wrong types raise
    canonical = json_format.MessageToDict(message)
    ours = json.loads(data)
    assert {k: v for k, v in ours.items() if k not in ("time", "notBefore")} == {
        k: v for k, v in canonical.items() if k not in ("time", "notBefore")
    }
    assert (event.type, headers["ce-type"], ours["type"]) == (kind, kind, kind)
    assert ours["ledgerSequence"] == "12"


def test_events_are_numbered_by_transition_and_silent_ones_leave_gaps() -> None:
    found = made(SILENT[0], ALL[1][0], *SILENT[1:], ALL[2][0])
    assert [(e.ledger_seq, e.index) for e in found] == [(12, 1), (12, 5)]
    assert [e.id for e in found] == ["12-1", "12-5"]


def test_a_job_event_says_everything_about_the_job() -> None:
    (event,) = made(tr.JobStopping("j1", 3, JobState.QUEUED, Reason.NODE_LOST, "gone", NOW_MS + 1000))
    proto = events.job_event_proto(event)
    assert proto is not None
    assert (proto.job_id, proto.name, proto.namespace, proto.queue) == ("j1", "train", "ns", "research/vision")
    assert (proto.submitter, proto.trace_context, dict(proto.labels)) == ("ann", "00-1-2-01", {"team": "v"})
    assert (proto.epoch, proto.message, proto.index) == (3, "gone", 0)
    assert proto.time.ToMilliseconds() == NOW_MS
    assert proto.not_before.ToMilliseconds() == NOW_MS + 1000


def test_a_job_queued_in_the_same_transaction_is_known_by_its_later_steps() -> None:
    _, placed = made(tr.JobQueued(spec("j2"), "q1", AT), tr.JobPlaced("j2", 1, ()))
    assert isinstance(placed.data, JobData)
    assert (placed.data.name, placed.namespace) == ("name-j2", "ns")


def test_a_job_nobody_remembers_still_has_its_event() -> None:
    (event,) = made(tr.JobSucceeded("gone", 1))
    subject, headers, _ = events.cloud_event(event, "main")
    assert subject == "muster.events.main._.job.succeeded"
    assert headers["ce-subject"] == "gone"


def test_the_subject_and_headers_make_a_cloud_event_in_binary_mode() -> None:
    (event,) = made(tr.JobPlaced("j1", 1, ()))
    subject, headers, _ = events.cloud_event(event, "main")
    assert subject == "muster.events.main.ns.job.placed"
    assert headers == {
        "ce-specversion": "1.0",
        "ce-id": "12-0",
        "ce-source": "/muster/main",
        "ce-type": "job.placed",
        "ce-subject": "j1",
        "ce-time": "2027-01-15T08:00:00.250Z",
        "ce-traceparent": "00-1-2-01",
        "content-type": "application/json",
    }
    assert events.id_of(headers) == (12, 0)


def test_a_refusal_reaches_those_who_watch_the_job() -> None:
    (event,) = made(ALL[13][0])
    proto = events.job_event_proto(event)
    assert proto is not None
    assert (proto.job_id, proto.command, proto.code, proto.message) == ("j3", "SubmitJob", "NOT_FOUND", "no such queue")


def test_watches_hear_of_jobs_only() -> None:
    assert all(events.job_event_proto(event) is None for event in made(*(t for t, _ in ALL[14:])))


def test_a_reader_remembers_jobs_until_they_are_forgotten() -> None:
    names = events.Remembering(KnownNames())
    names.observe(transaction(tr.JobQueued(spec("j2"), "q1", AT)))
    known = names.job("j2")
    assert known is not None
    assert known.queue == "research/vision"
    names.observe(transaction(tr.JobForgotten("j2")))
    assert names.job("j2") is None
    assert names.job("j1") is not None  # from whom it asks when it does not know


def test_a_reader_ahead_of_the_state_knows_the_paths_of_new_and_moved_queues() -> None:
    names = events.Remembering(KnownNames())

    def subjects(*transitions: tr.AnyTransition) -> list[str]:
        tx = transaction(*transitions)
        names.observe(tx)
        return [event.subject for event in events.public_events(tx, 12, names, "main")]

    assert subjects(tr.QueueUpserted(QueueSpec("q7", "lab", ""))) == ["lab"]
    assert subjects(tr.QueueUpserted(QueueSpec("q8", "speech", "q7"))) == ["lab/speech"]
    assert subjects(tr.QueueUpserted(QueueSpec("q9", "asr", "q1"))) == ["research/vision/asr"]
    assert subjects(tr.QueueUpserted(QueueSpec("q8", "speech", "q1"))) == ["research/vision/speech"]
    assert subjects(tr.QueueRemoved("q8")) == ["research/vision/speech"]


def test_every_state_and_reason_of_the_core_has_its_enum() -> None:
    from muster.wire import enums

    assert set(enums.STATES) == set(JobState)
    assert set(enums.REASONS) == {reason for reason in Reason if reason}
