"""Facts about clusters: nodes, zones, entitlements.

A full list of a cluster's nodes may span several messages. `ClusterListStarted` remembers which nodes the cluster had;
every node the list names is taken off (`NodeUpserted` if it changed, `NodesSeen` if not), and what is left when the
list is complete is gone. Only changes are written, so a relist of an unchanged cluster costs next to nothing.
"""

from __future__ import annotations

from muster.core import commands
from muster.core import transitions as tr
from muster.core.draft import Draft
from muster.core.model import NodeSpec


def nodes_reported(draft: Draft, fact: commands.NodesReported) -> None:
    if not fact.cluster:
        return
    listing = fact.first or draft.nodes.unseen(fact.cluster) is not None
    if fact.first:
        draft.emit(tr.ClusterListStarted(fact.cluster))
        draft.nodes.start_list(fact.cluster)
    seen: list[int] = []
    for spec in fact.nodes:
        if spec.cluster != fact.cluster or not spec.name:
            continue
        index, known = draft.nodes.get(fact.cluster, spec.name)
        if known == spec:
            if listing:
                seen.append(index)
        else:
            draft.emit(tr.NodeUpserted(index, spec))
        draft.nodes.put(index, spec)
    if seen:
        draft.emit(tr.NodesSeen(fact.cluster, tuple(seen)))
    for name in fact.removed:
        index, known = draft.nodes.get(fact.cluster, name)
        if known is not None:
            _remove(draft, index, known)
    if fact.complete:
        for index, spec in draft.nodes.left_over(fact.cluster):
            _remove(draft, index, spec)
        draft.emit(tr.ClusterSynced(fact.cluster))
        draft.nodes.end_list(fact.cluster)


def _remove(draft: Draft, index: int, spec: NodeSpec) -> None:
    draft.emit(tr.NodeRemoved(index))
    draft.nodes.remove(index, spec)


def topology_reported(draft: Draft, fact: commands.NodeTopologyReported) -> None:
    """Zones of a node that is known; a report that comes before the node does is repeated by its agent."""
    index, known = draft.nodes.get(fact.cluster, fact.node)
    if known is None or (index < len(draft.state.nodes) and draft.state.nodes.zones(index) == fact.zones):
        return
    draft.emit(tr.NodeZonesUpdated(index, fact.zones))


def entitlements_computed(draft: Draft, fact: commands.EntitlementsComputed) -> None:
    """Taken as they are; queues that are gone by now are left out (rule F1)."""
    known = tuple(e for e in fact.entitlements if e.queue in draft.tree)
    if known:
        draft.emit(tr.EntitlementsSet(known, fact.ledger_seq))
        draft.entitle(known)
