"""How much of its guarantee each queue has lent: what it does not use, and could not without somebody giving it back.

Of the children of one queue (of the roots, in the cell) and one resource, in integers:

    unused(i)   = max(promised(i) - used(i), 0)                        promised: as `promises` has it
    excess      = sum of max(used(i) - promised(i), 0)                 what siblings use beyond what they are guaranteed
    pool        = what these queues can use together without anybody outside giving something back
    lent in all = min(max(sum of used(i) + sum of unused(i) - pool, 0), excess + lent by their parent)

With the capacity as the pool this is what is used beyond guarantees less what is free of anybody's guarantee: nothing
is lent as long as there is room beside all guarantees, and never more than somebody else uses. It is shared out in
proportion to `unused` less what a lending limit keeps back, by largest remainder, then name. The pool of a queue's
children is what it uses, its unused guarantee less what of it is lent, and what at its level is free of guarantees,
within its limit. So one unit is lent by a parent and by one of its children, as it is guaranteed by both, and siblings
never say that they have lent the same unit.

Asked by `standing`, for one queue or for all; a level is worked out once, at the cost of its queues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from muster.core.promises import promised
from muster.core.queues import Queue, QueueTree, Usage

NOTHING: Usage = {}


class _Level(NamedTuple):
    """The children of one queue."""

    lent: dict[str, Usage]  # by id of the child; those that lend nothing are left out
    free: Usage  # of what the children can use: nobody's guarantee, by resource that is guaranteed to some


class Loans:
    """What queues have lent of what is promised to them and to those below them."""

    def __init__(
        self, tree: QueueTree, capacity: Mapping[str, int], kept: Callable[[Queue], Mapping[str, int]]
    ) -> None:
        """`kept`: what a queue and those below it keep back of their guarantees (rule F2). Asked only where something
        is lent."""
        self._tree = tree
        self._capacity = capacity
        self._kept = kept
        self._levels: dict[str, _Level] = {}

    def of(self, queue: Queue) -> Usage:
        """By resource."""
        return self._level(queue.spec.parent).lent.get(queue.id, NOTHING)

    def _level(self, parent: str) -> _Level:
        found = self._levels.get(parent)
        if found is None:
            found = self._levels[parent] = self._worked_out(parent)
        return found

    def _worked_out(self, parent: str) -> _Level:
        above = self._tree.by_id[parent] if parent else None
        children = [self._tree.by_id[child] for child in self._tree.children_of(parent).values()]
        guaranteed: Usage = {}
        unused: Usage = {}
        lenders: dict[str, list[tuple[Queue, int]]] = {}
        for child in children:
            usage = child.usage
            for resource, mine in child.promised or promised(self._tree, child.id):
                guaranteed[resource] = guaranteed.get(resource, 0) + mine
                left = mine - usage.get(resource, 0)
                if left > 0:
                    unused[resource] = unused.get(resource, 0) + left
                    lenders.setdefault(resource, []).append((child, left))
        lent: dict[str, Usage] = {}
        free: Usage = {}
        outside = self.of(above) if above else NOTHING
        for resource, promises in guaranteed.items():
            used = above.usage.get(resource, 0) if above else sum(child.usage.get(resource, 0) for child in children)
            idle = unused.get(resource, 0)
            pool = self._pool(above, resource)
            free[resource] = max(pool - used - idle, 0)
            excess = used - promises + idle  # what is used within guarantees is what they are less what is unused
            short = min(used + idle - pool, excess + outside.get(resource, 0))
            if short > 0 and idle:
                for child, amount in self._shared_out(resource, short, lenders[resource]):
                    lent.setdefault(child.id, {})[resource] = amount
        return _Level(lent, free)

    def _pool(self, queue: Queue | None, resource: str) -> int:
        """What the children of the queue can use of a resource that is guaranteed to some of them."""
        if queue is None:
            return self._capacity.get(resource, 0)
        level = self._level(queue.spec.parent)
        mine = next((amount for name, amount in promised(self._tree, queue.id) if name == resource), 0)
        pool = max(mine, queue.usage.get(resource, 0)) + level.free.get(resource, 0)
        pool -= level.lent.get(queue.id, NOTHING).get(resource, 0)
        return min([pool, *[most for name, most in queue.spec.limit if name == resource]])

    def _shared_out(self, resource: str, short: int, lenders: Sequence[tuple[Queue, int]]) -> list[tuple[Queue, int]]:
        """So much, or all that they may lend, in proportion to that."""
        may = [(child, left - self._kept(child).get(resource, 0)) for child, left in lenders]
        may = sorted([(child, left) for child, left in may if left > 0], key=lambda lender: lender[0].spec.name)
        whole = sum(left for _, left in may)
        short = min(short, whole)
        shares = [short * left // whole for _, left in may]
        rests = sorted(range(len(may)), key=lambda n: -(short * may[n][1] % whole))  # stable: then by name
        for n in rests[: short - sum(shares)]:
            shares[n] += 1
        return [(child, share) for (child, _), share in zip(may, shares, strict=True) if share]
