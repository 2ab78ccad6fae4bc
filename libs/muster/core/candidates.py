"""Sorted orders of nodes: the best candidate is found by bisection, not by a pass over all nodes.

An `Order` keeps the negated keys of `placement` for the nodes that one set of constraints allows in one cluster,
ascending, so the best is last. The table's orders follow its change log; an overlay takes a copy (`OverlayOrder`) and
moves the few nodes it touches. Which candidate is best is a matter of the keys alone: orders only make the answer
cheap. A shape that often meets nodes with enough of the primary resource and too little of another gets an order of its
own (`owner`), with only nodes it fits on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from muster.core.node_arrays import REBUILD_SHARE
from muster.core.placement import Ranking, entries_of
from muster.core.rows import Row

if TYPE_CHECKING:
    from muster.core.nodes import NodeTable
    from muster.core.shapes import Eligibility, Shape

Keys = tuple[int, ...]
NO_KEYS: Final[Keys] = ()
MOVES_ONE_BY_ONE_MIN: Final = 32  # up to this many keys move by bisection; more, and more than a 16th, by a merge
MERGE_SHARE: Final = 16


class Order:
    """`keys` of the nodes that take part, negated and ascending; `at` remembers each node's own."""

    __slots__ = ("_cluster", "_cursor", "_eligibility", "_entries", "_member", "_ranking", "at", "keys", "owner")

    def __init__(self, eligibility: Eligibility, cluster: int, ranking: Ranking, owner: Shape | None) -> None:
        self.keys: list[int] = []
        self.at: list[Keys] = []
        self.owner = owner
        self._eligibility = eligibility
        self._cluster = cluster
        self._ranking = ranking
        self._entries = entries_of(ranking)
        self._member = bytearray()
        self._cursor = -1

    def keys_of(self, n: int, row: Row) -> Keys:
        """The keys of node `n` when `row` is what is free on it; none when it takes no part."""
        if not self._member[n] or row.overdrawn():
            return NO_KEYS
        if self.owner is not None and not self.owner.demand.takes(row):
            return NO_KEYS
        return self._entries(row, n)

    def synced(self, table: NodeTable) -> Order:
        """Caught up with the table."""
        end = table.changes.end
        if self._cursor != end:
            changed = table.changes.since(self._cursor)
            if changed is None or len(changed) * REBUILD_SHARE > len(table):
                self._rebuild(table)
            else:
                self._follow_specs(table, changed)
                self.at += [NO_KEYS] * (len(table) - len(self.at))
                self._follow(table, changed)
            self._cursor = end
        return self

    def _rebuild(self, table: NodeTable) -> None:
        described, ranking, rows = table.described, self._ranking, table.rows
        usable = np.frombuffer(bytes(self._eligibility.synced(table).usable), np.bool_)
        if ranking.device_column >= 0:
            right_kind = described.device_columns == ranking.device_column
        else:
            right_kind = (described.device_columns >= 0) == (ranking.tier == 1)
        member = usable & right_kind & (described.clusters == self._cluster)
        self._member = bytearray(member.tobytes())
        self.at = [NO_KEYS] * len(table)
        keys: list[int] = []
        for n in np.flatnonzero(member & ~table.overdrawn).tolist():
            if self.owner is None or self.owner.demand.takes(rows[n]):
                self.at[n] = self._entries(rows[n], n)
                keys += self.at[n]
        keys.sort()
        self.keys = keys

    def _follow(self, table: NodeTable, changed: Sequence[int]) -> None:
        rows, at = table.rows, self.at
        changes = []
        for n in changed:
            old, new = at[n], self.keys_of(n, rows[n])
            if old != new:
                at[n] = new
                changes.append((old, new))
        move(self.keys, changes)

    def _follow_specs(self, table: NodeTable, changed: Sequence[int]) -> None:
        usable = self._eligibility.synced(table).usable
        ranking, member = self._ranking, self._member
        member.extend(bytes(len(table) - len(member)))
        for n in changed:
            facts = table.facts[n]
            if ranking.device_column >= 0:
                right_kind = facts.device_column == ranking.device_column
            else:
                right_kind = (facts.device_column >= 0) == (ranking.tier == 1)
            member[n] = usable[n] and right_kind and facts.cluster == self._cluster


class OverlayOrder:
    """A copy of an order for one overlay. `keys` are negated and ascending: read it from the end."""

    __slots__ = ("_moved", "base", "cursor", "keys")

    def __init__(self, base: Order) -> None:
        self.base = base
        self.keys = base.keys.copy()
        self.cursor = 0  # how much of the overlay's log is in it
        self._moved: dict[int, Keys] = {}

    def follow(self, changed: Iterable[int], rows: Mapping[int, Row]) -> None:
        """Put the nodes in `changed` where they belong now; `rows` has what is free on them."""
        moved, base = self._moved, self.base
        changes = []
        for n in changed:
            old = moved.get(n)
            if old is None:
                old = base.at[n]
            new = base.keys_of(n, rows[n])
            if old != new:
                moved[n] = new
                changes.append((old, new))
        move(self.keys, changes)


def move(keys: list[int], changes: Sequence[tuple[Keys, Keys]]) -> None:
    """Replace keys in the sorted list `keys`: `changes` are (old, new) of one node each."""
    if len(changes) <= MOVES_ONE_BY_ONE_MIN or len(changes) * MERGE_SHARE <= len(keys):
        for old, new in changes:
            for key in old:
                del keys[bisect_left(keys, key)]
            for key in new:
                insort(keys, key)
        return
    gone = {key: None for old, _ in changes for key in old}
    keys[:] = [key for key in keys if key not in gone]
    keys += [key for _, new in changes for key in new]
    keys.sort()
