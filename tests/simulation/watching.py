"""The topology-updater's watcher of the clusters' nodes, as a process of the simulated machine room."""

from __future__ import annotations

import asyncio
from random import Random

from prometheus_client import CollectorRegistry

from muster.runtime import streams
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.kube_watch import WatchSettings
from muster.runtime.lease import Lease
from muster.runtime.leased import work_while_held
from muster_topology_updater.metrics import TopologyMetrics
from muster_topology_updater.watcher import ClusterWatcher, WatcherOptions

from .processes import CELL, Process


async def cluster_watcher(process: Process) -> None:
    """As muster_topology_updater with clusters and without kubelet sockets."""
    bus, clock = process.bus, process.clock
    assert bus is not None
    inbox = InboxWriter(await bus.stream(streams.inbox_spec(CELL)), clock=clock)
    leases = await bus.stream(streams.leases_spec())
    follower = Follower(bus, CELL, clock=clock)
    await follower.start()
    metrics = TopologyMetrics(CollectorRegistry())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follower.wait_stopped())
        for api in process.apis.values():
            watcher = ClusterWatcher(
                api,
                state=lambda: follower.state,
                inbox=inbox,
                clock=clock,
                random=Random(process.world.rng.random()),
                options=WatcherOptions(watch=WatchSettings(watch_timeout_s=20.0, silence_s=30.0)),
                metrics=metrics,
            )
            lease = Lease(leases, f"{CELL}.nodes.{api.cluster}", process.name, clock=clock)
            tasks.create_task(work_while_held(lease, watcher.run))
