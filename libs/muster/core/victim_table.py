"""All that runs, as arrays, so that nobody walks all jobs to find out who could leave.

One line a running job (queue, priority, age, size, since when) and one for every node that it has pods on. The table
follows the jobs that the potential names as touched, so keeping it costs what changed; it hangs on the potential as
`shapes` hang on the node table, and losing it costs time and never an answer. Whoever must not wait for the first
reading (a service that gets ready) lets it be read in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from muster.core import layout
from muster.core.gangs import Gang, GangShape
from muster.core.jobs import Job
from muster.core.lost_work import work_since_ms
from muster.core.node_arrays import BoolArray, Int64Array
from muster.core.nodes import NodeTable
from muster.core.potential import staying
from muster.core.preemption_rules import since_ms
from muster.core.state import CellState

Keys = npt.NDArray[np.bytes_]

LINES_MIN: Final = 1024
INSERTS_MAX: Final = 4096  # more new lines than this are sorted with the rest
SIGN_OFFSET: Final = 1 << 40  # makes every part of a key positive: priorities and times are smaller
ELASTIC: Final = 0
CORE: Final = 1
FACTS: Final = 14  # columns of the job lines: WORK when it began that would be lost, up to SAVED it is safe, EVERY ms
LEAF, PRIORITY, SUBMIT, SINCE, IDENT, FIXED, TIRED, ALIVE, WORK, SAVED, EVERY, NAMESPACE, SUBMITTER, SHORTEST = range(
    FACTS
)  # SHORTEST: its class's min_runtime


class VictimTable:
    """See the module's text. `jobs[line]` is the job id; lines of jobs that are gone are dead until they are cut."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.leaves: list[str] = []
        self.facts: Int64Array = np.zeros((0, FACTS), np.int64)
        self.total: Int64Array = np.zeros((0, 0), np.int64)  # [line, column] what stays placed of the job
        self.spare: Int64Array = self.total  # of it, what is beyond the minimum
        self.pieces: Int64Array = np.zeros((0, 2), np.int64)  # [piece] line, node
        self.piece_amounts: Int64Array = np.zeros((0, 2, 0), np.int64)  # [piece, ELASTIC or CORE, column]
        self.piece_count = 0
        self._uses: Int64Array = self.total  # what a gang uses, followed by what a pod of each of its groups uses
        self._use_of: dict[GangShape, int] = {}  # the gang's row in it
        self._line_of: dict[str, int] = {}
        self._leaf_of: dict[str, int] = {}
        self._name_of: dict[str, int] = {}  # of namespaces and submitters
        self._columns = 0
        self._order = _Order()
        self._to_read: list[str] = []  # jobs not read yet since the start
        self._cursor = -1

    def synced(self, state: CellState) -> VictimTable:
        """Caught up with the state."""
        while self.read_some(state, len(state.jobs)):
            pass
        return self

    def read_some(self, state: CellState, most: int) -> bool:
        """Catch up by so many jobs or all; whether some are left. The state may change between two calls."""
        potential = state.potential
        touched = potential.touched(self._cursor) if self._cursor >= 0 else None
        self._widen(len(state.nodes.columns))
        if touched is None:
            self.__init__()  # type: ignore[misc]
            self._widen(len(state.nodes.columns))
            self._to_read = [job for queue in state.queues.subtree() for job in sorted(queue.running)][::-1]
            touched = []
        self._cursor = potential.end
        part = self._to_read[-most:] if most else []
        del self._to_read[len(self._to_read) - len(part) :]
        self._forget(touched)
        again = dict.fromkeys((*part, *touched))
        self._add(state, [job for job_id in again if (job := state.jobs.get(job_id)) is not None])
        if len(self.jobs) > LINES_MIN and len(self._line_of) * 2 < len(self.jobs):
            self._cut_dead()
        return bool(self._to_read)

    def line(self, job: str) -> int | None:
        return self._line_of.get(job)

    def name_of(self, name: str) -> int:
        """The number that a namespace or submitter has in the lines; one of nobody's if nobody there has it."""
        return self._name_of.get(name, -1)

    def order(self) -> Int64Array:
        """The living lines by leaf, then as P3 orders the jobs of a queue: priority, age, id. Not to be changed."""
        return self._order.synced(self.facts[: len(self.jobs)])

    def _forget(self, jobs: Iterable[str]) -> None:
        lines = [line for job in jobs if (line := self._line_of.pop(job, None)) is not None]
        self.facts[lines, ALIVE] = 0

    def _add(self, state: CellState, jobs: Iterable[Job]) -> None:
        """A line for each, and a piece for each of its nodes; those that are known already are passed over."""
        table, first = state.nodes, len(self.jobs)
        facts: list[tuple[int, ...]] = []
        plain: list[tuple[int, int, int]] = []  # jobs of one pod, most of them: line, node, row of `_uses`
        others: list[tuple[int, Job, list[int]]] = []
        for job in jobs:
            positions = staying(job)
            if not positions or job.spec.id in self._line_of:
                continue
            line = self._line_of[job.spec.id] = len(self.jobs)
            self.jobs.append(job.spec.id)
            leaf = self._leaf_of.get(job.queue)
            if leaf is None:
                leaf = self._leaf_of[job.queue] = len(self.leaves)
                self.leaves.append(job.queue)
            fixed, tired = int(not job.spec.preemptible), int(job.preemptions >= job.spec.max_preemptions)
            work = (work_since_ms(job, positions), job.saved_ms, job.spec.checkpoint_ms)
            place = (leaf, job.spec.priority, job.submit_ms, since_ms(job), ident(job.spec.id))
            names = (self._number(job.spec.namespace), self._number(job.spec.submitter))
            facts.append((*place, fixed, tired, 1, *work, *names, job.spec.min_runtime_ms))
            if job.gang.pods == 1:
                plain.append((line, job.placement[0].runs[0][0], self._use(table, job.gang)))
            else:
                others.append((line, job, positions))
        if facts:
            self._room(len(self.jobs))
            self.facts[first : len(self.jobs)] = facts
        if plain:
            self._add_plain(*zip(*plain, strict=True))
        for line, job, positions in others:
            if job.gang.minimum_tasks is None and len(positions) == job.gang.pods:
                self._add_gang(table, line, job)
            else:
                self._add_elastic(table, line, job, positions)

    def _number(self, name: str) -> int:
        return self._name_of.setdefault(name, len(self._name_of))

    def _add_plain(self, lines: Sequence[int], nodes: Sequence[int], uses: Sequence[int]) -> None:
        rows = self._uses[list(uses)]
        self.total[list(lines)] = rows
        at = self._pieces(len(lines))
        self.pieces[at : at + len(lines), 0] = lines
        self.pieces[at : at + len(lines), 1] = nodes
        self.piece_amounts[at : at + len(lines), CORE] = rows

    def _add_gang(self, table: NodeTable, line: int, job: Job) -> None:
        """A job that is not elastic, with all its pods."""
        use = self._use(table, job.gang)
        self.total[line] = self._uses[use]
        pieces: dict[int, int] = {}
        for group, node, count, _ in layout.runs_of(job.placement):
            if node not in pieces:
                pieces[node] = self._piece(line, node)
            self.piece_amounts[pieces[node], CORE] += self._uses[use + 1 + group] * count

    def _add_elastic(self, table: NodeTable, line: int, job: Job, positions: list[int]) -> None:
        gang = job.gang
        _fill(self.total[line], table, gang.of_positions(positions))
        spare = spare_of(job)
        _fill(self.spare[line], table, gang.of_counts({g: min(n, len(p)) for g, (n, p) in spare.items()}))
        for node, counts in _by_node(job, positions).items():
            elastic = {g: min(n, counts[g]) for g, (n, _) in spare.items() if g in counts}
            rest = {g: n - elastic.get(g, 0) for g, n in counts.items()}
            at = self._piece(line, node)
            _fill(self.piece_amounts[at, ELASTIC], table, gang.of_counts(elastic))
            _fill(self.piece_amounts[at, CORE], table, gang.of_counts(rest))

    def _use(self, table: NodeTable, gang: Gang) -> int:
        """The row of `_uses` where the gang's begin; equal gangs share the arithmetic."""
        found = self._use_of.get(gang.shape)
        if found is None:
            found = self._use_of[gang.shape] = len(self._uses)
            self._uses = _longer(self._uses, 1 + len(gang.per_pod))
            for row, amounts in enumerate((gang.full, *gang.per_pod), found):
                _fill(self._uses[row], table, amounts)
        return found

    # --- room -------------------------------------------------------------------------------------------------------

    def _piece(self, line: int, node: int) -> int:
        """A new piece; its index."""
        at = self._pieces(1)
        self.pieces[at] = (line, node)
        return at

    def _pieces(self, count: int) -> int:
        """So many new pieces; the first one's index."""
        at = self.piece_count
        self.piece_count += count
        if self.piece_count > len(self.pieces):
            more = max(LINES_MIN, self.piece_count)
            self.pieces, self.piece_amounts = _longer(self.pieces, more), _longer(self.piece_amounts, more)
        return at

    def _room(self, lines: int) -> None:
        if lines > len(self.facts):
            more = max(LINES_MIN, lines)
            self.facts, self.total, self.spare = (_longer(a, more) for a in (self.facts, self.total, self.spare))

    def _widen(self, columns: int) -> None:
        """Resources that no node had before."""
        more = columns - self._columns
        if more:
            self.total, self.spare = (np.pad(a, ((0, 0), (0, more))) for a in (self.total, self.spare))
            self.piece_amounts = np.pad(self.piece_amounts, ((0, 0), (0, 0), (0, more)))
            self._uses = np.zeros((0, columns), np.int64)
            self._use_of.clear()
            self._columns = columns

    def _cut_dead(self) -> None:
        """Lines and pieces of jobs that are gone or were read again."""
        count = len(self.jobs)
        alive = self.facts[:count, ALIVE] == 1
        number = np.cumsum(alive) - 1
        self.facts, self.total, self.spare = (a[:count][alive] for a in (self.facts, self.total, self.spare))
        pieces = self.pieces[: self.piece_count]
        kept = alive[pieces[:, 0]]
        self.piece_amounts = self.piece_amounts[: self.piece_count][kept]
        self.pieces = np.stack((number[pieces[kept, 0]], pieces[kept, 1]), axis=1)
        self.piece_count = len(self.pieces)
        self.jobs = [self.jobs[line] for line in np.flatnonzero(alive).tolist()]
        self._line_of = {job: line for line, job in enumerate(self.jobs)}
        self._order = _Order()


class _Order:
    """Lines in order. Those that came since are put where they belong, as long as they are few."""

    def __init__(self) -> None:
        self._lines: Int64Array = np.zeros(0, np.int64)
        self._keys = _sort_keys(np.zeros((0, FACTS), np.int64))  # of these lines
        self._seen = 0

    def synced(self, facts: Int64Array) -> Int64Array:
        new = np.arange(self._seen, len(facts))
        new = new[facts[new, ALIVE] == 1]
        if len(new) > INSERTS_MAX:
            self._lines, self._keys = _sorted(facts, np.flatnonzero(facts[:, ALIVE] == 1))
        else:
            living = facts[self._lines, ALIVE] == 1
            if not living.all():
                self._lines, self._keys = self._lines[living], self._keys[living]
            if len(new):
                new, keys = _sorted(facts, new)
                places = np.searchsorted(self._keys, keys)
                self._lines, self._keys = np.insert(self._lines, places, new), np.insert(self._keys, places, keys)
        self._seen = len(facts)
        return self._lines


def _sorted(facts: Int64Array, lines: Int64Array) -> tuple[Int64Array, Keys]:
    chosen = facts[lines]
    order = np.lexsort((chosen[:, IDENT], chosen[:, SUBMIT], -chosen[:, PRIORITY], chosen[:, LEAF]))
    return lines[order], _sort_keys(chosen[order])


def _sort_keys(facts: Int64Array) -> Keys:
    """The order of lines as bytes that compare alike."""
    parts = np.stack((facts[:, LEAF], -facts[:, PRIORITY], facts[:, SUBMIT], facts[:, IDENT]), axis=1)
    keys: Keys = (parts + SIGN_OFFSET).astype(">i8").view("S32")[:, 0] if len(parts) else np.zeros(0, "S32")
    return keys


def unsaved(facts: Int64Array, now_ms: int) -> Int64Array:
    """By line: `lost_work.unsaved_ms`."""
    elapsed = now_ms - np.maximum(facts[:, WORK], facts[:, SAVED])
    every = facts[:, EVERY]
    if every.any():
        elapsed = np.where(every > 0, np.minimum(elapsed, (now_ms - facts[:, WORK]) % np.maximum(every, 1)), elapsed)
    safe: Int64Array = np.maximum(elapsed, 0)
    return safe


def any_of(amounts: Int64Array) -> BoolArray:
    """Whether there is anything, along the last axis; `any` is slow where that is short."""
    found: BoolArray = np.zeros(amounts.shape[:-1], np.bool_)
    for column in range(amounts.shape[-1]):
        found |= amounts[..., column] != 0
    return found


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
    return _table(state).synced(state)


def read_some(state: CellState, jobs: int) -> bool:
    """Let the table catch up by so many jobs, or all; whether some are left."""
    return _table(state).read_some(state, jobs)


def _table(state: CellState) -> VictimTable:
    found = state.potential.derived
    if not isinstance(found, VictimTable):
        found = state.potential.derived = VictimTable()
    return found
