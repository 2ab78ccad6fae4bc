"""How full the inbox is, and when commands are refused because of it (LOG-14).

Two things may run out. The leader may fall behind: then the inbox's end moves away from the committed position, and
every accepted command waits longer than anybody wants. Or the inbox stream may reach its size. In both cases commands
are refused early, with a hint when to come back, while facts are still taken: a cell that cannot hear that pods have
ended can never get rid of its load. `FACTS_SHARE_PCT` of the stream's size is out of reach for commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from muster.core.model import InboxPosition
from muster.runtime.ports import Clock, Stream, StreamFull

FACTS_SHARE_PCT: Final = 20
BACKLOG_MESSAGES_MAX: Final = 2_000  # at 512 KiB a message that is a gigabyte the leader has not seen
MEASURE_INTERVAL_S: Final = 0.25
RETRY_AFTER_MS: Final = 1_000
RETRY_WHEN_STORED_FULL_MS: Final = 60_000  # until a snapshot has made room (`trim.PRESSED_PCT`)


class InboxFull(StreamFull):
    """The command was refused and is not stored; come back after `retry_after_ms`."""

    def __init__(self, message: str, retry_after_ms: int = RETRY_AFTER_MS) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class InboxGauge:
    """Measures now and then, answers at once. `position` is the committed inbox position (a follower's state)."""

    def __init__(
        self,
        inbox: Stream,
        position: Callable[[], InboxPosition],
        *,
        clock: Clock,
        backlog_max: int = BACKLOG_MESSAGES_MAX,
    ) -> None:
        self._inbox = inbox
        self._position = position
        self._clock = clock
        self._backlog_max = backlog_max
        self._last_seq = 0
        self._bytes = 0
        self._stream_bytes_max = -1
        self._measured_s: float | None = None
        self._measuring: asyncio.Task[None] | None = None

    @property
    def backlog_messages(self) -> int:
        """Inbox messages not consumed yet, as far as known."""
        return max(0, self._last_seq - self._position().seq + 1)

    @property
    def stored_bytes(self) -> int:
        """What the inbox stream holds, as far as known."""
        return self._bytes

    @property
    def commands_bytes_max(self) -> int:
        """From here on commands are refused; -1: the stream has no limit."""
        return self._stream_bytes_max * (100 - FACTS_SHARE_PCT) // 100 if self._stream_bytes_max > 0 else -1

    async def check(self) -> None:
        """Raises InboxFull when commands are to be refused."""
        if self._measured_s is None:
            await self._measure()
        elif self._clock.monotonic() - self._measured_s > MEASURE_INTERVAL_S and self._measuring is None:
            self._measuring = asyncio.create_task(self._measure(), name="measure inbox")
        if self.backlog_messages > self._backlog_max:
            raise InboxFull(f"the inbox is full ({self.backlog_messages:,} of {self._backlog_max:,} messages wait)")
        most = self.commands_bytes_max
        if 0 < most < self._bytes:
            raise InboxFull(f"the inbox is full ({self._bytes:,} of {most:,} bytes)", RETRY_WHEN_STORED_FULL_MS)

    def wrote(self, size: int) -> None:
        """Our own writes count at once; what others write shows at the next measurement."""
        self._bytes += size
        self._last_seq += 1

    async def _measure(self) -> None:
        try:
            info = await self._inbox.info()
            self._last_seq, self._bytes, self._stream_bytes_max = info.last_seq, info.bytes, info.max_bytes
            self._measured_s = self._clock.monotonic()
        finally:
            self._measuring = None
