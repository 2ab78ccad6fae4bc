"""Recovery: a queue-manager process that starts with 100,000 jobs in a snapshot and 100,000 transitions behind it.

The log is made once, by a leader without a bus, and stored on a real nats-server. Then queue-managers start on it one
after the other: exec to ready, exec to leading, and the longest stall of the event loop up to there and under the load
of 10,000 more submissions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import uvloop
from loadtest import workload
from loadtest.harness import Measure, Result, at_most, repeat
from loadtest.processes import CELL, Cell, Process
from loadtest.workload import CLOCK, OffTheBus

from muster.core import commands, snapshot
from muster.core.model import PodPhase
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.nats_bus import NatsBus, connect
from muster.runtime.ports import Stream
from muster.runtime.snapshots import SnapshotStore
from muster.runtime.streams import inbox_spec, ledger_spec, snapshots_spec
from muster.wire import codec

JOBS: Final = 100_000
PLACED: Final = 21_000  # each gives five transitions: placed, two pod phases, starting, running
MORE_JOBS: Final = 10_000
CHUNK: Final = 16
READY_MAX_S: Final = 4.0
STALL_MAX_MS: Final = 200.0
LEADING_TIMEOUT_S: Final = 30.0


async def fill(cell: Cell) -> str:
    """Store the log; returns what it holds, in words."""
    bus = await connect(cell.url, name="bench")
    leader = OffTheBus()
    leader.run([workload.queue()])
    for batch in workload.batches(workload.jobs(JOBS)):
        leader.run(batch)
    await fill_inbox(await bus.stream(inbox_spec(CELL)), leader.state.position.seq - 1)
    ledger = await bus.stream(ledger_spec(CELL))
    await publish_all(ledger, leader.messages)
    store = SnapshotStore(await bus.stream(snapshots_spec(CELL)), CELL, CLOCK)
    parts = (codec.encode_snapshot_part(part) for part in snapshot.dump(leader.state))
    info = await store.write(parts, leader.state.ledger_seq, leader.state.position)
    messages, transitions = len(leader.messages), leader.transitions
    leader.run([workload.nodes(1000, cpus=PLACED // 1000)])
    placed = [job for job in leader.state.jobs.values() if job.placement]
    for phase in (PodPhase.CREATED, PodPhase.RUNNING):
        for first in range(0, len(placed), 500):
            facts = tuple(commands.PodFact(j.spec.id, j.epoch, 0, phase) for j in placed[first : first + 500])
            leader.run([commands.PodsObserved("c", facts)])
    await fill_inbox(await bus.stream(inbox_spec(CELL)), leader.state.position.seq - 1)
    await publish_all(ledger, leader.messages[messages:])
    await bus.close()
    tail = leader.transitions - transitions
    if len(leader.state.jobs) < JOBS or tail < JOBS:
        raise RuntimeError(f"only {len(leader.state.jobs)} jobs and {tail} transitions")
    return f"{JOBS:,} jobs in {info.bytes / 2**20:.0f} MiB, then {tail:,} transitions"


async def fill_inbox(inbox: Stream, last_seq: int) -> None:
    """The inbox goes as far as the ledger says; nobody reads these messages again."""
    while (await inbox.info()).last_seq < last_seq:
        await inbox.publish(codec.encode_inbox([]))


async def publish_all(stream: Stream, messages: Sequence[bytes]) -> None:
    for first in range(0, len(messages), CHUNK):
        await asyncio.gather(*(stream.publish(data) for data in messages[first : first + CHUNK]))


async def submit_more(bus: NatsBus, first: int) -> None:
    """Give the leader more jobs, and wait until they are decided."""
    writer = InboxWriter(await bus.stream(inbox_spec(CELL)), clock=CLOCK)
    ledger = await bus.stream(ledger_spec(CELL))
    seq = (await ledger.info()).last_seq
    positions = []
    for batch in workload.batches([workload.job(n) for n in range(first, first + MORE_JOBS)], workload.BATCH):
        positions = await writer.write(batch)
    async for messages in ledger.read(seq + 1):
        if codec.decode_transaction(messages[-1].data).header.inbox_to > positions[-1]:
            return


async def load_it(cell: Cell, first: int) -> None:
    bus = await connect(cell.url, name="bench")
    try:
        await submit_more(bus, first)
    finally:
        await bus.close()


def leading_after_s(manager: Process, began_s: float) -> float:
    while not manager.metric("muster_queue_manager_leading"):
        if time.perf_counter() - began_s > LEADING_TIMEOUT_S:
            raise RuntimeError(f"no leader:\n{manager.log[-2000:]}")
        time.sleep(0.05)
    return time.perf_counter() - began_s


class Bench:
    def __init__(self, cell: Cell, what: str) -> None:
        self._cell = cell
        self._what = what
        self._runs = 0

    def once(self) -> list[Measure]:
        self._runs += 1
        began_s = time.perf_counter()
        manager = self._cell.service("muster_queue_manager", f"queue-manager-{self._runs}")
        manager.facts()
        ready_s, cpu_s = time.perf_counter() - began_s, manager.cpu_s()
        leading_s = leading_after_s(manager, began_s)
        uvloop.run(load_it(self._cell, JOBS + self._runs * MORE_JOBS))
        stall_ms, stall_note = manager.stalls()
        memory_mib = manager.memory_mib()
        self._cell.stop(manager)
        return [
            Measure(
                name="recovery: exec to ready",
                value=ready_s,
                unit="s",
                target=at_most(READY_MAX_S),
                cpu_us={"queue-manager": cpu_s * 1e6 / JOBS},
                note=self._what,
            ),
            Measure(name="recovery: exec to leading", value=leading_s, unit="s"),
            Measure(
                name="recovery: longest stall of the leader",
                value=stall_ms,
                unit="ms",
                target=at_most(STALL_MAX_MS),
                note=f"{stall_note}; loading, then {MORE_JOBS:,} more jobs; {memory_mib:.0f} MiB",
            ),
            uvloop.run(follow(self._cell)),
        ]


async def follow(cell: Cell) -> Measure:
    """The follower alone, in this process."""
    bus = await connect(cell.url, name="bench")
    follower = Follower(bus, CELL, clock=CLOCK)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    await follower.start()
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    await follower.stop()
    await bus.close()
    name = "recovery: follower alone, start to caught up"
    return Measure(name=name, value=took_s, unit="s", cpu_us={"bench": cpu_s / JOBS * 1e6})


def main(runs: int) -> list[Result]:
    with Cell() as cell:
        return repeat(runs, Bench(cell, asyncio.run(fill(cell))).once)
