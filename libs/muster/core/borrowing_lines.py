"""All that runs, in the order in which it leaves, as far as that is the same under every tree: for `borrowing`."""

from __future__ import annotations

import numpy as np

from muster.core.node_arrays import Int64Array
from muster.core.resources import PODS
from muster.core.state import CellState
from muster.core.takers import EVERYBODY
from muster.core.victim_table import FIXED, LEAF, PRIORITY, SHORTEST, SINCE, TIRED, table_of


class Lines:
    """What is the same under every tree, in the order in which jobs leave: lower priority and newer first."""

    def __init__(self, state: CellState) -> None:
        table = table_of(state)
        facts = table.facts
        self.lines = lines = table.order()[::-1].copy()
        self.leaf: Int64Array = facts[lines, LEAF]
        self.priority: Int64Array = facts[lines, PRIORITY]
        self.tired = facts[lines, TIRED] == 1
        self.shortest: Int64Array = facts[lines, SHORTEST]
        self.since: Int64Array = facts[lines, SINCE]
        self.free = facts[lines, FIXED] == 0
        holders = [line for job in state.holds if (line := table.line(job)) is not None]
        if holders:
            self.free &= ~np.isin(lines, holders)  # who holds something is nobody's victim
        self.elastic = bool(table.spare.any())
        from_here_on = Stretches(self.leaf[::-1])
        self.used: dict[str, Int64Array] = {}
        self.spare: dict[str, Int64Array] = {}
        self.upto: dict[str, Int64Array] = {}  # what the leaf uses with it and those that leave after it
        for resource, column in state.nodes.columns.items():
            used = table.total[lines, column]
            if resource != PODS and used.any():
                self.used[resource] = used
                self.spare[resource] = table.spare[lines, column] if self.elastic else np.zeros(len(lines), np.int64)
                self.upto[resource] = from_here_on.up_to_here(used[::-1])[::-1]
        level = self.leaf * EVERYBODY + self.priority
        self.levels = np.flatnonzero(np.diff(level, prepend=-EVERYBODY))  # where those of a leaf and priority begin

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
