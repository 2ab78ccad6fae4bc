"""Where every queue stands: what it waits for, borrows and lends.

Worked out from the indexes of the state (pending classes, usage along the paths), so a walk costs queues and classes,
not jobs. Called by readers: the API's queue lists and shares, explanations, and what-if questions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct

from muster.core import resources
from muster.core.gangs import Gang
from muster.core.model import Amounts, JobState
from muster.core.potential import entitled
from muster.core.queues import Queue, QueueTree
from muster.core.state import CellState
from muster.core.timers import Due

Totals = dict[str, int]


class Standing(Struct, frozen=True):
    """One queue with everything below it, in canonical units."""

    entitled: Amounts  # as published; before that the guarantee
    borrowed: Amounts  # usage above the entitlement
    lent: Amounts  # of the guarantee: not used, not withheld, and in use by others
    withheld: Amounts  # of the guarantee: not asked for, and not lent because of the lending limit (rule F2)
    pending: Amounts  # what its pending jobs ask for
    pending_jobs: int
    running_jobs: int  # placed, starting, running or stopping


class _Waiting:
    """Of one queue with everything below it."""

    __slots__ = ("amounts", "live", "pending")

    def __init__(self) -> None:
        self.amounts: Totals = {}
        self.pending = 0
        self.live = 0

    def wait(self, gang: Gang, count: int) -> None:
        """So many jobs of the gang wait."""
        self.pending += count
        resources.count(self.amounts, gang.full, count)

    def include(self, other: _Waiting) -> None:
        """Those of a queue below it, too."""
        self.pending += other.pending
        self.live += other.live
        resources.count(self.amounts, other.amounts.items(), 1)


def standings(state: CellState, root: str = "") -> dict[str, Standing]:
    """By id, the queues of a subtree ("": all)."""
    waiting = _waiting(state, root)
    excess = _Excess(state.queues)
    return {queue.id: _standing(state, queue, waiting[queue.id], excess) for queue in state.queues.subtree(root)}


def _standing(state: CellState, queue: Queue, waiting: _Waiting, excess: _Excess) -> Standing:
    deserved = entitled(queue, state.entitled)
    lending = dict(queue.spec.lending_limit)
    lent: Totals = {}
    withheld: Totals = {}
    for resource, mine in queue.spec.guaranteed:
        used = queue.usage.get(resource, 0)
        asked = min(used + waiting.amounts.get(resource, 0), mine)
        withheld[resource] = max(mine - lending.get(resource, mine) - asked, 0)
        unused = mine - used - withheld[resource]
        lent[resource] = min(unused, excess.of_others(queue, resource)) if unused > 0 else 0
    borrowed = {r: n - deserved.amounts.get(r, 0) for r, n in queue.usage.items() if deserved.over(queue.usage, r)}
    borrowed.pop(resources.PODS, None)  # nobody is entitled to pod slots
    return Standing(
        entitled=tuple(sorted(deserved.amounts.items())),
        borrowed=resources.amounts(borrowed),
        lent=resources.amounts(lent),
        withheld=resources.amounts(withheld),
        pending=resources.amounts(waiting.amounts),
        pending_jobs=waiting.pending,
        running_jobs=waiting.live - waiting.pending,
    )


class _Excess:
    """What queues use above their guarantees. Summed up once for all children of a queue: they may be thousands."""

    def __init__(self, tree: QueueTree) -> None:
        self._tree = tree
        self._of: dict[str, Totals] = {}
        self._of_children: dict[str, Totals] = {}

    def of_others(self, queue: Queue, resource: str) -> int:
        """Of the siblings of the queue and of those above it: who may use what it leaves."""
        others = 0
        for above in queue.chain:
            others += self._children(above.spec.parent).get(resource, 0) - self._of[above.id].get(resource, 0)
        return others

    def _children(self, parent: str) -> Totals:
        found = self._of_children.get(parent)
        if found is None:
            found = self._of_children[parent] = {}
            for child in self._tree.children_of(parent).values():
                own = self._of[child] = _above(self._tree.get(child))
                resources.count(found, own.items(), 1)
        return found


def _above(queue: Queue) -> Totals:
    guaranteed = dict(queue.spec.guaranteed)
    above = ((resource, amount - guaranteed.get(resource, 0)) for resource, amount in queue.usage.items())
    return {resource: amount for resource, amount in above if amount > 0}


def _waiting(state: CellState, root: str) -> dict[str, _Waiting]:
    """By id, the queues of the subtree."""
    found = {queue.id: _Waiting() for queue in state.queues.subtree(root)}
    for leaf, gang, count in _pending(state, found):  # of array jobs what is left of them
        found[leaf].wait(gang, count)
    for queue in reversed([state.queues.get(queue) for queue in found]):  # children before their parents
        found[queue.id].live += len(queue.live)
        if queue.id != root and queue.spec.parent:
            found[queue.spec.parent].include(found[queue.id])
    return found


def _pending(state: CellState, queues: Collection[str]) -> Iterator[tuple[str, Gang, int]]:
    """(leaf, gang, how many jobs of it wait) in these queues: of every class, then one by one those in backoff."""
    for leaf in queues:
        for found in state.pending.of_queue.get(leaf, {}).values():
            yield leaf, state.jobs[found.first()[2]].asks, len(found)
    for _, what, job_id, epoch in state.timers.others:
        job = state.jobs.get(job_id) if what == Due.BACKOFF_OVER else None
        if job is None or job.epoch != epoch or job.state is not JobState.QUEUED or state.is_pending(job):
            continue
        if job.queue in queues:
            yield job.queue, job.asks, 1
