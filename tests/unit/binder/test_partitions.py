"""Partitions over replicas, on virtual time with the JetStream fake."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from muster.runtime.streams import leases_spec
from muster.sim import loop
from muster.sim.bus import SimNats
from muster_binder.partitions import PARTITIONS, PartitionLeases, partition_of


class Replica:
    def __init__(self, leases: PartitionLeases) -> None:
        self.leases = leases
        self.fit = True
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self.leases.run(lambda: self.fit))

    async def kill(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def holds(self) -> list[int]:
        return [p for p in range(PARTITIONS) if self.leases.holds(p)]


@asynccontextmanager
async def replicas(count: int) -> Any:
    server = SimNats(loop.SimClock(), Random(5))
    found = []
    for number in range(count):
        bus = server.connect(f"b-{number}")
        stream = await bus.stream(leases_spec())
        found.append(Replica(PartitionLeases(stream, "binder-main-sim", f"b-{number}", clock=loop.SimClock())))
    yield found
    for replica in found:
        if replica.task is not None and not replica.task.done():
            await replica.kill()


def assert_shared(*holders: Replica) -> None:
    counts = Counter(p for replica in holders for p in replica.holds)
    assert sorted(counts) == list(range(PARTITIONS)), counts
    assert set(counts.values()) == {1}, counts
    sizes = [len(replica.holds) for replica in holders]
    assert max(sizes) - min(sizes) <= 1, sizes


def test_jobs_spread_over_partitions() -> None:
    counts = Counter(partition_of(f"{n * 2654435761 % (1 << 32):08x}" + "0" * 24) for n in range(1600))
    assert set(counts) == set(range(PARTITIONS))
    assert max(counts.values()) < 200


def test_live_replicas_share_evenly_as_they_come_and_go() -> None:
    async def scenario() -> None:
        async with replicas(3) as (a, b, c):
            a.start()
            await asyncio.sleep(6)
            assert_shared(a)
            b.start()
            c.start()
            await asyncio.sleep(6)
            assert_shared(a, b, c)
            await b.kill()  # kill -9: nothing is released
            await asyncio.sleep(8)
            assert_shared(a, c)
            await c.kill()
            await c.leases.release()  # a graceful stop
            await asyncio.sleep(2.5)
            assert_shared(a)

    loop.run(scenario())


def test_a_partition_is_never_held_twice_while_shares_move() -> None:
    async def scenario() -> None:
        async with replicas(3) as found:
            started = 0
            for step in range(400):
                if step in (0, 40, 80):
                    found[started].start()
                    started += 1
                if step == 200:
                    await found[1].kill()
                alive = [r for r in found if r.task is not None and not r.task.done()]
                counts = Counter(p for replica in alive for p in replica.holds)
                assert all(count == 1 for count in counts.values()), (step, counts)
                await asyncio.sleep(0.1)

    loop.run(scenario())


def test_a_replica_that_is_not_fit_leaves_its_share_to_others_and_comes_back() -> None:
    async def scenario() -> None:
        async with replicas(2) as (a, b):
            a.start()
            b.start()
            await asyncio.sleep(6)
            assert_shared(a, b)
            a.fit = False
            await asyncio.sleep(6)
            assert a.holds == []
            assert_shared(b)
            a.fit = True
            await asyncio.sleep(6)
            assert_shared(a, b)

    loop.run(scenario())


def test_a_replica_cut_off_from_nats_stops_acting_before_others_begin() -> None:
    async def scenario() -> None:
        server = SimNats(loop.SimClock(), Random(5))
        buses = [server.connect(f"b-{n}") for n in range(2)]
        a, b = [
            Replica(PartitionLeases(await bus.stream(leases_spec()), "g", f"b-{n}", clock=loop.SimClock()))
            for n, bus in enumerate(buses)
        ]
        a.start()
        b.start()
        await asyncio.sleep(6)
        server.partition("b-0")
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert not set(a.holds) & set(b.holds)
        assert a.holds == []
        assert_shared(b)
        server.heal("b-0")
        await asyncio.sleep(10)
        assert_shared(a, b)
        await a.kill()
        await b.kill()

    loop.run(scenario())
