"""Which running jobs are borrowed under given entitlements: rule P3's order, summed up leaf by leaf.

Within a leaf the placed jobs are ordered by priority, then age; those past the cumulative entitlement in something that
they use are borrowed. Works on the arrays that the preemptor's planner keeps, so fifty thousand jobs take milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from muster.core import resources
from muster.core.model import Amounts
from muster.core.resources import PODS
from muster.core.state import CellState
from muster.core.victims import ALIVE, FIXED, IDENT, LEAF, PRIORITY, SUBMIT, BoolArray, Int64Array, table_of, unsaved

LIMITLESS: Final = np.iinfo(np.int64).max

NAMED_MAX: Final = 20  # jobs that are named, of each leaf


class Newly(Struct, frozen=True):
    """Jobs of one leaf, in the order of rule P3."""

    leaf: str  # id
    jobs: int
    first: tuple[str, ...]
    usage: Amounts
    work: Amounts  # that would be lost, resource-milliseconds; in floating point, for people


class Borrowing:
    """All running jobs of a state in that order."""

    def __init__(self, state: CellState) -> None:
        self._state = state
        self._table = table = table_of(state)
        facts = table.facts[: len(table.jobs)]
        alive = np.flatnonzero(facts[:, ALIVE] == 1)
        keys = (facts[alive, IDENT], facts[alive, SUBMIT], -facts[alive, PRIORITY], facts[alive, LEAF])
        self._order: Int64Array = alive[np.lexsort(keys)]
        self._leaf: Int64Array = facts[self._order, LEAF]
        self._movable: BoolArray = np.equal(facts[self._order, FIXED], 0)
        self._held: Int64Array = table.total[self._order]
        summed = np.cumsum(self._held, axis=0)
        starts = np.flatnonzero(np.diff(self._leaf, prepend=-1))
        lengths = np.diff(np.append(starts, len(self._order)))
        self._upto: Int64Array = summed - np.repeat((summed - self._held)[starts], lengths, axis=0)

    def past(self, deserved: Mapping[str, Amounts]) -> BoolArray:
        """By place in the order, whether the job is borrowed. Nobody is entitled to pod slots."""
        columns = self._state.nodes.columns
        most = np.zeros((len(self._table.leaves), len(columns)), np.int64)
        for number, leaf in enumerate(self._table.leaves):
            for resource, amount in deserved.get(leaf, ()):
                if resource in columns:
                    most[number, columns[resource]] = amount
        most[:, columns[PODS]] = LIMITLESS
        past: BoolArray = np.any((self._upto > most[self._leaf]) & (self._held > 0), axis=1)
        return past

    def newly_past(self, before: Mapping[str, Amounts], after: Mapping[str, Amounts]) -> Iterator[Newly]:
        """By leaf, the preemptible jobs that are borrowed after a change and were not before."""
        chosen = np.flatnonzero(self.past(after) & ~self.past(before) & self._movable)
        leaves = self._leaf[chosen]
        for number in np.unique(leaves).tolist():
            places = chosen[leaves == number]
            lines, held = self._order[places], self._held[places]
            ran_ms = unsaved(self._table.facts[lines], self._state.now_ms)
            yield Newly(
                leaf=self._table.leaves[number],
                jobs=len(lines),
                first=tuple(self._table.jobs[line] for line in lines[:NAMED_MAX].tolist()),
                usage=self._amounts(held.sum(axis=0)),
                work=self._amounts(ran_ms.astype(np.float64) @ held.astype(np.float64)),
            )

    def _amounts(self, columns: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> Amounts:
        return resources.amounts({name: int(columns[n]) for name, n in self._state.nodes.columns.items()})
