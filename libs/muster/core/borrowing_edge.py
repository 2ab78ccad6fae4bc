"""Where a leaf reaches its entitlement: who would leave it less is put to the rules of preemption one by one.

Of an elastic part as many replicas leave as it takes. What would cut the leaf below its entitlement, be it the last
replica or a whole job, leaves only if there is a taker for whom the rules allow it when everybody before has gone to
those who were waiting (rules P1, P2a). The taker may have had its part of that: as much of it as other takers
cannot use within their entitlements.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final

from muster.core.jobs import Job
from muster.core.model import Amounts
from muster.core.potential import ByPriority, add, staying, summed
from muster.core.preemption_rules import Outlook, Taking, asked_for, why_not
from muster.core.queues import Usage
from muster.core.takers import Takers
from muster.core.victim_table import spare_of

TRIES_MAX: Final = 32  # questions to the rules


class Edge:
    """One leaf. `resources`: what takers want."""

    def __init__(self, outlook: Outlook, takers: Takers, leaf: str, resources: Sequence[str]) -> None:
        self._outlook = outlook
        self._takers = takers
        self._leaf = leaf
        self._resources = resources
        self._share = outlook.entitled_of(leaf)
        self._usage: ByPriority = {p: dict(usage) for p, usage in outlook.usage_of(leaf).items()}
        self._gone: Usage = {}
        self._gaps = {resource: takers.gaps(resource) for resource in resources}
        self._tries = 0
        self._refused: dict[tuple[Amounts, int, bool], None] = {}

    def goes(self, priority: int, amounts: Amounts) -> None:
        """So much of jobs of this priority has left."""
        add(self._usage, priority, amounts, -1)
        for resource, amount in amounts:
            self._gone[resource] = self._gone.get(resource, 0) + amount

    def beyond(self) -> bool:
        """Whether there is anything left that could be taken."""
        return any(self._left(resource) > 0 for resource in self._resources)

    def take_elastic(self, job: Job, wanted: Sequence[str]) -> list[int]:
        """Which replicas beyond its minimum leave."""
        found: list[int] = []
        for group, (most, positions) in spare_of(job).items():
            each = {r: amount for r, amount in job.gang.per_pod[group] if amount and r in wanted}
            counts = [-(-self._left(r) // amount) for r, amount in each.items() if self._left(r) > 0]
            count = min(most, max(counts, default=0))
            if not count:
                continue
            chosen = positions[len(positions) - count :]
            last = chosen[:1]
            self.goes(job.spec.priority, job.gang.of_positions(chosen[1:]))
            if self._may(Taking(job, tuple(last), whole=False)):
                self.goes(job.spec.priority, job.gang.of_positions(last))
                found += chosen
            else:
                found += chosen[1:]
        return found

    def take_core(self, job: Job, wanted: Sequence[str], *, bare: bool) -> list[int]:
        """What stays of the job, if it leaves. `bare`: its elastic part has left already."""
        if not any(self._left(resource) > 0 for resource in wanted):
            return []
        positions = staying(job)
        if bare:
            spare = {p for count, of in spare_of(job).values() for p in of[len(of) - count :]}
            positions = [position for position in positions if position not in spare]
        if not self._may(Taking(job, tuple(positions), whole=True)):
            return []
        self.goes(job.spec.priority, job.gang.of_positions(positions))
        return positions

    def _left(self, resource: str) -> int:
        """By how much the leaf is still above its entitlement."""
        return summed(self._usage).get(resource, 0) - self._share.amounts.get(resource, 0)

    def _may(self, taking: Taking) -> bool:
        """Whether there is somebody for whom the rules allow it. Equal parts get the answer of the first."""
        alike = (taking.amounts, taking.victim.spec.priority, taking.whole)
        if alike in self._refused:
            return False
        for job in self._takers.others(self._leaf):
            if self._tries >= TRIES_MAX:
                break
            self._tries += 1
            replicas = sum(task.min_replicas for task in job.asks.tasks)
            if why_not(self._outlook_of(job), job, [taking], job.asks.minimum, replicas) is None:
                return True
        self._refused[alike] = None
        return False

    def _outlook_of(self, job: Job) -> Outlook:
        """When it is this taker's turn."""
        outlook = self._outlook
        had: ByPriority = {p: dict(usage) for p, usage in outlook.usage_of(job.queue).items()}
        for resource in asked_for(job):
            gaps = self._gaps.get(resource, {})
            others = sum(gaps.values()) - gaps.get(job.queue, 0)
            got = self._gone.get(resource, 0) - others
            if got > 0:
                add(had, job.spec.priority, ((resource, got),), 1)
        usages = {self._leaf: self._usage, job.queue: had}
        found = copy.copy(outlook)
        found.usage_of = lambda leaf: usages[leaf] if leaf in usages else outlook.usage_of(leaf)
        return found
