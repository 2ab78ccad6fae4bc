"""LOG-7 and its bounds: company is waited for, and a bus that does not answer fills no memory."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.runtime.cells import SimCell, job
from tests.unit.runtime.test_inbox import names, with_template

from muster.core.model import InboxPosition
from muster.runtime import inbox
from muster.runtime.backpressure import InboxFull, InboxGauge
from muster.runtime.inbox import GIVE_UP_S, IN_FLIGHT_MAX, LINGER_S, InboxWriter
from muster.runtime.ports import OutcomeUnknown
from muster.sim.bus import Faults
from muster.sim.loop import SimClock, run

SIZE = 10_000


def queued(writer: InboxWriter) -> int:
    return writer._queued_bytes


async def silent(cell: SimCell) -> None:
    """From now on nothing is stored."""
    cell.nats.faults.request_lost_chance = 1.0


async def many(writer: InboxWriter, first: int, count: int) -> list[asyncio.Task[list[InboxPosition]]]:
    writes = [asyncio.create_task(writer.write([with_template(first + n, SIZE)])) for n in range(count)]
    await asyncio.sleep(0.001)
    return writes


def test_company_that_comes_one_after_the_other_is_waited_for() -> None:
    async def main() -> None:
        cell = SimCell(faults=Faults(delay_min_s=0.05, delay_max_s=0.05))
        writer = await cell.writer()
        writes = []
        for n in range(20):
            writes.append(asyncio.create_task(writer.write([job(n)])))
            await asyncio.sleep(LINGER_S / 25)
        await asyncio.gather(*writes)
        assert len(cell.nats.streams["INBOX_main"].messages) <= 3

    run(main())


def test_what_nobody_waits_for_any_more_is_not_sent() -> None:
    async def main() -> None:
        cell = SimCell()
        writer = await cell.writer()
        await silent(cell)
        sent = [asyncio.create_task(writer.write([job(n)])) for n in range(IN_FLIGHT_MAX)]
        for n in range(IN_FLIGHT_MAX):
            await asyncio.sleep(LINGER_S + 0.001)
            assert not sent[n].done()
        gone, stay = await many(writer, 1000, 30), await many(writer, 2000, 2)
        assert queued(writer) > 30 * SIZE
        for write in gone:
            write.cancel()
        await asyncio.wait(gone)
        assert queued(writer) < 3 * SIZE
        assert len(writer._queue) <= 4, "what is dropped is also forgotten"
        cell.nats.faults.request_lost_chance = 0.0
        await asyncio.gather(*sent, *stay)
        assert sorted(names(cell)) == sorted([f"job-{n}" for n in range(IN_FLIGHT_MAX)] + ["job-2000", "job-2001"])
        assert queued(writer) == 0

    run(main())


def test_who_waits_for_a_turn_is_told_when_the_bus_does_not_answer() -> None:
    async def main() -> None:
        cell = SimCell()
        writer = await cell.writer()
        await silent(cell)
        for n in range(IN_FLIGHT_MAX):
            await many(writer, n, 1)
            await asyncio.sleep(LINGER_S + 0.001)
        waiting = await many(writer, 1000, 60)
        began_s = asyncio.get_running_loop().time()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, OutcomeUnknown) for outcome in outcomes)
        assert asyncio.get_running_loop().time() - began_s < 2 * GIVE_UP_S + 10
        assert queued(writer) == 0

    run(main())


def test_commands_are_refused_and_facts_wait_when_too_much_is_to_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "QUEUED_BYTES_MAX", 20 * SIZE)
    monkeypatch.setattr(inbox, "IN_FLIGHT_MAX", 1)

    async def main() -> None:
        cell = SimCell()
        stream = await cell.inbox()
        gauge = InboxGauge(stream, lambda: InboxPosition(1, 0), clock=SimClock())
        await gauge.check()
        commands, facts = InboxWriter(stream, clock=SimClock(), gauge=gauge), InboxWriter(stream, clock=SimClock())
        await silent(cell)
        taken = [*await many(commands, 1, 1), *await many(commands, 2, 19)]
        with pytest.raises(InboxFull, match="does not answer"):
            await commands.write([with_template(99, 2 * SIZE)])
        reported = [*await many(facts, 100, 1), *await many(facts, 101, 60)]
        assert queued(facts) <= 20 * SIZE
        cell.nats.faults.request_lost_chance = 0.0
        await asyncio.gather(*taken, *reported)
        found = names(cell)
        assert [name for name in found if int(name[4:]) < 99] == [f"job-{n}" for n in range(1, 21)]
        assert [name for name in found if int(name[4:]) > 99] == [f"job-{n}" for n in range(100, 161)]

    run(main())


def test_a_closed_writer_leaves_nobody_waiting_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "QUEUED_BYTES_MAX", 2 * SIZE)
    monkeypatch.setattr(inbox, "IN_FLIGHT_MAX", 1)

    async def main() -> None:
        cell = SimCell(faults=Faults(delay_min_s=0.5, delay_max_s=0.5))
        writer = await cell.writer()
        writes = [*await many(writer, 1, 1), *await many(writer, 2, 5)]
        await writer.close()
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        kept = [outcome for outcome in outcomes if isinstance(outcome, list)]
        assert all(isinstance(outcome, list | RuntimeError) for outcome in outcomes)
        assert len(names(cell)) == len(kept)

    run(main())
