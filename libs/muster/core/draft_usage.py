"""Usage of queues and of their members as the transaction in the making leaves it (rules Q1, Q3).

The totals of the tree stay as they are; what is placed, released, promised and taken back here is kept beside them,
queue by queue along the path, only for queues that are touched.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.core.claims import Claims
from muster.core.members import Key, Member, keys_of
from muster.core.model import Amounts, JobSpec
from muster.core.queues import Queue, QueueTree, Usage


class DraftUsage:
    """`tree` is the draft's; it changes only before anything is counted here."""

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self.claims = Claims(tree)  # of the jobs that nobody can reclaim from (rule P4)
        self._charged: dict[str, Usage] = {}  # queue id -> all of its usage
        self._shifts: dict[str, Usage] = {}  # queue id -> what committed usage has beyond the change of charged usage
        self._members: dict[tuple[str, Key], Member] = {}

    @property
    def touched(self) -> bool:
        """Whether anything of the tree as it is now was counted anew."""
        return bool(self._charged or self._shifts or self._members)

    def charged(self, queue: Queue) -> Usage:
        """Charged usage. Not to be changed."""
        found = self._charged.get(queue.spec.id)
        return queue.usage if found is None else found

    def committed(self, queue: Queue) -> Usage:
        """Committed usage: victims of plans gone, their preemptors placed. Not to be changed."""
        charged, shift = self.charged(queue), self._shifts.get(queue.spec.id)
        if not shift and not queue.leaving and not queue.held:
            return charged
        total = dict(charged)
        for part, sign in ((queue.leaving, -1), (queue.held, 1), (shift or {}, 1)):
            for resource, amount in part.items():
                total[resource] = total.get(resource, 0) + sign * amount
        return total

    def charge(self, queue: str, amounts: Iterable[tuple[str, int]], sign: int = 1) -> None:
        """Charged and committed usage go up (1) or down (-1)."""
        for q in self.tree.by_id[queue].chain:
            usage = self._charged.get(q.spec.id)
            if usage is None:
                usage = self._charged[q.spec.id] = dict(q.usage)
            for resource, amount in amounts:
                usage[resource] = usage.get(resource, 0) + sign * amount

    def shift(self, queue: str, amounts: Amounts, sign: int) -> None:
        """Committed usage alone goes up (1) or down (-1)."""
        for q in self.tree.by_id[queue].chain:
            shift = self._shifts.setdefault(q.spec.id, {})
            for resource, amount in amounts:
                shift[resource] = shift.get(resource, 0) + sign * amount

    def replant(self, tree: QueueTree) -> None:
        """From now on it is about a copy of the tree, which this transaction changes."""
        self.tree = self.claims.tree = tree

    # --- members ----------------------------------------------------------------------------------------------------

    def member(self, queue: Queue, key: Key) -> Member:
        """What a namespace or user has in a queue that keeps its members. Not to be changed."""
        found = self._members.get((queue.spec.id, key))
        if found is None:
            found = queue.members.get(key) if queue.members is not None else None
        return Member() if found is None else found

    def count_member(
        self, queue: str, spec: JobSpec, *, pending: int = 0, running: int = 0, amounts: Amounts = (), sign: int = 1
    ) -> None:
        """A job begins or ceases to wait, to run, to hold something; for the queues of its path that keep members."""
        for q in self.tree.by_id[queue].tracked:
            for key in keys_of(spec):
                found = self._members.get((q.spec.id, key))
                if found is None:
                    found = self._members[q.spec.id, key] = self.member(q, key).copy()
                found.count(pending, running, amounts, sign)
