"""A whole cell as `muster up` runs it, in the hands of a test that kills its processes.

The layout (`stack.plan`) and the supervisor are those of `muster up`; added are a second admission, frequent snapshots,
and readers of the ledger and of the events that stay connected through everything and keep every message they got.
Who leads is read from the ledger.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tests.patience import PATIENCE_S, POLL_S

from muster.cli import stack
from muster.cli.ports import HOST, PortPicker
from muster.cli.supervisor import Child, ChildEvent, ChildSpec, Supervisor
from muster.core import transitions as tr
from muster.core.model import InboxPosition
from muster.runtime.candidate import leader_lease_name
from muster.runtime.nats_bus import NatsBus, connect
from muster.runtime.ports import StoredMessage, Stream, StreamSpec
from muster.runtime.streams import events_spec, lease_subject, leases_spec, ledger_spec
from muster.wire import codec

CELL = stack.CELL
CLUSTER = "sim-a"
NATS = "nats-server"
SNAPSHOT_EVERY_TRANSACTIONS = 100  # so that snapshots are being written and read while processes die
PORTS = range(20_000, 30_000)  # nobody's usual ones: a killed server's port must still be free when it comes back


class Tail:
    """Follows a stream from its first message on; what it got must in the end be what is stored."""

    def __init__(self, url: str, spec: StreamSpec) -> None:
        self.messages: list[StoredMessage] = []
        self._url = url
        self._spec = spec

    async def run(self) -> None:
        bus = await connect(self._url, name=f"tail of {self._spec.name}")
        try:
            stream = await bus.stream(self._spec)
            async for batch in stream.read(1):
                for message in batch:
                    self.got(message)
        finally:
            await bus.close()

    def got(self, message: StoredMessage) -> None:
        self.messages.append(message)


class LedgerTail(Tail):
    """The ledger as it grows: who leads, how much of the inbox is decided, and which jobs have ended."""

    def __init__(self, url: str) -> None:
        super().__init__(url, ledger_spec(CELL))
        self.leader = ""
        self.inbox_to = InboxPosition(1, 0)
        self.ended: set[str] = set()

    def got(self, message: StoredMessage) -> None:
        super().got(message)
        tx = codec.decode_transaction(message.data)
        self.inbox_to = tx.header.inbox_to
        for transition in tx.transitions:
            if isinstance(transition, tr.LeaderElected):
                self.leader = transition.leader
            elif isinstance(transition, (tr.JobSucceeded, tr.JobFailed, tr.JobCancelled)):
                self.ended.add(transition.job)


class KillCell:
    """Everything that runs. Made by `running`."""

    def __init__(self, run_dir: Path, plan: stack.Stack, second_grpc: str) -> None:
        self.run_dir = run_dir
        self.plan = plan
        self.grpc = f"ipv4:{plan.grpc},{second_grpc}"  # whichever of the two answers
        self.events: list[tuple[float, ChildEvent]] = []
        self.ledger = LedgerTail(plan.nats_url)
        self.public = Tail(plan.nats_url, events_spec())
        self.supervisor = Supervisor(run_dir, lambda event: self.events.append((time.time(), event)))
        self._tails: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        supervisor, plan = self.supervisor, self.plan
        nats = await supervisor.start(plan.nats)
        await supervisor.wait_ready(nats, PATIENCE_S)
        children = [await supervisor.start(spec) for spec in (*plan.clusters, *plan.services)]
        await asyncio.gather(*(supervisor.wait_ready(child, PATIENCE_S) for child in children))
        self._tails = [asyncio.create_task(tail.run()) for tail in (self.ledger, self.public)]

    async def stop(self) -> None:
        for task in self._tails:
            task.cancel()
        await asyncio.gather(*self._tails, return_exceptions=True)
        await self.supervisor.stop()

    def check(self) -> None:
        """Raises what a reader stopped at, and for a child that is not started again."""
        for task in self._tails:
            if task.done():
                task.result()
        gave_up = [event.text for _, event in self.events if event.kind == "gave-up"]
        assert not gave_up, gave_up

    def child(self, name: str) -> Child:
        return self.supervisor.children[name]

    async def alive(self, name: str, timeout_s: float = PATIENCE_S) -> Child:
        """The child, once it has a process."""
        child = self.child(name)
        await until(lambda: bool(child.pid), timeout_s, f"{name} is started again")
        return child

    @property
    def queue_managers(self) -> list[str]:
        return sorted(name for name in self.supervisor.children if name.startswith("qm-"))

    async def leader_with_standby(self) -> tuple[str, str]:
        """(leader, standby), once the leader renews its lease, the other one stands by and NATS stores. So a takeover
        that is measured is that of one process, not of several that happened to be down together."""

        def settled() -> bool:
            names = self.queue_managers
            return self.ledger.leader in names and all(self.child(name).ready for name in names)

        bus = await self.bus()
        try:
            leases = await bus.stream(leases_spec())
            while True:
                await until(settled, PATIENCE_S, "a leader and a standby are ready")
                leader, process = self.ledger.leader, self.child(self.ledger.leader).process
                await self._renewal(leases)
                if settled() and self.ledger.leader == leader and self.child(leader).process is process:
                    (standby,) = (name for name in self.queue_managers if name != leader)
                    return leader, standby
        finally:
            await bus.close()

    async def _renewal(self, leases: Stream) -> None:
        """Wait until the leader's lease is written to."""
        subject = lease_subject(leader_lease_name(CELL))
        before = await leases.last(subject)
        async with asyncio.timeout(PATIENCE_S):
            while (last := await leases.last(subject)) is None or (before is not None and last.seq == before.seq):
                await asyncio.sleep(POLL_S)

    async def kill(self, name: str) -> float:
        """SIGKILL; returns when, in seconds since the epoch."""
        child = await self.alive(name)
        at_s = time.time()
        os.kill(child.pid, signal.SIGKILL)
        return at_s

    async def metric(self, replica: str, name: str) -> float:
        address = self.plan.metrics[replica]

        def fetch() -> str:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
                text: str = answer.read().decode()
                return text

        lines = (await asyncio.to_thread(fetch)).splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def log(self, replica: str) -> str:
        return self.child(replica).log_path.read_text(errors="replace")

    async def bus(self) -> NatsBus:
        return await connect(self.plan.nats_url, name="kill test")


@asynccontextmanager
async def running(run_dir: Path, nodes: str, patch: pytest.MonkeyPatch) -> AsyncIterator[KillCell]:
    """A cell with two of each service that has a lease, started and at the end stopped."""
    base = Random(os.getpid() + time.monotonic_ns()).randrange(PORTS.start, PORTS.stop, 100)
    patch.setattr(stack, "NATS_PORT", base)
    patch.setattr(stack, "KUBE_PORT", base + 20)
    patch.setattr(stack, "METRICS_PORT", base + 40)
    size = stack.Size(nodes=nodes, clusters=1, sockets=2, queue_managers=2, binders=2, grpc_port=base + 80)
    plan = stack.plan(run_dir, size)
    ports = PortPicker()
    grpc, metrics = (f"{HOST}:{ports.pick(preferred)}" for preferred in (base + 94, base + 97))
    services = tuple(_snapshotting(spec) for spec in plan.services)
    second = _second_admission(services[0], run_dir, grpc, metrics)
    plan = replace(plan, services=(*services, second), metrics={**plan.metrics, second.name: metrics})
    cell = KillCell(run_dir, plan, grpc)
    try:
        await cell.start()
        yield cell
    finally:
        await cell.stop()


def _snapshotting(spec: ChildSpec) -> ChildSpec:
    return replace(spec, env={**spec.env, "MUSTER_SNAPSHOT_EVERY_TRANSACTIONS": str(SNAPSHOT_EVERY_TRANSACTIONS)})


def _second_admission(first: ChildSpec, run_dir: Path, grpc: str, metrics: str) -> ChildSpec:
    ready = run_dir / "ready" / "admission-2.json"
    env = {
        **first.env,
        "MUSTER_REPLICA": "admission-2",
        "MUSTER_GRPC_ADDRESS": grpc,
        "MUSTER_METRICS_ADDRESS": metrics,
        "MUSTER_READY_FILE": str(ready),
    }
    return replace(first, name="admission-2", env=env, ready_file=ready)


async def until(condition, timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        await asyncio.sleep(POLL_S)
