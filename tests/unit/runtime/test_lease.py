"""LOG-5: one holder at a time, nobody's clock compared, and an unclear renewal is looked up before giving up."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from muster.runtime.lease import TTL_S, Lease, LeaseLost
from muster.runtime.streams import leases_spec
from muster.sim.bus import SimNats
from muster.sim.loop import SimClock, run


class Cell:
    """A fake server and leases on it, one connection each."""

    def __init__(self, seed: int = 1) -> None:
        self.nats = SimNats(SimClock(), Random(seed))

    async def lease(self, owner: str, clock: SimClock | None = None) -> Lease:
        stream = await self.nats.connect(owner).stream(leases_spec())
        return Lease(stream, "main.leader", owner, clock=clock or SimClock())


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_the_first_gets_it_at_once_and_the_second_waits_until_it_is_released() -> None:
    async def main() -> None:
        cell = Cell()
        a, b = await cell.lease("a"), await cell.lease("b")
        assert await a.try_acquire()
        assert not await b.try_acquire()
        assert b.holder == "a"
        holding = asyncio.create_task(a.hold())
        waiting = asyncio.create_task(b.acquire())
        await asyncio.sleep(10 * TTL_S)
        assert not waiting.done(), "a renewed lease does not run out"
        holding.cancel()
        await a.release()
        released_s = now_s()
        await waiting
        assert now_s() - released_s < TTL_S / 2
        assert (a.valid(), b.valid()) == (False, True)

    run(main())


def test_a_silent_holder_is_replaced_after_the_ttl_whatever_the_wall_clocks_say() -> None:
    async def main() -> None:
        cell = Cell()
        a, b = await cell.lease("a", SimClock(-3_600_000)), await cell.lease("b", SimClock(3_600_000))
        await a.acquire()
        began_s = now_s()
        await b.acquire()
        assert TTL_S <= now_s() - began_s < TTL_S + 0.5
        assert not a.valid()
        with pytest.raises(LeaseLost):
            await a.renew()
        assert a.holder == "b"

    run(main())


def test_of_many_contenders_one_wins() -> None:
    async def main() -> None:
        cell = Cell()
        leases = [await cell.lease(f"q{i}") for i in range(10)]
        await asyncio.gather(*(lease.try_acquire() for lease in leases))
        assert sum(lease.held for lease in leases) == 1

    run(main())


@pytest.mark.parametrize("fault", ["answer_lost_chance", "request_lost_chance"])
def test_a_renewal_without_answer_is_not_the_end(fault: str) -> None:
    """Without reading the owner again, the holder would give up (or renew on a sequence that has moved)."""

    async def main() -> None:
        cell = Cell()
        a = await cell.lease("a")
        await a.acquire()
        holding = asyncio.create_task(a.hold())
        for _ in range(3):
            await asyncio.sleep(TTL_S / 3)
            setattr(cell.nats.faults, fault, 1.0 if fault == "answer_lost_chance" else 0.7)
            await asyncio.sleep(TTL_S / 3)
            setattr(cell.nats.faults, fault, 0.0)
            await asyncio.sleep(TTL_S)
        assert not holding.done()
        assert a.valid()
        holding.cancel()

    run(main())


def test_a_holder_cut_off_from_nats_keeps_believing_until_it_sees_another_name() -> None:
    async def main() -> None:
        cell = Cell()
        a, b = await cell.lease("a"), await cell.lease("b")
        await a.acquire()
        holding = asyncio.create_task(a.hold())
        cell.nats.partition("a")
        await asyncio.sleep(2 * TTL_S)
        assert a.held, "not lost as far as it knows"
        assert not a.valid(), "but it may not rely on it"
        await b.acquire()
        cell.nats.heal("a")
        with pytest.raises(LeaseLost):
            await holding

    run(main())


def test_an_acquisition_whose_answer_was_lost_is_found_at_the_next_look() -> None:
    async def main() -> None:
        cell = Cell()
        a = await cell.lease("a")
        cell.nats.faults.answer_lost_chance = 1.0
        assert not await a.try_acquire()
        cell.nats.faults.answer_lost_chance = 0.0
        assert await a.try_acquire()
        await a.renew()

    run(main())


def test_a_restarted_replica_is_not_its_former_self() -> None:
    async def main() -> None:
        cell = Cell()
        await (await cell.lease("a")).acquire()
        await asyncio.sleep(1)
        again = await cell.lease("a")
        assert not await again.try_acquire()

    run(main())
