"""What a job may have now: entitlement, limits, allowances, and what must be left alone (rules F6, P2a, P4, Q1).

limits of the path, charged and held      every job
allowances of namespaces and users        every job
what lenders withhold (lending_limit)     who borrows
the entitlement itself                    who cannot be reclaimed from (P4)
what others are guaranteed                who cannot be reclaimed from (P4)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from muster.core.claims import Overclaim
from muster.core.draft import Draft
from muster.core.holds import Kepts
from muster.core.jobs import Job
from muster.core.lending import withheld
from muster.core.members import Exceeded, Key, allowances, exceeded
from muster.core.model import Amounts
from muster.core.order import protected
from muster.core.queues import Queue, Usage, over_limit
from muster.core.resources import PODS
from muster.core.turns import Views

UNBOUNDED: Final = 1 << 30


class Room:
    """Of one pass; sees everything as the transaction in the making leaves it."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._kepts = Kepts(draft.holds, draft.job, draft.overlay, draft.tree)
        self._entitled: dict[str, Mapping[str, int]] = {}
        self._withheld: Usage | None = None
        self._capacity: dict[str, int] | None = None
        self._decayed: dict[str, Mapping[str, int]] = {}
        self.held = self._kepts.usage
        self.views = Views(
            draft.usages.committed, self._member_usage, self.entitled_of, self._decayed_of, self._capacity_now, {}
        )

    def _member_usage(self, queue: Queue, key: Key) -> Usage:
        return self._draft.usages.member(queue, key).usage

    def _decayed_of(self, queue: Queue) -> Mapping[str, int]:
        """Decayed usage of a queue that has a history (rule F4), in its fractions. A pass takes no time."""
        found = self._decayed.get(queue.spec.id)
        if found is None and queue.history is not None:
            found = self._decayed[queue.spec.id] = queue.history.decayed(queue.usage, self._draft.now_ms)
        return found or {}

    def _capacity_now(self) -> Mapping[str, int]:
        if self._capacity is None:
            self._capacity = dict(self._draft.state.nodes.capacity())
        return self._capacity

    # --- entitlement ------------------------------------------------------------------------------------------------

    def entitled_of(self, queue: Queue) -> Mapping[str, int]:
        """E of a queue (rule F1); its guarantee until fair-share has answered."""
        found = self._entitled.get(queue.spec.id)
        if found is None:
            published = self._draft.entitled.get(queue.spec.id)
            found = dict(queue.spec.guaranteed if published is None else published)
            self._entitled[queue.spec.id] = found
        return found

    def entitled(self, job: Job) -> bool:
        """Whether the job's queue is below its entitlement in a resource that the job asks for (rule P2a)."""
        queue = self._draft.tree.by_id[job.queue]
        own = self.entitled_of(queue)
        if not own:
            return False
        used = self._without_own_hold(job, self._draft.usages.committed(queue))
        minimum = job.asks.minimum
        for resource, _ in minimum:
            if used.get(resource, 0) < own.get(resource, 0) and (resource != PODS or len(minimum) == 1):
                return True
        return False

    def _without_own_hold(self, job: Job, used: Usage) -> Usage:
        """Who waits for what is held for it is no borrower because of that very hold."""
        hold = self._draft.holds.get(job.spec.id)
        if hold is None or job.charged:
            return used
        held = job.gang.of_groups(hold.placement)
        return {**used, **{resource: used.get(resource, 0) - amount for resource, amount in held}}

    def entitled_count(self, job: Job) -> int:
        """How many such jobs in a row are entitled."""
        queue = self._draft.tree.by_id[job.queue]
        own, used = self.entitled_of(queue), self._draft.usages.committed(queue)
        only_pods = len(job.asks.minimum) == 1
        return max(
            -(-(own.get(resource, 0) - used.get(resource, 0)) // amount)
            for resource, amount in job.asks.minimum
            if resource != PODS or only_pods
        )

    # --- limits -----------------------------------------------------------------------------------------------------

    def allows(self, job: Job, need: Mapping[str, int], *, entitled: bool, starts: bool = True) -> bool:
        """Whether the job may have so much more (rule F6), as far as numbers go: nodes are another matter."""
        queue = self._draft.tree.by_id[job.queue]
        if queue.limits and over_limit(queue, need, self._draft.usage, self.held) is not None:
            return False
        if queue.tracked and any(self.over_allowance(job, need, starts=starts)):
            return False
        if protected(job) and (self.above_entitlement(job, need) or any(self.over_claims(queue, need))):
            return False
        return entitled or not self._draft.tree.lending or not any(self.kept_by_lenders(need))

    def over_allowance(
        self, job: Job, need: Mapping[str, int], *, starts: bool = True
    ) -> Iterator[tuple[Queue, Exceeded]]:
        """What the job's namespace or user would exceed on the path (rule Q1)."""
        for above in self._draft.tree.by_id[job.queue].tracked:
            for key, allowance in allowances(above.spec, job.spec):
                member = self._kepts.member(above, key, self._draft.usages.member(above, key))
                over = exceeded(key, allowance, member, need, starts=starts)
                if over is not None:
                    yield above, over

    def above_entitlement(self, job: Job, need: Mapping[str, int]) -> Amounts:
        """By how much the job would take its queue past E. Rule P4: what nobody can reclaim must not be borrowed. When
        room is held for it, it was within E before those came who have come to the queue since: of the others only the
        protected count, so that nobody left for it in vain."""
        queue, usages = self._draft.tree.by_id[job.queue], self._draft.usages
        holds = job.spec.id in self._draft.holds
        own, used = self.entitled_of(queue), usages.claims.used(job.queue) if holds else usages.committed(queue)
        above = ((r, used.get(r, 0) + amount - own.get(r, 0)) for r, amount in need.items() if amount and r != PODS)
        return tuple((resource, amount) for resource, amount in above if amount > 0)

    def over_claims(self, queue: Queue, need: Mapping[str, int]) -> Iterator[Overclaim]:
        """What the job would take of what is guaranteed to others. Rule P4: nobody could reclaim it for them."""
        return self._draft.usages.claims.exceeded(queue.spec.id, need, self._capacity_now())

    def kept_for(self, queue: Queue, of: Overclaim) -> list[tuple[Queue, int]]:
        """Whose guarantees those are, and how much of them is not used by jobs like it; the largest first."""
        return self._draft.usages.claims.kept(queue.spec.id, of)

    def kept_by_lenders(self, need: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
        """(resource, how much is missing, how much is withheld) where a borrower would take what lenders keep back."""
        draft = self._draft
        if not draft.tree.lending:
            return
        capacity = self._capacity_now()
        if self._withheld is None:
            self._withheld = withheld(draft.tree, capacity)
        roots = [draft.tree.by_id[root] for root in draft.tree.roots.values()]
        for resource, kept in self._withheld.items():
            if kept and need.get(resource):
                used = sum(draft.usages.committed(root).get(resource, 0) for root in roots)
                missing = used + need[resource] + kept - capacity.get(resource, 0)
                if missing > 0:
                    yield resource, missing, kept

    # --- holds ------------------------------------------------------------------------------------------------------

    def lift(self, job: Job) -> None:
        """Without this job's hold, if it has one: it is being tried."""
        if job.spec.id in self._draft.holds:
            self._kepts.lift(job.spec.id)
            self._draft.lift_hold(job.spec.id)

    def restore(self, job: Job) -> None:
        """It did not fit."""
        if job.spec.id in self._draft.holds:
            self._kepts.restore(job.spec.id)
            self._draft.lift_hold(job.spec.id, 1)

    def drop(self, job: Job) -> None:
        """It was placed; its hold was lifted before."""
        self._kepts.drop(job.spec.id)
        self._draft.use_hold(job.spec.id)
