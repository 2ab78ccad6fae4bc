"""What becomes due by itself.

Delays that are the same for every job (start timeout, forgetting finished jobs and request ids) are queues: what came
first is due first. Delays that differ (max_runtime, backoff, suspects, holds, repeated preemption requests) are one
sorted list. Entries are never taken out early: an entry whose job has moved on is recognised by its epoch and skipped,
and leaves when it reaches the front.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import IntEnum

from sortedcontainers import SortedList


class Due(IntEnum):
    """What happens when the time comes."""

    BACKOFF_OVER = 0
    MAX_RUNTIME = 1
    HOLD_EXPIRES = 2
    REQUEST_AGAIN = 3
    GROWN = 4  # replicas that were added have to run by now
    GROW_AGAIN = 5
    SUSPECTS_AGAIN = 6  # nodes that a job avoids are open to it again, after all others


TimerEntry = tuple[int, int, str, int]  # due_ms, Due, job id, epoch
StartEntry = tuple[int, str, int]  # placed_ms, job id, epoch


class Timers:
    """All timers of a cell."""

    def __init__(self) -> None:
        self.starts: deque[StartEntry] = deque()  # in the order of placing (rule L3)
        self.finished: deque[str] = deque()  # job ids in the order of finishing (LOG-16)
        self.others: SortedList[TimerEntry] = SortedList()

    def add(self, due_ms: int, what: Due, job: str, epoch: int = 0) -> None:
        self.others.add((due_ms, int(what), job, epoch))

    def due(self, now_ms: int) -> Iterator[TimerEntry]:
        """Entries due at `now_ms`, by time."""
        for entry in self.others:
            if entry[0] > now_ms:
                return
            yield entry
