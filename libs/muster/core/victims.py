"""All that runs, as arrays: who could leave, in the order of rule P3, without a walk over all jobs.

`VictimTable` keeps one line a running job (queue, priority, age, size, since when) and one line for every node that it
has pods on. It follows the jobs that the potential names as touched, so keeping it costs what changed; it hangs on the
potential as `shapes` hang on the node table, and losing it costs time and never an answer.

`Ranking` is one question put to it: for this job, who may leave (rules P2, P4) and in which order (P3). A job counts
twice: its elastic part (what it has beyond its minimum) and its core. The order is

    borrowed before own, nearest common ancestor first, elastic before core, lower priority, less lost work, newer, id

where everything before lost work is one integer, the `grade`. Lost work is time since the work began times the largest
share of the cell that the part takes, in integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from muster.core import layout
from muster.core.gangs import GangShape
from muster.core.jobs import Job
from muster.core.limits import PREEMPTIONS_MAX, QUEUE_DEPTH_MAX
from muster.core.nodes import NodeTable
from muster.core.potential import staying, summed
from muster.core.preemption_rules import Outlook, asked_for, min_runtime_ms, since_ms
from muster.core.resources import PODS
from muster.core.state import CellState

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

LINES_MIN: Final = 1024
SIZE_UNITS: Final = 1 << 20  # of the whole cell, in which sizes are measured
PRIORITY_BITS: Final = 33
ELASTIC: Final = 0
CORE: Final = 1
# columns of the job lines
LEAF, PRIORITY, SUBMIT, SINCE, IDENT, FIXED, TIRED, ALIVE = range(8)


class VictimTable:
    """See the module's text. `jobs[line]` is the job id; lines of jobs that are gone are dead until a rebuild."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.leaves: list[str] = []
        self.facts: Int64Array = np.zeros((0, 8), np.int64)
        self.total: Int64Array = np.zeros((0, 0), np.int64)  # [line, column] what stays placed of the job
        self.spare: Int64Array = self.total  # of it, what is beyond the minimum
        self.pieces: Int64Array = np.zeros((0, 2), np.int64)  # [piece] line, node
        self.piece_amounts: Int64Array = np.zeros((0, 2, 0), np.int64)  # [piece, ELASTIC or CORE, column]
        self.piece_count = 0
        self.clusters: Int64Array = np.zeros(0, np.int64)  # [node] the number of its cluster
        self._specs_seen = -1
        self._rows: dict[GangShape, Int64Array] = {}  # by shape: what all of it uses, then each group's pod
        self._line_of: dict[str, int] = {}
        self._leaf_of: dict[str, int] = {}
        self._dead = 0
        self._columns = -1
        self._cursor = -1

    def synced(self, state: CellState) -> VictimTable:
        """Caught up with the state."""
        potential = state.potential
        touched = potential.touched(self._cursor)
        dead = self._dead * 2 > len(self.jobs) > LINES_MIN
        if touched is None or self._cursor < 0 or len(state.nodes.columns) != self._columns or dead:
            self._rebuild(state)
        else:
            for job_id in touched:
                self._follow(state, job_id)
        self._cursor = potential.end
        if self._specs_seen != state.nodes.spec_changes.end:
            facts = state.nodes.facts
            self.clusters = np.fromiter((node.cluster for node in facts), np.int64, len(facts))
            self._specs_seen = state.nodes.spec_changes.end
        return self

    def line(self, job: str) -> int | None:
        return self._line_of.get(job)

    def _rebuild(self, state: CellState) -> None:
        self.__init__()  # type: ignore[misc]
        self._columns = len(state.nodes.columns)
        self.total = self.spare = np.zeros((0, self._columns), np.int64)
        self.piece_amounts = np.zeros((0, 2, self._columns), np.int64)
        for queue in state.queues.subtree():
            for job_id in sorted(queue.running):
                self._add(state, state.jobs[job_id])

    def _follow(self, state: CellState, job_id: str) -> None:
        line = self._line_of.pop(job_id, None)
        if line is not None:
            self.facts[line, ALIVE] = 0
            self._dead += 1
        job = state.jobs.get(job_id)
        if job is not None:
            self._add(state, job)

    def _add(self, state: CellState, job: Job) -> None:
        positions = staying(job)
        if not positions:
            return
        line = len(self.jobs)
        self._room(line)
        self.jobs.append(job.spec.id)
        self._line_of[job.spec.id] = line
        leaf = self._leaf_of.get(job.queue)
        if leaf is None:
            leaf = self._leaf_of[job.queue] = len(self.leaves)
            self.leaves.append(job.queue)
        fixed, tired = int(not job.spec.preemptible), int(job.preemptions >= PREEMPTIONS_MAX)
        facts = (leaf, job.spec.priority, job.submit_ms, since_ms(job), ident(job.spec.id), fixed, tired, 1)
        self.facts[line] = facts
        table, gang = state.nodes, job.gang
        if gang.minimum_tasks is None and len(positions) == gang.pods:
            self._add_plain(table, line, job)
            return
        _fill(self.total[line], table, gang.of_positions(positions))
        spare = spare_of(job)
        _fill(self.spare[line], table, gang.of_counts({g: min(n, len(p)) for g, (n, p) in spare.items()}))
        for node, counts in _by_node(job, positions).items():
            elastic = {g: min(n, counts[g]) for g, (n, _) in spare.items() if g in counts}
            rest = {g: n - elastic.get(g, 0) for g, n in counts.items()}
            at = self._piece(line, node)
            _fill(self.piece_amounts[at, ELASTIC], table, gang.of_counts(elastic))
            _fill(self.piece_amounts[at, CORE], table, gang.of_counts(rest))

    def _add_plain(self, table: NodeTable, line: int, job: Job) -> None:
        """A job that is not elastic, with all its pods: most of them, and equal ones share the arithmetic."""
        gang = job.gang
        rows = self._rows.get(gang.shape)
        if rows is None:
            rows = self._rows[gang.shape] = np.zeros((len(gang.tasks) + 1, self._columns), np.int64)
            _fill(rows[0], table, gang.full)
            for group, amounts in enumerate(gang.per_pod):
                _fill(rows[group + 1], table, amounts)
        self.total[line] = rows[0]
        if gang.pods == 1:
            ((node, _),) = job.placement[0].runs
            at = self._piece(line, node)
            self.piece_amounts[at, CORE] = rows[0]
            return
        pieces: dict[int, int] = {}
        for group, node, count, _ in layout.runs_of(job.placement):
            if node not in pieces:
                pieces[node] = self._piece(line, node)
            self.piece_amounts[pieces[node], CORE] += rows[group + 1] * count

    def _piece(self, line: int, node: int) -> int:
        """A new piece; its index."""
        at = self.piece_count
        if at == len(self.pieces):
            more = max(LINES_MIN, at)
            self.pieces = _longer(self.pieces, more)
            self.piece_amounts = _longer(self.piece_amounts, more)
        self.pieces[at] = (line, node)
        self.piece_count += 1
        return at

    def _room(self, line: int) -> None:
        if line == len(self.facts):
            more = max(LINES_MIN, line)
            self.facts, self.total, self.spare = (_longer(a, more) for a in (self.facts, self.total, self.spare))


def _longer(array: Int64Array, more: int) -> Int64Array:
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), np.int64)])


def _fill(row: Int64Array, table: NodeTable, amounts: tuple[tuple[str, int], ...]) -> None:
    for resource, amount in amounts:
        row[table.columns[resource]] = amount


def _by_node(job: Job, positions: list[int]) -> dict[int, dict[int, int]]:
    """Node -> group -> pods there, of the pods at these positions."""
    found: dict[int, dict[int, int]] = {}
    for group, node, count, _ in layout.select(job.gang.tasks, job.placement, positions):
        counts = found.setdefault(node, {})
        counts[group] = counts.get(group, 0) + count
    return found


def spare_of(job: Job) -> dict[int, tuple[int, list[int]]]:
    """By group: how many may leave, and which positions that may be. At least one pod of the job stays (rule P2c)."""
    if job.gang.minimum_tasks is None:
        return {}
    found = {group: (job.spare_count(group), positions) for group, positions in job.spare().items()}
    if found and sum(n for n, _ in found.values()) >= len(staying(job)):
        group, (count, positions) = next(iter(found.items()))
        found[group] = (count - 1, positions)
    return {group: (n, positions) for group, (n, positions) in found.items() if n > 0}


def ident(job_id: str) -> int:
    """The front of a job id as an integer of the same order."""
    try:
        return int(job_id[:15], 16)
    except ValueError:
        return 0


def table_of(state: CellState) -> VictimTable:
    """The state's table, made at first use and caught up."""
    found = state.potential.derived
    if not isinstance(found, VictimTable):
        found = state.potential.derived = VictimTable()
    return found.synced(state)


class Ranking:
    """Who may leave for `job`, and in which order. Arrays are [line, ELASTIC or CORE]. `taken` may not."""

    def __init__(self, state: CellState, job: Job, outlook: Outlook, taken: Mapping[str, None]) -> None:
        self.table = table = table_of(state)
        self._columns = state.nodes.columns
        self._job = job
        self._outlook = outlook
        count = len(table.jobs)
        facts = table.facts[:count]
        self._taken = [line for job_id in taken if (line := table.line(job_id)) is not None]
        self.allowed: BoolArray = np.zeros((count, 2), np.bool_)
        self.grade: Int64Array = np.zeros((count, 2), np.int64)
        self.lost: Int64Array = np.zeros((count, 2), np.int64)
        self._ranks: Int64Array | None = None
        self.again_at_ms = 0  # when the first who is kept only by min_runtime is kept no longer
        if count and len(table.leaves):
            self._judge(facts, self._may(facts), state.now_ms)

    def ranks(self) -> Int64Array:
        """The place of every allowed part in the order of rule P3."""
        if self._ranks is None:
            lines, parts = np.nonzero(self.allowed)
            facts = self.table.facts
            keys = (facts[lines, IDENT], -facts[lines, SUBMIT], self.lost[lines, parts], self.grade[lines, parts])
            order = np.lexsort(keys)
            ranks = np.zeros(self.allowed.shape, np.int64)
            ranks[lines[order], parts[order]] = np.arange(len(order))
            self._ranks = ranks
        return self._ranks

    def keep_entitlements(self) -> bool:
        """From now on without those who leave other queues below E even if nobody else leaves. False: nobody is left.

        The search would find them out one by one.
        """
        count, leaves = len(self.allowed), self.table.leaves
        leaf = self.table.facts[:count, LEAF]
        other = np.array([queue != self._job.queue for queue in leaves], np.bool_)[leaf]
        for resource in asked_for(self._job):
            column = self._columns.get(resource)
            if column is not None:
                total = self.table.total[:count, column]
                above = np.array([self._above(queue, resource) for queue in leaves], np.int64)
                self.allowed[:, CORE] &= ~(other & (total > 0) & (total > above[leaf]))
        return bool(self.allowed.any())

    def _above(self, leaf: str, resource: str) -> int:
        """By how much the committed usage of a leaf is above E."""
        if leaf not in self._outlook.tree:
            return 0
        own = self._outlook.entitled_of(leaf).amounts.get(resource, 0)
        return self._outlook.usage(leaf).get(resource, 0) - own

    def _may(self, facts: Int64Array) -> BoolArray:
        """Rule P2, as far as it is a matter of queue and priority."""
        job, outlook = self._job, self._outlook
        queue = outlook.tree.by_id[job.queue]
        if queue.spec.preemption == "NEVER":
            return np.zeros(len(facts), np.bool_)
        everyone = queue.spec.preemption == "ANY"
        lower = facts[:, PRIORITY] < job.spec.priority
        own = np.array([leaf == job.queue for leaf in self.table.leaves], np.bool_)[facts[:, LEAF]]
        may = own & lower if not queue.fifo else np.zeros(len(facts), np.bool_)
        if everyone and not queue.fifo:
            newer = (facts[:, SUBMIT] > job.submit_ms) | (
                (facts[:, SUBMIT] == job.submit_ms) & (facts[:, IDENT] > ident(job.spec.id))
            )
            may |= own & newer & (facts[:, PRIORITY] == job.spec.priority)
        if outlook.below(job):
            may |= ~own & self._over(facts) & (lower | everyone)
        may[self._taken] = False
        living: BoolArray = facts[:, ALIVE] == 1
        return may & living

    def _over(self, facts: Int64Array) -> BoolArray:
        """Whether its queue is above E in a resource that it and the job use (rule P2a)."""
        over = np.zeros(len(facts), np.bool_)
        total = self.table.total[: len(facts)]
        for resource in asked_for(self._job):
            column = self._columns.get(resource)
            if column is None or resource not in self._outlook.capacity:
                continue
            leaves = [
                leaf in self._outlook.tree
                and self._outlook.entitled_of(leaf).over(summed(self._outlook.usage_of(leaf)), resource)
                for leaf in self.table.leaves
            ]
            over |= np.array(leaves, np.bool_)[facts[:, LEAF]] & (total[:, column] > 0)
        return over

    def _judge(self, facts: Int64Array, may: BoolArray, now_ms: int) -> None:
        table, tree = self.table, self._outlook.tree
        shortest = np.array([min_runtime_ms(tree.by_id[q]) if q in tree else 0 for q in table.leaves], np.int64)
        until = np.where(shortest[facts[:, LEAF]] > 0, facts[:, SINCE] + shortest[facts[:, LEAF]], 0)
        movable = may & (facts[:, FIXED] == 0)
        spare = table.spare[: len(facts)]
        self.allowed[:, ELASTIC] = movable & (spare > 0).any(axis=1)
        core = movable & ((facts[:, TIRED] == 0) | (facts[:, PRIORITY] < self._job.spec.priority))
        self.allowed[:, CORE] = core & (until <= now_ms)
        waiting = until[core & (until > now_ms)]
        self.again_at_ms = int(waiting.min()) if len(waiting) else 0
        own = self._own(facts, movable)
        away = self._distance()[facts[:, LEAF]]
        elapsed = np.maximum(now_ms - facts[:, SINCE], 0)
        for part, amounts in ((ELASTIC, spare), (CORE, table.total[: len(facts)])):
            grade = (own[:, part] * QUEUE_DEPTH_MAX + away) * 2 + part
            self.grade[:, part] = (grade << PRIORITY_BITS) + facts[:, PRIORITY] + (1 << (PRIORITY_BITS - 1))
            self.lost[:, part] = elapsed * self._size(amounts)

    def _size(self, amounts: Int64Array) -> Int64Array:
        """The largest share of the cell, in SIZE_UNITS."""
        size = np.zeros(len(amounts), np.int64)
        for resource, whole in self._outlook.capacity.items():
            column = self._columns.get(resource)
            if column is not None:
                share = np.ceil(amounts[:, column] * (SIZE_UNITS / whole)).astype(np.int64)
                np.maximum(size, share, out=size)
        return size

    def _distance(self) -> Int64Array:
        """By leaf: how many levels above the job's queue the nearest common ancestor is."""
        tree = self._outlook.tree
        chain = {queue.id: level for level, queue in enumerate(tree.by_id[self._job.queue].chain)}
        found = []
        for leaf in self.table.leaves:
            above = tree.by_id[leaf].chain if leaf in tree else ()
            found.append(next((chain[q.id] for q in above if q.id in chain), QUEUE_DEPTH_MAX - 1))
        return np.array(found, np.int64)

    def _own(self, facts: Int64Array, movable: BoolArray) -> Int64Array:
        """1 where the part is within the cumulated E of its queue, 0 where it is borrowed (rule P3)."""
        concerned = np.zeros(len(self.table.leaves), np.bool_)
        concerned[facts[movable, LEAF]] = True
        alive = np.flatnonzero((facts[:, ALIVE] == 1) & concerned[facts[:, LEAF]])
        order = alive[
            np.lexsort((facts[alive, IDENT], facts[alive, SUBMIT], -facts[alive, PRIORITY], facts[alive, LEAF]))
        ]
        own = np.ones((len(facts), 2), np.int64)
        leaf = facts[order, LEAF]
        starts = np.flatnonzero(np.diff(leaf, prepend=-1))
        for resource in self._outlook.capacity:
            column = self._columns.get(resource)
            if column is None or resource == PODS:
                continue
            used = self.table.total[order, column]
            if not used.any():
                continue
            summed_up = np.cumsum(used)
            base = np.repeat((summed_up - used)[starts], np.diff(np.append(starts, len(order))))
            upto = summed_up - base
            most = self._most(resource)[leaf]
            spare = self.table.spare[order, column]
            own[order, ELASTIC] &= ~((upto > most) & (spare > 0))
            own[order, CORE] &= ~((upto - spare > most) & (used - spare > 0))
        return own

    def _most(self, resource: str) -> Int64Array:
        """By leaf: E in the resource."""
        limitless = np.iinfo(np.int64).max
        found = []
        for leaf in self.table.leaves:
            if leaf not in self._outlook.tree:
                found.append(limitless)
                continue
            share = self._outlook.entitled_of(leaf)
            found.append(share.amounts.get(resource, 0 if share.complete else limitless))
        return np.array(found, np.int64)
