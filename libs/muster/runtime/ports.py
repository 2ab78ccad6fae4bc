"""What the shell needs from the outside world, as small protocols.

Production gives `nats_bus` (a real JetStream); the simulation gives `muster.sim.bus`, which passes the same contract
suite. Everything above this line (reader, committer, follower, leases, relay, binder loop) is the same code in both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

BATCH_MESSAGES_MAX: Final = 1000  # what nats-server takes


class Conflict(Exception):
    """The compare-and-set failed: the stream's last sequence was not the expected one (codes 10071, 10164)."""

    def __init__(self, message: str, last_seq: int | None = None) -> None:
        super().__init__(message)
        self.last_seq = last_seq


class OutcomeUnknown(Exception):
    """A publish may or may not have been stored (timeout, lost connection). Send the identical bytes again."""


class StreamFull(Exception):
    """The stream is at its limit and refuses new messages."""


class MessagesLost(Exception):
    """The wanted sequence is no longer in the stream (trimmed): start from a newer snapshot."""


class StoredMessage(Struct, frozen=True, gc=False):
    seq: int
    time_ms: int  # JetStream's timestamp
    subject: str
    data: bytes
    headers: Mapping[str, str] | None = None


class Outgoing(Struct, frozen=True):
    """A message of a batch."""

    subject: str
    headers: Mapping[str, str]
    data: bytes


class StreamInfo(Struct, frozen=True):
    first_seq: int  # 1 for a stream that never held anything, as JetStream says; last_seq + 1 when emptied
    last_seq: int
    messages: int
    bytes: int
    max_bytes: int = -1  # its limit; -1: none


class StreamSpec(Struct, frozen=True):
    """How a stream is to be created if it does not exist."""

    name: str
    subjects: tuple[str, ...]
    max_bytes: int = -1
    max_messages: int = -1
    max_message_bytes: int = 1024 * 1024
    max_messages_per_subject: int = -1
    replicas: int = 1
    batches: bool = False  # takes `publish_batch`


class Stream(Protocol):
    """One JetStream stream."""

    name: str

    async def publish(
        self,
        data: bytes,
        *,
        subject: str | None = None,
        headers: Mapping[str, str] | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        message_id: str | None = None,
        timeout_s: float = 5.0,
    ) -> int:
        """Store one message durably and return its sequence. Raises Conflict, OutcomeUnknown, StreamFull."""

    async def publish_batch(
        self, messages: Sequence[Outgoing], *, expected_last_seq: int, timeout_s: float = 5.0
    ) -> int:
        """Store messages one behind the other, all of them or none; returns the sequence of the last.

        At most BATCH_MESSAGES_MAX. One answer and one disk sync for all. Raises as `publish`; BusRefused when the
        stream was not made with `batches`.
        """

    async def info(self) -> StreamInfo: ...

    async def get(self, seq: int) -> StoredMessage | None: ...

    async def last(self, subject: str) -> StoredMessage | None:
        """The last message of a subject (leases, snapshot markers)."""

    def read(self, from_seq: int, *, subject: str | None = None) -> AsyncIterator[Sequence[StoredMessage]]:
        """Messages from `from_seq` on, for ever, in order, without gaps, in batches as they come.

        Survives reconnects and silent subscriptions by itself. Raises MessagesLost when `from_seq` was trimmed.
        Close the iterator (`aclose`) to stop. With `subject`, only messages of that subject filter.
        """

    async def purge_below(self, seq: int) -> None:
        """Remove messages with a sequence below `seq`. The last message always stays."""


class Bus(Protocol):
    """A connection to a NATS with JetStream."""

    async def stream(self, spec: StreamSpec) -> Stream:
        """Bind to the stream, creating it if needed."""

    async def publish_core(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Core NATS, at most once; only for hints that may be lost."""

    async def wait_closed(self) -> None:
        """Returns when the connection is closed for good; the process then ends with an exit code."""

    async def close(self) -> None: ...


class Clock(Protocol):
    """Time for the shell. The core gets `now_ms` as an argument."""

    def now_ms(self) -> int:
        """Wall clock."""

    def monotonic(self) -> float:
        """Seconds, for measuring."""

    async def sleep(self, seconds: float) -> None: ...
