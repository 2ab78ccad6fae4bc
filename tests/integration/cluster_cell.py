"""A cell with a cluster, as deployed: a real NATS, a leader, an API server over HTTP, kubelet sockets.

Services run in this process through their own `build`; only the command line is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tests.patience import PATIENCE_S

from muster.core.commands import AnyItem, SubmitJob, UpsertQueue
from muster.core.model import JobSpec, JobState, QueueSpec, TaskGroup
from muster.core.state import CellState
from muster.runtime import nats_bus, streams
from muster.runtime.clock import SystemClock
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.nats_server import NatsServer
from muster.runtime.ports import Bus
from muster.runtime.service import ServiceContext
from muster.runtime.tracing import Tracing
from muster.sim.cluster.cluster import SimCluster
from muster.sim.cluster.nodes import parse_nodes
from muster.sim.cluster.podresources import PodResourcesSockets
from muster.sim.cluster.server import ClusterServer, serve
from muster.sim.cluster.settings import ClusterSettings
from muster_binder import service as binder_service
from muster_binder.settings import BinderSettings
from muster_queue_manager import service as leader_service
from muster_queue_manager.settings import QueueManagerSettings
from muster_topology_updater import service as topology_service
from muster_topology_updater.settings import TopologySettings


class Cell:
    """A running cell with one cluster."""

    def __init__(self, nats: NatsServer, server: ClusterServer, sockets: Path) -> None:
        self.nats = nats
        self.sockets = sockets
        self.server = server
        self.sim = server.cluster
        self.clusters = f"sim=http://127.0.0.1:{server.port}"
        self.follower: Follower
        self.inbox: InboxWriter

    @property
    def state(self) -> CellState:
        return self.follower.state

    @asynccontextmanager
    async def service(self, name: str, build: Callable[..., Any], settings: Any) -> AsyncIterator[ServiceContext[Any]]:
        bus: Bus = await nats_bus.connect(self.nats.url, name=name)
        context = ServiceContext(
            name, settings, bus=bus, clock=SystemClock(), tracing=Tracing.off(), registry=CollectorRegistry()
        )
        try:
            async with build(context):
                yield context
                assert context.ended is None, context.ended
                await context.cancel_tasks()
        finally:
            await context.cancel_tasks()
            await bus.close()

    def leader(self) -> Any:
        return self.service("queue-manager", leader_service.build, QueueManagerSettings(replica="qm-1"))

    def topology(self) -> Any:
        return self.service(
            "topology-updater",
            topology_service.build,
            TopologySettings(replica="topology-1", clusters=self.clusters, sockets=f"sim={self.sockets}", poll_ms=100),
        )

    def binder(self, replica: str) -> Any:
        return self.service("binder", binder_service.build, BinderSettings(replica=replica, clusters=self.clusters))

    async def write(self, *items: AnyItem) -> None:
        positions = await self.inbox.write(items)
        await self.follower.wait_applied(positions[-1], PATIENCE_S)

    async def until(self, done: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not done():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            states = [(job.spec.name, job.state, job.reason, job.message) for job in self.state.jobs.values()]
            pytest.fail(f"not in {PATIENCE_S} s: {states[:5]}")

    def states(self) -> list[JobState]:
        return [job.state for job in self.state.jobs.values()]


@asynccontextmanager
async def running_cell(tmp_path: Path, nodes: str, *, sockets: int = 0) -> AsyncIterator[Cell]:
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    sim = SimCluster(ClusterSettings(name="sim"))
    with_socket = sim.add_nodes(parse_nodes(nodes), pod_resources_nodes=sockets)
    server = await serve(sim)
    kubelets = PodResourcesSockets(sim.kubelets, tmp_path / "s", sim.timers.now_ms)
    await kubelets.start(with_socket)
    cell = Cell(nats, server, tmp_path / "s")
    try:
        async with AsyncExitStack() as stack:
            bus = await nats_bus.connect(nats.url, name="test")
            stack.push_async_callback(bus.close)
            await stack.enter_async_context(cell.leader())
            await stack.enter_async_context(cell.topology())
            cell.inbox = InboxWriter(await bus.stream(streams.inbox_spec("main")), clock=SystemClock())
            cell.follower = Follower(bus, "main", clock=SystemClock())
            await cell.follower.start()
            stack.push_async_callback(cell.follower.stop)
            await cell.until(lambda: cell.state.clusters_synced > 0)
            await cell.write(UpsertQueue("research", QueueSpec("", "research", "")))
            yield cell
    finally:
        await kubelets.stop()
        await server.stop()
        nats.stop()


def job(number: int, *, replicas: int = 1, seconds: float | None = 0.1, gpus: int = 0) -> SubmitJob:
    """Runs for `seconds`, or until it is stopped."""
    template: dict[str, Any] = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    if seconds is not None:
        template["metadata"] = {"annotations": {"sim.muster.io/run-seconds": str(seconds)}}
    requests = (("cpu", 1000), ("memory", 1 << 30), *((("nvidia.com/gpu", gpus * 1000),) if gpus else ()))
    task = TaskGroup("worker", replicas, replicas, requests, template=msgspec.json.encode(template))
    return SubmitJob(
        JobSpec(f"{number * 2654435761 % (1 << 32):08x}{number:024x}", "default", f"job-{number}", "research", (task,))
    )
