"""The binder as a process: its clusters opened, its follower caught up, its partitions kept while it lives."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

from muster.runtime import kube, kube_config, streams
from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.following import inbox_of, start_follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.service import ServiceContext
from muster_binder.binder import Binder
from muster_binder.metrics import BinderMetrics
from muster_binder.partitions import PartitionLeases
from muster_binder.settings import BinderSettings


@asynccontextmanager
async def build(context: ServiceContext[BinderSettings]) -> AsyncIterator[None]:
    """Wire the binder to the real bus, clock and clusters."""
    settings, clock = context.settings, context.clock
    async with AsyncExitStack() as cleanup:
        apis = await open_clusters(settings, cleanup)
        inbox = InboxWriter(
            await inbox_of(context),
            clock=clock,
        )
        leases = await context.bus.stream(streams.leases_spec(settings.nats_replicas))
        follower = await start_follower(context)
        # Binders with the same clusters share the partitions; a remote cluster's binder has its own.
        group = f"binder-{settings.cell}-{'_'.join(sorted(apis))}"
        partitions = PartitionLeases(leases, group, settings.replica, clock=clock)
        binder = Binder(
            settings.cell,
            ledger=follower,
            apis=apis,
            inbox=inbox,
            partitions=partitions,
            clock=clock,
            random=Random(),  # jitter only
            options=settings.options(),
            tracing=context.tracing,
            metrics=BinderMetrics(context.registry),
        )
        context.spawn("partitions", partitions.run(lambda: follower.ready))
        context.spawn("binder", binder.run())
        yield
        await partitions.release()
        await inbox.close()
        await follower.stop()


async def open_clusters(settings: BinderSettings, cleanup: AsyncExitStack) -> dict[str, kube.KubeApi]:
    """The APIs by cluster name. Raises ProcessMustEnd when the setting or a kubeconfig cannot be read."""
    apis: dict[str, kube.KubeApi] = {}
    try:
        for address in kube_config.clusters_from(settings.clusters, os.environ):
            api = await kube_config.connect(address, in_flight_max=settings.in_flight_max)
            cleanup.push_async_callback(api.close)
            apis[api.cluster] = api
    except kube_config.BadClusters as error:
        raise ProcessMustEnd(ExitCode.CONFIG, f"MUSTER_CLUSTERS: {error}") from error
    if not apis:
        raise ProcessMustEnd(ExitCode.CONFIG, "no cluster: set MUSTER_CLUSTERS or KUBECONFIG")
    return apis
