"""What the fake bus does wrong on demand. What it does right is in the contract suite."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random

import pytest

from muster.runtime.bus_errors import ConnectionClosed
from muster.runtime.ports import Conflict, OutcomeUnknown, Stream, StreamSpec
from muster.sim.bus import Faults, SimNats
from muster.sim.loop import SimClock, run

SPEC = StreamSpec(name="S", subjects=("s",))


def server(seed: int = 1, **faults: float) -> SimNats:
    return SimNats(SimClock(), Random(seed), Faults(**faults))


async def read(stream: Stream, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with aclosing(stream.read(1)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            found.extend(m.data for m in batch)
            if len(found) >= count:
                return found
    return found


def test_a_lost_answer_was_stored_a_lost_request_was_not() -> None:
    async def main() -> None:
        nats = server()
        stream = await nats.connect("a").stream(SPEC)
        nats.faults.answer_lost_chance = 1.0
        with pytest.raises(OutcomeUnknown):
            await stream.publish(b"stored")
        nats.faults.answer_lost_chance, nats.faults.request_lost_chance = 0.0, 1.0
        with pytest.raises(OutcomeUnknown):
            await stream.publish(b"lost")
        nats.faults.request_lost_chance = 0.0
        assert (await stream.info()).last_seq == 1

    run(main())


def test_what_is_late_arrives_after_its_sender_gave_up() -> None:
    async def main() -> None:
        nats = server(stall_chance=1.0, stall_s=8.0)
        stream = await nats.connect("a").stream(SPEC)
        with pytest.raises(OutcomeUnknown):
            await stream.publish(b"late", timeout_s=1.0)
        nats.faults.stall_chance = 0.0
        with pytest.raises(Conflict):  # on the same connection, so behind the late one
            await stream.publish(b"next", expected_last_seq=0, timeout_s=20.0)
        assert await read(stream, 1) == [b"late"]

    run(main())


def test_a_partition_leaves_outcomes_open_and_ends() -> None:
    async def main() -> set[int]:
        outcomes: set[int] = set()
        for seed in range(20):
            nats = server(seed, delay_min_s=0.01, delay_max_s=0.02)
            stream = await nats.connect("a").stream(SPEC)
            reading = asyncio.create_task(read(stream, 2))
            publishing = asyncio.create_task(stream.publish(b"1"))
            await asyncio.sleep(0.001)
            nats.partition("a")
            with pytest.raises(OutcomeUnknown):
                await publishing
            with pytest.raises(OutcomeUnknown):
                await stream.publish(b"x", timeout_s=0.5)
            outcomes.add(nats.streams["S"].last_seq)
            assert not reading.done()
            nats.heal("a")
            await stream.publish(b"2")
            await stream.publish(b"3")
            assert (await reading)[-1] in {b"2", b"3"}
        return outcomes

    assert run(main()) == {0, 1}


def test_a_crashed_client_is_gone_and_others_are_not() -> None:
    async def main() -> None:
        nats = server()
        crashed, other = nats.connect("a"), nats.connect("b")
        stream = await crashed.stream(SPEC)
        nats.crash("a")
        await crashed.wait_closed()
        with pytest.raises(ConnectionClosed):
            await stream.publish(b"x")
        assert await (await other.stream(SPEC)).publish(b"y") == 1

    run(main())


def test_the_same_seed_gives_the_same_run() -> None:
    async def main() -> list[object]:
        nats = server(5, delay_max_s=0.01, request_lost_chance=0.2, answer_lost_chance=0.2, short_batch_chance=0.5)
        streams = [await nats.connect(c).stream(SPEC) for c in "abc"]
        tries = (s.publish(b"%d" % i, expected_last_seq=i) for i in range(5) for s in streams)
        results = await asyncio.gather(*tries, return_exceptions=True)
        return [repr(r) for r in results] + [m.data for m in nats.streams["S"].messages.values()]

    assert run(main()) == run(main())
