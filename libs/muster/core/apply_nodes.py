"""Folding what is known of the hardware: nodes, zones, cluster lists, who is where. Part of `apply`, which calls it.

A removed node keeps its index; jobs with pods there are noted in `state.vanished` until the pods are accounted for
(LOG-15).
"""

from __future__ import annotations

from muster.core import transitions as tr
from muster.core.jobs import Job
from muster.core.model import GroupPlacement
from muster.core.state import CellState, Cluster
from muster.core.whereabouts import live_positions


def _cluster(state: CellState, name: str) -> Cluster:
    found = state.clusters.get(name)
    if found is None:
        found = state.clusters[name] = Cluster(name)
    return found


def _seen(state: CellState, cluster: str, index: int) -> None:
    unseen = _cluster(state, cluster).unseen
    if unseen is not None:
        unseen.pop(index, None)


def node_upserted(state: CellState, t: tr.NodeUpserted) -> None:
    state.nodes.upsert(t.index, t.spec)
    state.vanished.pop(t.index, None)  # it is back: what its pods do will be reported
    _seen(state, t.spec.cluster, t.index)
    state.loosened()


def node_removed(state: CellState, t: tr.NodeRemoved) -> None:
    spec = state.nodes.spec(t.index)
    state.nodes.remove(t.index)
    _seen(state, spec.cluster, t.index)
    there = [j for j in state.node_jobs.get(t.index, ()) if live_positions(state.jobs[j], t.index)]
    if there:
        state.vanished[t.index] = dict.fromkeys(there)


def node_zones_updated(state: CellState, t: tr.NodeZonesUpdated) -> None:
    state.nodes.set_zones(t.index, t.zones)
    state.loosened()


def cluster_list_started(state: CellState, t: tr.ClusterListStarted) -> None:
    _cluster(state, t.cluster).unseen = dict.fromkeys(state.nodes.live(t.cluster))


def nodes_seen(state: CellState, t: tr.NodesSeen) -> None:
    for index in t.nodes:
        _seen(state, t.cluster, index)


def cluster_synced(state: CellState, t: tr.ClusterSynced) -> None:
    cluster = _cluster(state, t.cluster)
    state.clusters_synced += not cluster.synced
    cluster.synced = True
    cluster.unseen = None


def enter_nodes(state: CellState, job_id: str, placement: tuple[GroupPlacement, ...]) -> None:
    """The job has pods there from now on."""
    for group in placement:
        for node, _ in group.runs:
            state.node_jobs.setdefault(node, {})[job_id] = None


def leave_nodes(state: CellState, job_id: str, placement: tuple[GroupPlacement, ...]) -> None:
    """It no longer has."""
    for group in placement:
        for node, _ in group.runs:
            leave_node(state, job_id, node)


def leave_node(state: CellState, job_id: str, node: int) -> None:
    on_node = state.node_jobs.get(node)
    if on_node is not None:
        on_node.pop(job_id, None)
        if not on_node:
            del state.node_jobs[node]
    if state.vanished:
        off_vanished(state, node, job_id)


def accounted_for(state: CellState, job: Job) -> None:
    """Take the job off the vanished nodes that have none of its live pods any more."""
    for node in list(state.vanished):
        if job.spec.id in state.vanished[node] and not live_positions(job, node):
            off_vanished(state, node, job.spec.id)


def off_vanished(state: CellState, node: int, job_id: str) -> None:
    there = state.vanished.get(node)
    if there is not None:
        there.pop(job_id, None)
        if not there:
            del state.vanished[node]
