"""The topology-updater's metrics. Labels name clusters, never nodes or pods."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class TopologyMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.nodes_reported = Counter(
            "muster_topology_nodes_reported_total", "Nodes written to the inbox.", ["cluster"], registry=registry
        )
        self.zones_reported = Counter(
            "muster_topology_zones_reported_total",
            "Reports of a node's zones written to the inbox.",
            ["cluster"],
            registry=registry,
        )
        self.watch_errors = Counter(
            "muster_topology_watch_errors_total", "Lists and watches that failed.", ["cluster"], registry=registry
        )
        self.poll_errors = Counter(
            "muster_topology_poll_errors_total",
            "Polls of a kubelet that failed.",
            ["cluster", "code"],
            registry=registry,
        )
        self.sockets = Gauge("muster_topology_sockets", "Kubelet sockets polled.", ["cluster"], registry=registry)
        self.stale = Gauge(
            "muster_topology_watch_stale_seconds",
            "Time since the API server was last heard.",
            ["cluster"],
            registry=registry,
        )
