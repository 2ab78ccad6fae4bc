"""The topology-updater as a process: a leased watcher for each cluster, an agent for each kubelet socket.

Either half may be absent: a DaemonSet has only `MUSTER_SOCKETS`, a deployment beside it only `MUSTER_CLUSTERS`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

from muster.runtime import kube_config, streams
from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.following import inbox_of, start_follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.kube_http import HttpKubeApi
from muster.runtime.lease import Lease
from muster.runtime.leased import work_while_held
from muster.runtime.service import ServiceContext
from muster_topology_updater.agents import Agents, BadSockets, SocketPlace, parse_sockets
from muster_topology_updater.metrics import TopologyMetrics
from muster_topology_updater.settings import TopologySettings
from muster_topology_updater.watcher import ClusterWatcher, WatcherOptions


@asynccontextmanager
async def build(context: ServiceContext[TopologySettings]) -> AsyncIterator[None]:
    """Wire the service to the real bus, clock, clusters and kubelets."""
    settings, clock, bus = context.settings, context.clock, context.bus
    async with AsyncExitStack() as cleanup:
        places, apis = await _open(settings, cleanup)
        inbox = InboxWriter(
            await inbox_of(context),
            clock=clock,
        )
        leases = await bus.stream(streams.leases_spec(settings.nats_replicas))
        follower = await start_follower(context)
        metrics = TopologyMetrics(context.registry)
        for api in apis:
            watcher = ClusterWatcher(
                api,
                state=lambda: follower.state,
                inbox=inbox,
                clock=clock,
                random=Random(),  # jitter only
                options=WatcherOptions(audit_s=settings.audit_ms / 1000),
                metrics=metrics,
            )
            lease = Lease(leases, f"{settings.cell}.nodes.{api.cluster}", settings.replica, clock=clock)
            context.spawn(f"nodes of {api.cluster}", work_while_held(lease, watcher.run))
        agents = Agents(
            places,
            sysfs=Path(settings.sysfs),
            state=lambda: follower.state,
            inbox=inbox,
            clock=clock,
            random=Random(),
            poll_s=settings.poll_ms / 1000,
            metrics=metrics,
        )
        context.spawn("agents", agents.run())
        yield
        await inbox.close()
        await follower.stop()


async def _open(
    settings: TopologySettings, cleanup: AsyncExitStack
) -> tuple[tuple[SocketPlace, ...], list[HttpKubeApi]]:
    """What the settings name. Raises ProcessMustEnd when they cannot be read or name nothing."""
    try:
        places = parse_sockets(settings.sockets)
        apis = [await kube_config.connect(a) for a in kube_config.clusters_from(settings.clusters, os.environ)]
    except (kube_config.BadClusters, BadSockets) as error:
        raise ProcessMustEnd(ExitCode.CONFIG, str(error)) from error
    for api in apis:
        cleanup.push_async_callback(api.close)
    if not places and not apis:
        raise ProcessMustEnd(ExitCode.CONFIG, "nothing to watch: set MUSTER_CLUSTERS, KUBECONFIG or MUSTER_SOCKETS")
    return places, apis
