"""All that runs, in the order in which it leaves, as far as that is the same under every tree: for `borrowing`."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from muster.core.node_arrays import BoolArray, Int64Array
from muster.core.resources import PODS
from muster.core.state import CellState
from muster.core.takers import EVERYBODY
from muster.core.victim_table import (
    ALIVE,
    FIXED,
    LEAF,
    PRIORITY,
    SHORTEST,
    SINCE,
    TIRED,
    VictimTable,
    any_of,
    table_of,
)

MORE: Final = 128  # jobs beyond those that leave: some may be too large, or not be wanted


class Least(NamedTuple):
    """What every leaf keeps under all trees that are asked about: of each resource; whether its queue protects jobs."""

    kept: dict[str, Int64Array]
    protects: BoolArray


class Lines:
    """What is the same under every tree, in the order in which jobs leave: lower priority and newer first.

    Only of the leaves that are `beyond`, and of these only the jobs that would leave, with MORE after them, if nobody
    is passed over: then all jobs beyond what the leaf keeps leave.
    """

    def __init__(self, state: CellState, beyond: BoolArray, least: Least) -> None:
        table = table_of(state)
        lines = table.order()[::-1]
        leaf = table.facts[lines, LEAF]
        mine = beyond[leaf]
        self.lines = lines[mine]
        self.leaf: Int64Array = leaf[mine]
        self._columns = {r: column for r, column in state.nodes.columns.items() if r != PODS}
        holders = [line for job in state.holds if (line := table.line(job)) is not None]
        self.upto: dict[str, Int64Array] = {}  # what the leaf uses with it and those that leave after it
        from_here_on = Stretches(self.leaf[::-1])
        for resource, column in self._columns.items():
            used = table.total[self.lines, column]
            if used.any():
                self.upto[resource] = from_here_on.up_to_here(used[::-1])[::-1]
        self._cut(self._matter(table, holders, least))
        facts, lines = table.facts, self.lines
        self.priority: Int64Array = facts[lines, PRIORITY]
        self.tired = facts[lines, TIRED] == 1
        self.shortest: Int64Array = facts[lines, SHORTEST]
        self.since: Int64Array = facts[lines, SINCE]
        self.free = facts[lines, FIXED] == 0
        if holders:
            self.free &= ~np.isin(lines, holders)  # who holds something is nobody's victim
        self.elastic = bool(table.spare[lines].any())
        self.used = {resource: table.total[lines, self._columns[resource]] for resource in self.upto}
        none = np.zeros(len(lines), np.int64)
        self.spare = {r: table.spare[lines, self._columns[r]] if self.elastic else none for r in self.upto}
        level = self.leaf * EVERYBODY + self.priority
        self.levels = np.flatnonzero(np.diff(level, prepend=-EVERYBODY))  # where those of a leaf and priority begin

    def _matter(self, table: VictimTable, holders: list[int], least: Least) -> BoolArray:
        """Whose turn may come: those beyond what their leaf keeps, some more, and all where somebody is passed over."""
        count, leaves = len(table.jobs), len(least.protects)
        facts = table.facts[:count]
        passed = (
            (facts[:, FIXED] == 1) | (facts[:, TIRED] == 1) | (facts[:, SHORTEST] > 0) | any_of(table.spare[:count])
        )
        passed[holders] = True
        whole = least.protects.copy()
        whole[np.unique(facts[passed & (facts[:, ALIVE] == 1), LEAF])] = True
        beyond = np.zeros(len(self.lines), np.bool_)
        for resource, upto in self.upto.items():
            beyond |= upto > least.kept[resource][self.leaf]
        most = np.bincount(self.leaf, weights=beyond, minlength=leaves).astype(np.int64) + MORE
        starts = np.flatnonzero(np.diff(self.leaf, prepend=-1))
        place = np.arange(len(self.leaf)) - np.repeat(starts, np.diff(np.append(starts, len(self.leaf))))
        found: BoolArray = whole[self.leaf] | (place < most[self.leaf])
        return found

    def _cut(self, matter: BoolArray) -> None:
        self.lines, self.leaf = self.lines[matter], self.leaf[matter]
        self.upto = {resource: upto[matter] for resource, upto in self.upto.items()}

    def of_level(self, resource: str) -> Int64Array:
        """What the leaf uses with all that are as important."""
        upto = self.upto[resource]
        return np.repeat(upto[self.levels], np.diff(np.append(self.levels, len(upto))))


class Stretches:
    """Of an array of leaves in which each lies together."""

    def __init__(self, leaf: Int64Array) -> None:
        self._starts = np.flatnonzero(np.diff(leaf, prepend=-1))
        self._lengths = np.diff(np.append(self._starts, len(leaf)))

    def up_to_here(self, amounts: Int64Array) -> Int64Array:
        """Sums within each leaf."""
        upto: Int64Array = np.cumsum(amounts)
        upto -= np.repeat((upto - amounts)[self._starts], self._lengths)
        return upto
