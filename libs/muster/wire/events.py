"""Transitions as public events: what happened, for everybody outside (LOG-13).

The event relay publishes them as CloudEvents and `WatchJobs` streams them; both go through `public_events`, so they
tell the same story. An event is made of its transition and of what is known about the job (`Names`), never of the
state after it, so it says the same whenever it is made. The JSON written here is the protobuf JSON mapping of the
event's message, built directly because the generic conversion costs twenty times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from google.protobuf import json_format
from msgspec import Struct

from muster.api.v1 import events_pb2, queue_pb2
from muster.core import transitions as tr
from muster.core.model import JobSpec, QueueSpec
from muster.core.state import CellState
from muster.wire import enums, event_data
from muster.wire.event_data import (
    AnyData,
    CellData,
    CommandData,
    JobData,
    PositionData,
    PriorityClassData,
    QueueData,
    rfc3339,
    seconds,
)
from muster.wire.job_steps import QUEUED, STEPS, Fields

id_of: Final = event_data.id_of
NO_NAMESPACE: Final = "_"  # in subjects of events that belong to no namespace; no namespace can be called so


class JobFacts(Struct, frozen=True, gc=False):
    """What an event says about its job beside what happened."""

    name: str
    namespace: str
    queue: str  # path
    submitter: str = ""
    trace: str = ""
    labels: tuple[tuple[str, str], ...] = ()


class Names(Protocol):
    """Who knows jobs and queues by id."""

    def job(self, job: str) -> JobFacts | None: ...

    def queue(self, queue: str) -> str | None:
        """The path."""


class StateNames:
    """Looks into a follower's state, which may be ahead of the transitions: what it has forgotten is not known then."""

    def __init__(self, state: Callable[[], CellState]) -> None:
        self._state = state

    def job(self, job: str) -> JobFacts | None:
        found = self._state().jobs.get(job)
        return facts_of(found.spec, self.queue(found.queue)) if found else None

    def queue(self, queue: str) -> str | None:
        queues = self._state().queues
        return queues.get(queue).path if queue in queues else None


class Remembering:
    """Remembers the jobs and queues it saw, for a reader of the ledger that may be behind or ahead of `others`' state.
    Queues are few and their ids are never used again, so those that are removed stay known."""

    def __init__(self, others: Names) -> None:
        self._others = others
        self._jobs: dict[str, JobFacts] = {}
        self._queues: dict[str, QueueSpec] = {}

    def job(self, job: str) -> JobFacts | None:
        return self._jobs.get(job) or self._others.job(job)

    def queue(self, queue: str) -> str | None:
        spec = self._queues.get(queue)
        if spec is None:
            return self._others.queue(queue)
        if not spec.parent:
            return spec.name
        above = self.queue(spec.parent)
        return f"{above}/{spec.name}" if above else None

    def observe(self, tx: tr.Transaction) -> None:
        """To be called for every transaction, before or after its events are made."""
        for transition in tx.transitions:
            if isinstance(transition, tr.JobQueued):
                self._jobs[transition.spec.id] = facts_of(transition.spec, self.queue(transition.queue))
            elif isinstance(transition, tr.JobForgotten):
                self._jobs.pop(transition.job, None)
            elif isinstance(transition, tr.QueueUpserted):
                self._queues[transition.spec.id] = transition.spec


def facts_of(spec: JobSpec, queue: str | None) -> JobFacts:
    return JobFacts(
        name=spec.name,
        namespace=spec.namespace,
        queue=queue or spec.queue,
        submitter=spec.submitter,
        trace=spec.trace,
        labels=spec.labels,
    )


class PublicEvent(Struct, frozen=True):
    """One event. `subject` is what it is about: a job id, a queue's path, the name of a priority class."""

    type: str
    namespace: str
    subject: str
    ledger_seq: int
    index: int
    time: str
    data: AnyData
    trace: str = ""

    @property
    def id(self) -> str:
        return f"{self.ledger_seq}-{self.index}"


class Moment(Struct, frozen=True):
    """Where and when a transition stands."""

    ledger_seq: int
    ledger_sequence: str  # as events spell it
    index: int
    time: str


def public_events(tx: tr.Transaction, ledger_seq: int, names: Names, cell: str) -> list[PublicEvent]:
    """The events of one transaction, in order. `names` as of before or after it."""
    time = rfc3339(tx.header.now_ms)
    sequence = str(ledger_seq)
    queued: dict[str, JobFacts] = {}
    events: list[PublicEvent] = []
    for index, transition in enumerate(tx.transitions):
        kind = type(transition)
        if kind not in PUBLIC:
            continue
        moment = Moment(ledger_seq, sequence, index, time)
        step = STEPS.get(kind)
        if isinstance(transition, tr.JobQueued):
            job = transition.spec.id
            facts = queued[job] = names.job(job) or facts_of(transition.spec, names.queue(transition.queue))
            events.append(_job_event(job, facts, moment, QUEUED))
        elif step is not None:
            job = transition.job  # type: ignore[union-attr]  # every transition in STEPS has one
            facts_known = queued.get(job) or names.job(job) or NOTHING_KNOWN
            events.append(_job_event(job, facts_known, moment, step(transition)))
        else:
            other = _other_event(transition, names, moment, cell)
            if other is not None:
                events.append(other)
    return events


# --- jobs -----------------------------------------------------------------------------------------------------------

NOTHING_KNOWN: Final = JobFacts(name="", namespace="", queue="")

PUBLIC: Final = frozenset(
    {
        *STEPS,
        tr.JobQueued,
        tr.CommandRefused,
        tr.QueueUpserted,
        tr.QueueRemoved,
        tr.PriorityClassUpserted,
        tr.PriorityClassRemoved,
        tr.LeaderElected,
        tr.InboxItemQuarantined,
    }
)  # what anybody is told of


def _job_event(job: str, facts: JobFacts, moment: Moment, fields: Fields) -> PublicEvent:
    data = JobData(
        job_id=job,
        name=facts.name,
        namespace=facts.namespace,
        queue=facts.queue,
        submitter=facts.submitter,
        trace_context=facts.trace,
        labels=dict(facts.labels),
        ledger_sequence=moment.ledger_sequence,
        index=moment.index,
        time=moment.time,
        **fields,
    )
    return _event(data, facts.namespace, job, moment, facts.trace)


# --- everything else ------------------------------------------------------------------------------------------------


def _other_event(t: tr.Transition, names: Names, moment: Moment, cell: str) -> PublicEvent | None:
    """Of a transition that is about no queued job."""
    place: Fields = {"ledger_sequence": moment.ledger_sequence, "index": moment.index, "time": moment.time}
    data: AnyData
    match t:
        case tr.CommandRefused():
            at = PositionData(sequence=str(t.position.seq), item=t.position.item)
            text: Fields = {"code": t.code, "field": t.field, "message": t.message, "rule": t.rule}
            text |= {"request_id": t.request_id, "inbox_position": at}
            text |= {"namespace": t.namespace, "name": t.name, "queue": t.queue}
            data = CommandData(type="command.refused", command=t.command, subject=t.subject, **text, **place)
            return _event(data, "", t.subject, moment)
        case tr.QueueUpserted():
            path = names.queue(t.spec.id) or t.spec.name
            state = queue_pb2.QueueState.Name(QUEUE_STATE_VALUES[t.spec.state])
            revision = str(t.spec.revision)
            data = QueueData(
                type="queue.updated", queue=path, queue_id=t.spec.id, revision=revision, state=state, **place
            )
            return _event(data, "", path, moment)
        case tr.QueueRemoved():
            path = names.queue(t.queue) or t.queue
            return _event(QueueData(type="queue.deleted", queue=path, queue_id=t.queue, **place), "", path, moment)
        case tr.PriorityClassUpserted(spec=of):
            least = seconds(of.min_runtime_ms)
            data = PriorityClassData(
                type="priority-class.updated", name=of.name, value=of.value, min_runtime=least, **place
            )
            return _event(data, "", of.name, moment)
        case tr.PriorityClassRemoved():
            return _event(PriorityClassData(type="priority-class.deleted", name=t.name, **place), "", t.name, moment)
        case tr.LeaderElected():
            data = CellData(type="cell.leader", cell=cell, leader=t.leader, epoch=str(t.epoch), **place)
            return _event(data, "", cell, moment)
        case tr.InboxItemQuarantined():
            message = f"inbox item {t.position.seq}.{t.position.item} was put aside: {t.reason}"
            return _event(CellData(type="cell.quarantined", cell=cell, message=message, **place), "", cell, moment)
    return None


QUEUE_STATE_VALUES: Final = {name: value for value, name in enums.QUEUE_STATES.items()}


def _event(data: AnyData, namespace: str, subject: str, moment: Moment, trace: str = "") -> PublicEvent:
    return PublicEvent(
        type=data.type,
        namespace=namespace or NO_NAMESPACE,
        subject=subject,
        ledger_seq=moment.ledger_seq,
        index=moment.index,
        time=moment.time,
        data=data,
        trace=trace,
    )


# --- on the wire ----------------------------------------------------------------------------------------------------

_encode: Final = msgspec.json.Encoder().encode


def cloud_event(event: PublicEvent, cell: str) -> tuple[str, dict[str, str], bytes]:
    """Subject, headers and data of the event as a CloudEvent in binary mode."""
    headers = {
        "ce-specversion": "1.0",
        "ce-id": event.id,
        "ce-source": f"/muster/{cell}",
        "ce-type": event.type,
        "ce-subject": event.subject,
        "ce-time": event.time,
        "content-type": "application/json",
    }
    if event.trace:
        headers["ce-traceparent"] = event.trace
    return f"muster.events.{cell}.{event.namespace}.{event.type}", headers, _encode(event.data)


def job_event_proto(event: PublicEvent) -> events_pb2.JobEvent | None:
    """What `WatchJobs` sends: events of jobs, and refusals of commands about them; None for all others."""
    data = event.data
    if isinstance(data, JobData):
        return json_format.ParseDict(msgspec.to_builtins(data), events_pb2.JobEvent())
    if isinstance(data, CommandData) and data.command in JOB_COMMANDS:
        return events_pb2.JobEvent(
            type=data.type,
            job_id=data.subject,
            name=data.name,
            namespace=data.namespace,
            queue=data.queue,
            message=data.message,
            command=data.command,
            code=data.code,
            ledger_sequence=event.ledger_seq,
            index=event.index,
        )
    return None


JOB_COMMANDS: Final = frozenset(
    {"SubmitJob", "CancelJob", "UpdateJob", "SuspendJob", "ResumeJob", "RequeueJob", "ReportCheckpoint"}
)
