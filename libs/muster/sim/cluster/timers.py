"""One timer heap for a whole cluster: ten thousand pods are ten thousand heap entries, not ten thousand tasks.

Kubelets and controllers ask for a call at a time; whoever owns the clock (the asyncio driver in `server`, a test, a
virtual-time loop) calls `run_due` when the clock has reached `next_due_ms`. Times are milliseconds since the epoch.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

Clock = Callable[[], int]


def wall_clock() -> Clock:
    """Milliseconds since the epoch that never run backwards: the wall clock at start plus monotonic time since."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (offset_ns + time.monotonic_ns()) // 1_000_000


class Timers:
    """Calls ordered by time, then by the order in which they were asked for."""

    __slots__ = ("_heap", "_sequence", "now_ms", "on_earlier")

    def __init__(self, now_ms: Clock) -> None:
        self.now_ms = now_ms
        self.on_earlier: Callable[[], None] | None = None  # told when the next due time moved forward
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def at(self, when_ms: int, call: Callable[..., None], *args: Any) -> None:
        """Call `call(*args)` at `when_ms`. There is no cancel: a call checks whether it still applies."""
        self._sequence += 1
        heapq.heappush(self._heap, (when_ms, self._sequence, call, args))
        if self.on_earlier is not None and self._heap[0][1] == self._sequence:
            self.on_earlier()

    def after(self, delay_ms: int, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now_ms() + delay_ms, call, *args)

    def next_due_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def run_due(self, limit: int = 1 << 30) -> int:
        """Run at most `limit` calls that are due by now; return how many ran."""
        now_ms = self.now_ms()
        heap = self._heap
        ran = 0
        while heap and heap[0][0] <= now_ms and ran < limit:
            _, _, call, args = heapq.heappop(heap)
            call(*args)
            ran += 1
        return ran

    def __len__(self) -> int:
        return len(self._heap)


@lru_cache(maxsize=4096)
def _timestamp_of_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp(time_ms: int) -> str:
    """RFC 3339 in seconds, as Kubernetes writes its times."""
    return _timestamp_of_second(time_ms // 1000)


def parse_timestamp_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)
