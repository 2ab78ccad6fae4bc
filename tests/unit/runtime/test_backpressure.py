"""LOG-14: commands are refused before the inbox is full, with a hint, and facts are not."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from muster.core.model import InboxPosition
from muster.runtime.backpressure import MEASURE_INTERVAL_S, InboxFull, InboxGauge
from muster.runtime.streams import inbox_spec
from muster.sim.bus import SimNats
from muster.sim.loop import SimClock, run


class Committed:
    """Where the leader is."""

    def __init__(self) -> None:
        self.position = InboxPosition(1, 0)

    def __call__(self) -> InboxPosition:
        return self.position


def test_a_backlog_refuses_until_the_leader_has_caught_up() -> None:
    async def main() -> None:
        stream = await SimNats(SimClock(), Random(1)).connect("a").stream(inbox_spec("main"))
        committed = Committed()
        gauge = InboxGauge(stream, committed, clock=SimClock(), backlog_max=10)
        await gauge.check()
        for _ in range(11):
            await stream.publish(b"x")
        await asyncio.sleep(2 * MEASURE_INTERVAL_S)
        await gauge.check()  # answers at once with what it knows, and measures behind
        await asyncio.sleep(0.01)
        assert gauge.backlog_messages == 11
        with pytest.raises(InboxFull) as full:
            await gauge.check()
        assert full.value.retry_after_ms > 0
        committed.position = InboxPosition(9, 4)
        await gauge.check()

    run(main())


def test_the_last_fifth_of_the_stream_is_for_facts() -> None:
    async def main() -> None:
        spec = inbox_spec("main", max_bytes=100_000)
        stream = await SimNats(SimClock(), Random(1)).connect("a").stream(spec)
        gauge = InboxGauge(stream, Committed(), clock=SimClock())
        taken = 0

        async def take_all() -> None:
            nonlocal taken
            while True:
                await gauge.check()
                await stream.publish(bytes(1000))
                gauge.wrote(1000)
                taken += 1

        with pytest.raises(InboxFull) as full:
            await take_all()
        assert full.value.retry_after_ms >= 10_000, "only trimming makes room again"
        assert 75 <= taken <= 82
        await stream.publish(bytes(10_000))  # a fact

    run(main())
