"""Pods end to end: every process of a cell and a simulated cluster, from submission to "the pod has succeeded".

    submitter -> admission -> queue-manager -> binder -> API server (simulated) -> kubelets -> watch -> binder -> ...

One binder, jobs of one pod that run for a moment. The simulated cluster shares the machine, so its CPU time is shown
beside that of Muster's own processes; on a real cluster it is somebody else's.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Final

import uvloop
from loadtest import workload
from loadtest.harness import Measure, Result, at_least, repeat
from loadtest.processes import CELL, Cell, CpuClock, Process, until
from loadtest.submitter import Order, Submitter
from loadtest.workload import CLOCK

from muster.core import transitions as tr
from muster.runtime.inbox import InboxWriter
from muster.runtime.nats_bus import connect
from muster.runtime.ports import Stream
from muster.runtime.streams import inbox_spec, ledger_spec
from muster.wire import codec

PODS: Final = 4000
NODES: Final = 400
CPUS: Final = 64
RUN_SECONDS: Final = "0.05"
TIMEOUT_S: Final = 180.0
OURS: Final = ("queue-manager", "admission", "binder", "topology-updater", "nats")


class Progress:
    """Counts what the ledger says, without a state."""

    def __init__(self) -> None:
        self.nodes = self.placed = self.succeeded = 0
        self.other: dict[str, int] = {}

    async def follow(self, ledger: Stream) -> None:
        async for batch in ledger.read(1):
            for message in batch:
                for transition in codec.decode_transaction(message.data).transitions:
                    self._count(transition)

    def _count(self, transition: tr.Transition) -> None:
        if isinstance(transition, tr.NodeUpserted):
            self.nodes += 1
        elif isinstance(transition, tr.JobPlaced):
            self.placed += 1
        elif isinstance(transition, tr.JobSucceeded):
            self.succeeded += 1
        elif isinstance(transition, (tr.JobStopping, tr.JobRequeued, tr.JobFailed)):
            name = type(transition).__name__
            self.other[name] = self.other.get(name, 0) + 1


def start_cluster(cell: Cell) -> str:
    """The simulated cluster's URL."""
    nodes = f"uniform:{NODES}x{CPUS}cpu256Gi"
    process = cell.start("cluster", "muster.sim.cluster", ("--cluster", "sim-a", "--nodes", nodes, "--port", "0"), {})
    deadline_s = time.monotonic() + TIMEOUT_S
    while '"ready"' not in process.log:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the simulated cluster did not start:\n{process.log}")
        time.sleep(0.05)
    line = next(line for line in process.log.splitlines() if '"ready"' in line)
    url: str = json.loads(line)["clusters"][0]["url"]
    return url


def start_services(cell: Cell, cluster_url: str) -> Mapping[str, Process]:
    environment = {"MUSTER_CLUSTERS": f"sim-a={cluster_url}"}
    services = {
        name: cell.service(f"muster_{name.replace('-', '_')}", name, environment)
        for name in ("queue-manager", "admission", "topology-updater", "binder")
    }
    for service in services.values():
        service.facts()
    return services


async def run_pods(cell: Cell, services: Mapping[str, Process]) -> list[Measure]:
    bus = await connect(cell.url, name="bench")
    progress = Progress()
    following = asyncio.create_task(progress.follow(await bus.stream(ledger_spec(CELL))))
    writer = InboxWriter(await bus.stream(inbox_spec(CELL)), clock=CLOCK)
    await writer.write([workload.queue()])
    await until(lambda: progress.nodes >= NODES)
    await until(lambda: services["binder"].metric("muster_binder_partitions") >= 1, poll_s=0.5)
    annotations = {"sim.muster.io/run-seconds": RUN_SECONDS}
    order = Order(
        address=services["admission"].facts()["grpc"],
        jobs=PODS,
        connections=1,
        in_flight=1,
        cpu_millis=1000,
        annotations=annotations,
    )
    submitter = Submitter(order)
    try:
        cpu, began_s = CpuClock(cell), time.perf_counter()
        submitter.start()
        await until(lambda: progress.succeeded >= PODS, TIMEOUT_S)
        took_s = time.perf_counter() - began_s
        used = cpu.us_each(PODS)
        submitter.latencies()
    finally:
        submitter.cancel()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    await bus.close()
    ours_us = sum(used[name] for name in OURS)
    note = f"{progress.other or 'no retries'}; without the simulated cluster {ours_us:.0f}"
    return [
        Measure(
            name="pods: submit -> pod succeeded, simulated cluster",
            value=PODS / took_s,
            unit="/s",
            target=at_least(500),
            cpu_us=used,
            note=note,
        )
    ]


def once() -> list[Measure]:
    with Cell() as cell:
        url = start_cluster(cell)
        services = start_services(cell, url)
        return uvloop.run(run_pods(cell, services))


def main(runs: int) -> list[Result]:
    return repeat(runs, once)
