"""The binder's metrics. Labels name clusters and codes, never jobs, pods or nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

CREATE_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class BinderMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.created = Counter(
            "muster_binder_pods_created_total", "Pods created (or found created).", ["cluster"], registry=registry
        )
        self.deleted = Counter(
            "muster_binder_pods_deleted_total", "Deletions of pods asked for.", ["cluster"], registry=registry
        )
        self.rejected = Counter(
            "muster_binder_placements_rejected_total",
            "Placements a cluster refused for good.",
            ["cluster", "code"],
            registry=registry,
        )
        self.retries = Counter(
            "muster_binder_retries_total", "Writes tried again.", ["cluster", "kind"], registry=registry
        )
        self.facts = Counter("muster_binder_facts_total", "Pod facts written to the inbox.", registry=registry)
        self.orphans = Counter(
            "muster_binder_orphans_total", "Pods deleted because no job wants them.", ["cluster"], registry=registry
        )
        self.watch_errors = Counter(
            "muster_binder_watch_errors_total", "Lists and watches that failed.", ["cluster"], registry=registry
        )
        self.create_seconds = Histogram(
            "muster_binder_create_duration_seconds",
            "Time of one successful create at the API server.",
            ["cluster"],
            buckets=CREATE_BUCKETS,
            registry=registry,
        )
        self.waiting = Gauge(
            "muster_binder_writes_waiting", "Writes in the queue of a cluster.", ["cluster"], registry=registry
        )
        self.stale = Gauge(
            "muster_binder_watch_stale_seconds",
            "Time since the API server was last heard on the watch.",
            ["cluster"],
            registry=registry,
        )
        self.partitions = Gauge("muster_binder_partitions", "Partitions this replica is ready for.", registry=registry)

    def follow(self, stale: Mapping[str, Callable[[], float]], waiting: Mapping[str, Callable[[], float]]) -> None:
        """Read these when scraped."""
        for cluster, read in stale.items():
            self.stale.labels(cluster).set_function(read)
        for cluster, read in waiting.items():
            self.waiting.labels(cluster).set_function(read)
