"""Measures the log on a real nats-server with `sync_interval: always`: writing, committing, deciding, recovering.

    python loadtest/bench_log.py [--runs 5] [--jobs 100000] [--only recovery,inbox,...]

    inbox      submissions a second made durable, in batches of 100 by 50 callers (LOG-7)
    commits    transactions a second committed one after the other, small and large (LOG-4)
    leader     submissions a second read, decided, committed and applied, and the longest stall of the event loop
    recovery   a new follower: snapshot of all jobs, then as many transitions of the ledger (LOG-6)

Every figure is the median of the runs; all processes share this machine. Nothing here is part of the product.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import uvloop

from muster.core import commands, decide, snapshot
from muster.core import transitions as tr
from muster.core.apply import apply_transaction
from muster.core.model import InboxPosition, JobSpec, NodeSpec, PodPhase, QueueSpec, TaskGroup
from muster.core.state import CellState
from muster.runtime.candidate import Candidate
from muster.runtime.clock import SystemClock
from muster.runtime.committer import Committer
from muster.runtime.follower import Follower
from muster.runtime.gc import Collector
from muster.runtime.inbox import InboxWriter
from muster.runtime.nats_bus import NatsBus, connect
from muster.runtime.nats_server import NatsServer
from muster.runtime.ports import Stream
from muster.runtime.snapshots import SnapshotStore
from muster.runtime.streams import inbox_spec, leases_spec, ledger_spec, snapshots_spec
from muster.wire import codec

CELL = "main"
CALLERS = 50
BATCH = 100
CLOCK = SystemClock()
Figures = dict[str, float]


def job(number: int) -> commands.SubmitJob:
    group = TaskGroup(
        name="main",
        replicas=1,
        min_replicas=1,
        requests=(("cpu", 1000), ("memory", 4 << 30)),
        template=b'{"containers":[{"name":"main","image":"registry.example/train:1","args":["--epochs","3"]}]}',
    )
    spec = JobSpec(
        id=sha256(b"%d" % number).hexdigest()[:32],
        namespace="default",
        name=f"job-{number}",
        queue="team",
        tasks=(group,),
        request_id=f"request-{number // BATCH}",
        digest=sha256(b"d%d" % number).hexdigest(),
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    return commands.SubmitJob(spec)


def nodes(count: int) -> commands.NodesReported:
    allocatable = (("cpu", 32_000), ("memory", 128 << 30), ("pods", 110))
    specs = tuple(NodeSpec(cluster="c", name=f"node-{i:05}", allocatable=allocatable) for i in range(count))
    return commands.NodesReported(cluster="c", nodes=specs, first=True, complete=True)


QUEUE = commands.UpsertQueue(path="team", spec=QueueSpec(id="", name="team", parent=""))


class OffTheBus:
    """A leader without a bus: decides items and keeps the transactions' bytes."""

    def __init__(self) -> None:
        self.state = CellState(CELL)
        self.messages: list[bytes] = []
        self.transitions = 0
        self._inbox_seq = 0
        self.commit(decide.leader_elected(self.state, leader="bench", now_ms=CLOCK.now_ms()))

    def commit(self, tx: tr.Transaction) -> None:
        self.messages.append(codec.encode_transaction(tx))
        self.transitions += len(tx.transitions)
        assert apply_transaction(self.state, tx, len(self.messages))

    def run(self, items: Sequence[commands.AnyItem]) -> None:
        self._inbox_seq += 1
        entries = [(InboxPosition(self._inbox_seq, i), item) for i, item in enumerate(items)]
        more = True
        while more:
            now_ms = CLOCK.now_ms()
            decision = decide.decide(self.state, entries, now_ms, 50_000)
            more = decision.more
            if decision.transitions or decision.inbox_to != self.state.position:
                name = f"1-{len(self.messages)}"
                self.commit(
                    decide.transaction(self.state, decision, transaction_id=name, now_ms=now_ms, work_limit=50_000)
                )
            entries = [entry for entry in entries if entry[0] >= self.state.position]


@contextmanager
def nats_server() -> Iterator[NatsServer]:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory:
        server = NatsServer(Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()


# --- what is measured -----------------------------------------------------------------------------------------------


async def bench_inbox(bus: NatsBus, jobs: int) -> Figures:
    writer = InboxWriter(await bus.stream(inbox_spec(CELL)), clock=CLOCK)
    batches = [[job(i) for i in range(first, first + BATCH)] for first in range(0, jobs, BATCH)]
    waits: list[float] = []

    async def caller(mine: list[list[commands.SubmitJob]]) -> None:
        for batch in mine:
            began_s = time.perf_counter()
            await writer.write(batch)
            waits.append(time.perf_counter() - began_s)

    cpu_s, began_s = time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller(batches[c::CALLERS]) for c in range(CALLERS)))
    took_s = time.perf_counter() - began_s
    return {
        "inbox: submissions durable, per second": jobs / took_s,
        "inbox: CPU of the writer, us per submission": (time.process_time() - cpu_s) / jobs * 1e6,
        "inbox: write of 100, p50 ms": statistics.median(waits) * 1000,
        "inbox: write of 100, p99 ms": sorted(waits)[int(len(waits) * 0.99)] * 1000,
    }


async def bench_commits(bus: NatsBus, _jobs: int) -> Figures:
    ledger = await bus.stream(ledger_spec(CELL))
    committer = Committer(ledger, (await ledger.info()).last_seq, CLOCK)
    figures: Figures = {}
    for name, size, count in (("1 KiB", 1024, 500), ("256 KiB", 256 * 1024, 100)):
        data = os.urandom(size)
        began_s = time.perf_counter()
        for _ in range(count):
            await committer.commit(data)
        figures[f"commits: of {name}, per second"] = count / (time.perf_counter() - began_s)
    return figures


async def bench_leader(bus: NatsBus, jobs: int) -> Figures:
    writer = InboxWriter(await bus.stream(inbox_spec(CELL)), clock=CLOCK)
    await writer.write([QUEUE, nodes(1000)])
    for first in range(0, jobs, 1000):
        positions = await writer.write([job(i) for i in range(first, first + 1000)])
    follower = Follower(bus, CELL, clock=CLOCK)
    await follower.start()
    candidate = Candidate(
        follower, await bus.stream(inbox_spec(CELL)), await bus.stream(leases_spec()), replica="bench", clock=CLOCK
    )
    collector = Collector()
    collector.start()
    stalls: list[tuple[float, float]] = []
    watching = asyncio.create_task(watch_stalls(stalls))
    cpu_s, began_s = time.process_time(), time.perf_counter()
    leading = asyncio.create_task(candidate.run())
    await follower.wait_applied(positions[-1], 600)
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    for task in (leading, watching):
        task.cancel()
    await asyncio.gather(leading, watching, return_exceptions=True)
    collector.stop()
    return {
        "leader: submissions decided and committed, per second": jobs / took_s,
        "leader: CPU, us per submission": cpu_s / jobs * 1e6,
        "leader: transactions": follower.state.ledger_seq,
        **longest("leader", stalls),
    }


async def watch_stalls(stalls: list[tuple[float, float]]) -> None:
    """How late a timer is, and the loop's own CPU time meanwhile: on a busy machine only the second is ours."""
    while True:
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        await asyncio.sleep(0.005)
        stalls.append((time.perf_counter() - began_s - 0.005, time.thread_time() - cpu_s))


def longest(name: str, stalls: list[tuple[float, float]]) -> Figures:
    return {
        f"{name}: longest stall of the event loop, ms": max(wall for wall, _ in stalls) * 1000,
        f"{name}: longest stall, CPU ms": max(cpu for _, cpu in stalls) * 1000,
    }


async def bench_recovery(bus: NatsBus, jobs: int) -> Figures:
    """The state of `jobs` jobs in a snapshot, and about as many transitions behind it."""
    leader = OffTheBus()
    leader.run([QUEUE])
    for first in range(0, jobs, 1000):
        leader.run([job(i) for i in range(first, first + 1000)])
    ledger = await bus.stream(ledger_spec(CELL))
    await publish_all(ledger, leader.messages)
    store = SnapshotStore(await bus.stream(snapshots_spec(CELL)), CELL, CLOCK)
    began_s = time.perf_counter()
    parts = (codec.encode_snapshot_part(part) for part in snapshot.dump(leader.state))
    info = await store.write(parts, leader.state.ledger_seq, leader.state.position)
    snapshot_s = time.perf_counter() - began_s
    before, before_transitions = len(leader.messages), leader.transitions
    leader.run([nodes(jobs // 4 // 32)])  # room for a quarter of the jobs
    placed = [j for j in leader.state.jobs.values() if j.placement]
    for phase in (PodPhase.CREATED, PodPhase.RUNNING):
        for first in range(0, len(placed), 500):
            facts = tuple(commands.PodFact(j.spec.id, j.epoch, 0, phase) for j in placed[first : first + 500])
            leader.run([commands.PodsObserved("c", facts)])
    await publish_all(ledger, leader.messages[before:])

    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    follower = Follower(bus, CELL, clock=CLOCK)
    stalls: list[tuple[float, float]] = []
    watching = asyncio.create_task(watch_stalls(stalls))
    cpu_s, began_s = time.process_time(), time.perf_counter()
    await follower.start()
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    watching.cancel()
    assert follower.state.ledger_seq == leader.state.ledger_seq
    await follower.stop()

    probe = CellState(CELL)
    began_s = time.process_time()
    for seq, data in enumerate(leader.messages, 1):
        apply_transaction(probe, codec.decode_transaction(data), seq)
    apply_s = time.process_time() - began_s
    return {
        "recovery: jobs in the snapshot": jobs,
        "recovery: transitions behind it": leader.transitions - before_transitions,
        "recovery: seconds until caught up": took_s,
        "recovery: CPU seconds until caught up": cpu_s,
        **longest("recovery", stalls),
        "recovery: snapshot, MiB": info.bytes / 2**20,
        "recovery: snapshot written and verified, seconds": snapshot_s,
        "recovery: peak memory of this process, MiB": memory_mib,
        "follower: decode and apply, transitions per CPU second": leader.transitions / apply_s,
    }


async def publish_all(stream: Stream, messages: Sequence[bytes]) -> None:
    for first in range(0, len(messages), 16):
        await asyncio.gather(*(stream.publish(data) for data in messages[first : first + 16]))


BENCHES: dict[str, Callable[[NatsBus, int], Awaitable[Figures]]] = {
    "inbox": bench_inbox,
    "commits": bench_commits,
    "leader": bench_leader,
    "recovery": bench_recovery,
}


async def on_new_server(bench: Callable[[NatsBus, int], Awaitable[Figures]], jobs: int) -> Figures:
    with nats_server() as server:
        bus = await connect(server.url, name="bench")
        try:
            return await bench(bus, jobs)
        finally:
            await bus.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--only", default=",".join(BENCHES))
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f},")
    print(f"Python {platform.python_version()}, {arguments.jobs} jobs, median of {arguments.runs} runs")
    for name in arguments.only.split(","):
        runs: list[Figures] = []
        for _ in range(arguments.runs):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runs.append(runner.run(on_new_server(BENCHES[name], arguments.jobs)))
        for figure in runs[0]:
            values = [run[figure] for run in runs]
            print(f"  {figure:<58} {statistics.median(values):>12,.1f}   [{min(values):,.1f} .. {max(values):,.1f}]")


if __name__ == "__main__":
    main()
