"""Who may take whose place (rules P1, P2, P4), as the planner searches and the leader checks.

An `Outlook` is what the rules look at: committed usage by leaf queue and priority, entitlements and time. The planner
makes one from a follower's state, the leader from the transaction in the making, and both put the same questions to it;
so a plan that the leader drops was overtaken by something, never misunderstood.

Inside one queue it is a matter of priority (P2b), and between equals of age, unless the queue is fair between those
whose jobs they are; from other queues only what they use above their entitlement is taken, for a job whose own queue is
below its entitlement (P2a). Which queue a job may reclaim from is decided at the leaves, where entitlements are met;
guarantees are looked at on every queue below the nearest common ancestor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from muster.core.jobs import Job
from muster.core.members import fair_member
from muster.core.model import Amounts
from muster.core.potential import ByPriority, Entitled, Step, capacity_of, entitled, summed, weigh
from muster.core.queues import Queue, QueueTree, Usage
from muster.core.resources import PODS, total


class Ground(IntEnum):
    """Why a job may take another's place."""

    NONE = 0
    PRIORITY = 1  # rule P2b
    RECLAIM = 2  # rule P2a


class Taking(NamedTuple):
    """What is taken from one job: these positions, which are all that stay of it if `whole`."""

    victim: Job
    positions: tuple[int, ...]
    whole: bool

    @property
    def amounts(self) -> Amounts:
        return self.victim.gang.of_positions(self.positions)


class Outlook:
    """See the module's text. `usage_of` gives committed usage of a leaf by priority and must not change."""

    def __init__(
        self,
        tree: QueueTree,
        published: Mapping[str, Amounts],
        capacity: Amounts,
        usage_of: Callable[[str], ByPriority],
        now_ms: int,
    ) -> None:
        self.tree = tree
        self.capacity = capacity_of(capacity)
        self.usage_of = usage_of
        self.now_ms = now_ms
        self._published = published
        self._entitled: dict[str, Entitled] = {}

    def entitled_of(self, queue: str) -> Entitled:
        found = self._entitled.get(queue)
        if found is None:
            found = self._entitled[queue] = entitled(self.tree.by_id[queue], self._published)
        return found

    def usage(self, queue: str) -> Usage:
        """Committed usage of the subtree of a queue."""
        if not self.tree.by_id[queue].children:
            return summed(self.usage_of(queue))
        leaves = [below for below in self.tree.subtree(queue) if not below.children]
        return dict(total(tuple(summed(self.usage_of(leaf.id)).items()) for leaf in leaves))

    def below(self, job: Job) -> bool:
        """Whether the job's queue is below its entitlement in a resource that the job asks for (rule P2a)."""
        share, usage = self.entitled_of(job.queue), summed(self.usage_of(job.queue))
        return any(share.below(usage, resource) for resource in asked_for(job) if resource in self.capacity)


def asked_for(job: Job) -> Mapping[str, int]:
    """What the job needs to start, without pod slots."""
    return {resource: amount for resource, amount in job.asks.minimum if resource != PODS}


def ground(job: Job, queue: Queue, victim: Job) -> Ground:
    """By which rule `job`, of this queue, may take the place of `victim`, if entitlements allow (rules P2a, P2b)."""
    policy, lower = queue.spec.preemption, victim.spec.priority < job.spec.priority
    if policy == "NEVER" or victim.spec.id == job.spec.id:
        return Ground.NONE
    if victim.queue != job.queue:
        return Ground.RECLAIM if lower or policy == "ANY" else Ground.NONE
    if job.charged:
        return Ground.NONE  # inside its queue nobody leaves for an elastic part (`further`)
    equal = policy == "ANY" and victim.spec.priority == job.spec.priority and are_of_one_member(job, victim, queue)
    newer = equal and is_newer(victim, job)
    return Ground.PRIORITY if not queue.fifo and (lower or newer) else Ground.NONE


def are_of_one_member(job: Job, other: Job, queue: Queue) -> bool:
    """Whether age decides between two jobs of the queue. Between its members a fair queue decides by their shares, and
    the older job of one must not undo them at the cost of another (rule F5)."""
    return fair_member(queue.spec, job.spec) == fair_member(queue.spec, other.spec)


def is_newer(job: Job, other: Job) -> bool:
    return (job.submit_ms, job.spec.id) > (other.submit_ms, other.spec.id)


def min_runtime_ms(queue: Queue) -> int:
    """How long jobs of the queue are left alone: its own setting, or that of the nearest queue above (rule P4)."""
    return next((above.spec.min_runtime_ms for above in queue.chain if above.spec.min_runtime_ms), 0)


def shortest_ms(job: Job, queue: Queue) -> int:
    """How long the job is left alone: as jobs of its queue are, and as jobs of its priority class are (rule P4)."""
    return max(min_runtime_ms(queue), job.spec.min_runtime_ms)


def since_ms(job: Job) -> int:
    """When the work began that an eviction would lose."""
    return job.started_ms or job.placed_ms


def protected_until_ms(victim: Job, queue: Queue, *, core: bool) -> int:
    """Until when min_runtime of its queue and of its class keep the job; what it has beyond its minimum may go at any
    time (rule P2c)."""
    shortest = shortest_ms(victim, queue) if core else 0
    return since_ms(victim) + shortest if shortest else 0


def is_protected(job: Job, victim: Job, queue: Queue, *, core: bool, now_ms: int) -> bool:
    """Rule P4: not preemptible, not long enough there, or preempted so often that only priority counts."""
    if not victim.spec.preemptible or protected_until_ms(victim, queue, core=core) > now_ms:
        return True
    return core and victim.preemptions >= victim.spec.max_preemptions and victim.spec.priority >= job.spec.priority


def why_not(outlook: Outlook, job: Job, takings: Sequence[Taking], gains: Amounts, replicas: int) -> str | None:
    """Why the job may not take all this to use `gains` with so many pods (rules P1, P2, P4); None: it may."""
    queue = outlook.tree.by_id[job.queue]
    reclaimed: dict[str, list[Taking]] = {}
    for taking in takings:
        victim = taking.victim
        why = ground(job, queue, victim)
        if why is Ground.NONE:
            return "a victim may not be preempted by this job"
        of = outlook.tree.by_id[victim.queue]
        if is_protected(job, victim, of, core=taking.whole, now_ms=outlook.now_ms):
            return "a victim is protected"
        if why is Ground.RECLAIM:
            reclaimed.setdefault(victim.queue, []).append(taking)
    if reclaimed and not outlook.below(job):
        return "the job's queue is not below its entitlement"
    for leaf, taken in reclaimed.items():
        if not _only_last_below_share(outlook, job, leaf, taken):
            return f"queue {outlook.tree.path(leaf)} does not use more than it is entitled to"
    if not _only_last_below_guarantee(outlook, queue, reclaimed):
        return "a queue would be cut below its guarantee"
    return why_no_rise(outlook, job, takings, gains, replicas)


def why_no_rise(outlook: Outlook, job: Job, takings: Sequence[Taking], gains: Amounts, replicas: int) -> str | None:
    """Whether the potential forbids it (rule P1)."""
    steps = [Step(job, gains, replicas, 1)]
    steps += [Step(taking.victim, taking.amounts, len(taking.positions), -1) for taking in takings]
    weighed = weigh(steps, usage_of=outlook.usage_of, entitled_of=outlook.entitled_of, capacity=outlook.capacity)
    if not weighed.rises:
        return "the potential would not rise"
    if weighed.total <= 0 and any(taking.victim.queue != job.queue for taking in takings):
        return "the cell would be no nearer to the entitlements"
    return None


def _only_last_below_share(outlook: Outlook, job: Job, leaf: str, taken: Sequence[Taking]) -> bool:
    """Whether the queue is above E, in a resource that both use, whenever something is taken from it (rule P2a)."""
    share, usage, asked = outlook.entitled_of(leaf), outlook.usage(leaf), asked_for(job)
    for taking in taken:
        if not any(r in asked and share.over(usage, r) for r, _ in taking.amounts):
            return False
    return any(
        any(r in asked and share.over(before, r) for r, _ in last.amounts)
        for last, before in ((last, _without_others(usage, taken, last)) for last in taken)
    )


def _only_last_below_guarantee(outlook: Outlook, queue: Queue, reclaimed: Mapping[str, list[Taking]]) -> bool:
    """Whether only the last victim cuts a queue below its guarantee, below the nearest common ancestor (rule P2a)."""
    own = {above.id for above in queue.chain}
    below: dict[str, list[Taking]] = {}
    for leaf, taken in reclaimed.items():
        for above in outlook.tree.by_id[leaf].chain:
            if above.id in own:
                break
            if above.spec.guaranteed:
                below.setdefault(above.id, []).extend(taken)
    for queue_id, taken in below.items():
        guaranteed, usage = outlook.tree.by_id[queue_id].spec.guaranteed, outlook.usage(queue_id)
        if not any(_keeps(guaranteed, usage, _without_others(usage, taken, last)) for last in taken):
            return False
    return True


def _keeps(guaranteed: Amounts, before: Usage, after: Usage) -> bool:
    """Whether no guarantee is cut into, or not further than it was."""
    return all(after.get(r, 0) >= min(amount, before.get(r, 0)) for r, amount in guaranteed)


def _without_others(usage: Usage, taken: Sequence[Taking], last: Taking) -> Usage:
    """Usage when everything but `last` is gone."""
    left = dict(usage)
    for taking in taken:
        if taking is not last:
            for resource, amount in taking.amounts:
                left[resource] = left.get(resource, 0) - amount
    return left
