"""Trimming: what may leave the LEDGER and the INBOX (LOG-6).

A message may go when all of this holds: it is below the second-newest verified snapshot (so that a newest one that
turns out unreadable does no harm), everybody who reads the ledger for something else than state is past it (the event
relay; `relay_seq` says where that is), and it is older than `retention_ms`, for replay and for watches that resume. The
last message of a stream always stays, so its sequence never starts again.

The inbox has a size, and a cell that cannot hear is worse off than one that cannot be replayed: what is consumed and
below the second-newest snapshot goes at once when the stream is fuller than `PRESSED_PCT`, however young.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import Struct

from muster.runtime.ports import Clock, Stream
from muster.runtime.snapshots import SnapshotInfo

LEDGER_RETENTION_MS: Final = 7 * 24 * 3600 * 1000  # LOG-6
PRESSED_PCT: Final = 50  # of the inbox's size; commands are refused at 80 (`backpressure.FACTS_SHARE_PCT`)


class Trimmed(Struct, frozen=True):
    """First sequences kept, of each stream; 1 when nothing may go."""

    ledger_seq: int
    inbox_seq: int


class Trimmer:
    """Trims the streams of one cell. `relay_seq` is the last ledger sequence whose events are published; it returns
    None while that is not known, and then nothing goes."""

    def __init__(
        self,
        ledger: Stream,
        inbox: Stream,
        *,
        clock: Clock,
        relay_seq: Callable[[], Awaitable[int | None]],
        retention_ms: int = LEDGER_RETENTION_MS,
    ) -> None:
        self._ledger = ledger
        self._inbox = inbox
        self._clock = clock
        self._relay_seq = relay_seq
        self._retention_ms = retention_ms

    async def pressed(self) -> bool:
        """Whether the inbox is so full that its history has to go."""
        info = await self._inbox.info()
        return 0 < info.max_bytes * PRESSED_PCT // 100 < info.bytes

    async def trim(self, snapshots: Sequence[SnapshotInfo]) -> Trimmed:
        """Trim as far as the verified `snapshots` (newest first) and the other rules allow."""
        relay_seq = await self._relay_seq()
        if len(snapshots) < 2 or relay_seq is None:
            return Trimmed(1, 1)
        safe = snapshots[1]
        before_ms = self._clock.now_ms() - self._retention_ms
        ledger_seq = min(safe.ledger_seq + 1, relay_seq + 1)
        ledger_seq = min(ledger_seq, await first_seq_since(self._ledger, before_ms))
        # Followers that start from `safe` need the inbox from its position on, if one of them becomes the leader.
        inbox_seq = safe.position.seq
        if not await self.pressed():
            inbox_seq = min(inbox_seq, await first_seq_since(self._inbox, before_ms))
        await self._ledger.purge_below(ledger_seq)
        await self._inbox.purge_below(inbox_seq)
        return Trimmed(max(1, ledger_seq), max(1, inbox_seq))


async def first_seq_since(stream: Stream, since_ms: int) -> int:
    """The first sequence stored at `since_ms` or later; one past the last if there is none. Times only rise, so this
    is a binary search of a few reads."""
    info = await stream.info()
    low, high = info.first_seq, info.last_seq + 1
    while low < high:
        middle = (low + high) // 2
        message = await stream.get(middle)
        if message is None or message.time_ms < since_ms:  # None: trimmed meanwhile, so older
            low = middle + 1
        else:
            high = middle
    return low
