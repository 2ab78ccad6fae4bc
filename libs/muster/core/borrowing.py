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
from muster.core.node_arrays import BoolArray, Int64Array
from muster.core.queues import QueueTree
from muster.core.resources import PODS
from muster.core.state import CellState
from muster.core.victim_table import FIXED, LEAF, table_of, unsaved

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
        facts = table.facts
        self._order: Int64Array = table.order()
        self._leaf: Int64Array = facts[self._order, LEAF]
        self._movable: BoolArray = np.equal(facts[self._order, FIXED], 0)
        starts = np.flatnonzero(np.diff(self._leaf, prepend=-1))
        lengths = np.diff(np.append(starts, len(self._order)))
        self._columns: list[tuple[str, Int64Array, Int64Array]] = []  # resource, what each holds, summed up in its leaf
        for resource, column in state.nodes.columns.items():
            held = table.total[self._order, column]
            if resource != PODS and held.any():  # nobody is entitled to pod slots
                upto = np.cumsum(held)
                self._columns.append((resource, held, upto - np.repeat((upto - held)[starts], lengths)))

    def past(self, deserved: Mapping[str, Amounts]) -> BoolArray:
        """By place in the order, whether the job is borrowed."""
        shares = [dict(deserved.get(leaf, ())) for leaf in self._table.leaves]
        past = np.zeros(len(self._order), np.bool_)
        for resource, held, upto in self._columns:
            most = np.array([share.get(resource, 0) for share in shares], np.int64)
            past |= (upto > most[self._leaf]) & (held > 0)
        return past

    def newly_past(
        self, before: Mapping[str, Amounts], after: Mapping[str, Amounts], tree: QueueTree
    ) -> Iterator[Newly]:
        """By leaf, the preemptible jobs that are borrowed after a change and were not before, and that somebody may
        take back: a queue of `tree`, which is the one after the change, that preempts and starts jobs."""
        takers = [
            queue.id
            for queue in tree.subtree()
            if not queue.children and queue.starts_jobs and queue.spec.preemption != "NEVER"
        ]
        chosen = np.flatnonzero(self.past(after) & ~self.past(before) & self._movable)
        leaves = self._leaf[chosen]
        for number in np.unique(leaves).tolist():
            if not takers or takers == [self._table.leaves[number]]:
                continue  # nobody reclaims from it
            places = chosen[leaves == number]
            lines = self._order[places]
            held = self._table.total[lines]
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
