"""The log on a real nats-server with `sync_interval: always`: writing, committing, deciding (LOG-4, LOG-7).

inbox      submissions made durable, in batches of 100 by 50 callers of one writer
commits    transactions committed one after the other, small and large
leader     submissions read, decided, committed and applied by a production leader's term
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import uvloop
from loadtest import workload
from loadtest.harness import Measure, Result, at_most, repeat
from loadtest.processes import CELL, Cell, CpuClock
from loadtest.workload import CLOCK

from muster.core import commands
from muster.runtime.candidate import Candidate
from muster.runtime.committer import Committer
from muster.runtime.follower import Follower
from muster.runtime.gc import Collector
from muster.runtime.inbox import InboxWriter
from muster.runtime.nats_bus import NatsBus, connect
from muster.runtime.streams import inbox_spec, leases_spec, ledger_spec

JOBS: Final = 50_000
CALLERS: Final = 50
STALL_PROBE_S: Final = 0.005
STALL_MAX_MS: Final = 200.0

Bench = Callable[[NatsBus, Cell], Awaitable[Sequence[Measure]]]


async def inbox(bus: NatsBus, cell: Cell) -> list[Measure]:
    writer = InboxWriter(await bus.stream(inbox_spec(CELL)), clock=CLOCK)
    batches = list(workload.batches(workload.jobs(JOBS), workload.BATCH))
    waits: list[float] = []

    async def caller(mine: list[Sequence[commands.AnyItem]]) -> None:
        for batch in mine:
            began_s = time.perf_counter()
            await writer.write(batch)
            waits.append(time.perf_counter() - began_s)

    cpu, began_s = CpuClock(cell), time.perf_counter()
    await asyncio.gather(*(caller(batches[n::CALLERS]) for n in range(CALLERS)))
    took_s = time.perf_counter() - began_s
    waits.sort()
    note = f"write of 100: p50 {waits[len(waits) // 2] * 1e3:.0f} ms, p99 {waits[len(waits) * 99 // 100] * 1e3:.0f} ms"
    return [
        Measure(
            name="log: submissions durable in the inbox",
            value=JOBS / took_s,
            unit="/s",
            cpu_us=cpu.us_each(JOBS),
            note=note,
        )
    ]


async def commits(bus: NatsBus, cell: Cell) -> list[Measure]:
    ledger = await bus.stream(ledger_spec(CELL))
    committer = Committer(ledger, (await ledger.info()).last_seq, CLOCK)
    measures = []
    for name, size, count in (("1 KiB", 1024, 500), ("256 KiB", 256 * 1024, 100)):
        data = os.urandom(size)
        cpu, began_s = CpuClock(cell), time.perf_counter()
        for _ in range(count):
            await committer.commit(data)
        rate = count / (time.perf_counter() - began_s)
        measures.append(
            Measure(name=f"log: commits of {name}, in turn", value=rate, unit="/s", cpu_us=cpu.us_each(count))
        )
    return measures


async def leader(bus: NatsBus, cell: Cell) -> list[Measure]:
    writer = InboxWriter(await bus.stream(inbox_spec(CELL)), clock=CLOCK)
    await writer.write([workload.queue(), workload.nodes(1000)])
    for batch in workload.batches(workload.jobs(JOBS)):
        positions = await writer.write(batch)
    follower = Follower(bus, CELL, clock=CLOCK)
    await follower.start()
    candidate = Candidate(
        follower, await bus.stream(inbox_spec(CELL)), await bus.stream(leases_spec()), replica="bench", clock=CLOCK
    )
    collector = Collector()
    collector.start()
    stalls: list[tuple[float, float]] = []
    watching = asyncio.create_task(watch_stalls(stalls))
    cpu, began_s = CpuClock(cell), time.perf_counter()
    leading = asyncio.create_task(candidate.run())
    await follower.wait_applied(positions[-1], 600)
    took_s = time.perf_counter() - began_s
    used = cpu.us_each(JOBS)
    for task in (leading, watching):
        task.cancel()
    await asyncio.gather(leading, watching, return_exceptions=True)
    collector.stop()
    note = f"{follower.state.ledger_seq} transactions"
    longest_ms = max(cpu_s for _, cpu_s in stalls) * 1e3
    return [
        Measure(name="log: submissions decided and committed", value=JOBS / took_s, unit="/s", cpu_us=used, note=note),
        Measure(
            name="log: longest stall of the leader's loop, its CPU time",
            value=longest_ms,
            unit="ms",
            target=at_most(STALL_MAX_MS),
            note=f"wall {max(wall_s for wall_s, _ in stalls) * 1e3:.0f} ms",
        ),
    ]


async def watch_stalls(stalls: list[tuple[float, float]]) -> None:
    """How late a timer is, and the loop's own CPU time meanwhile: on a busy machine only the second is ours."""
    while True:
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        await asyncio.sleep(STALL_PROBE_S)
        stalls.append((time.perf_counter() - began_s - STALL_PROBE_S, time.thread_time() - cpu_s))


async def on_a_connection(bench: Bench, cell: Cell) -> Sequence[Measure]:
    bus = await connect(cell.url, name="bench")
    try:
        return await bench(bus, cell)
    finally:
        await bus.close()


def once() -> list[Measure]:
    measures: list[Measure] = []
    for bench in (inbox, commits, leader):
        with Cell() as cell:
            measures += uvloop.run(on_a_connection(bench, cell))
    return measures


def main(runs: int) -> list[Result]:
    return repeat(runs, once)
