"""What every process shows on /metrics beside its own: build, readiness, process figures, rpc times, loop stalls.

A service makes its own metrics on `ServiceContext.registry` with prometheus_client. Names start with `muster_`, units
come last (`_seconds`, `_bytes`, `_total`), labels never hold a job, pod or node. Dashboards and alert rules (`deploy/`)
are tested against the names in the code.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import time
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, GCCollector, Histogram, ProcessCollector

STALL_PROBE_S: Final = 0.02
STALL_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
RPC_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class ProcessMetrics:
    """The metrics every service has."""

    def __init__(self, registry: CollectorRegistry, *, service: str, replica: str, cell: str) -> None:
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        build = Gauge(
            "muster_build_info",
            "Always 1; says what runs.",
            ["service", "replica", "cell", "version"],
            registry=registry,
        )
        build.labels(service, replica, cell, version()).set(1)
        self.ready = Gauge("muster_ready", "1 while the replica serves.", registry=registry)
        self.rpc_seconds = Histogram(
            "muster_rpc_duration_seconds",
            "Time of gRPC calls that ended, as the server saw it.",
            ["method", "code"],
            buckets=RPC_BUCKETS,
            registry=registry,
        )
        self.rpcs_active = Gauge("muster_rpcs_active", "gRPC calls in progress, streams included.", registry=registry)
        self.stall_seconds = Histogram(
            "muster_event_loop_stall_seconds",
            "How late a timer of the event loop fired.",
            buckets=STALL_BUCKETS,
            registry=registry,
        )
        self.stall_max_seconds = Gauge(
            "muster_event_loop_stall_max_seconds", "The longest stall since the start.", registry=registry
        )
        self.stall_own_max_seconds = Gauge(
            "muster_event_loop_stall_own_max_seconds",
            "Of all stalls the most CPU time the loop itself used; what is missing to the longest, others used.",
            registry=registry,
        )

    async def watch_loop(self) -> None:
        """Measure the event loop's stalls for ever: a timer that fires late shows that something blocked the loop."""
        loop = asyncio.get_running_loop()
        longest = longest_own = 0.0
        while True:
            due, cpu_s = loop.time() + STALL_PROBE_S, time.thread_time()
            await asyncio.sleep(STALL_PROBE_S)
            late = max(0.0, loop.time() - due)
            own = min(late, time.thread_time() - cpu_s)
            self.stall_seconds.observe(late)
            if late > longest:
                longest = late
                self.stall_max_seconds.set(late)
            if own > longest_own:
                longest_own = own
                self.stall_own_max_seconds.set(own)


def version() -> str:
    try:
        return importlib.metadata.version("muster-scheduler")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return "0"
