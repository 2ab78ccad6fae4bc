"""The nodes as the reports of one transaction leave them: descriptions and lists only, never what is free.

Used by `facts`; the cycle does not run in a transaction that changed nodes, so the node table itself is enough for
placing.
"""

from __future__ import annotations

from muster.core.model import NodeSpec
from muster.core.state import CellState


class DraftNodes:
    """What reports changed, over the state's node table."""

    def __init__(self, state: CellState) -> None:
        self._state = state
        self._changed: dict[tuple[str, str], tuple[int, NodeSpec | None]] = {}
        self._next_index = state.nodes.next_index
        self._present: dict[int, None] = {}  # named by a report here
        self._lists: dict[str, dict[int, None] | None] = {}  # as in state.Cluster.unseen

    def get(self, cluster: str, name: str) -> tuple[int, NodeSpec | None]:
        """Index and description of a node. Without description it is gone, or new and would get that index."""
        changed = self._changed.get((cluster, name))
        if changed is not None:
            return changed
        table = self._state.nodes
        index = table.index_of(cluster, name)
        if index is None:
            return self._next_index, None
        return index, None if table.is_removed(index) else table.spec(index)

    def put(self, index: int, spec: NodeSpec) -> None:
        """A report has named this node."""
        self._changed[spec.cluster, spec.name] = (index, spec)
        self._next_index = max(self._next_index, index + 1)
        self._present[index] = None
        unseen = self.unseen(spec.cluster)
        if unseen is not None:
            unseen.pop(index, None)

    def remove(self, index: int, spec: NodeSpec) -> None:
        self._changed[spec.cluster, spec.name] = (index, None)
        self._present.pop(index, None)
        unseen = self.unseen(spec.cluster)
        if unseen is not None:
            unseen.pop(index, None)

    def closed(self) -> dict[int, str]:
        """Index and name of nodes that reports of this transaction say take no pods: gone, not ready, or cordoned."""
        found = {}
        for (_, name), (index, spec) in self._changed.items():
            if spec is None or not spec.ready or spec.cordoned:
                found[index] = name
        return found

    def is_present(self, index: int) -> bool:
        """Whether a report of this transaction says that the node is there."""
        return index in self._present

    def unseen(self, cluster: str) -> dict[int, None] | None:
        """Nodes that the cluster's list in the making has not named yet; None: there is no such list."""
        if cluster not in self._lists:
            known = self._state.clusters.get(cluster)
            self._lists[cluster] = dict(known.unseen) if known is not None and known.unseen is not None else None
        return self._lists[cluster]

    def start_list(self, cluster: str) -> None:
        there = dict.fromkeys(self._state.nodes.live(cluster))
        for (of_cluster, _), (index, spec) in self._changed.items():
            if of_cluster == cluster and spec is None:
                there.pop(index, None)
            elif of_cluster == cluster:
                there[index] = None
        self._lists[cluster] = there

    def end_list(self, cluster: str) -> None:
        self._lists[cluster] = None

    def left_over(self, cluster: str) -> list[tuple[int, NodeSpec]]:
        """The unseen nodes with their descriptions, ascending."""
        here = {index: spec for index, spec in self._changed.values() if spec is not None}
        return [
            (index, here.get(index) or self._state.nodes.spec(index)) for index in sorted(self.unseen(cluster) or ())
        ]
