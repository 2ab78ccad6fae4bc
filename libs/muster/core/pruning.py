"""Take out of a set of victims whoever the plan can do without (rule P3: minimal).

The dearest goes first. Whether the job still fits is counted, not tried, where that is exact: when it is one group of
equal pods, it fits a cluster just when the nodes of the cluster together take that many, and leaving one victim where
it is changes only the nodes it is on. Several groups are placed anew each time.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.core import layout
from muster.core.jobs import Job
from muster.core.model import TaskGroup
from muster.core.preemption_rules import Outlook, Taking
from muster.core.prospect import Prospect
from muster.core.quota import why_no_quota
from muster.core.rows import Row, charge_row
from muster.core.shapes import Shape, cache_of


def prune(
    ahead: Prospect, outlook: Outlook, job: Job, takings: Sequence[Taking], tasks: Sequence[TaskGroup]
) -> list[Taking]:
    """A subset, in the same order, of which none can be left out. `takings` are cheapest first and enough."""
    check: _Counted | _Placed = (
        _Counted(ahead, job, takings, tasks[0]) if len(tasks) == 1 else _Placed(ahead, job, tasks)
    )
    left = list(takings)
    for taking in reversed(takings):
        for smaller in _smaller(taking):
            trial = [smaller if other is taking else other for other in left]
            without = [other for other in trial if other is not None]
            if why_no_quota(ahead, outlook, job, without, job.asks.minimum_map) is not None:
                continue
            if check.enough_without(taking, smaller, without):
                left = without
                break
    return left


def _smaller(taking: Taking) -> list[Taking | None]:
    """What could be taken instead, the least first: nothing; of elastic replicas, fewer."""
    if taking.whole or len(taking.positions) == 1:
        return [None]
    return [None, *(taking._replace(positions=taking.positions[n:]) for n in range(len(taking.positions) - 1, 0, -1))]


class _Placed:
    """By placing the gang."""

    def __init__(self, ahead: Prospect, job: Job, tasks: Sequence[TaskGroup]) -> None:
        self._ahead = ahead
        self._job = job
        self._tasks = tasks

    def enough_without(self, _taking: Taking, _smaller: Taking | None, left: Sequence[Taking]) -> bool:
        selector = self._job.spec.cluster_selector
        mask = (selector[0][1],) if selector else None
        return self._ahead.overlay(left).place_gang(self._tasks, cluster_mask=mask) is not None


class _Counted:
    """By counting pods that fit, node by node."""

    def __init__(self, ahead: Prospect, job: Job, takings: Sequence[Taking], task: TaskGroup) -> None:
        self._overlay = overlay = ahead.overlay(takings)
        self._table = table = overlay.table
        self._shape: Shape = cache_of(table).shape(task)
        self._wanted = task.replicas
        selector = job.spec.cluster_selector
        self._clusters = overlay.allowed((selector[0][1],) if selector else None)
        now = self._shape.fit_now(table)
        self._totals = list(now.totals)
        self._rows: dict[int, Row] = {}
        for n in overlay.touched():
            self._totals[table.facts[n].cluster] += self._shape.fit(n, overlay.row(n)) - int(now.counts[n])

    def enough_without(self, taking: Taking, smaller: Taking | None, _left: Sequence[Taking]) -> bool:
        """Whether it still fits when only `smaller` of the taking leaves; if so, that is how it is from now on."""
        back = tuple(p for p in taking.positions if smaller is None or p not in smaller.positions)
        tasks, table = taking.victim.gang.tasks, self._table
        rows: dict[int, Row] = {}
        for group, n, count, devices in layout.select(tasks, taking.victim.placement, back):
            row = rows.get(n)
            if row is None:
                row = rows[n] = self._row(n).copy()
            charge_row(row, table.facts[n], table.demand(tasks[group].requests), count, devices)
        totals = list(self._totals)
        for n, row in rows.items():
            totals[table.facts[n].cluster] += self._shape.fit(n, row) - self._shape.fit(n, self._row(n))
        if max((totals[c] for c in self._clusters), default=0) < self._wanted:
            return False
        self._totals = totals
        self._rows.update(rows)
        return True

    def _row(self, n: int) -> Row:
        return self._rows.get(n) or self._overlay.row(n)
