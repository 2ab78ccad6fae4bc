"""The data of public events, as structs whose JSON is the protobuf JSON mapping of the messages in `events.proto`.

Names are spelled, enums named and 64-bit integers quoted as that mapping says, and what is not set is left out. A test
reads every event back as its message.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct


class EventData(Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True):
    """Fields of every event, spelled as the protobuf JSON mapping spells them; 64-bit integers are strings there."""

    type: str
    ledger_sequence: str = ""
    index: int = 0
    time: str = ""


class JobData(EventData, frozen=True):
    job_id: str
    name: str = ""
    namespace: str = ""
    queue: str = ""
    state: str = "JOB_STATE_UNSPECIFIED"
    reason: str = "REASON_UNSPECIFIED"
    message: str = ""
    epoch: int = 0
    exit_code: int = 0
    trace_context: str = ""
    submitter: str = ""
    labels: Mapping[str, str] = {}
    preempted_by: str = ""
    next_state: str = "JOB_STATE_UNSPECIFIED"
    not_before: str = ""
    command: str = ""
    code: str = ""
    checkpoint_time: str = ""


class QueueData(EventData, frozen=True):
    queue: str
    queue_id: str = ""
    revision: str = ""
    state: str = "QUEUE_STATE_UNSPECIFIED"


class PriorityClassData(EventData, frozen=True):
    name: str
    value: int = 0
    min_runtime: str = ""


class PositionData(Struct, omit_defaults=True, frozen=True):
    sequence: str = ""
    item: int = 0


class CommandData(EventData, frozen=True):
    command: str
    subject: str = ""
    request_id: str = ""
    code: str = ""
    field: str = ""
    message: str = ""
    rule: str = ""
    inbox_position: PositionData | None = None
    namespace: str = ""
    name: str = ""
    queue: str = ""


class CellData(EventData, frozen=True):
    cell: str
    leader: str = ""
    epoch: str = ""
    message: str = ""


AnyData = JobData | QueueData | PriorityClassData | CommandData | CellData


def rfc3339(milliseconds: int) -> str:
    """`2026-01-31T18:00:00.250Z`; nothing for 0."""
    if not milliseconds:
        return ""
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{milliseconds % 1000:03d}Z"


def seconds(milliseconds: int) -> str:
    """A duration, `90s` or `1.500s`; nothing for 0."""
    if not milliseconds:
        return ""
    fraction = f".{milliseconds % 1000:03d}" if milliseconds % 1000 else ""
    return f"{milliseconds // 1000}{fraction}s"


def id_of(headers: Mapping[str, str]) -> tuple[int, int]:
    """(ledger sequence, index) of a stored CloudEvent."""
    sequence, _, index = headers["ce-id"].partition("-")
    return int(sequence), int(index)
