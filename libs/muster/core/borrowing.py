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
from muster.core.model import Amounts
from muster.core.node_arrays import BoolArray, Int64Array
from muster.core.potential import summed
from muster.core.preemption_rules import Outlook, min_runtime_ms
from muster.core.queues import QueueTree
from muster.core.resources import PODS
from muster.core.state import CellState
from muster.core.takers import EVERYBODY, Speakers, Takers
from muster.core.victim_table import (
    CORE,
    ELASTIC,
    FIXED,
    LEAF,
    PRIORITY,
    SHORTEST,
    SINCE,
    TIRED,
    table_of,
    unsaved,
)

NAMED_MAX: Final = 20  # jobs that are named, of each leaf
EDGE_MAX: Final = 256  # parts that are looked at one by one where a leaf reaches its entitlement


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
    replicas: Int64Array  # elastic ones of jobs that stay
    amounts: Int64Array  # [line, column]


class Borrowing:
    """All running jobs of a state in the order of rule P3, and who waits."""

    def __init__(self, state: CellState, now_ms: int, waiting: Speakers) -> None:
        self._state = state
        self._now_ms = now_ms
        self._waiting = waiting
        self._table = table_of(state)

    def reclaimable(self, tree: QueueTree, deserved: Mapping[str, Amounts]) -> Reclaimable:
        """What others could take back under the tree and these entitlements."""
        state = self._state
        published = {queue.id: deserved.get(queue.id, ()) for queue in tree.by_id.values()}
        usage = state.potential.usage
        outlook = Outlook(
            tree, published, state.nodes.capacity(), lambda leaf: usage.get(leaf, {}), max(self._now_ms, state.now_ms)
        )
        return _Reclaim(state, outlook, Takers(outlook, self._waiting, self._table.leaves)).run()

    def newly(self, before: Reclaimable, after: Reclaimable) -> Iterator[Newly]:
        """By leaf, what goes after a change and did not before."""
        table = self._table
        order = table.order()
        whole = after.whole & ~before.whole
        replicas = np.where(after.whole | before.whole, 0, np.maximum(after.replicas - before.replicas, 0))
        lines = order[(whole | (replicas > 0))[order]]
        leaves = table.facts[lines, LEAF]
        for number in np.unique(leaves).tolist():
            mine = lines[leaves == number]
            usage = np.maximum(after.amounts[mine] - before.amounts[mine], 0)
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

    def _first(self, lines: Int64Array) -> tuple[str, ...]:
        return tuple(self._table.jobs[line] for line in lines[:NAMED_MAX].tolist())

    def _amounts(self, columns: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> Amounts:
        return resources.amounts({name: int(columns[n]) for name, n in self._state.nodes.columns.items()})


class _Parts(NamedTuple):
    """Parts of jobs that may leave, in the order in which they do, leaf by leaf."""

    line: Int64Array
    part: Int64Array
    leaf: Int64Array
    amounts: Int64Array  # [part, column]
    may: dict[str, BoolArray]  # by resource: whether somebody may take it for that
    before: dict[str, Int64Array]  # by resource: what leaves the leaf before it


class _Reclaim:
    """One answer."""

    def __init__(self, state: CellState, outlook: Outlook, takers: Takers) -> None:
        self._state = state
        self._outlook = outlook
        self._takers = takers
        self._table = table = table_of(state)
        self._columns = state.nodes.columns
        count = len(table.jobs)
        self._whole = np.zeros(count, np.bool_)
        self._replicas = np.zeros(count, np.int64)
        self._amounts = np.zeros((count, len(self._columns)), np.int64)
        self._excess: dict[str, Int64Array] = {}  # by leaf, above the entitlement

    def run(self) -> Reclaimable:
        table = self._table
        wanted = [r for r in self._takers.resources() if r in self._columns]
        self._excess = {resource: self._excesses(resource) for resource in wanted}
        bounds = {resource: self._takers.bounds(resource) for resource in wanted}
        concerned = np.zeros(len(table.leaves), np.bool_)
        for resource in wanted:
            concerned |= (self._excess[resource] > 0) & (bounds[resource][0] > -EVERYBODY)
        if concerned.any():
            lines = table.order()[::-1]  # lower priority and newer first
            lines = lines[concerned[table.facts[lines, LEAF]]]
            if len(lines):
                self._take(self._parts(lines, bounds))
        return Reclaimable(self._whole, self._replicas, self._amounts)

    def _excesses(self, resource: str) -> Int64Array:
        """By leaf: how much more it uses than it is entitled to. What drains goes anyway, nobody takes it."""
        found = []
        for leaf in self._table.leaves:
            queue = self._outlook.tree.by_id.get(leaf)
            if queue is None or any(above.spec.state == "DRAINING" for above in queue.chain):
                found.append(0)
                continue
            used = summed(self._outlook.usage_of(leaf)).get(resource, 0)
            found.append(used - self._outlook.entitled_of(leaf).amounts.get(resource, 0))
        return np.array(found, np.int64)

    # --- which parts may leave, and in which order ------------------------------------------------------------------

    def _parts(self, lines: Int64Array, bounds: Mapping[str, tuple[Int64Array, Int64Array]]) -> _Parts:
        table = self._table
        facts, total, spare = table.facts[lines], table.total[lines], table.spare[lines]
        leaf, priority = facts[:, LEAF], facts[:, PRIORITY]
        free, rested = self._movable(lines, facts)
        tired = facts[:, TIRED] == 1
        own = self._own(leaf, total, spare)
        may: dict[str, tuple[BoolArray, BoolArray]] = {}
        any_elastic, any_core = np.zeros(len(lines), np.bool_), np.zeros(len(lines), np.bool_)
        for resource, (everyone, lower) in bounds.items():
            column = self._columns[resource]
            over = (self._excess[resource] > 0)[leaf] & free & self._reached(resource, leaf, priority, total, lower)
            elastic = over & (spare[:, column] > 0) & (priority < everyone[leaf])
            core = over & rested & (total[:, column] > 0) & (priority < np.where(tired, lower[leaf], everyone[leaf]))
            may[resource] = (elastic, core)
            any_elastic |= elastic
            any_core |= core
        first, second = np.flatnonzero(any_elastic), np.flatnonzero(any_core)
        at = np.concatenate((first, second))
        part = np.repeat(np.array((ELASTIC, CORE)), (len(first), len(second)))
        order = np.argsort((leaf[at] * 2 + own[at, part]) * 2 + part, kind="stable")
        at, part = at[order], part[order]
        amounts = np.where((part == ELASTIC)[:, None], spare[at], total[at] - spare[at] * any_elastic[at][:, None])
        found = _Parts(lines[at], part, leaf[at], amounts, {}, {})
        for resource, (elastic, core) in may.items():
            found.may[resource] = np.where(part == ELASTIC, elastic[at], core[at])
        return found

    def _movable(self, lines: Int64Array, facts: Int64Array) -> tuple[BoolArray, BoolArray]:
        """By line: whether its elastic part may leave, and whether min_runtime lets its core (rule P4)."""
        tree, table = self._outlook.tree, self._table
        free = facts[:, FIXED] == 0
        holders = [line for job in self._state.holds if (line := table.line(job)) is not None]
        if holders:
            free &= ~np.isin(lines, holders)  # who holds something is nobody's victim
        of_queue = np.array([min_runtime_ms(tree.by_id[q]) if q in tree else 0 for q in table.leaves], np.int64)
        shortest = np.maximum(of_queue[facts[:, LEAF]], facts[:, SHORTEST])
        rested = (shortest == 0) | (facts[:, SINCE] + shortest <= self._outlook.now_ms)
        return free, rested

    def _own(self, leaf: Int64Array, total: Int64Array, spare: Int64Array) -> Int64Array:
        """[line, part] 1 where the part is within the cumulated E of its queue, 0 where it is borrowed (rule P3)."""
        own = np.ones((len(leaf), 2), np.int64)
        for resource in self._outlook.capacity:
            column = self._columns.get(resource)
            if column is None or not total[:, column].any():
                continue
            used, elastic = total[:, column], spare[:, column]
            upto = _from_here_on(leaf, used)
            most = np.array([self._entitled(q, resource) for q in self._table.leaves], np.int64)[leaf]
            own[:, ELASTIC] &= ~((upto > most) & (elastic > 0))
            own[:, CORE] &= ~((upto - elastic > most) & (used > elastic))
        return own

    def _entitled(self, leaf: str, resource: str) -> int:
        return self._outlook.entitled_of(leaf).amounts.get(resource, 0) if leaf in self._outlook.tree else 0

    def _reached(
        self, resource: str, leaf: Int64Array, priority: Int64Array, total: Int64Array, lower: Int64Array
    ) -> BoolArray:
        """Whether a more important job than any that takes it would be missed (rule P1): its leaf is not above the
        entitlement with the jobs that are as important as it."""
        missed = priority > lower[leaf]
        if not missed.any():
            return ~missed
        upto = _from_here_on(leaf, total[:, self._columns[resource]])
        level = leaf * EVERYBODY + priority
        starts = np.flatnonzero(np.diff(level, prepend=level[0] - 1))
        whole = np.repeat(upto[starts], np.diff(np.append(starts, len(level))))
        most = np.array([self._entitled(q, resource) for q in self._table.leaves], np.int64)[leaf]
        reached: BoolArray = ~missed | (whole > most)
        return reached

    # --- until the leaf is at its entitlement -----------------------------------------------------------------------

    def _take(self, parts: _Parts) -> None:
        if not len(parts.line):
            return
        taken = np.ones(len(parts.line), np.bool_)
        for _ in range(2):  # what is not taken for anything leaves room for what is
            for resource in parts.may:
                amounts = parts.amounts[:, self._columns[resource]] * taken
                parts.before[resource] = _up_to_here(parts.leaf, amounts) - amounts
            taken, edge = self._taken(parts)
        clear = taken & ~edge
        chosen = np.flatnonzero(taken)
        for leaf in np.unique(parts.leaf[chosen[edge[chosen]]]).tolist():
            of = np.flatnonzero(parts.leaf == leaf)
            at = int(of[edge[of] & taken[of]][0])  # from here on one by one
            clear[of[of >= at]] = False
            self._go_on(parts, leaf, of[clear[of]], of[of >= at])
        self._count(parts, np.flatnonzero(clear))

    def _taken(self, parts: _Parts) -> tuple[BoolArray, BoolArray]:
        """Whether the leaf is still beyond its entitlement when it is the part's turn; whether it is not any more after
        it, and has less."""
        taken = np.zeros(len(parts.line), np.bool_)
        within, less = np.ones(len(parts.line), np.bool_), np.zeros(len(parts.line), np.bool_)
        for resource, may in parts.may.items():
            amounts = parts.amounts[:, self._columns[resource]]
            left = self._excess[resource][parts.leaf] - parts.before[resource]
            mine = may & (left > 0) & (amounts > 0)
            taken |= mine
            within &= ~mine | (amounts >= left)
            less |= mine & (amounts > left)
        return taken, taken & within & less

    def _go_on(self, parts: _Parts, leaf: int, gone: Int64Array, rest: Int64Array) -> None:
        """With these parts of the leaf gone, the rest one by one."""
        table = self._table
        edge = Edge(self._outlook, self._takers, table.leaves[leaf], list(parts.may))
        priorities = table.facts[parts.line[gone], PRIORITY]
        for priority in np.unique(priorities).tolist():
            edge.goes(priority, self._by_name(parts.amounts[gone[priorities == priority]].sum(axis=0)))
        for at in rest[:EDGE_MAX].tolist():
            line = int(parts.line[at])
            if not edge.beyond():
                break
            job = self._state.jobs[table.jobs[line]]
            whole = bool(parts.part[at] == CORE)
            wanted = [resource for resource, may in parts.may.items() if may[at]]
            if whole:
                bare = bool((parts.line[gone] == line).any())
                positions = edge.take_core(job, wanted, bare=bare)
            else:
                positions = edge.take_elastic(job, wanted)
            if positions:
                self._whole[line] |= whole
                self._replicas[line] += len(positions)
                for resource, amount in job.gang.of_positions(positions):
                    self._amounts[line, self._columns[resource]] += amount

    def _count(self, parts: _Parts, chosen: Int64Array) -> None:
        """These parts go as they are."""
        lines, core = parts.line[chosen], parts.part[chosen] == CORE
        self._whole[lines[core]] = True
        elastic = chosen[~core]
        self._replicas[parts.line[elastic]] = parts.amounts[elastic, self._columns[PODS]]
        for at in (chosen[core], elastic):
            self._amounts[parts.line[at]] += parts.amounts[at]


    def _by_name(self, columns: Int64Array) -> Amounts:
        return resources.amounts({name: int(columns[n]) for name, n in self._columns.items()})


def _up_to_here(leaf: Int64Array, amounts: Int64Array) -> Int64Array:
    """Sums within each leaf, whose lines are together."""
    upto = np.cumsum(amounts)
    starts = np.flatnonzero(np.diff(leaf, prepend=-1))
    found: Int64Array = upto - np.repeat((upto - amounts)[starts], np.diff(np.append(starts, len(leaf))))
    return found


def _from_here_on(leaf: Int64Array, amounts: Int64Array) -> Int64Array:
    """The same from the other end."""
    return _up_to_here(leaf[::-1], amounts[::-1])[::-1]
