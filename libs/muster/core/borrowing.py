"""What queues would have to give back under some tree and entitlements: rules P2 to P4 for all that runs at once.

A plan is made for one job, on the nodes; here nobody looks at nodes, and what comes out is what all plans together take
as long as the takers (`takers`) find places for what is freed. Of each leaf that is beyond its entitlement in something
that others may take back, the parts of its jobs (elastic, core) that may leave are put in the order of rule P3: what is
borrowed before what is not, elastic replicas first, lower priority, newer. They leave until the leaf is at its
entitlement. Who is protected is passed over, and the next one leaves in its place. The one that would leave less than
the entitlement leaves only where the rules let a taker have it (rule P1).

Works on the arrays that the preemptor's planner keeps, so fifty thousand jobs take milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from muster.core import resources
from muster.core.borrowing_edge import Edge
from muster.core.borrowing_leaves import Leaves, least_of
from muster.core.borrowing_lines import Lines, Stretches
from muster.core.model import Amounts
from muster.core.node_arrays import BoolArray, Int64Array
from muster.core.preemption_rules import Outlook
from muster.core.queues import QueueTree
from muster.core.resources import PODS
from muster.core.state import CellState
from muster.core.takers import EVERYBODY, Speakers, Takers
from muster.core.victim_table import LEAF, table_of, unsaved

NAMED_MAX: Final = 20  # jobs that are named, of each leaf
CUTS_MAX: Final = 3  # parts that would cut into the entitlement of a leaf that are looked at
EDGE_MAX: Final = 64  # and of all that the rules refuse there


class Newly(Struct, frozen=True):
    """Jobs of one leaf, in the order of rule P3."""

    leaf: str  # id
    jobs: int  # as a whole
    first: tuple[str, ...]
    usage: Amounts
    work: Amounts  # that would be lost, resource-milliseconds; in floating point, for people
    shrunk: int = 0  # other jobs, of which elastic replicas would go
    replicas: int = 0  # so many
    first_shrunk: tuple[str, ...] = ()


class Reclaimable(NamedTuple):
    """What would go, by line of the victim table."""

    whole: BoolArray
    replicas: Int64Array  # elastic ones
    amounts: dict[int, Amounts]  # where that is not all the job has, or all it can spare


class Borrowing:
    """All running jobs of a state in the order of rule P3, and who waits."""

    def __init__(self, state: CellState, now_ms: int, waiting: Speakers) -> None:
        self._state = state
        self._now_ms = now_ms
        self._waiting = waiting
        self._table = table_of(state)

    def change(
        self, before: tuple[QueueTree, Mapping[str, Amounts]], after: tuple[QueueTree, Mapping[str, Amounts]]
    ) -> Iterator[Newly]:
        """By leaf, what others could take back under the tree and the entitlements after and could not before."""
        now, then = self._leaves(*before), self._leaves(*after)
        lines = Lines(self._state, then.beyond(), least_of(now, then))
        found = _Reclaim(self._state, then, lines, np.ones(len(self._table.leaves), np.bool_)).run()
        concerned = np.zeros(len(self._table.leaves), np.bool_)
        concerned[self._table.facts[np.flatnonzero(found.whole | (found.replicas > 0)), LEAF]] = True
        yield from self._newly(_Reclaim(self._state, now, lines, concerned).run(), found)

    def _leaves(self, tree: QueueTree, deserved: Mapping[str, Amounts]) -> Leaves:
        state = self._state
        published = {queue.id: deserved.get(queue.id, ()) for queue in tree.by_id.values()}
        usage = state.potential.usage
        outlook = Outlook(
            tree, published, state.nodes.capacity(), lambda leaf: usage.get(leaf, {}), max(self._now_ms, state.now_ms)
        )
        leaves = self._table.leaves
        return Leaves(state, outlook, Takers(outlook, self._waiting, leaves), leaves)

    def _newly(self, before: Reclaimable, after: Reclaimable) -> Iterator[Newly]:
        """By leaf, what goes after a change and did not before."""
        table = self._table
        whole = after.whole & ~before.whole
        replicas = np.where(after.whole | before.whole, 0, np.maximum(after.replicas - before.replicas, 0))
        order = table.order()
        lines = order[(whole | (replicas > 0))[order]]
        leaves = table.facts[lines, LEAF]
        for number in np.unique(leaves).tolist():
            mine = lines[leaves == number]
            usage = np.maximum(self._taken(after, mine) - self._taken(before, mine), 0)
            ran_ms = unsaved(table.facts[mine], self._now_ms)
            gone, cut = mine[whole[mine]], mine[~whole[mine]]
            yield Newly(
                leaf=table.leaves[number],
                jobs=len(gone),
                first=self._first(gone),
                usage=self._amounts(usage.sum(axis=0)),
                work=self._amounts(ran_ms.astype(np.float64) @ usage.astype(np.float64)),
                shrunk=len(cut),
                replicas=int(replicas[cut].sum()),
                first_shrunk=self._first(cut),
            )

    def _taken(self, found: Reclaimable, lines: Int64Array) -> Int64Array:
        """[line, column]"""
        table = self._table
        elastic = np.where((found.replicas[lines] > 0)[:, None], table.spare[lines], 0)
        amounts: Int64Array = np.where(found.whole[lines][:, None], table.total[lines], elastic)
        for place, line in enumerate(lines.tolist() if found.amounts else ()):
            if line in found.amounts:
                amounts[place] = 0
                for resource, amount in found.amounts[line]:
                    amounts[place, self._state.nodes.columns[resource]] = amount
        return amounts

    def _first(self, lines: Int64Array) -> tuple[str, ...]:
        return tuple(self._table.jobs[line] for line in lines[:NAMED_MAX].tolist())

    def _amounts(self, columns: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> Amounts:
        return resources.amounts({name: int(columns[n]) for name, n in self._state.nodes.columns.items()})


class _Parts(NamedTuple):
    """Parts of jobs that may leave, in the order in which they do, leaf by leaf."""

    line: Int64Array
    core: BoolArray  # else elastic
    leaf: Int64Array
    priority: Int64Array
    bare: BoolArray  # cores of jobs whose elastic part is there as well
    amounts: dict[str, Int64Array]
    may: dict[str, BoolArray]  # by resource: whether somebody may take it for that
    before: dict[str, Int64Array]  # by resource: what leaves the leaf before it


class _Reclaim:
    """One answer: of these leaves. The lines have all of those of them that are `beyond`, as far as it matters."""

    def __init__(self, state: CellState, of: Leaves, lines: Lines, leaves: BoolArray) -> None:
        self._state = state
        self._leaves = of
        self._lines = lines
        self._table = table = table_of(state)
        count = len(table.jobs)
        self._whole = np.zeros(count, np.bool_)
        self._replicas = np.zeros(count, np.int64)
        self._amounts: dict[int, Amounts] = {}
        self._excess = {resource: of.excess[resource] * leaves for resource in of.excess if resource in lines.used}

    def run(self) -> Reclaimable:
        if any((excess > 0).any() for excess in self._excess.values()):
            parts = self._parts()
            if len(parts.line):
                self._take(parts)
        return Reclaimable(self._whole, self._replicas, self._amounts)

    # --- which parts may leave, and in which order ------------------------------------------------------------------

    def _parts(self) -> _Parts:
        of = self._lines
        none = np.zeros(len(of.lines), np.bool_)
        rested = self._rested()
        may: dict[str, tuple[BoolArray, BoolArray]] = {}
        judged: dict[bytes, tuple[Int64Array, BoolArray, BoolArray]] = {}  # most resources have the same takers
        for resource in self._excess:
            bounds = self._leaves.takers.bounds(resource)
            alike = bounds.tobytes()
            if alike not in judged:
                everyone, lower = bounds[0][of.leaf], bounds[1][of.leaf]
                core = rested & (of.priority < (np.where(of.tired, lower, everyone) if of.tired.any() else everyone))
                judged[alike] = lower, of.free & (of.priority < everyone), of.free & core
            lower, elastic, core = judged[alike]
            over = (self._excess[resource] > 0)[of.leaf] & self._unmissed(resource, lower)
            spares = over & elastic & (of.spare[resource] > 0) if of.elastic else none
            may[resource] = spares, over & core & (of.used[resource] > 0)
        any_elastic = np.logical_or.reduce([none, *(elastic for elastic, _ in may.values())])
        any_core = np.logical_or.reduce([none, *(core for _, core in may.values())])
        first, second = np.flatnonzero(any_elastic), np.flatnonzero(any_core)
        at = np.concatenate((first, second))
        core = np.repeat(np.array((False, True)), (len(first), len(second)))
        grade = (of.leaf[at] * 2 + self._own(first, second)) * 2 + core
        order = np.argsort(grade, kind="stable")
        at, core = at[order], core[order]
        bare = core & any_elastic[at]
        found = _Parts(of.lines[at], core, of.leaf[at], of.priority[at], bare, {}, {}, {})
        for resource, (elastic, whole) in may.items():
            found.may[resource] = np.where(core, whole[at], elastic[at])
        for resource, used in of.used.items():
            spare = of.spare[resource][at]
            found.amounts[resource] = np.where(core, used[at] - np.where(bare, spare, 0), spare)
        return found

    def _rested(self) -> BoolArray:
        """By line: whether min_runtime lets its core leave (rule P4)."""
        of = self._lines
        shortest = np.maximum(self._leaves.shortest()[of.leaf], of.shortest)
        rested: BoolArray = (shortest == 0) | (of.since + shortest <= self._leaves.outlook.now_ms)
        return rested

    def _own(self, elastic: Int64Array, core: Int64Array) -> Int64Array:
        """Of these elastic parts, then of these cores: 1 for those within the cumulated E of their queue, 0 for the
        borrowed (rule P3)."""
        of = self._lines
        borrowed = np.zeros(len(elastic), np.bool_), np.zeros(len(core), np.bool_)
        for resource in self._leaves.outlook.capacity:
            if resource in of.used:
                most = self._leaves.most(resource)
                upto, used, spare = of.upto[resource], of.used[resource], of.spare[resource]
                if len(elastic):
                    np.logical_or(
                        borrowed[0], (upto[elastic] > most[of.leaf[elastic]]) & (spare[elastic] > 0), out=borrowed[0]
                    )
                left = spare[core]
                past = (upto[core] - left > most[of.leaf[core]]) & (used[core] > left)
                np.logical_or(borrowed[1], past, out=borrowed[1])
        return 1 - np.concatenate(borrowed).astype(np.int64)

    def _unmissed(self, resource: str, lower: Int64Array) -> BoolArray:
        """Not those who are more important than any who takes, and of a leaf that is not above its entitlement with the
        jobs that are as important (rule P1)."""
        of = self._lines
        missed: BoolArray = of.priority > lower
        if missed.any():
            missed &= of.of_level(resource) <= self._leaves.most(resource)[of.leaf]
        return ~missed

    # --- until the leaf is at its entitlement -----------------------------------------------------------------------

    def _take(self, parts: _Parts) -> None:
        stretches = Stretches(parts.leaf)
        for resource in parts.may:
            parts.before[resource] = stretches.up_to_here(parts.amounts[resource]) - parts.amounts[resource]
        taken, edge = self._taken(parts)
        if (taken[1:] & ~taken[:-1] & (parts.leaf[1:] == parts.leaf[:-1])).any():
            for resource in parts.may:  # what is not taken for anything leaves room for what is
                leaving = parts.amounts[resource] * taken
                parts.before[resource] = stretches.up_to_here(leaving) - leaving
            taken, edge = self._taken(parts)
        edges = np.flatnonzero(edge)
        clear = taken.copy()
        ranges: list[tuple[int, int, int, int]] = []  # leaf, its first part, the first edge, behind its last part
        for at, leaf in zip(edges.tolist(), parts.leaf[edges].tolist(), strict=True):
            if not ranges or ranges[-1][0] != leaf:
                begin, end = np.searchsorted(parts.leaf, (leaf, leaf + 1)).tolist()
                ranges.append((leaf, begin, at, end))
                clear[at:end] = False  # from here on one by one
        gone = _Gone(parts, clear)
        for leaf, begin, at, end in ranges:
            edge_of = Edge(self._leaves.outlook, self._leaves.takers, self._table.leaves[leaf], list(parts.may))
            for priority, amounts in gone.between(begin, at):
                edge_of.goes(priority, amounts)
            self._one_by_one(parts, edge_of, at, end)
        self._count(parts, clear)

    def _taken(self, parts: _Parts) -> tuple[BoolArray, BoolArray]:
        """Whether the leaf is still beyond its entitlement when it is the part's turn; whether that takes it below."""
        taken = np.zeros(len(parts.line), np.bool_)
        within, less = np.ones(len(parts.line), np.bool_), np.zeros(len(parts.line), np.bool_)
        for resource, may in parts.may.items():
            amounts = parts.amounts[resource]
            left = self._excess[resource][parts.leaf] - parts.before[resource]
            mine = may & (left > 0) & (amounts > 0)
            taken |= mine
            within &= ~mine | (amounts >= left)
            less |= mine & (amounts > left)
        return taken, taken & within & less

    def _one_by_one(self, parts: _Parts, edge: Edge, begin: int, end: int) -> None:
        """In their order those that cut into the entitlement, a few of them, and those that do not."""
        place, cuts = begin, 0
        while place < end and edge.beyond():
            if cuts >= CUTS_MAX or edge.is_cut:
                whole = self._within(parts, edge, place, end)
                if not len(whole):
                    break
                place += int(whole[0])
            line, core, bare = (int(of[place]) for of in (parts.line, parts.core, parts.bare))
            job = self._state.jobs[self._table.jobs[line]]
            wanted = [resource for resource, may in parts.may.items() if may[place]]
            positions = edge.take_core(job, wanted, bare=bool(bare)) if core else edge.take_elastic(job, wanted)
            cuts += not positions
            place += 1
            if cuts > EDGE_MAX:
                break
            if not positions:
                continue
            self._whole[line] |= bool(core)
            self._replicas[line] += len(positions)
            if core:
                self._amounts.pop(line, None)
            else:
                self._amounts[line] = job.gang.of_positions(positions)

    @staticmethod
    def _within(parts: _Parts, edge: Edge, begin: int, end: int) -> Int64Array:
        """Those that the leaf can lose whole and keep its entitlement in something that they are taken for."""
        found = np.zeros(end - begin, np.bool_)
        for resource, may in parts.may.items():
            amounts, left = parts.amounts[resource][begin:end], edge.left(resource)
            if left > 0:
                found |= may[begin:end] & (amounts > 0) & (amounts <= left)
        return np.flatnonzero(found)

    def _count(self, parts: _Parts, clear: BoolArray) -> None:
        """These parts go as they are."""
        elastic, core = parts.line[clear & ~parts.core], parts.line[clear & parts.core]
        self._replicas[elastic] = self._table.spare[elastic, self._state.nodes.columns[PODS]]
        self._whole[core] = True


class _Gone:
    """What leaves by priority, for stretches of the parts."""

    def __init__(self, parts: _Parts, clear: BoolArray) -> None:
        level = parts.leaf * EVERYBODY + parts.priority
        self._starts = starts = np.flatnonzero(np.diff(level, prepend=-EVERYBODY))
        self._priorities: list[int] = parts.priority[starts].tolist()
        self._sums: dict[str, list[int]] = {
            resource: np.add.reduceat(amounts * clear, starts).tolist() for resource, amounts in parts.amounts.items()
        }

    def between(self, begin: int, end: int) -> Iterator[tuple[int, Amounts]]:
        """From the first part of a leaf up to the first that is not clear."""
        first, last = np.searchsorted(self._starts, (begin, end)).tolist()
        for place in range(first, last):
            amounts = tuple((resource, sums[place]) for resource, sums in self._sums.items() if sums[place])
            yield self._priorities[place], amounts
