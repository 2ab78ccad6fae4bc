"""Who may leave, by node: what room for one pod costs there, estimated for all nodes at once.

Used by `victim_search`. The estimate looks at totals alone (a node with two half devices free counts as one with a
whole one) and at nothing that was taken so far, so it is never too dear; the search looks exactly before it takes.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from muster.core.node_arrays import BoolArray, Int64Array
from muster.core.rows import Demand
from muster.core.victim_table import any_of
from muster.core.victims import Ranking

RANK_BITS: Final = 32
Cost = tuple[int, int, int]  # (worst grade, lost work, place in the order of rule P3 of who leaves last)
FREE: Final[Cost] = (-1, 0, 0)  # of a node that has room already


class ByNode:
    """Who may leave, by node and in the order of rule P3. One entry a (piece, part) that is allowed."""

    def __init__(self, ranking: Ranking) -> None:
        table = ranking.table
        pieces = table.pieces[: table.piece_count]
        amounts = table.piece_amounts[: table.piece_count]
        used = any_of(amounts) & ranking.allowed[pieces[:, 0]] if len(pieces) else np.zeros((0, 2), np.bool_)
        at, parts = np.nonzero(used)
        lines, nodes = pieces[at, 0], pieces[at, 1]
        grade, lost, rank = ranking.grade[lines, parts], ranking.lost[lines, parts], ranking.ranks()[lines, parts]
        order = np.argsort((nodes << RANK_BITS) + rank, kind="stable")
        self.node: Int64Array = nodes[order]
        self.line: Int64Array = lines[order]
        self.part: Int64Array = parts[order].astype(np.int64)
        self.grade: Int64Array = grade[order]
        self.lost: Int64Array = lost[order]
        self.rank: Int64Array = rank[order]
        self.amounts: Int64Array = amounts[at[order], parts[order]]
        self._piece: Int64Array = at[order]

    def on(self, node: int) -> tuple[int, int]:
        """Begin and end of the node's entries."""
        return int(np.searchsorted(self.node, node)), int(np.searchsorted(self.node, node, side="right"))

    def costs(self, free: Int64Array, usable: BoolArray, demand: Demand) -> list[tuple[Cost, int]]:
        """(cost, node), cheapest first: what room for one pod costs at least, judged by the totals alone."""
        columns = [column for column, _ in demand.pairs]
        missing = np.array([amount for _, amount in demand.pairs], np.int64) - free[:, columns]
        found = [(FREE, int(n)) for n in np.flatnonzero(usable & (missing <= 0).all(axis=1))]
        if not len(self.node):
            return found
        starts = np.flatnonzero(np.diff(self.node, prepend=-1))
        sizes = np.diff(np.append(starts, len(self.node)))
        enough = np.ones(len(self.node), np.bool_)
        for at, column in enumerate(columns):
            freed = _within(self.amounts[:, column], starts, sizes)
            enough &= freed >= missing[self.node, at]
        hits = np.flatnonzero(enough)
        nodes, first = np.unique(self.node[hits], return_index=True)
        hits = hits[first]
        lost = _within(self.lost, starts, sizes)[hits]
        keep = usable[nodes] & (missing[nodes] > 0).any(axis=1)
        nodes, grade, lost, rank = nodes[keep], self.grade[hits][keep], lost[keep], self.rank[hits][keep]
        # Equal are only pieces of one job; of these the last has its highest positions, and the first pods stay.
        order = np.lexsort((-self._piece[hits][keep], rank, lost, grade))
        costs = zip(grade[order].tolist(), lost[order].tolist(), rank[order].tolist(), strict=True)
        found += zip(costs, nodes[order].tolist(), strict=True)
        return found


def _within(values: Int64Array, starts: Int64Array, sizes: Int64Array) -> Int64Array:
    """Cumulated sums that start anew with every node."""
    sums: Int64Array = np.cumsum(values)
    return sums - np.repeat((sums - values)[starts], sizes)
