"""Where every queue stands: what it waits for, borrows and lends.

Worked out from the indexes of the state (pending classes, usage along the paths), so a walk costs queues and classes,
not jobs. Called by readers: the API's queue lists and shares, explanations, and what-if questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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


def standings(state: CellState, root: str = "") -> dict[str, Standing]:
    """By id, the queues of a subtree ("": all)."""
    waiting = _waiting(state)
    excess = {queue.id: _above(queue.usage, dict(queue.spec.guaranteed)) for queue in state.queues.subtree()}
    return {
        queue.id: _standing(state, queue, waiting.get(queue.id) or _Waiting(), excess)
        for queue in state.queues.subtree(root)
    }


def _standing(state: CellState, queue: Queue, waiting: _Waiting, excess: Mapping[str, Totals]) -> Standing:
    deserved = entitled(queue, state.entitled)
    guaranteed, lending = dict(queue.spec.guaranteed), dict(queue.spec.lending_limit)
    lent: Totals = {}
    withheld: Totals = {}
    for resource, mine in guaranteed.items():
        used = queue.usage.get(resource, 0)
        asked = min(used + waiting.amounts.get(resource, 0), mine)
        withheld[resource] = max(mine - lending.get(resource, mine) - asked, 0)
        by_others = sum(excess[other].get(resource, 0) for other in _others(state.queues, queue))
        lent[resource] = min(max(mine - used - withheld[resource], 0), by_others)
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


def _others(tree: QueueTree, queue: Queue) -> Iterator[str]:
    """The siblings of the queue and of those above it: who may use what it leaves."""
    for above in queue.chain:
        for sibling in tree.children_of(above.spec.parent).values():
            if sibling != above.id:
                yield sibling


def _above(usage: Mapping[str, int], base: Mapping[str, int]) -> Totals:
    above = ((resource, amount - base.get(resource, 0)) for resource, amount in usage.items())
    return {resource: amount for resource, amount in above if amount > 0}


def _waiting(state: CellState) -> dict[str, _Waiting]:
    found: dict[str, _Waiting] = {queue.id: _Waiting() for queue in state.queues.subtree()}
    for leaf, gang, count in _pending(state):  # of array jobs what is left of them
        for above in state.queues.get(leaf).chain:
            waiting = found[above.id]
            waiting.pending += count
            for resource, amount in gang.full:
                waiting.amounts[resource] = waiting.amounts.get(resource, 0) + amount * count
    for queue in state.queues.subtree():
        if queue.jobs:
            for above in queue.chain:
                found[above.id].live += queue.jobs
    return found


def _pending(state: CellState) -> Iterator[tuple[str, Gang, int]]:
    """(leaf, gang, how many jobs of it wait): of every class, then one by one those in backoff."""
    for found in state.pending.classes.values():
        yield found.key[0], state.jobs[found.first()[2]].asks, len(found)
    for _, what, job_id, epoch in state.timers.others:
        job = state.jobs.get(job_id) if what == Due.BACKOFF_OVER else None
        if job is not None and job.epoch == epoch and job.state is JobState.QUEUED and not state.is_pending(job):
            yield job.queue, job.asks, 1
