"""Whose turn it is: the order of rule F5, level by level, as usage changes.

    heads (the next job of each class)  ->  tree of queues  ->  the head whose turn it is

At each level, from the roots down, the queue comes first that has the higher priority; then one that is below its
guarantee; then the one with the smaller dominant share of its entitlement, with its head job counted in; then the one
whose head was submitted earlier; then by name. A leaf gives its jobs by order key; one that is FAIR is one level more,
its namespaces or users, all of equal weight (F2).

Usage is committed usage (Q3) as the transaction leaves it. Where past usage counts (F4), what is compared is the
decayed usage of one half-life ahead, if what the queue uses now and its head job go on until then: the mean of what is
left of the past and of what it uses with the job. So a start counts at once, and what has ended fades slowly. Members
of a leaf that is entitled to nothing, or not yet, are compared by their part of the capacity.

Shares are exact: `usage << SHARE_BITS // E` orders fractions of amounts below 2**63 as they are, because different ones
differ by more than 2**-126. A placement changes the shares of one path only, so a turn costs what the path is long, and
next to nothing when nothing was placed: what a share was worked out from is remembered, in turns that are filled again
and again in a pass (`Views.turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple

from muster.core.history import FRACTION_BITS
from muster.core.jobs import Job
from muster.core.members import NAMESPACE, USER, Key, fair_member
from muster.core.order import OrderKey, PendingClass
from muster.core.queues import Queue, QueueTree, Usage
from muster.core.resources import PODS

SHARE_BITS: Final = 128
INFINITE: Final = 1 << 256  # the share of what has no entitlement

Rank = tuple[int, int, int, int, str]
Source = tuple[PendingClass, int] | None  # a class and the index of its next job; None: a job by itself


class Head(NamedTuple):
    """The next job of a class, or an elastic job that could grow. The number keeps the rest from being compared."""

    key: OrderKey
    number: int
    job: Job
    need: Mapping[str, int]  # what it would use more
    source: Source = None


class Views(NamedTuple):
    """How usage and entitlements are seen: of a queue, and of a member of it."""

    committed: Callable[[Queue], Usage]
    member_usage: Callable[[Queue, Key], Usage]
    entitled: Callable[[Queue], Mapping[str, int]]
    decayed: Callable[[Queue], Mapping[str, int]]  # of queues that have a history; in fractions of units
    capacity: Callable[[], Mapping[str, int]]
    turns: dict[tuple[str, str], Turn]  # (queue, member) -> of a pass, parents before their children


class Turn:
    """A queue, or a member of a fair one, with the heads or the turns below it.

    `later` (0 before 1) and `share` are the part of its rank that follows from usage, as it is with `need` on top;
    None: usage has changed since.
    """

    __slots__ = ("below", "heads", "later", "member", "name", "need", "parent", "priority", "queue", "share")

    def __init__(self, queue: Queue | None, name: str, parent: Turn | None, member: Key | None = None) -> None:
        self.queue = queue
        self.name = name
        self.parent = parent
        self.member = member
        self.priority = -queue.spec.priority if queue is not None and member is None else 0
        self.heads: list[Head] = []  # a heap
        self.below: list[tuple[Rank, Turn]] = []  # a heap
        self.need: Mapping[str, int] | None = None
        self.later = 0
        self.share = 0

    def first(self) -> Head:
        turn = self
        while turn.below:
            turn = turn.below[0][1]
        return turn.heads[0]


class Turns:
    """The heads of a pass in their order. `first`, then `replace`, again and again, while there are some `left`.

    Another one of the same pass takes over what this one knows; this one is not to be used any more then.
    """

    def __init__(self, tree: QueueTree, views: Views, heads: Iterable[Head]) -> None:
        self._tree = tree
        self._views = views
        self._turns = views.turns
        for turn in self._turns.values():
            turn.heads, turn.below = [], []
        self._root = self._turns.setdefault(("", ""), Turn(None, "", None))
        self._leaf = self._root
        self.alone = False  # whether no other queue or member has a head
        self.left = 0  # how many heads
        leaves: dict[str, Turn] = {}
        for head in heads:
            leaf = leaves.get(head.job.queue)
            if leaf is None:
                leaf = self._leaf_of(head.job)
                if leaf.member is None:
                    leaves[head.job.queue] = leaf
            leaf.heads.append(head)
            self.left += 1
        self._rank_all()

    def heads(self) -> Iterator[Head]:
        """All that are left, in no order that matters."""
        for turn in self._turns.values():
            yield from turn.heads

    def first(self) -> Head:
        """The head whose turn it is."""
        turn = self._root
        alone = True
        while below := turn.below:
            if len(below) > 1:
                alone = False
            turn = below[0][1]
        self._leaf = turn
        self.alone = alone
        return turn.heads[0]

    def replace(self, head: Head | None, *, used: bool) -> None:
        """The head that `first` gave had its turn; the next one of its class comes in its place, if there is one.

        `used`: something was placed, so usage has changed along the path.
        """
        turn = self._leaf
        if head is None:
            heappop(turn.heads)
            self.left -= 1
        else:
            heapreplace(turn.heads, head)
        while (parent := turn.parent) is not None:
            if used:
                turn.need = None
            if not turn.heads and not turn.below:
                heappop(parent.below)
            elif len(parent.below) > 1:  # else there is nobody to compare it with
                heapreplace(parent.below, (self._rank(turn), turn))
            turn = parent

    def room(self) -> OrderKey | None:
        """If it is `alone`: up to which key of another class of the leaf the class whose turn it is stays in front;
        None: to its end."""
        others = self._leaf.heads[1:3]  # of a heap: the second is one of these
        return min(head.key for head in others) if others else None

    # --- building ---------------------------------------------------------------------------------------------------

    def _leaf_of(self, job: Job) -> Turn:
        queue = self._tree.by_id[job.queue]
        turn = self._turn_of(queue)
        if queue.spec.ordering != "FAIR":
            return turn
        kind = USER if queue.spec.fair_by == USER else NAMESPACE
        name = fair_member(queue.spec, job.spec)
        key = (queue.spec.id, f"/{name}")
        found = self._turns.get(key)
        if found is None:
            found = self._turns[key] = Turn(queue, name, turn, (kind, name))
        return found

    def _turn_of(self, queue: Queue) -> Turn:
        key = (queue.spec.id, "")
        found = self._turns.get(key)
        if found is None:
            parent = self._turn_of(queue.chain[1]) if len(queue.chain) > 1 else self._root
            found = self._turns[key] = Turn(queue, queue.spec.name, parent)
        return found

    def _rank_all(self) -> None:
        """Children before their parents: they were made after them."""
        for turn in reversed(self._turns.values()):
            if turn.below:
                heapify(turn.below)
            elif turn.heads:
                heapify(turn.heads)
            else:
                continue
            if turn.parent is not None:
                turn.parent.below.append((self._rank(turn), turn))

    def _rank(self, turn: Turn) -> Rank:
        queue = turn.queue
        head = turn.heads[0] if turn.heads else turn.first()
        if queue is not None and turn.need is not head.need:
            turn.need = head.need
            turn.later, turn.share = self._shares(queue, turn.member, head.need)
        return (turn.priority, turn.later, turn.share, head.job.submit_ms, turn.name)

    def _shares(self, queue: Queue, member: Key | None, need: Mapping[str, int]) -> tuple[int, int]:
        """0 before 1, and the dominant share: queues below their guarantee, members that are entitled to something."""
        views = self._views
        entitled, guaranteed = views.entitled(queue), queue.spec.guaranteed
        if member is not None:
            used = views.member_usage(queue, member)
            of_own = share(entitled, used, need)
            return (0, of_own) if of_own < INFINITE else (1, share_of(views.capacity(), used, need))
        if not entitled and not guaranteed:
            return 1, INFINITE
        committed = views.committed(queue)
        below = any(committed.get(resource, 0) < own and need.get(resource) for resource, own in guaranteed)
        if queue.history is None:
            return int(not below), share(entitled, committed, need)
        return int(not below), share_ahead(entitled, committed, views.decayed(queue), need)


def share(entitled: Mapping[str, int], used: Mapping[str, int], need: Mapping[str, int]) -> int:
    """Dominant share of `used` and `need` together, in 2**-SHARE_BITS of E. What has no entitlement counts as
    infinite; pod slots only where E names them."""
    greatest = 0
    for resource, most in entitled.items():
        amount = used.get(resource, 0) + need.get(resource, 0)
        if amount > 0:
            of_it = (amount << SHARE_BITS) // most if most else INFINITE
            if of_it > greatest:  # noqa: PLR1730 - twice as fast as max() where it counts
                greatest = of_it
    for resource in need:
        if resource not in entitled and resource != PODS:
            return INFINITE
    return greatest


def share_ahead(
    entitled: Mapping[str, int], used: Mapping[str, int], decayed: Mapping[str, int], need: Mapping[str, int]
) -> int:
    """As `share`, of the mean of `decayed` (in fractions of units) and of `used` and `need` together (rule F4)."""
    if share(entitled, {}, need) >= INFINITE:
        return INFINITE
    greatest = 0
    for resource, most in entitled.items():
        amount = used.get(resource, 0) + need.get(resource, 0)
        twice = (amount << FRACTION_BITS) + decayed.get(resource, 0)
        if twice > 0:
            greatest = max(greatest, (twice << SHARE_BITS - FRACTION_BITS - 1) // most if most else INFINITE)
    return greatest


def share_of(capacity: Mapping[str, int], used: Mapping[str, int], need: Mapping[str, int]) -> int:
    """Dominant share of the capacity; pod slots only of jobs that ask for nothing else."""
    amounts = {r: used.get(r, 0) + need.get(r, 0) for r in {**used, **need} if r != PODS or len(need) == 1}
    return max([(amount << SHARE_BITS) // capacity[r] for r, amount in amounts.items() if capacity.get(r)], default=0)


__all__ = ["INFINITE", "Head", "Source", "Turn", "Turns", "Views", "share", "share_ahead", "share_of"]
