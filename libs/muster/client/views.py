"""What the client returns: the API's messages with the names people read ("Running", "PodFailed").

Each view keeps the message it was made from as `proto` for whoever needs every field, and gives the same as plain data
with `to_dict()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from muster.api.v1 import events_pb2, job_pb2, query_pb2, queue_pb2
from muster.client.errors import ClientError


def enum_text(name: str, prefix: str) -> str:
    """`JOB_STATE_QUEUED` as `Queued`, `REASON_POD_FAILED` as `PodFailed`; the unspecified value as nothing."""
    words = name.removeprefix(prefix).split("_")
    return "" if words == ["UNSPECIFIED"] else "".join(word.capitalize() for word in words)


def state_text(state: job_pb2.JobState.ValueType) -> str:
    return enum_text(job_pb2.JobState.Name(state), "JOB_STATE_")


def state_value(text: str) -> job_pb2.JobState.ValueType:
    """The inverse of `state_text`, whatever the case. Raises ValueError that lists the states."""
    try:
        return job_pb2.JobState.Value("JOB_STATE_" + text.upper())
    except ValueError:
        known = ", ".join(state_text(value) for value in job_pb2.JobState.values() if value)
        raise ValueError(f"{text!r} is not a job state (they are: {known})") from None


def reason_text(reason: job_pb2.Reason.ValueType) -> str:
    return enum_text(job_pb2.Reason.Name(reason), "REASON_")


def phase_text(phase: job_pb2.PodPhase.ValueType) -> str:
    return enum_text(job_pb2.PodPhase.Name(phase), "POD_PHASE_")


def as_dict(message: Message) -> dict[str, Any]:
    """A message in its JSON mapping, with the proto's field names."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


TERMINAL = frozenset({"Succeeded", "Failed", "Cancelled"})


@dataclass(frozen=True, slots=True)
class Submitted:
    """An accepted job (or, on a dry run, an acceptable one). `watch_from` is the sequence its story starts at; `known`:
    the same was submitted before under this request id, and nothing was written."""

    id: str
    name: str
    namespace: str
    index: int
    inbox_position: tuple[int, int] | None
    watch_from: int
    known: bool = False


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """What became of a command on one job; `error` is None when it was accepted."""

    job: str
    inbox_position: tuple[int, int] | None
    error: ClientError | None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the cell knows it."""

    proto: job_pb2.Job

    @property
    def id(self) -> str:
        return self.proto.id

    @property
    def name(self) -> str:
        return self.proto.spec.name

    @property
    def namespace(self) -> str:
        return self.proto.spec.namespace

    @property
    def queue(self) -> str:
        return self.proto.status.queue or self.proto.spec.queue

    @property
    def submitter(self) -> str:
        return self.proto.spec.submitter

    @property
    def priority(self) -> int:
        return self.proto.spec.priority

    @property
    def state(self) -> str:
        return state_text(self.proto.status.state)

    @property
    def reason(self) -> str:
        return reason_text(self.proto.status.reason)

    @property
    def message(self) -> str:
        return self.proto.status.message

    @property
    def finished(self) -> bool:
        return self.state in TERMINAL

    @property
    def attempts(self) -> Sequence[job_pb2.Attempt]:
        """Placements, newest last: when and why each ended, and node, devices, phase and exit code of its pods. Lists
        carry none."""
        return self.proto.status.attempts

    def to_dict(self) -> dict[str, Any]:
        return as_dict(self.proto)


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of a list. `watch_from` is the sequence to watch from to see everything after the list."""

    jobs: Sequence[Job]
    next_page_token: str
    watch_from: int


@dataclass(frozen=True, slots=True)
class Event:
    """One step in the life of a job."""

    proto: events_pb2.JobEvent

    @property
    def type(self) -> str:
        return self.proto.type

    @property
    def job(self) -> str:
        return self.proto.job_id

    @property
    def name(self) -> str:
        return self.proto.name

    @property
    def queue(self) -> str:
        return self.proto.queue

    @property
    def state(self) -> str:
        return state_text(self.proto.state)

    @property
    def reason(self) -> str:
        return reason_text(self.proto.reason)

    @property
    def message(self) -> str:
        return self.proto.message

    @property
    def sequence(self) -> int:
        """Ledger sequence; watch from here to see this event again, from the next to go on."""
        return self.proto.ledger_sequence

    @property
    def last(self) -> bool:
        """Nothing more will happen to this job."""
        return self.state in TERMINAL

    def to_dict(self) -> dict[str, Any]:
        return as_dict(self.proto)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with what it has and uses; quantities are Kubernetes strings."""

    proto: queue_pb2.Queue

    @property
    def path(self) -> str:
        return self.proto.path

    @property
    def state(self) -> str:
        return enum_text(queue_pb2.QueueState.Name(self.proto.state), "QUEUE_STATE_")

    @property
    def revision(self) -> int:
        return self.proto.revision

    def to_dict(self) -> dict[str, Any]:
        return as_dict(self.proto)


@dataclass(frozen=True, slots=True)
class Explained:
    """A job and why it is where it is."""

    proto: query_pb2.ExplainJobResponse

    @property
    def job(self) -> Job:
        return Job(self.proto.job)

    @property
    def summary(self) -> str:
        return self.proto.explanation.summary

    def to_dict(self) -> dict[str, Any]:
        return as_dict(self.proto)
