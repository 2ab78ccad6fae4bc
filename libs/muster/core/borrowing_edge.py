"""Where a leaf reaches its entitlement: who would leave it less is put to the rules of preemption one by one.

Of an elastic part as many replicas leave as are beyond it. What would cut the leaf below its entitlement, be it the
last replica or a whole job, leaves only if there is a taker for whom the rules allow it when everybody before has gone
to those who were waiting (rules P1, P2a). The queue of the taker may have had its part of that: as much of it as other
takers cannot use within their entitlements, and it does not ask for itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final

from muster.core.jobs import Job
from muster.core.model import Amounts
from muster.core.potential import ByPriority, add, gained, staying, summed
from muster.core.preemption_rules import Outlook, Taking, asked_for, why_not
from muster.core.queues import Usage
from muster.core.takers import Takers
from muster.core.victim_table import spare_of

TRIES_MAX: Final = 16  # questions to the rules


class Edge:
    """One leaf. `resources`: what takers want."""

    def __init__(self, outlook: Outlook, takers: Takers, leaf: str, resources: Sequence[str]) -> None:
        self._outlook = outlook
        self._takers = takers
        self._leaf = leaf
        self._resources = resources
        self._share = outlook.entitled_of(leaf)
        self._usage: ByPriority = {p: dict(usage) for p, usage in outlook.usage_of(leaf).items()}
        self._totals = summed(self._usage)
        self._gone: Usage = {}
        self._tries = 0
        self.is_cut = False  # whether somebody leaves who cuts into the entitlement

    def goes(self, priority: int, amounts: Amounts) -> None:
        """So much of jobs of this priority has left."""
        add(self._usage, priority, amounts, -1)
        for resource, amount in amounts:
            self._gone[resource] = self._gone.get(resource, 0) + amount
            self._totals[resource] = self._totals.get(resource, 0) - amount

    def beyond(self) -> bool:
        """Whether there is anything left that could be taken."""
        return any(self.left(resource) > 0 for resource in self._resources)

    def take_elastic(self, job: Job, wanted: Sequence[str]) -> list[int]:
        """Which replicas beyond its minimum leave."""
        found: list[int] = []
        for group, (most, positions) in spare_of(job).items():
            each = {r: amount for r, amount in job.gang.per_pod[group] if amount and r in wanted}
            counts = [-(-self.left(r) // amount) for r, amount in each.items() if self.left(r) > 0]
            count = min(most, max(counts, default=0))
            if not count:
                continue
            chosen = positions[len(positions) - count :]
            last = chosen[:1]
            self.goes(job.spec.priority, job.gang.of_positions(chosen[1:]))
            found += chosen if self._leaves(Taking(job, tuple(last), whole=False), wanted) else chosen[1:]
        return found

    def take_core(self, job: Job, wanted: Sequence[str], *, bare: bool) -> list[int]:
        """What stays of the job, if it leaves. `bare`: its elastic part has left already."""
        if not any(self.left(resource) > 0 for resource in wanted):
            return []
        positions = staying(job)
        if bare:
            spare = {p for count, of in spare_of(job).values() for p in of[len(of) - count :]}
            positions = [position for position in positions if position not in spare]
        return positions if self._leaves(Taking(job, tuple(positions), whole=True), wanted) else []

    def _leaves(self, taking: Taking, wanted: Sequence[str]) -> bool:
        """Whether it leaves. Who cuts into the entitlement is the last; as it depends on who asks whether it is that
        one or others that cut less, it is the first of those and does not count as gone."""
        amounts = dict(taking.amounts)
        cuts = all(amounts.get(r, 0) > self.left(r) for r in wanted if amounts.get(r, 0) and self.left(r) > 0)
        if (cuts and self.is_cut) or not self._may(taking):
            return False
        if cuts:
            self.is_cut = True
        else:
            self.goes(taking.victim.spec.priority, taking.amounts)
        return True

    def left(self, resource: str) -> int:
        """By how much the leaf is still above its entitlement."""
        return self._totals.get(resource, 0) - self._share.amounts.get(resource, 0)

    def _may(self, taking: Taking) -> bool:
        """Whether there is somebody for whom the rules allow it."""
        changes = {resource: -amount for resource, amount in taking.amounts}
        lost = gained(self._totals, changes, self._share, self._outlook.capacity, self._takers.scale)
        for job in self._takers.others(self._leaf):
            got: Amounts = ()
            instead = self._is_instead(job, taking)
            if not instead:
                if lost + self._takers.gain(job) <= 0:
                    continue  # the rule that most often forbids it, at its cheapest (rule P1)
                got = self._got(job)
                if got and lost + self._takers.gain(job, got) <= 0:
                    continue
            if self._tries >= TRIES_MAX:
                break
            self._tries += 1
            outlook = self._outlook if instead else self._outlook_of(job, got)
            replicas = sum(task.min_replicas for task in job.asks.tasks)
            if why_not(outlook, job, [taking], job.asks.minimum, replicas) is None:
                return True
        return False

    def _is_instead(self, job: Job, taking: Taking) -> bool:
        """Whether the taker asks for more than there is left to take, so that this one may leave in place of others: no
        plan takes more than it needs (rule P3)."""
        asked = asked_for(job)
        left = [(r, self.left(r)) for r, _ in taking.amounts if r in self._resources]
        return all(asked.get(r, 0) > most for r, most in left if most > 0)

    def _got(self, job: Job) -> Amounts:
        """What the taker's queue has got before it is its turn. Part of what has gone may have gone for its sake."""
        found = []
        for resource, asked in asked_for(job).items():
            got = self._gone.get(resource, 0) - self._takers.gap_of_others(job.queue, resource) - asked
            if got > 0:
                found.append((resource, got))
        return tuple(found)

    def _outlook_of(self, job: Job, got: Amounts) -> Outlook:
        """When it is this taker's turn."""
        outlook = self._outlook
        usages = {self._leaf: self._usage}
        if got:
            usages[job.queue] = had = {p: dict(usage) for p, usage in outlook.usage_of(job.queue).items()}
            add(had, job.spec.priority, got, 1)
        found = copy.copy(outlook)
        found.usage_of = lambda leaf: usages[leaf] if leaf in usages else outlook.usage_of(leaf)
        return found
