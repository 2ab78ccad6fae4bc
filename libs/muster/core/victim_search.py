"""Which jobs to take so that a gang fits: node by node, the cheapest first (rule P3).

For every node a numpy pass estimates what it costs to make room for one pod of the gang there: the grade of the last
job that would have to leave, in the order of rule P3, and the work lost up to it. Then nodes are taken in that order;
each is looked at exactly before it is used, with what was taken so far in mind, and put back if it turned out dearer.
What several nodes share (a gang with pods on both) is paid once. A limit on the path that the job would exceed is
seen to first, with victims from below the limited queue.

What comes out makes the gang fit and respects the rules of P2; it is not yet minimal (`preemption` sees to that).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from muster.core import layout
from muster.core.jobs import Job
from muster.core.limits import PLAN_VICTIMS_MAX
from muster.core.model import Amounts, TaskGroup
from muster.core.node_arrays import Int64Array
from muster.core.placement import choose_devices
from muster.core.potential import staying
from muster.core.preemption_rules import Outlook, Taking, asked_for
from muster.core.prospect import Prospect
from muster.core.queues import Over, Queue, Usage, over_limit
from muster.core.rows import Demand, Row, charge_row
from muster.core.shapes import Shape, cache_of
from muster.core.state import CellState
from muster.core.victim_nodes import FREE, ByNode, Cost
from muster.core.victim_table import CORE, ELASTIC, spare_of
from muster.core.victims import Ranking


class Pick(NamedTuple):
    """One thing to take: a pod that its job can spare, or (`part` CORE) all that is left of the job."""

    job: Job
    part: int
    positions: tuple[int, ...]
    grade: int
    lost: int
    rank: int  # its place in the order of rule P3


class _Tally:
    """What was taken so far, and what the queues have left."""

    def __init__(self) -> None:
        self.taken: dict[str, dict[int, None]] = {}  # job -> positions, in the order in which they were taken
        self.whole: dict[str, None] = {}
        self.gone: dict[str, Usage] = {}  # queue id -> what it loses
        self.cut: dict[str, None] = {}  # queues below their guarantee: nothing more of them (rule P2a)

    def copy(self) -> _Tally:
        twin = _Tally()
        twin.taken = {job: dict(positions) for job, positions in self.taken.items()}
        twin.whole = dict(self.whole)
        twin.gone = {queue: dict(usage) for queue, usage in self.gone.items()}
        twin.cut = dict(self.cut)
        return twin


class Found(NamedTuple):
    """What the search has to say."""

    takings: list[Taking]  # the cheapest first
    cost: Cost


class Search:
    """One job, one prospect. `strict`: no queue is cut below its entitlement, not even by its last victim."""

    def __init__(
        self, state: CellState, job: Job, ranking: Ranking, outlook: Outlook, prospect: Prospect, *, strict: bool
    ) -> None:
        self._state = state
        self._job = job
        self._ranking = ranking
        self._outlook = outlook
        self._prospect = prospect
        self._strict = strict
        self._queue = outlook.tree.by_id[job.queue]
        self._own = {queue.id for queue in self._queue.chain}
        self._asked = asked_for(job)
        self._usage: dict[str, Usage] = {}
        self._overlay = prospect.overlay()
        self._nodes = ByNode(ranking)

    def run(self, tasks: Sequence[TaskGroup], clusters: Sequence[int]) -> Found | None:
        """The cheapest way in any of the clusters."""
        start = self._within_limits()
        if start is None:
            return None
        best: Found | None = None
        for cluster in clusters:
            attempt = _Attempt(self, start.copy(), cluster)
            if not attempt.place(tasks):
                continue
            found = Found(self._takings(attempt.tally), attempt.cost)
            if len(found.takings) <= PLAN_VICTIMS_MAX and (best is None or found.cost < best.cost):
                best = found
        return best

    def _takings(self, tally: _Tally) -> list[Taking]:
        jobs = self._state.jobs
        takings = [Taking(jobs[j], tuple(sorted(p)), j in tally.whole) for j, p in tally.taken.items()]
        return sorted(takings, key=self._dearness)

    def _dearness(self, taking: Taking) -> int:
        """Ascending: who leaves first (rule P3)."""
        ranking = self._ranking
        return int(ranking.ranks()[ranking.table.line(taking.victim.spec.id), CORE if taking.whole else ELASTIC])

    # --- limits -----------------------------------------------------------------------------------------------------

    def _within_limits(self) -> _Tally | None:
        """Take from below every limit that the job would exceed until it does not (rule F6)."""
        tally = _Tally()
        while True:
            over = over_limit(self._queue, self._job.asks.minimum_map, lambda q: self._left(tally, q), {})
            if over is None:
                return tally
            if not self._relieve(tally, over):
                return None

    def _left(self, tally: _Tally, queue: Queue) -> Usage:
        gone = tally.gone.get(queue.id, {})
        return {r: amount - gone.get(r, 0) for r, amount in self._prospect.usage(queue).items()}

    def _relieve(self, tally: _Tally, over: Over) -> bool:
        """Take one more that uses the resource below the limited queue."""
        for pick in self._in_order(tally, over):
            if self.permits(tally, pick):
                self.take(tally, pick)
                return True
        return False

    def _in_order(self, tally: _Tally, over: Over) -> Iterator[Pick]:
        ranking, table = self._ranking, self._ranking.table
        column = self._state.nodes.columns.get(over.resource)
        if column is None:
            return
        inside = {queue.id for queue in self._outlook.tree.subtree(over.queue.id)}
        count = len(table.jobs)
        below = np.array([leaf in inside for leaf in table.leaves], np.bool_)[table.facts[:count, 0]]
        uses = np.stack([table.spare[:count, column] > 0, table.total[:count, column] > 0], axis=1)
        lines, parts = np.nonzero(ranking.allowed & uses & below[:, None])
        for at in np.argsort(ranking.ranks()[lines, parts]):
            pick = self.pick(int(lines[at]), int(parts[at]), None, tally)
            if pick is not None:
                yield pick

    # --- picks ------------------------------------------------------------------------------------------------------

    def pick(self, line: int, part: int, node: int | None, tally: _Tally) -> Pick | None:
        """What can be taken of a job next, on this node or anywhere."""
        ranking = self._ranking
        job = self._state.jobs[ranking.table.jobs[line]]
        dearness = int(ranking.grade[line, part]), int(ranking.lost[line, part]), int(ranking.ranks()[line, part])
        taken = tally.taken.get(job.spec.id, {})
        if job.spec.id in tally.whole:
            return None
        if part == CORE:
            left = tuple(p for p in staying(job) if p not in taken)
            return Pick(job, CORE, left, *dearness)
        for count, positions in spare_of(job).values():
            if sum(p in taken for p in positions) >= count:
                continue
            for position in reversed(positions):
                if position not in taken and (node is None or _is_on(job, position, node)):
                    return Pick(job, ELASTIC, (position,), *dearness)
        return None

    def permits(self, tally: _Tally, pick: Pick) -> bool:
        """Rule P2a at this moment; rule P2b was seen to by the ranking."""
        job = pick.job
        if job.queue == self._job.queue:
            return True
        if any(q.id in tally.cut for q in self._outlook.tree.by_id[job.queue].chain if q.id not in self._own):
            return False
        share, gone = self._outlook.entitled_of(job.queue), tally.gone.get(job.queue, {})
        usage = self._leaf_usage(job.queue)
        amounts = job.gang.of_positions(pick.positions)
        left = {r: usage.get(r, 0) - gone.get(r, 0) for r, _ in amounts if r in self._asked}
        if self._strict:
            after = {r: left[r] - amount for r, amount in amounts if r in left}
            if any(share.below(after, r) for r in after):
                return False
        return any(share.over(left, resource) for resource in left)

    def _leaf_usage(self, queue: str) -> Usage:
        found = self._usage.get(queue)
        if found is None:
            found = self._usage[queue] = self._outlook.usage(queue)
        return found

    def take(self, tally: _Tally, pick: Pick) -> None:
        job = pick.job
        taken = tally.taken.setdefault(job.spec.id, {})
        taken.update(dict.fromkeys(pick.positions))
        if pick.part == CORE:
            tally.whole[job.spec.id] = None
        amounts = job.gang.of_positions(pick.positions)
        for queue in self._outlook.tree.by_id[job.queue].chain:
            gone = tally.gone.setdefault(queue.id, {})
            for resource, amount in amounts:
                gone[resource] = gone.get(resource, 0) + amount
            if queue.id not in self._own and queue.spec.guaranteed:
                self._note_cut(tally, queue, amounts)

    def _note_cut(self, tally: _Tally, queue: Queue, amounts: Amounts) -> None:
        usage, gone, used = self._leaf_usage(queue.id), tally.gone[queue.id], dict(amounts)
        if any(r in used and usage.get(r, 0) - gone.get(r, 0) < most for r, most in queue.spec.guaranteed):
            tally.cut[queue.id] = None

    def row(self, n: int) -> Row:
        return self._overlay.row(n)

    @property
    def state(self) -> CellState:
        return self._state

    @property
    def nodes(self) -> ByNode:
        return self._nodes

    @property
    def clusters(self) -> Int64Array:
        return self._state.nodes.described.clusters

    @property
    def touched(self) -> list[int]:
        return self._overlay.touched()

    @property
    def suspects(self) -> tuple[int, ...]:
        return self._job.suspects


def _is_on(job: Job, position: int, node: int) -> bool:
    return any(n == node for _, n, _, _ in layout.select(job.gang.tasks, job.placement, (position,)))


class _Attempt:
    """The gang in one cluster."""

    def __init__(self, search: Search, tally: _Tally, cluster: int) -> None:
        self.tally = tally
        self.cost: Cost = (0, 0, 0)
        self._search = search
        self._cluster = cluster
        self._rows: dict[int, Row] = {}
        for job_id, positions in list(tally.taken.items()):
            self._release(search.state.jobs[job_id], tuple(positions))

    def place(self, tasks: Sequence[TaskGroup]) -> bool:
        """Whether every group gets its pods."""
        cache = cache_of(self._search.state.nodes)
        shapes = [cache.shape(task) for task in tasks]
        turns = sorted(
            range(len(tasks)), key=lambda g: (not shapes[g].demand.device_millis, not shapes[g].constrained, g)
        )
        return all(self._fill(shapes[g], tasks[g].replicas) for g in turns)

    def _fill(self, shape: Shape, wanted: int) -> bool:
        search, demand = self._search, shape.demand
        if not wanted:
            return True
        if demand.impossible:
            return False
        costs = self._estimates(shape)
        again: list[tuple[Cost, int]] = []
        at = 0
        while wanted:
            if at < len(costs) and (not again or costs[at] < again[0]):
                estimate, n = costs[at]
                at += 1
            elif again:
                estimate, n = heappop(again)
            else:
                return False
            cleared = self._clear(n, demand)
            if cleared is None:
                continue
            cost, picks = cleared
            next_best = min(costs[at][0] if at < len(costs) else cost, again[0][0] if again else cost)
            if cost > estimate and cost > next_best:
                heappush(again, (cost, n))
                continue
            for pick in picks:
                search.take(self.tally, pick)
                for other in self._release(pick.job, pick.positions):
                    if other != n:
                        heappush(again, (FREE, other))  # has more room than was thought: look again
            if picks:
                self.cost = (max(self.cost[0], cost[0]), self.cost[1] + cost[1], max(self.cost[2], cost[2]))
            wanted -= self._charge(n, shape, wanted)
            heappush(again, (cost, n))
        return True

    def _estimates(self, shape: Shape) -> list[tuple[Cost, int]]:
        search = self._search
        table = search.state.nodes
        free = table.free.copy()
        for n in search.touched:
            free[n] = search.row(n).free
        for n, row in self._rows.items():
            free[n] = row.free
        usable = np.frombuffer(bytes(shape.eligibility.synced(table).usable), np.uint8).astype(np.bool_)
        usable &= search.clusters == self._cluster
        usable[[n for n in search.suspects if n < len(usable)]] = False
        return search.nodes.costs(free, usable, shape.demand)

    def _clear(self, n: int, demand: Demand) -> tuple[Cost, list[Pick]] | None:
        """What has to be taken so that one pod fits on the node; None: nothing is enough."""
        row = self._row(n).copy()
        if not row.overdrawn() and demand.takes(row):
            return FREE, []
        search, tally = self._search, self.tally.copy()
        picks: list[Pick] = []
        begin, end = search.nodes.on(n)
        for entry in range(begin, end):
            line, part = int(search.nodes.line[entry]), int(search.nodes.part[entry])
            while (pick := search.pick(line, part, n, tally)) is not None and search.permits(tally, pick):
                search.take(tally, pick)
                picks.append(pick)
                self._give_back(row, n, pick)
                if not row.overdrawn() and demand.takes(row):
                    return self._without_needless(n, demand, row, picks)
        return None

    def _without_needless(self, n: int, demand: Demand, row: Row, picks: list[Pick]) -> tuple[Cost, list[Pick]]:
        """Leave out, the dearest first, what the node can do without. The last one it cannot. What a job could spare
        goes with it when all of it goes."""
        for pick in picks[-2::-1]:
            if any(other.job is pick.job and other.part > pick.part for other in picks):
                continue
            trial = row.copy()
            self._give_back(trial, n, pick, 1)
            if not trial.overdrawn() and demand.takes(trial):
                row = trial
                picks = [other for other in picks if other is not pick]
        return (max(p.grade for p in picks), sum(p.lost for p in picks), max(p.rank for p in picks)), picks

    def _give_back(self, row: Row, n: int, pick: Pick, sign: int = -1) -> None:
        """What the pick's pods on the node free (or take again, 1)."""
        table, job = self._search.state.nodes, pick.job
        for group, node, count, devices in layout.select(job.gang.tasks, job.placement, pick.positions):
            if node == n:
                charge_row(row, table.facts[n], table.demand(job.gang.tasks[group].requests), sign * count, devices)

    def _release(self, job: Job, positions: tuple[int, ...]) -> list[int]:
        """The pods are gone; on which nodes."""
        table = self._search.state.nodes
        nodes: dict[int, None] = {}
        for group, n, count, devices in layout.select(job.gang.tasks, job.placement, sorted(positions)):
            charge_row(self._own(n), table.facts[n], table.demand(job.gang.tasks[group].requests), -count, devices)
            nodes[n] = None
        return list(nodes)

    def _charge(self, n: int, shape: Shape, wanted: int) -> int:
        """Put as many pods on the node as fit without taking anything more."""
        facts, demand, row = self._search.state.nodes.facts[n], shape.demand, self._own(n)
        pods = 0
        while pods < wanted and not row.overdrawn() and demand.takes(row):
            charge_row(row, facts, demand, 1, choose_devices(row, facts, demand, 1))
            pods += 1
        return pods

    def _row(self, n: int) -> Row:
        return self._rows.get(n) or self._search.row(n)

    def _own(self, n: int) -> Row:
        row = self._rows.get(n)
        if row is None:
            row = self._rows[n] = self._search.row(n).copy()
        return row
