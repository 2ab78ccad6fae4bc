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

    __slots__ = ("head", "key", "keys")

    def __init__(self, key: ClassKey) -> None:
        self.key = key
        self.keys: list[OrderKey] = []
        self.head = 0

    def __len__(self) -> int:
        return len(self.keys) - self.head

    def first(self) -> OrderKey:
        return self.keys[self.head]

    def after(self, key: OrderKey | None) -> int:
        """Index into `keys` of the first job behind `key`."""
        return self.head if key is None else bisect_right(self.keys, key, lo=self.head)

    def count_before(self, key: OrderKey) -> int:
        return bisect_left(self.keys, key, lo=self.head) - self.head

    def before(self, key: OrderKey, most: int) -> list[OrderKey]:
        """The first jobs, at most so many, as far as they are before `key`."""
        return self.keys[self.head : min(self.head + most, bisect_left(self.keys, key, lo=self.head))]

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
    """All classes; which of them the cycle has to look at.

    A pass of the cycle goes once through the order, over one or more transactions. A full pass looks at every class,
    any other one only at the opened ones.
    """

    def __init__(self) -> None:
        self.classes: dict[ClassKey, PendingClass] = {}
        self.of_queue: dict[str, dict[ClassKey, PendingClass]] = {}
        self.opened: dict[ClassKey, PendingClass] = {}  # what this pass, or the next one, has to look at
        self.opened_since: dict[ClassKey, PendingClass] = {}  # of these: since the pass that is now paused began
        self.reopened: dict[ClassKey, PendingClass] = {}  # by what this pass placed: for the next one
        self.all_open = False  # something was loosened: the next pass is a full one
        self.again = False  # something was loosened by this pass itself: the pass after it is a full one

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
            self._close(class_key)
            self.reopened.pop(class_key, None)
            of_queue = self.of_queue[class_key[0]]
            del of_queue[class_key]
            if not of_queue:
                del self.of_queue[class_key[0]]

    def open(self, found: PendingClass) -> None:
        """The cycle looks at this class."""
        self.opened[found.key] = found
        self.opened_since[found.key] = found

    def _close(self, class_key: ClassKey) -> None:
        self.opened.pop(class_key, None)
        self.opened_since.pop(class_key, None)

    def reopen_above(self, queue: str, priority: int) -> None:
        """A job of this priority was placed: those of the queue that are above it may preempt now (rule P2), also
        those that the running pass has seen already."""
        for found in self.of_queue.get(queue, {}).values():
            if priority_of(found.first()) > priority:
                self.reopened[found.key] = found

    def loosen(self) -> None:
        """Something became free, or a rule changed: every class may fit again."""
        self.all_open = True

    def loosen_behind(self) -> None:
        """The running pass has loosened something that it may have passed already."""
        self.again = True

    def pass_paused(self, before: OrderKey | None, after: OrderKey) -> None:
        """The pass, which was at `before` (None: its start), goes on behind `after`.

        Classes whose first job it has seen are blocked for the rest of it. Those that were opened since it began, with
        a first job that it had passed already, are left to the next pass.
        """
        if before is None:
            self.opened_since = {}
            if self.all_open:
                self.opened = dict(self.classes)
                self.all_open = False
        for found in list(self.opened.values()):
            first = found.first()
            if first <= after and not (before is not None and found.key in self.opened_since and first <= before):
                self._close(found.key)

    def pass_ended(self, *, one_part: bool) -> None:
        """Everything opened was looked at, except what was opened behind the back of a pass in several parts."""
        self.opened = {} if one_part else self.opened_since
        if one_part:
            self.all_open = False
        self.all_open = self.all_open or self.again
        self.again = False
        self.opened.update(self.reopened)
        self.opened_since = {}
        self.reopened = {}

    def candidates(self, *, full: bool) -> Iterator[PendingClass]:
        """The classes a pass has to look at, in no order that matters."""
        return iter(self.classes.values() if full else self.opened.values())

    @property
    def has_candidates(self) -> bool:
        """Whether a new pass would find anything to look at."""
        return bool(self.classes) if self.all_open else bool(self.opened)


def priority_of(key: OrderKey) -> int:
    """The job priority in an order key, of queues that do not ignore it; minus the rank of the queue's priority is
    a multiple of PRIORITY_SPAN."""
    half = PRIORITY_SPAN // 2
    return -((key[0] + half) % PRIORITY_SPAN - half)
