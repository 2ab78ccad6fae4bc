"""What a JetStream server keeps of one stream, and by which rules it takes a message: the server half of the fake.

Order of the checks, limits, the meaning of first and last sequence and of purging follow nats-server 2.15 with one
replica; the contract suite compares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from muster.runtime.bus_errors import BusRefused
from muster.runtime.ports import Conflict, MessagesLost, StoredMessage, StreamFull, StreamInfo, StreamSpec

DUPLICATE_WINDOW_MS: Final = 120_000
MESSAGE_TOO_LARGE: Final = 10054
MESSAGE_OVERHEAD_BYTES: Final = 22


BATCHES_DISABLED: Final = 10174


class Write(Struct, frozen=True):
    """A publish request as it arrives at the server."""

    subject: str
    data: bytes
    headers: Mapping[str, str] | None = None
    expected_last_seq: int | None = None
    expected_last_subject_seq: int | None = None
    message_id: str | None = None

    @property
    def expects_nothing(self) -> bool:
        return self.expected_last_seq is None and self.expected_last_subject_seq is None


@lru_cache(maxsize=4_096)
def subject_matches(pattern: str, subject: str) -> bool:
    """NATS wildcards: `*` is one token, `>` is one or more at the end."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > i
        if i >= len(tokens) or token not in ("*", tokens[i]):
            return False
    return len(wanted) == len(tokens)


class StreamLog:
    """The messages of one stream."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self.messages: dict[int, StoredMessage] = {}
        self.first_seq = 1
        self.last_seq = 0
        self.bytes = 0
        self._by_subject: dict[str, list[int]] = {}
        self._ids: dict[str, tuple[int, int]] = {}  # message id -> (sequence, when)
        self._waiting: dict[asyncio.Future[None], None] = {}  # a set that keeps its order

    def store(self, write: Write, now_ms: int) -> int:
        """The sequence it got. Raises Conflict, StreamFull, BusRefused."""
        if len(write.data) > self.spec.max_message_bytes:
            raise BusRefused(MESSAGE_TOO_LARGE, "message size exceeds maximum allowed")
        last_of_subject = self._by_subject.get(write.subject, [0])[-1]
        if write.expected_last_subject_seq is not None and write.expected_last_subject_seq != last_of_subject:
            raise Conflict(f"wrong last sequence: {last_of_subject}", last_of_subject)
        if write.message_id is not None:
            seen = self._ids.get(write.message_id)
            if seen is not None and now_ms - seen[1] < DUPLICATE_WINDOW_MS:
                return seen[0]
        if write.expected_last_seq is not None and write.expected_last_seq != self.last_seq:
            raise Conflict(f"wrong last sequence: {self.last_seq}", self.last_seq)
        self._check_limits(write)
        seq = self.last_seq = self.last_seq + 1
        message = StoredMessage(seq, now_ms, write.subject, write.data, _stored_headers(write))
        self.messages[seq] = message
        self.bytes += _size(message)
        if write.message_id is not None:
            self._ids[write.message_id] = (seq, now_ms)
        of_subject = self._by_subject.setdefault(write.subject, [])
        of_subject.append(seq)
        if 0 < self.spec.max_messages_per_subject < len(of_subject):
            self._remove(of_subject[0])
        self.notify()
        return seq

    def store_batch(self, writes: Sequence[Write], now_ms: int) -> int:
        """All or none; the sequence of the last. The first carries the expectation. Raises as `store`."""
        if not self.spec.batches:
            raise BusRefused(BATCHES_DISABLED, "atomic publish is disabled")
        expected = writes[0].expected_last_seq
        if expected is not None and expected != self.last_seq:
            raise Conflict(f"wrong last sequence: {self.last_seq}", self.last_seq)
        size = 0
        for number, write in enumerate(writes):
            self._check_limits(write, number, size)
            size += _size_of(write)
        return [self.store(write, now_ms) for write in writes][-1]

    def _check_limits(self, write: Write, more_messages: int = 0, more_bytes: int = 0) -> None:
        """Whether it fits, behind so many more."""
        spec = self.spec
        replaces = 0 < spec.max_messages_per_subject <= len(self._by_subject.get(write.subject, ()))
        if spec.max_messages >= 0 and len(self.messages) + more_messages >= spec.max_messages and not replaces:
            raise StreamFull("maximum messages exceeded")
        if spec.max_bytes >= 0 and self.bytes + more_bytes + _size_of(write) > spec.max_bytes:
            raise StreamFull("maximum bytes exceeded")

    def _remove(self, seq: int) -> None:
        message = self.messages.pop(seq)
        self.bytes -= _size(message)
        self._by_subject[message.subject].remove(seq)
        while self.first_seq <= self.last_seq and self.first_seq not in self.messages:
            self.first_seq += 1

    def purge_below(self, seq: int) -> None:
        """The last message always stays."""
        for gone in [s for s in self.messages if s < min(seq, self.last_seq)]:
            self._remove(gone)

    def info(self) -> StreamInfo:
        return StreamInfo(
            first_seq=self.first_seq,
            last_seq=self.last_seq,
            messages=len(self.messages),
            bytes=self.bytes,
            max_bytes=self.spec.max_bytes,
        )

    def last(self, subject: str) -> StoredMessage | None:
        of_subject = self._by_subject.get(subject)
        return self.messages[of_subject[-1]] if of_subject else None

    def read(self, from_seq: int, subject: str | None, limit: int) -> list[StoredMessage]:
        """Up to `limit` messages from `from_seq` on. Raises MessagesLost."""
        if from_seq < self.first_seq:
            raise MessagesLost(f"{self.spec.name}: wanted {from_seq}, the first there is {self.first_seq}")
        found: list[StoredMessage] = []
        for seq in range(from_seq, self.last_seq + 1):
            message = self.messages.get(seq)
            if message is not None and (subject is None or subject_matches(subject, message.subject)):
                found.append(message)
                if len(found) == limit:
                    break
        return found

    async def wait_change(self) -> None:
        """Returns after the next message was stored (or somebody called `notify`)."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    def notify(self) -> None:
        """Wake everybody who waits, in the order they began to."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)


def _size(message: StoredMessage) -> int:
    return len(message.data) + len(message.subject) + MESSAGE_OVERHEAD_BYTES


def _size_of(write: Write) -> int:
    return len(write.data) + len(write.subject) + MESSAGE_OVERHEAD_BYTES


def _stored_headers(write: Write) -> dict[str, str] | None:
    """JetStream stores the headers that steer it with the message, as it got them."""
    headers = dict(write.headers) if write.headers else {}
    if write.expected_last_seq is not None:
        headers["Nats-Expected-Last-Sequence"] = str(write.expected_last_seq)
    if write.expected_last_subject_seq is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(write.expected_last_subject_seq)
    if write.message_id is not None:
        headers["Nats-Msg-Id"] = write.message_id
    return headers or None
