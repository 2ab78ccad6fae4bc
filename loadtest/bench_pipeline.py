"""Submit -> Succeeded: real nats-server, admission and queue-manager, and an executor that reports back at once.

    submitter --gRPC--> admission -> inbox -> queue-manager -> ledger -> executor (here) -> PodsObserved -> inbox -> ...

The executor is this process: a follower that answers each placement with "all pods succeeded". What it leaves out is
Kubernetes, so this is what the log and the decisions cost. Jobs go through a small cluster in waves, as they fit.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import uvloop
from loadtest import workload
from loadtest.harness import Measure, Result, at_least, at_most, repeat
from loadtest.processes import CELL, Cell, CpuClock, Process
from loadtest.submitter import Order, Submitter
from loadtest.workload import CLOCK

from muster.core import transitions as tr
from muster.core.commands import PodFact, PodsObserved
from muster.core.model import PodPhase
from muster.runtime.follower import Follower
from muster.runtime.gc import Collector
from muster.runtime.inbox import InboxWriter
from muster.runtime.nats_bus import connect
from muster.runtime.streams import inbox_spec

JOBS: Final = 30_000
NODES: Final = 1000
TIMEOUT_S: Final = 180.0
STALL_MAX_MS: Final = 200.0


class Executor:
    """Follows the ledger and reports every placed pod as succeeded."""

    def __init__(self, follower: Follower, writer: InboxWriter) -> None:
        self.succeeded = 0
        self.done = asyncio.Event()
        self.expected = 0
        self._follower = follower
        self._writer = writer
        self._facts: list[PodFact] = []
        self._wake = asyncio.Event()
        follower.on_transaction(self._on_transaction)

    def _on_transaction(self, tx: tr.Transaction, _ledger_seq: int) -> None:
        for transition in tx.transitions:
            if isinstance(transition, tr.JobPlaced):
                pods = range(self._follower.state.jobs[transition.job].gang.pods)
                self._facts += [PodFact(transition.job, transition.epoch, pod, PodPhase.SUCCEEDED) for pod in pods]
            elif isinstance(transition, tr.JobSucceeded):
                self.succeeded += 1
        if self._facts:
            self._wake.set()
        if self.expected and self.succeeded >= self.expected:
            self.done.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            facts, self._facts = self._facts, []
            if facts:
                await self._writer.write([PodsObserved("c", tuple(facts))])


async def run_jobs(cell: Cell, admission: Process, manager: Process) -> list[Measure]:
    bus = await connect(cell.url, name="executor")
    follower = Follower(bus, CELL, clock=CLOCK)
    await follower.start()
    writer = InboxWriter(await bus.stream(inbox_spec(CELL)), clock=CLOCK)
    positions = await writer.write([workload.queue(), workload.nodes(NODES)])
    await follower.wait_applied(positions[-1], TIMEOUT_S)
    executor = Executor(follower, writer)
    executor.expected = JOBS
    collector = Collector()
    collector.start()
    running = asyncio.create_task(executor.run())
    submitter = Submitter(Order(address=admission.facts()["grpc"], jobs=JOBS, in_flight=2))
    try:
        cpu, began_s = CpuClock(cell), time.perf_counter()
        submitter.start()
        async with asyncio.timeout(TIMEOUT_S):
            await executor.done.wait()
        took_s = time.perf_counter() - began_s
        used = cpu.us_each(JOBS)
        lag = await relay_lag(follower, admission)
        latencies = submitter.latencies()
    finally:
        submitter.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        collector.stop()
    transactions = follower.state.ledger_seq
    await follower.stop()
    await bus.close()
    used["executor"] = used.pop("bench")
    p99_ms = latencies[int(len(latencies) * 0.99)] * 1e3
    stall_ms, stall_note = manager.stalls()
    note = f"{transactions} transactions, batch p99 {p99_ms:.0f} ms, event relay {lag} transactions behind"
    return [
        Measure(
            name="pipeline: submit -> Succeeded",
            value=JOBS / took_s,
            unit="/s",
            target=at_least(5000),
            cpu_us=used,
            note=note,
        ),
        Measure(
            name="pipeline: longest stall of the leader",
            value=stall_ms,
            unit="ms",
            target=at_most(STALL_MAX_MS),
            note=stall_note,
        ),
    ]


async def relay_lag(follower: Follower, admission: Process) -> int:
    """How many transactions the public events are behind; they are allowed to be late, and cost CPU later."""
    relayed = await asyncio.to_thread(admission.metric, "muster_events_relayed_seq")
    return follower.state.ledger_seq - int(relayed)


def once() -> list[Measure]:
    with Cell() as cell:
        manager = cell.service("muster_queue_manager", "queue-manager")
        admission = cell.service("muster_admission", "admission")
        manager.facts()
        admission.facts()
        return uvloop.run(run_jobs(cell, admission, manager))


def main(runs: int) -> list[Result]:
    return repeat(runs, once)
