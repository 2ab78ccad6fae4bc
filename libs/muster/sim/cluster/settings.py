"""The knobs of a simulated cluster: one dataclass, every value with its unit and the real cluster's default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterSettings:
    name: str = "sim-a"
    seed: int = 0
    time_scale: float = 1.0  # annotated start and run times are divided by this
    start_latency_ms: int = 10  # a kubelet sees a bound pod and starts it
    stop_latency_ms: int = 5  # a kubelet sees a deletion and signals the containers
    node_heartbeat_ms: int = 300_000  # status renewal of an unchanged node
    node_grace_ms: int = 40_000  # silence after which a node is NotReady and tainted
    node_check_ms: int = 5_000  # how often the node controller looks
    pod_gc_ms: int = 20_000  # how often pods of deleted and out-of-service nodes are collected
    pod_gc_quarantine_ms: int = 40_000  # a node must be missing this long
    restart_backoff_ms: int = 10_000  # doubles with every restart of a container, up to five minutes
    bookmark_ms: int = 15_000  # between bookmarks on a watch that allows them
    event_ttl_ms: int = 3_600_000
    history_events: int = 32_768  # per kind; a watch from before that gets 410
    namespaces: tuple[str, ...] = ("default", "kube-node-lease", "kube-public", "kube-system")
