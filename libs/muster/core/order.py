"""Pending jobs in classes, each class in order.

All jobs of a class are in one queue, of one shape, avoid the same nodes and have the same hold (or none). So when the
first of a class does not fit, none of them does, and the scheduling cycle skips the rest. A class that was found
blocked stays *closed* until something is loosened somewhere (capacity, usage or a rule), or until a job comes in front
of it. Cost follows what changed, not how many jobs wait.

Which classes are open is part of the state: it follows from the transitions (`CyclePaused` says how far a cycle came)
and is stored in snapshots, so every replica spends the same work units on the same decision (I8).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from muster.core.gangs import GangShape
from muster.core.queues import PRIORITY_SPAN

OrderKey = tuple[int, int, str]
ClassKey = tuple[
    str, GangShape, str, tuple[int, ...], str
]  # queue, shape, cluster, nodes avoided, job id if it has a hold


class PendingClass:
    """The jobs of one class, ascending by order key. `head` skips the removed front."""

    __slots__ = ("head", "key", "keys", "open")

    def __init__(self, key: ClassKey) -> None:
        self.key = key
        self.keys: list[OrderKey] = []
        self.head = 0
        self.open = True

    def __len__(self) -> int:
        return len(self.keys) - self.head

    def first(self) -> OrderKey:
        return self.keys[self.head]

    def after(self, key: OrderKey | None) -> int:
        """Index into `keys` of the first job behind `key`."""
        return self.head if key is None else bisect_right(self.keys, key, lo=self.head)

    def add(self, key: OrderKey) -> bool:
        """Returns whether it is the new first."""
        keys = self.keys
        if len(keys) == self.head or key > keys[-1]:
            keys.append(key)
            return len(keys) - self.head == 1
        insort(keys, key, lo=self.head)
        return keys[self.head] is key

    def remove(self, key: OrderKey) -> None:
        keys = self.keys
        if keys[self.head] == key:
            self.head += 1
            if self.head > 32 and self.head * 2 > len(keys):
                del keys[: self.head]
                self.head = 0
            return
        index = bisect_left(keys, key, lo=self.head)
        if keys[index] != key:
            raise KeyError(key)
        del keys[index]


class PendingIndex:
    """All classes; which of them a cycle has to look at."""

    def __init__(self) -> None:
        self.classes: dict[ClassKey, PendingClass] = {}
        self.of_queue: dict[str, dict[ClassKey, PendingClass]] = {}
        self.opened: dict[ClassKey, PendingClass] = {}  # open although not all are, in order of opening
        self.all_open = False  # something was loosened: every class may fit again
        self.loosened_in_cycle = False  # since the cycle that is now paused began
        self.opened_in_cycle: dict[ClassKey, PendingClass] = {}
        self.reopened: dict[ClassKey, PendingClass] = {}  # by what the running cycle placed

    def __len__(self) -> int:
        return sum(len(c) for c in self.classes.values())

    def add(self, class_key: ClassKey, key: OrderKey) -> None:
        found = self.classes.get(class_key)
        if found is None:
            found = self.classes[class_key] = PendingClass(class_key)
            self.of_queue.setdefault(class_key[0], {})[class_key] = found
        if found.add(key):
            self.open(found)  # nothing is known of a new first job: it may have the priority to preempt

    def remove(self, class_key: ClassKey, key: OrderKey) -> None:
        found = self.classes[class_key]
        found.remove(key)
        if len(found) == 0:
            del self.classes[class_key]
            self.opened.pop(class_key, None)
            self.opened_in_cycle.pop(class_key, None)
            self.reopened.pop(class_key, None)
            of_queue = self.of_queue[class_key[0]]
            del of_queue[class_key]
            if not of_queue:
                del self.of_queue[class_key[0]]

    def open(self, found: PendingClass) -> None:
        """The next cycle looks at this class."""
        found.open = True
        self.opened[found.key] = found
        self.opened_in_cycle[found.key] = found

    def open_above(self, queue: str, priority: int) -> None:
        """A job of this priority was placed: those of the queue that are above it may preempt now (rule P2), also
        those that the running cycle has passed already."""
        for found in self.of_queue.get(queue, {}).values():
            if _priority(found.first()) > priority:
                self.reopened[found.key] = found

    def loosen(self) -> None:
        """Something became free, or a rule changed: every class may fit again."""
        self.all_open = True
        self.loosened_in_cycle = True

    def cycle_paused(self, first_part: bool) -> None:
        """The cycle goes on in the next transaction. What happens from now on it may have passed already."""
        if first_part:
            self.loosened_in_cycle = False
            self.opened_in_cycle = {}

    def cycle_ended(self, one_part: bool) -> None:
        """Every open class was looked at; those that still have jobs are blocked."""
        if one_part or not self.loosened_in_cycle:  # else part of the order was passed before: all of it once more
            for found in self.classes.values() if self.all_open else self.opened.values():
                found.open = False
            self.all_open = False
            self.opened = {} if one_part else self.opened_in_cycle
        self.opened.update(self.reopened)
        self.reopened = {}
        for found in self.opened.values():
            found.open = True
        self.loosened_in_cycle = False
        self.opened_in_cycle = {}

    def candidates(self) -> Iterator[PendingClass]:
        """The classes a cycle has to look at, in no order that matters."""
        return iter(self.classes.values() if self.all_open else self.opened.values())

    @property
    def has_candidates(self) -> bool:
        return bool(self.classes) if self.all_open else bool(self.opened)

    def is_open(self, class_key: ClassKey) -> bool:
        """Whether a job of this class is worth a look; classes that do not exist are."""
        found = self.classes.get(class_key)
        return found is None or found.open or self.all_open


def _priority(key: OrderKey) -> int:
    """The job priority in an order key, of queues that do not ignore it; minus the rank of the queue's priority is
    a multiple of PRIORITY_SPAN."""
    half = PRIORITY_SPAN // 2
    return -((key[0] + half) % PRIORITY_SPAN - half)
