"""Pending jobs in classes, each class in order.

All jobs of a class are in one queue, of one shape, avoid the same nodes (as closed to them or as the last resort), have
the same hold (or none), share the same allowances and are protected or not (rule P4). So when the first of a class does
not fit, none of them does, and the scheduling cycle skips the rest. A class that was found blocked stays *closed* until
something is loosened somewhere (capacity, usage or a rule), or until a job comes in front of it. Cost follows what
changed, not how many jobs wait.
Placed elastic jobs that could grow are classes of their own: `growing`.

Which classes are open is part of the state: it follows from the transitions (`CyclePaused` says what a cycle has found
blocked) and is stored in snapshots, so every replica spends the same work units on the same decision (I8).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, neg
from typing import Final, NamedTuple

from muster.core.gangs import GangShape
from muster.core.jobs import Job
from muster.core.model import JobSpec
from muster.core.queues import Queue

OrderKey = tuple[int, int, str]  # within a leaf queue, or a member of a fair one
Avoided = tuple[()] | tuple[bool, tuple[int, ...]]  # whether they are closed to the job, and nodes
ClassKey = tuple[
    str, GangShape, str, Avoided, str, str, bool
]  # queue, shape, cluster, nodes avoided, job id if it has a hold, member, protected


def order_key(queue: Queue, job: Job) -> OrderKey:
    """Job priority (not in FIFO), submit time, id: the total order of the jobs of a leaf (rule F5)."""
    return (0 if queue.fifo else -job.spec.priority, job.submit_ms, job.spec.id)


def class_key(queue: Queue, job: Job, *, held: bool, now_ms: int) -> ClassKey:
    """Which pending jobs fit or do not fit together with it. It changes when its suspects are open to it again."""
    spec = job.spec
    cluster = spec.cluster_selector[0][1] if spec.cluster_selector else ""
    member = member_of(spec) if queue.tracked else ""
    avoided = (job.suspects_until_ms > now_ms, tuple(sorted(job.suspects))) if job.suspects else ()
    return (job.queue, job.asks.shape, cluster, avoided, spec.id if held else "", member, protected(job))


def member_of(spec: JobSpec) -> str:
    """Whose allowances and shares the job counts for, in a queue that keeps its members."""
    return MEMBER_PARTS.join((spec.namespace, spec.submitter))


def protected(job: Job) -> bool:
    """Whether no other queue can reclaim what it uses, so that it may start only within E (rule P4)."""
    return not job.spec.preemptible or job.preemptions >= job.spec.max_preemptions


def priority_of(key: OrderKey) -> int:
    """The job priority in an order key, of queues that do not ignore it."""
    return -key[0]


MEMBER_PARTS: Final = "\0"  # no namespace has it
TELL_APART: Final = (
    "asks", "suspects", "suspects_until_ms", "preemptions", "spec.max_preemptions", "spec.cluster_selector",
    "spec.preemptible",
)  # fmt: skip  # see `class_key`
MEMBER: Final = ("spec.namespace", "spec.submitter")


class Sorting(NamedTuple):
    """What of a leaf decides the order and the classes of its pending jobs."""

    fifo: bool
    tracked: bool


def sorting_of(leaf: Queue) -> Sorting:
    return Sorting(leaf.fifo, bool(leaf.tracked))


class PendingClass:
    """The jobs of one class, ascending by order key. `head` skips the removed front."""

    __slots__ = ("head", "key", "keys", "shuns")

    def __init__(self, key: ClassKey) -> None:
        self.key = key
        self.shuns = key[3][:1] == (True,)  # whether the nodes that its jobs avoid are closed to them
        self.keys: list[OrderKey] = []
        self.head = 0

    def __len__(self) -> int:
        return len(self.keys) - self.head

    def first(self) -> OrderKey:
        return self.keys[self.head]

    def holds(self, key: OrderKey) -> bool:
        """Whether this job is in the class."""
        index = bisect_left(self.keys, key, lo=self.head)
        return index < len(self.keys) and self.keys[index] == key

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

    A pass of the cycle looks at every class (a full pass) or at the opened ones only, over one or more transactions.
    """

    def __init__(self) -> None:
        self.classes: dict[ClassKey, PendingClass] = {}
        self.of_queue: dict[str, dict[ClassKey, PendingClass]] = {}
        self.protected: dict[str, int] = {}  # queue -> how many of its classes may start only within E (rule P4)
        self.opened: dict[ClassKey, PendingClass] = {}  # what this pass, or the next one, has to look at
        self.reopened: dict[ClassKey, PendingClass] = {}  # by what this pass placed: for the next one
        self.growing: dict[str, None] = {}  # placed elastic jobs that have a vacant position they may use
        self.growing_opened: dict[str, None] = {}  # of these: what this pass, or the next one, has to look at
        self._placed: dict[str, int] = {}  # queue -> lowest priority placed by the transaction that is being folded
        self.paused = False  # a pass goes on in the next transaction
        self.all_open = False  # something was loosened: the next pass is a full one
        self.again = False  # something was loosened by this pass itself: the pass after it is a full one

    def __len__(self) -> int:
        return sum(len(c) for c in self.classes.values())

    def add(self, key: ClassKey, order: OrderKey) -> None:
        found = self.classes.get(key)
        if found is None:
            found = self._enter(key)
        if found.add(order):
            self.open(found)  # nothing is known of a new first job: it may have the priority to preempt

    def remove(self, key: ClassKey, order: OrderKey) -> None:
        found = self.classes[key]
        found.remove(order)
        if len(found) == 0:
            self._leave(key)

    def reorder(
        self, leaf: Queue, waiting: Sequence[Job], held: Sequence[Job], *, jobs: Mapping[str, Job], now_ms: int
    ) -> None:
        """The ordering of a leaf, or whether it keeps its members, has changed: its jobs, in the order in which they
        came, are sorted in again. `held`: those of them that have a hold."""
        self._refill(leaf, sorted_anew(leaf, waiting, held, jobs=jobs, now_ms=now_ms))

    def merge(self, leaf: Queue) -> None:
        """The leaf no longer keeps its members, and nothing else of the order of its jobs has changed."""
        together: dict[ClassKey, list[OrderKey]] = {}
        for key, found in self.of_queue.get(leaf.spec.id, {}).items():
            together.setdefault((*key[:5], "", *key[6:]), []).extend(found.keys[found.head :])
        for keys in together.values():
            keys.sort()
        self._refill(leaf, together)

    def _refill(self, leaf: Queue, jobs: Mapping[ClassKey, list[OrderKey]]) -> None:
        for key in list(self.of_queue.get(leaf.spec.id, {})):
            self._leave(key)
        for key, orders in jobs.items():
            fresh = self._enter(key)
            fresh.keys = orders
            self.open(fresh)

    def _enter(self, key: ClassKey) -> PendingClass:
        """A class that was not there, with no jobs yet."""
        found = self.classes[key] = PendingClass(key)
        self.of_queue.setdefault(key[0], {})[key] = found
        if key[6]:
            self.protected[key[0]] = self.protected.get(key[0], 0) + 1
        return found

    def _leave(self, key: ClassKey) -> None:
        """A class has no jobs any more."""
        del self.classes[key]
        self.opened.pop(key, None)
        self.reopened.pop(key, None)
        of_queue = self.of_queue[key[0]]
        del of_queue[key]
        if not of_queue:
            del self.of_queue[key[0]]
        if key[6]:
            self.protected[key[0]] -= 1
            if not self.protected[key[0]]:
                del self.protected[key[0]]

    def open(self, found: PendingClass) -> None:
        """The cycle looks at this class."""
        self.opened[found.key] = found

    def open_queue(self, queue: str) -> None:
        """More of what a queue wants is its own now: all of its classes may fit."""
        self.opened.update(self.of_queue.get(queue, {}))

    def open_growing(self, jobs: Iterable[str]) -> None:
        """The cycle looks at these elastic jobs."""
        self.growing_opened.update(dict.fromkeys(jobs))

    def placed(self, queue: str, priority: int) -> None:
        """A job of this priority was placed: those of the queue that are above it may preempt now (rule P2)."""
        lowest = self._placed.get(queue)
        if lowest is None or priority < lowest:
            self._placed[queue] = priority

    def reopen(self) -> None:
        """Classes with a job above one that was placed are looked at again, also those the running pass has seen."""
        for queue, priority in self._placed.items():
            for found in self.of_queue.get(queue, {}).values():
                if priority_of(found.first()) > priority:
                    self.reopened[found.key] = found
        self._placed.clear()

    def may_grow(self, job: str, yes: bool) -> None:
        """The elastic job has changed: whether it could grow."""
        if yes:
            self.growing[job] = self.growing_opened[job] = None
        else:
            self.growing.pop(job, None)
            self.growing_opened.pop(job, None)

    def loosen(self) -> None:
        """Something became free, or a rule changed: every class may fit again."""
        self.all_open = True

    def loosen_behind(self) -> None:
        """The running pass has loosened something that it may have passed already."""
        self.again = True

    def pass_paused(self, blocked: Iterable[ClassKey], blocked_growth: Iterable[str]) -> None:
        """The pass goes on in the next transaction, without what it has found blocked. What is opened meanwhile belongs
        to it; what is loosened meanwhile makes the next one a full one."""
        if not self.paused and self.all_open:
            self.opened = dict(self.classes)
            self.growing_opened = dict(self.growing)
            self.all_open = False
        self.paused = True
        for key in blocked:
            self.opened.pop(key, None)
        for job in blocked_growth:
            self.growing_opened.pop(job, None)

    def pass_ended(self) -> None:
        """Everything opened was looked at."""
        self.reopen()
        self.all_open = (self.all_open and self.paused) or self.again
        self.again = self.paused = False
        self.opened, self.reopened = self.reopened, {}
        self.growing_opened = {}

    def candidates(self, *, full: bool) -> Iterator[PendingClass]:
        """The classes a pass has to look at, in no order that matters."""
        return iter(self.classes.values() if full else self.opened.values())

    def growers(self, *, full: bool) -> Iterator[str]:
        """The elastic jobs a pass has to look at, in no order that matters."""
        return iter(self.growing if full else self.growing_opened)

    @property
    def has_candidates(self) -> bool:
        """Whether a new pass would find anything to look at."""
        if self.all_open:
            return bool(self.classes or self.growing)
        return bool(self.opened or self.growing_opened)


# --- a whole leaf at once -------------------------------------------------------------------------------------------


def sorted_anew(
    leaf: Queue, waiting: Sequence[Job], held: Sequence[Job], *, jobs: Mapping[str, Job], now_ms: int
) -> dict[ClassKey, list[OrderKey]]:
    """The pending jobs of a leaf as `class_key` and `order_key` have them one by one.

    There may be a hundred thousand, and everybody who follows the ledger waits for it. So they are gone through in the
    order in which they came, as they lie in memory, and what tells the classes apart is asked for in one go.
    """
    values = attrgetter(*TELL_APART, *(MEMBER if leaf.tracked else ()))
    specs = [job.spec for job in waiting]
    priorities = repeat(0, len(specs)) if leaf.fifo else map(neg, map(attrgetter("priority"), specs))
    orders = zip(priorities, map(attrgetter("submit_ms"), waiting), map(attrgetter("id"), specs), strict=True)
    alike: defaultdict[tuple[object, ...], list[OrderKey]] = defaultdict(list)
    for of, order in zip(map(values, waiting), orders, strict=True):
        alike[of].append(order)
    found: defaultdict[ClassKey, list[OrderKey]] = defaultdict(list)
    for job in held:
        order = order_key(leaf, job)
        alike[values(job)].remove(order)
        found[class_key(leaf, job, held=True, now_ms=now_ms)].append(order)
    for keys in alike.values():
        if keys:
            found[class_key(leaf, jobs[keys[0][2]], held=False, now_ms=now_ms)] += keys
    for keys in found.values():
        keys.sort()
    return found
