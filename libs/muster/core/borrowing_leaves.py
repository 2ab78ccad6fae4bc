"""What leaves use beyond what they are entitled to under one tree, as arrays by leaf: for `borrowing`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.core.borrowing_lines import Least
from muster.core.node_arrays import BoolArray, Int64Array
from muster.core.preemption_rules import Outlook, min_runtime_ms
from muster.core.resources import PODS
from muster.core.state import CellState
from muster.core.takers import Takers


class Leaves:
    """`leaves` are their ids, in the order of the arrays; some may not be in the tree."""

    def __init__(self, state: CellState, outlook: Outlook, takers: Takers, leaves: Sequence[str]) -> None:
        self.outlook = outlook
        self.takers = takers
        self._leaves = leaves
        self.resources = [resource for resource in state.nodes.columns if resource != PODS]
        self._most: dict[str, Int64Array] = {}
        wanted = [resource for resource in takers.resources() if resource in self.resources]
        self.excess = {resource: self._excess(resource) for resource in wanted}  # above the entitlement

    def beyond(self) -> BoolArray:
        """Whether it uses more than it is entitled to, of something that others want."""
        none = np.zeros(len(self._leaves), np.bool_)
        found: BoolArray = np.logical_or.reduce([none, *(excess > 0 for excess in self.excess.values())])
        return found

    def most(self, resource: str) -> Int64Array:
        """Its entitlement."""
        found = self._most.get(resource)
        if found is None:
            found = self._most[resource] = np.array([self._entitled(leaf, resource) for leaf in self._leaves], np.int64)
        return found

    def shortest(self) -> Int64Array:
        """Its min_runtime."""
        tree = self.outlook.tree
        return np.array([min_runtime_ms(tree.by_id[leaf]) if leaf in tree else 0 for leaf in self._leaves], np.int64)

    def _excess(self, resource: str) -> Int64Array:
        """What drains goes anyway, nobody takes it."""
        found = []
        for leaf in self._leaves:
            queue = self.outlook.tree.by_id.get(leaf)
            if queue is None or any(above.spec.state == "DRAINING" for above in queue.chain):
                found.append(0)
            else:
                used = sum(usage.get(resource, 0) for usage in self.outlook.usage_of(leaf).values())
                found.append(used - self._entitled(leaf, resource))
        return np.array(found, np.int64)

    def _entitled(self, leaf: str, resource: str) -> int:
        return self.outlook.entitled_of(leaf).amounts.get(resource, 0) if leaf in self.outlook.tree else 0


def least_of(one: Leaves, other: Leaves) -> Least:
    """What leaves keep under either tree, and those of which queues protect jobs for a while (rule P4)."""
    kept = {resource: np.minimum(one.most(resource), other.most(resource)) for resource in one.resources}
    return Least(kept, (one.shortest() > 0) | (other.shortest() > 0))
