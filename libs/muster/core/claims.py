"""What the tree of queues keeps for its queues, and whether a job that nobody could reclaim from leaves it (rule P4).

A queue's *claim* is what it can have of the cell whatever its protected neighbours do: what it is guaranteed, or more,
if jobs that nobody can reclaim from use more, or if the claims below it come to more.

    claim(n, r) = max(guaranteed(n, r), below(n, r))
    below(leaf, r) = committed usage of protected jobs;  below(n, r) = sum of the children's claims

A protected job may start or grow only if no claim that this raises leaves a limit, and the sum of the roots' claims, if
raised, stays within the capacity. So protected jobs never sit on what is guaranteed to others, however idle those are;
and a job within what its own queue is guaranteed raises nothing and always passes.

Every queue keeps `below` (`Queue.claimed`, the tree that of the roots); it follows from the tree and from what is
placed, and is in no snapshot. A change costs what the path is long. Jobs that can be reclaimed from take no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from muster.core import resources
from muster.core.model import Amounts
from muster.core.resources import PODS

if TYPE_CHECKING:
    from muster.core.queues import Queue, QueueTree

Usage = dict[str, int]


class Overclaim(NamedTuple):
    """Claims would come to more than there is."""

    queue: Queue | None  # whose limit; None: the capacity of the cell
    resource: str
    most: int
    missing: int


def below(queue: Queue) -> Usage:
    """The claims below a queue; of a leaf what its protected jobs use."""
    return queue.claimed


def own(queue: Queue, resource: str) -> int:
    """What the queue itself is guaranteed."""
    return next((amount for name, amount in queue.spec.guaranteed if name == resource), 0)


def claim(queue: Queue) -> Amounts:
    """All of a queue's claim."""
    used, guaranteed = queue.claimed, dict(queue.spec.guaranteed)
    return resources.amounts({r: max(used.get(r, 0), guaranteed.get(r, 0)) for r in {**used, **guaranteed}})


def spread(
    chain: Sequence[Queue],
    below_of: Callable[[Queue], Usage],
    top: Usage,
    amounts: Iterable[tuple[str, int]],
    times: int,
) -> None:
    """What is below the first queue of the chain changes by so many times `amounts`; claims above it follow.

    Pod slots are no matter of entitlement and left out.
    """
    for resource, amount in amounts:
        change = amount * times if resource != PODS else 0
        for queue in chain:
            totals, guaranteed = below_of(queue), own(queue, resource)
            before = totals.get(resource, 0)
            resources.count(totals, ((resource, change),), 1)
            change = max(before + change, guaranteed) - max(before, guaranteed)
            if not change:
                break
        if change:
            resources.count(top, ((resource, change),), 1)


class Claims:
    """The claims of a tree with changes tried on, which the tree does not see."""

    __slots__ = ("_below", "_log", "_revision", "_top", "tree")

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self._log: list[tuple[str, Amounts, int]] = []
        self._revision: tuple[int, int] | None = None  # of the tree that the rest was made from
        self._below: dict[str, Usage] = {}  # queue id -> claims below it, where they differ
        self._top: Usage = {}

    def copy(self) -> Claims:
        twin = Claims(self.tree)
        twin._log = list(self._log)
        return twin

    def count(self, leaf: str, amounts: Amounts, times: int) -> None:
        """Protected jobs of the leaf use so many times the amounts more."""
        self._log.append((leaf, amounts, times))
        if self._revision is not None:
            self._spread(leaf, amounts, times)

    def used(self, leaf: str) -> Usage:
        """What protected jobs of the leaf use. Not to be changed."""
        self._sync()
        return self._totals(self.tree.by_id[leaf])

    def exceeded(self, leaf: str, need: Mapping[str, int], capacity: Mapping[str, int]) -> Iterator[Overclaim]:
        """What a protected job of the leaf with this need would leave too little of."""
        self._sync()
        for resource, amount in need.items():
            if resource != PODS and amount:
                found = self._over(leaf, resource, amount, capacity.get(resource, 0))
                if found is not None:
                    yield found

    def kept(self, leaf: str, of: Overclaim) -> list[tuple[Queue, int]]:
        """Whose guarantees are not used by protected jobs, so that they are in the way: the largest first."""
        self._sync()
        path = self.tree.by_id[leaf].chain
        found = []
        for queue in self.tree.subtree(of.queue.id if of.queue is not None else ""):
            left = own(queue, of.resource) - self._totals(queue).get(of.resource, 0)
            if left > 0 and queue not in path:
                found.append((queue, left))
        return sorted(found, key=lambda pair: (-pair[1], pair[0].path))

    def _over(self, leaf: str, resource: str, amount: int, capacity: int) -> Overclaim | None:
        change = amount
        for queue in self.tree.by_id[leaf].chain:
            before, guaranteed = self._totals(queue).get(resource, 0), own(queue, resource)
            most = next((limit for name, limit in queue.spec.limit if name == resource), None)
            if most is not None and before + change > most:
                return Overclaim(queue, resource, most, before + change - most)
            change = max(before + change, guaranteed) - max(before, guaranteed)
            if not change:
                return None
        missing = self._top.get(resource, 0) + change - capacity
        return Overclaim(None, resource, capacity, missing) if missing > 0 else None

    def _totals(self, queue: Queue) -> Usage:
        found = self._below.get(queue.spec.id)
        return queue.claimed if found is None else found

    def _own_totals(self, queue: Queue) -> Usage:
        found = self._below.get(queue.spec.id)
        if found is None:
            found = self._below[queue.spec.id] = dict(queue.claimed)
        return found

    def _sync(self) -> None:
        """Made again when the tree has changed."""
        revision = (id(self.tree), self.tree.revision)
        if self._revision != revision:
            self._revision = revision
            self._below, self._top = {}, dict(self.tree.claimed)
            for entry in self._log:
                self._spread(*entry)

    def _spread(self, leaf: str, amounts: Amounts, times: int) -> None:
        spread(self.tree.by_id[leaf].chain, self._own_totals, self._top, amounts, times)
