"""LOG-13: the event stream has every event of the ledger once and in order, whatever happens to the relays."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.unit.runtime.cells import CELL, SimCell, cancel, job, nodes, queue

from muster.core import commands
from muster.runtime.ports import StoredMessage, Stream
from muster.runtime.relay import BATCH_MAX, EventRelay, relayed_up_to
from muster.runtime.streams import events_spec, ledger_spec
from muster.sim.bus import Faults
from muster.sim.loop import SimClock, run
from muster.wire import events


async def relay_of(cell: SimCell, client: str, *, batch: int = BATCH_MAX) -> EventRelay:
    """A relay with a connection and a follower of its own."""
    bus = cell.connect(client)
    follower = await cell.follower(f"{client}-follower")
    return EventRelay(
        cell=CELL,
        ledger=await bus.stream(ledger_spec(CELL)),
        stream=await bus.stream(events_spec()),
        names=events.StateNames(lambda: follower.state),
        clock=SimClock(),
        batch=batch,
    )


def stored(cell: SimCell) -> list[StoredMessage]:
    log = cell.nats.streams["EVENTS"]
    return [log.messages[seq] for seq in sorted(log.messages)]


def ids(messages: list[StoredMessage]) -> list[tuple[int, int]]:
    return [events.id_of(message.headers or {}) for message in messages]


def expected(cell: SimCell) -> list[tuple[int, int]]:
    """What the ledger says the events are, worked out at once."""

    class Nobody:
        def job(self, job: str) -> None:
            return None

        def queue(self, queue: str) -> None:
            return None

    found: list[tuple[int, int]] = []
    for seq, tx in enumerate(cell.ledger(), 1):
        found += [(e.ledger_seq, e.index) for e in events.public_events(tx, seq, Nobody(), CELL)]
    return found


async def busy_cell(cell: SimCell) -> asyncio.Task[None]:
    """A leader, and jobs that are queued, placed, cancelled and refused."""
    leader = asyncio.create_task((await cell.candidate("leader")).run())
    writer = await cell.writer()
    await writer.write([nodes(4), queue()])
    return leader


async def until_done(cell: SimCell) -> None:
    while ids(stored(cell))[-1:] != expected(cell)[-1:]:
        await asyncio.sleep(0.1)


def test_events_carry_the_job_they_are_about() -> None:
    async def main() -> None:
        cell = SimCell()
        leader = await busy_cell(cell)
        relay = asyncio.create_task((await relay_of(cell, "relay")).run())
        writer = await cell.writer()
        await writer.write([job(1), job(2, path="nowhere"), commands.CancelJob(job=job(1).spec.id)])
        await asyncio.sleep(2)
        await until_done(cell)
        kinds = [(m.headers or {})["ce-type"] for m in stored(cell)]
        assert kinds == ["cell.leader", "queue.updated", "job.queued", "command.refused", "job.cancelled"]
        assert stored(cell)[-1].subject == "muster.events.main.default.job.cancelled"
        assert b'"name":"job-1"' in stored(cell)[-1].data
        await cancel(leader, relay)

    run(main())


@pytest.mark.parametrize("seed", range(8))
def test_two_relays_at_once_on_a_bad_network_lose_and_repeat_nothing(seed: int) -> None:
    async def main() -> None:
        rng = Random(seed)
        cell = SimCell(seed)
        leader = await busy_cell(cell)
        relays = {name: asyncio.create_task((await relay_of(cell, name)).run()) for name in ("a", "b")}
        cell.nats.faults = Faults(
            delay_min_s=0.001,
            delay_max_s=0.05,
            request_lost_chance=0.02,
            answer_lost_chance=0.02,
            stall_chance=0.01,
            stall_s=7.0,
        )
        writer = await cell.writer()
        for start in range(0, 120, 20):
            await writer.write([job(n, path="team" if n % 7 else "nowhere") for n in range(start, start + 20)])
            victim = rng.choice(("a", "b"))  # dies with publishes in flight, and comes back
            cell.nats.crash(victim)
            await cancel(relays[victim])
            await asyncio.sleep(rng.uniform(0, 3))
            relays[victim] = asyncio.create_task((await relay_of(cell, victim)).run())
        cell.nats.faults = Faults()
        await asyncio.sleep(30)
        await until_done(cell)
        assert ids(stored(cell)) == expected(cell)
        await cancel(leader, *relays.values())

    run(main())


@pytest.mark.parametrize("batch", [1, BATCH_MAX])
def test_another_cells_events_in_between_cost_no_event(batch: int) -> None:
    async def main() -> None:
        cell = SimCell(5)
        leader = await busy_cell(cell)
        relay = asyncio.create_task((await relay_of(cell, "relay", batch=batch)).run())
        other: Stream = await cell.connect("other").stream(events_spec())
        writer = await cell.writer()
        for n in range(20):
            await writer.write([job(n)])
            await other.publish(b"{}", subject="muster.events.other.ns.job.placed", headers={"ce-id": f"{n}-0"})
            await asyncio.sleep(0.01)
        await asyncio.sleep(5)
        own = [m for m in stored(cell) if m.subject.startswith("muster.events.main.")]
        assert ids(own) == expected(cell)
        await cancel(leader, relay)

    run(main())


def test_the_ledger_may_be_trimmed_behind_the_relay_and_not_before_it() -> None:
    async def main() -> None:
        cell = SimCell()
        leader = await busy_cell(cell)
        stream: Stream = await cell.connect("reader").stream(events_spec())
        assert await relayed_up_to(stream, CELL) is None
        relay = asyncio.create_task((await relay_of(cell, "relay")).run())
        await (await cell.writer()).write([job(n) for n in range(5)])
        await asyncio.sleep(2)
        await cancel(relay)
        done = await relayed_up_to(stream, CELL)
        assert done == ids(stored(cell))[-1][0] - 1
        ledger = await cell.connect("trimmer").stream(ledger_spec(CELL))
        await ledger.purge_below(done + 1)
        before = expected(cell)
        await (await cell.writer("second")).write([job(n) for n in range(5, 10)])
        relay = asyncio.create_task((await relay_of_state(cell)).run())
        await asyncio.sleep(2)
        found = ids(stored(cell))
        assert found == sorted(set(found))
        assert len(found) > len(before)
        await cancel(leader, relay)

    async def relay_of_state(cell: SimCell) -> EventRelay:
        """A relay whose names come from nowhere: a follower could not start behind the trimmed ledger."""
        bus = cell.connect("late")
        return EventRelay(
            cell=CELL,
            ledger=await bus.stream(ledger_spec(CELL)),
            stream=await bus.stream(events_spec()),
            names=events.StateNames(lambda: _EMPTY),
            clock=SimClock(),
        )

    from muster.core.state import CellState

    _EMPTY = CellState(CELL)
    run(main())


def test_a_stream_without_batches_takes_events_one_by_one() -> None:
    async def main() -> None:
        from msgspec.structs import replace

        cell = SimCell()
        await cell.connect("older").stream(replace(events_spec(), batches=False))
        leader = await busy_cell(cell)
        relay = asyncio.create_task((await relay_of(cell, "relay")).run())
        await (await cell.writer()).write([job(n) for n in range(20)])
        await asyncio.sleep(5)
        await until_done(cell)
        assert ids(stored(cell)) == expected(cell)
        await cancel(leader, relay)

    run(main())


def test_a_full_event_stream_loses_its_oldest_and_goes_on() -> None:
    async def main() -> None:
        cell = SimCell()
        leader = await busy_cell(cell)
        await cell.connect("first").stream(events_spec())
        log = cell.nats.streams["EVENTS"]
        from msgspec.structs import replace

        log.spec = replace(log.spec, max_messages=30)
        relay = asyncio.create_task((await relay_of(cell, "relay")).run())
        writer = await cell.writer()
        for n in range(60):
            await writer.write([job(n)])
        await asyncio.sleep(10)
        await until_done(cell)
        found = ids(stored(cell))
        assert len(found) <= 30
        assert found == expected(cell)[-len(found) :]
        await cancel(leader, relay)

    run(main())
