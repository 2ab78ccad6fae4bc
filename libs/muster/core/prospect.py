"""The cell as the committed plans will leave it (rule Q3): what leaves is gone, who holds something is placed.

Whoever looks for room, or checks that a plan makes it, looks at this and not at what is occupied this moment: pods on
their way out, for whatever reason, make room without anybody else leaving, and what is held for others is not there.
The planner makes one from a follower's state and adds each plan to it before it works out the next; the leader makes
one from the transaction in the making.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from muster.core.claims import Claims
from muster.core.jobs import Job
from muster.core.members import Key, Member, keys_of
from muster.core.model import Amounts, GroupPlacement, JobState
from muster.core.order import protected
from muster.core.overlay import Overlay
from muster.core.preemption_rules import Taking
from muster.core.queues import Queue, Usage
from muster.core.state import Hold


class Prospect:
    """See the module's text. `fresh` makes an overlay with nothing tried on it, `charged` is usage as it is now."""

    def __init__(
        self,
        fresh: Callable[[], Overlay],
        charged: Callable[[Queue], Usage],
        member: Callable[[Queue, Key], Member],
        claims: Claims,
    ) -> None:
        self.tree = claims.tree
        self.claims = claims  # of what is committed, and of what is added to it here (rule P4)
        self._member = member
        self._fresh = fresh
        self._charged = charged
        self._leave: list[tuple[Job, Sequence[int], bool]] = []
        self._hold: list[tuple[Job, tuple[GroupPlacement, ...]]] = []
        self._moved: dict[str, Usage] = {}  # queue id -> what is added to charged usage
        self._uncounted: list[tuple[str, Amounts, int]] = []  # of it: what nobody has asked about yet

    def leaves(self, job: Job, positions: Sequence[int], *, whole: bool) -> None:
        """These pods count as gone; `whole`: and so the job."""
        self.is_leaving(job, positions, whole=whole)
        if protected(job):
            self.claims.count(job.queue, job.gang.of_positions(positions), -1)

    def is_leaving(self, job: Job, positions: Sequence[int], *, whole: bool) -> None:
        """The same when that is committed already."""
        self._leave.append((job, positions, whole))
        self._uncounted.append((job.queue, job.gang.of_positions(positions), -1))

    def holds(self, holder: Job, placement: tuple[GroupPlacement, ...]) -> None:
        """The job counts as placed there."""
        self.is_holding(holder, placement)
        if protected(holder):
            self.claims.count(holder.queue, holder.gang.of_groups(placement), 1)

    def is_holding(self, holder: Job, placement: tuple[GroupPlacement, ...]) -> None:
        """The same when that is committed already."""
        self._hold.append((holder, placement))
        self._uncounted.append((holder.queue, holder.gang.of_groups(placement), 1))

    def overlay(self, takings: Iterable[Taking] = (), only: Iterable[int] | None = None) -> Overlay:
        """The nodes, with this taken as well. `only`: the nodes that will be looked at, if not all."""
        overlay = self._fresh()
        nodes = None if only is None else frozenset(only)
        for taking in takings:
            overlay.release(taking.victim.gang.tasks, taking.victim.placement, taking.positions)
        for job, positions, _ in self._leave:
            if nodes is None or _is_on(job.placement, nodes):
                overlay.release(job.gang.tasks, job.placement, positions)
        for holder, placement in self._hold:
            if nodes is None or _is_on(placement, nodes):
                overlay.charge(holder.gang.tasks, placement)
        return overlay

    def usage(self, queue: Queue) -> Usage:
        """What the queue will have placed."""
        self._count()
        return added(self._charged(queue), self._moved.get(queue.id, {}))

    def usage_without(self, takings: Sequence[Taking]) -> Callable[[Queue], Usage]:
        """The same, with this taken as well."""
        gone: dict[str, Usage] = {}
        for taking in takings:
            for queue in self.tree.by_id[taking.victim.queue].chain:
                count(gone.setdefault(queue.id, {}), taking.amounts, -1)
        return lambda queue: added(self.usage(queue), gone.get(queue.id, {}))

    def claims_without(self, takings: Sequence[Taking]) -> Claims:
        """The claims (rule P4), with this taken as well."""
        gone = [taking for taking in takings if protected(taking.victim)]
        if not gone:
            return self.claims
        left = self.claims.copy()
        for taking in gone:
            left.count(taking.victim.queue, taking.amounts, -1)
        return left

    def member(self, queue: Queue, key: Key) -> Member:
        """What a namespace or user will have in a queue that keeps its members; the caller may change it."""
        member = self._member(queue, key).copy()
        for job, positions, whole in self._leave:
            if key in keys_of(job.spec) and queue in self.tree.by_id[job.queue].chain:
                member.count(0, -int(whole), job.gang.of_positions(positions), -1)
        for holder, placement in self._hold:
            if key in keys_of(holder.spec) and queue in self.tree.by_id[holder.queue].chain:
                member.count(0, int(not holder.charged), holder.gang.of_groups(placement))
        return member

    def _count(self) -> None:
        uncounted, self._uncounted = self._uncounted, []
        for queue, amounts, sign in uncounted:
            for above in self.tree.by_id[queue].chain:
                count(self._moved.setdefault(above.id, {}), amounts, sign)


def _is_on(placement: Sequence[GroupPlacement], nodes: frozenset[int]) -> bool:
    return any(node in nodes for group in placement for node, _ in group.runs)


def prospect(
    fresh: Callable[[], Overlay],
    charged: Callable[[Queue], Usage],
    member: Callable[[Queue, Key], Member],
    *,
    claims: Claims,
    leaving: Iterable[Job],
    holds: Mapping[str, Hold],
    find: Callable[[str], Job | None],
) -> Prospect:
    """With all that leaves and all that is held, which `claims` know of already."""
    made = Prospect(fresh, charged, member, claims)
    for job in leaving:
        positions = leaving_positions(job)
        if positions:
            made.is_leaving(job, positions, whole=job.state is JobState.STOPPING)
    for job_id in sorted(holds):
        holder = find(job_id)
        if holder is not None:
            made.is_holding(holder, holds[job_id].placement)
    return made


def leaving_positions(job: Job) -> list[int]:
    """Pods that were asked to leave and are still there."""
    if job.state is JobState.STOPPING:
        return job.holding()
    return list(job.leaving)


def count(totals: Usage, amounts: Amounts, sign: int) -> None:
    for resource, amount in amounts:
        totals[resource] = totals.get(resource, 0) + sign * amount


def added(usage: Usage, change: Usage) -> Usage:
    if not change:
        return usage
    return {r: usage.get(r, 0) + change.get(r, 0) for r in {**usage, **change}}
