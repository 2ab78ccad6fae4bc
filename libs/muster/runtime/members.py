"""Which replicas of a service live, and which of them a piece of work belongs to.

For work that any replica can do and that does no harm when two do it: every replica announces itself on a subject of
its own in the stream LEASES, listens to the others, and takes what the hash of (replica, key) gives it. When views
differ for a moment, something is done twice or not at all until they agree again (`changed` says when to look again).
Where doing it twice matters, use a `Lease`.

Highest-random-weight hashing: a replica that comes or goes moves only its own part of the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final
from zlib import crc32

from muster.runtime.ports import Clock, MessagesLost, OutcomeUnknown, StoredMessage, Stream
from muster.runtime.streams import lease_subject

TTL_S: Final = 3.0
ANNOUNCEMENTS_PER_TTL: Final = 3
HERE: Final = b"here"
LEFT: Final = b"left"


class Members:
    """One replica's view of the group. `name` is unique in it and holds no dot, blank or wildcard."""

    def __init__(self, leases: Stream, group: str, name: str, *, clock: Clock, ttl_s: float = TTL_S) -> None:
        self.live: tuple[str, ...] = ()
        self._stream = leases
        self._group = group
        self._name = name
        self._clock = clock
        self._ttl_s = ttl_s
        self._seen_s: dict[str, float] = {}
        self._changed: list[Callable[[], None]] = []

    def changed(self, callback: Callable[[], None]) -> None:
        """Call back when a replica came or went."""
        self._changed.append(callback)

    def mine(self, key: str) -> bool:
        """Whether the work called `key` belongs to this replica. Nothing does before the first announcement."""
        return bool(self.live) and self._name == max(self.live, key=lambda member: (_weight(member, key), member))

    async def run(self) -> None:
        """Announce, listen and forget the silent ones, for ever."""
        from_seq = (await self._stream.info()).last_seq + 1
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._announce())
            tasks.create_task(self._listen(from_seq))

    async def leave(self) -> None:
        """Tell the others at once. Best effort: silence tells them later."""
        try:
            await self._publish(LEFT)
        except OutcomeUnknown:
            pass

    async def _announce(self) -> None:
        while True:
            try:
                await self._publish(HERE)
            except OutcomeUnknown:
                pass  # the next one will do
            await self._clock.sleep(self._ttl_s / ANNOUNCEMENTS_PER_TTL)
            self._refresh()

    async def _listen(self, from_seq: int) -> None:
        while True:
            try:
                async with aclosing(self._stream.read(from_seq, subject=self._subject("*"))) as batches:  # type: ignore[type-var]
                    async for batch in batches:
                        for message in batch:
                            self._heard(message)
                        from_seq = batch[-1].seq + 1
                        self._refresh()
            except MessagesLost:  # old announcements; new ones come
                from_seq = (await self._stream.info()).last_seq + 1

    def _heard(self, message: StoredMessage) -> None:
        member = message.subject.rpartition(".")[2]
        if message.data == LEFT:
            self._seen_s.pop(member, None)
        else:
            self._seen_s[member] = self._clock.monotonic()

    def _refresh(self) -> None:
        oldest_s = self._clock.monotonic() - self._ttl_s
        live = tuple(sorted(member for member, seen_s in self._seen_s.items() if seen_s > oldest_s))
        if live != self.live:
            self.live = live
            for callback in self._changed:
                callback()

    async def _publish(self, data: bytes) -> None:
        await self._stream.publish(
            data, subject=self._subject(self._name), timeout_s=self._ttl_s / ANNOUNCEMENTS_PER_TTL
        )

    def _subject(self, member: str) -> str:
        return lease_subject(f"members.{self._group}.{member}")


def _weight(member: str, key: str) -> int:
    return crc32(f"{member}/{key}".encode())
