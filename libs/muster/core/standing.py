"""Where every queue stands: what it waits for, borrows and lends.

Worked out from the indexes of the state (pending classes, usage along the paths), so a walk costs queues and classes,
not jobs. Called by readers: the API's queue lists and shares, explanations, and what-if questions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct

from muster.core import resources
from muster.core.gangs import Gang
from muster.core.lent import Loans
from muster.core.model import Amounts, JobState
from muster.core.potential import entitled
from muster.core.queues import Queue
from muster.core.state import CellState
from muster.core.timers import Due

Totals = dict[str, int]


class Standing(Struct, frozen=True):
    """One queue with everything below it, in canonical units."""

    entitled: Amounts  # as published; before that the guarantee
    borrowed: Amounts  # usage above the entitlement
    lent: Amounts  # of the guarantee: not used, and not to be had without taking it back from others (`lent`)
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
    withheld = _Withheld(state, waiting, whole=not root)
    loans = Loans(state.queues, dict(state.nodes.capacity()), withheld.below)
    return {
        queue.id: _standing(state, queue, waiting[queue.id], withheld.own(queue), loans)
        for queue in state.queues.subtree(root)
    }


def _standing(state: CellState, queue: Queue, waiting: _Waiting, withheld: Totals, loans: Loans) -> Standing:
    usage = queue.usage
    taken = loans.of(queue) if queue.spec.guaranteed else {}
    lent: Totals = {}
    for resource, mine in queue.spec.guaranteed if taken else ():  # what those below are guaranteed may be more
        unused = mine - usage.get(resource, 0) - withheld.get(resource, 0)
        lent[resource] = max(min(taken.get(resource, 0), unused), 0)
    deserved = entitled(queue, state.entitled)
    borrowed = {r: n - deserved.amounts.get(r, 0) for r, n in usage.items() if deserved.over(usage, r)}
    borrowed.pop(resources.PODS, None)  # nobody is entitled to pod slots
    return Standing(
        entitled=state.entitled.get(queue.id, queue.spec.guaranteed),
        borrowed=resources.amounts(borrowed) if borrowed else (),
        lent=resources.amounts(lent) if lent else (),
        withheld=resources.amounts(withheld) if withheld else (),
        pending=resources.amounts(waiting.amounts) if waiting.amounts else (),
        pending_jobs=waiting.pending,
        running_jobs=waiting.live - waiting.pending,
    )


class _Withheld:
    """What queues keep back of their guarantees because of a lending limit (rule F2), each worked out once."""

    def __init__(self, state: CellState, waiting: dict[str, _Waiting], *, whole: bool) -> None:
        """`waiting`: of the queues that are asked about; `whole`: of all."""
        self._state = state
        self._waiting = waiting
        self._whole = whole
        self._own: dict[str, Totals] = {}
        self._below: dict[str, Totals] = {}

    def own(self, queue: Queue) -> Totals:
        """Of its own guarantee. Of a queue that waiting jobs are known of."""
        if not queue.spec.lending_limit:
            return {}
        found = self._own.get(queue.id)
        if found is None:
            found = self._own[queue.id] = _withheld(queue, self._waiting[queue.id])
        return found

    def below(self, queue: Queue) -> Totals:
        """Of its own guarantee, or of those below it, where that is more. Takes a walk over all queues if these are
        others than those that are asked about."""
        if not self._state.queues.lending:
            return {}
        if not self._whole:
            self._waiting, self._whole = _waiting(self._state, ""), True
        if not queue.children:
            return self.own(queue)
        found = self._below.get(queue.id)
        if found is None:
            found = self._below[queue.id] = {}
            for child in queue.children.values():
                resources.count(found, self.below(self._state.queues.by_id[child]).items(), 1)
            for resource, amount in self.own(queue).items():
                found[resource] = max(found.get(resource, 0), amount)
        return found


def _withheld(queue: Queue, waiting: _Waiting) -> Totals:
    """By resource that it is guaranteed and lends only in part."""
    guaranteed = dict(queue.spec.guaranteed)
    withheld: Totals = {}
    for resource, lends in queue.spec.lending_limit:
        kept = guaranteed.get(resource, 0) - lends
        if kept > 0:
            asked = queue.usage.get(resource, 0) + waiting.amounts.get(resource, 0)
            withheld[resource] = max(kept - asked, 0)
    return withheld


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
