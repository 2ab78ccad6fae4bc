"""The binder and the topology-updater as they are deployed: a real NATS, a leader, an API server over HTTP.

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

from muster.core.commands import AnyItem, CancelJob, SubmitJob, UpsertQueue
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
from muster.sim.cluster import audit
from muster.sim.cluster.cluster import FaultOrder, SimCluster
from muster.sim.cluster.faults import FaultRule
from muster.sim.cluster.nodes import parse_nodes
from muster.sim.cluster.server import ClusterServer, serve
from muster.sim.cluster.settings import ClusterSettings
from muster_binder import service as binder_service
from muster_binder.settings import BinderSettings
from muster_queue_manager import service as leader_service
from muster_queue_manager.settings import QueueManagerSettings
from muster_topology_updater import service as topology_service
from muster_topology_updater.settings import TopologySettings

LIMIT_S = 30.0


class Cell:
    """A running cell with one cluster."""

    def __init__(self, nats: NatsServer, server: ClusterServer) -> None:
        self.nats = nats
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
            TopologySettings(replica="topology-1", clusters=self.clusters),
        )

    def binder(self, replica: str) -> Any:
        return self.service("binder", binder_service.build, BinderSettings(replica=replica, clusters=self.clusters))

    async def write(self, *items: AnyItem) -> None:
        positions = await self.inbox.write(items)
        await self.follower.wait_applied(positions[-1], LIMIT_S)

    async def until(self, done: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while not done():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            states = [(job.spec.name, job.state, job.reason, job.message) for job in self.state.jobs.values()]
            pytest.fail(f"not in {limit_s} s: {states[:5]}")

    def states(self) -> list[JobState]:
        return [job.state for job in self.state.jobs.values()]


@asynccontextmanager
async def running_cell(tmp_path: Path, nodes: str) -> AsyncIterator[Cell]:
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    sim = SimCluster(ClusterSettings(name="sim"))
    sim.add_nodes(parse_nodes(nodes))
    server = await serve(sim)
    cell = Cell(nats, server)
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
            await cell.until(lambda: cell.state.any_cluster_synced)
            await cell.write(UpsertQueue("research", QueueSpec("", "research", "")))
            yield cell
    finally:
        await server.stop()
        nats.stop()


def job(number: int, *, replicas: int = 1, seconds: float | None = 0.1, gpus: int = 0) -> SubmitJob:
    template: dict[str, Any] = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    if seconds is not None:
        template["metadata"] = {"annotations": {"sim.muster.io/run-seconds": str(seconds)}}
    requests = (("cpu", 1000), ("memory", 1 << 30), *((("nvidia.com/gpu", gpus * 1000),) if gpus else ()))
    task = TaskGroup("worker", replicas, replicas, requests, template=msgspec.json.encode(template))
    return SubmitJob(
        JobSpec(f"{number * 2654435761 % (1 << 32):08x}{number:024x}", "default", f"job-{number}", "research", (task,))
    )


async def test_jobs_run_through_two_binders_of_which_one_leaves(tmp_path: Path) -> None:
    async with running_cell(tmp_path, "uniform:8x64cpu256Gi+8gpu") as cell, cell.binder("binder-1"):
        async with cell.binder("binder-2"):
            await cell.write(*(job(n, replicas=1 + n % 3, gpus=n % 2) for n in range(60)))
            await cell.until(lambda: JobState.SUCCEEDED in cell.states())
        await cell.write(*(job(n) for n in range(60, 90)))
        await cell.until(lambda: set(cell.states()) == {JobState.SUCCEEDED})
    verdict = audit.judge(list(cell.sim.audit.records))
    assert verdict.ok, verdict


async def test_a_cancelled_gang_leaves_nothing_running(tmp_path: Path) -> None:
    async with running_cell(tmp_path, "uniform:4x64cpu256Gi") as cell, cell.binder("binder-1"):
        gang = job(1, replicas=20, seconds=None)
        await cell.write(gang)
        await cell.until(lambda: cell.state.jobs[gang.spec.id].state is JobState.RUNNING)
        await cell.write(CancelJob(gang.spec.id))
        await cell.until(lambda: cell.state.jobs[gang.spec.id].state is JobState.CANCELLED, 60)
        page = cell.sim.store.table(next(kind for kind in cell.sim.api.kinds if kind.plural == "pods"))
        assert len(page) == 0


async def test_a_hostile_api_server_delays_and_duplicates_nothing(tmp_path: Path) -> None:
    async with running_cell(tmp_path, "uniform:8x64cpu256Gi") as cell, cell.binder("binder-1"):
        rule = FaultRule(
            resource="pods", share_429=0.1, share_500=0.1, share_drop=0.1, share_reply_lost=0.2, latency_jitter_ms=20
        )
        cell.sim.order(FaultOrder(rules=[rule]))
        await cell.write(*(job(n, replicas=1 + n % 2) for n in range(40)))
        await cell.until(lambda: set(cell.states()) == {JobState.SUCCEEDED}, 60)
    verdict = audit.judge(list(cell.sim.audit.records))
    assert verdict.ok, verdict
