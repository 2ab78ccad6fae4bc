"""LOG-4, LOG-6, LOG-10, LOG-12: what a follower takes for the state, and what makes it stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from tests.unit.runtime.cells import SimCell, cancel, job, nodes, queue

from muster.core import decide as core
from muster.core import snapshot
from muster.core import transitions as tr
from muster.core.apply import apply_transaction
from muster.core.commands import AnyItem
from muster.core.model import InboxPosition
from muster.core.state import CellState
from muster.runtime.follower import Follower, LedgerBroken
from muster.runtime.lease import Lease
from muster.runtime.ports import Bus, StoredMessage, Stream, StreamSpec
from muster.runtime.snapshotter import Snapshotter
from muster.runtime.streams import inbox_spec, leases_spec, ledger_spec
from muster.runtime.trim import Trimmer
from muster.sim.loop import EPOCH_MS, SimClock, run
from muster.wire import codec


class Writer:
    """A leader's view without a leader: decides items one message at a time and writes what comes out."""

    def __init__(self, ledger: Stream) -> None:
        self.state = CellState("main")
        self._ledger = ledger
        self._inbox_seq = 0

    @classmethod
    async def of(cls, cell: SimCell) -> Writer:
        writer = cls(await cell.connect("leader").stream(ledger_spec("main")))
        await writer.write(core.leader_elected(writer.state, leader="w", now_ms=EPOCH_MS))
        return writer

    def next(self, items: Sequence[AnyItem]) -> tr.Transaction:
        self._inbox_seq += 1
        entries = [(InboxPosition(self._inbox_seq, i), item) for i, item in enumerate(items)]
        decision = core.decide(self.state, entries, EPOCH_MS, 100_000)
        return core.transaction(
            self.state, decision, transaction_id=f"1-{self._inbox_seq}", now_ms=EPOCH_MS, work_limit=100_000
        )

    async def write(self, tx: tr.Transaction) -> int:
        seq = await self._ledger.publish(codec.encode_transaction(tx))
        assert apply_transaction(self.state, tx, seq)
        return seq

    async def decide(self, *items: AnyItem) -> int:
        return await self.write(self.next(items))

    async def publish_raw(self, data: bytes) -> int:
        return await self._ledger.publish(data)


async def settle(seconds: float = 10.0) -> None:
    await asyncio.sleep(seconds)


async def take_snapshot(cell: SimCell, follower: Follower) -> None:
    """What a standby does, and everything may be trimmed that has two snapshots above it."""
    bus = cell.connect("snapshots")

    async def relayed() -> int | None:
        return 1 << 60

    trimmer = Trimmer(
        follower.ledger, await bus.stream(inbox_spec("main")), clock=SimClock(), relay_seq=relayed, retention_ms=0
    )
    lease = Lease(await bus.stream(leases_spec()), "main.snapshots", "s", clock=SimClock())
    await Snapshotter(follower, lease, trimmer, clock=SimClock()).take()


def same(a: CellState, b: CellState) -> bool:
    return [codec.encode_snapshot_part(p) for p in snapshot.dump(a)] == [
        codec.encode_snapshot_part(p) for p in snapshot.dump(b)
    ]


def test_it_follows_from_the_beginning_and_tells_in_order() -> None:
    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        await leader.decide(queue(), nodes(3))
        follower = Follower(cell.connect("f"), "main", clock=SimClock())
        told: list[tuple[int, int]] = []
        follower.on_transaction(lambda tx, seq: told.append((seq, follower.state.ledger_seq)))
        await follower.start()
        assert follower.ready
        for i in range(20):
            await leader.decide(job(i))
        await settle()
        assert same(follower.state, leader.state)
        assert told == [(seq, seq) for seq in range(1, 23)]
        await follower.stop()
        assert not follower.ready

    run(main())


def test_a_state_that_is_loaded_is_told_to_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-16: or the next collection walks all of it."""
    loaded: list[int] = []
    monkeypatch.setattr("muster.runtime.follower.state_loaded", lambda: loaded.append(1))

    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        await leader.decide(queue(), nodes(3))
        first = await cell.follower("first")
        await take_snapshot(cell, first)
        loaded.clear()
        second = await cell.follower("second")
        assert loaded
        assert same(first.state, second.state)
        await first.stop()
        await second.stop()

    run(main())


def test_a_transaction_that_does_not_build_on_the_last_applied_one_is_void() -> None:
    """LOG-4: a deposed leader's late write must change nothing, and what follows builds on the one before it."""

    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        follower = await cell.follower()
        stale = leader.next([queue("stale")])
        await leader.decide(queue("team"))
        await leader.publish_raw(codec.encode_transaction(stale))
        await settle()
        assert (follower.tail_seq, follower.voided, follower.state.ledger_seq) == (3, 1, 2)
        await leader.decide(job(1))
        await settle()
        assert (follower.tail_seq, follower.state.ledger_seq) == (4, 4)
        assert same(follower.state, leader.state)

    run(main())


def test_a_newer_version_makes_it_unready_and_it_never_skips() -> None:
    """LOG-10."""

    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        await leader.decide(queue())
        follower = await cell.follower()
        await leader.publish_raw(msgspec.msgpack.encode([[99, "2-1"], []]))
        await leader.decide(job(1))
        await settle()
        assert not follower.ready
        assert follower.tail_seq == 2
        assert not follower.state.jobs
        with pytest.raises(codec.UnknownVersion):
            await follower.wait_stopped()
        late = Follower(cell.connect("late"), "main", clock=SimClock())
        with pytest.raises(codec.UnknownVersion):
            await late.start()

    run(main())


def test_it_starts_from_the_newest_snapshot_and_the_rest_of_the_ledger() -> None:
    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        first = await cell.follower("first")
        await leader.decide(queue(), nodes(3))
        for i in range(3):
            await leader.decide(*(job(10 * i + k) for k in range(5)))
            await settle()
            await take_snapshot(cell, first)
        await leader.decide(job(99))
        assert cell.nats.streams["LEDGER_main"].first_seq > 1, "or the test shows nothing"
        late = await cell.follower("late")
        assert same(late.state, leader.state)
        assert late.state.position == leader.state.position

    run(main())


def test_a_damaged_snapshot_is_passed_over_for_the_one_before_it() -> None:
    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        first = await cell.follower("first")
        await leader.decide(queue(), nodes(3))
        for i in range(3):
            await leader.decide(job(i))
            await settle()
            await take_snapshot(cell, first)
        newest = (await first.snapshots.listed())[0]
        log = cell.nats.streams["SNAPSHOTS_main"]
        victim = log.messages[newest.last_seq]
        log.messages[newest.last_seq] = type(victim)(victim.seq, 0, victim.subject, b"\x90", victim.headers)
        late = await cell.follower("late")
        assert same(late.state, leader.state)

    run(main())


def test_a_follower_that_was_overtaken_by_trimming_takes_a_newer_snapshot() -> None:
    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        first, slow = await cell.follower("first"), await cell.follower("slow")
        reloaded: list[int] = []
        slow.on_reload(lambda state: reloaded.append(state.ledger_seq))
        await leader.decide(queue(), nodes(3))
        await settle()
        cell.nats.partition("slow")
        for i in range(4):
            await leader.decide(job(i))
            await settle()
            await take_snapshot(cell, first)
        assert cell.nats.streams["LEDGER_main"].first_seq > slow.tail_seq + 1
        cell.nats.heal("slow")
        await leader.decide(job(50))
        await settle()
        assert reloaded
        assert slow.ready
        assert same(slow.state, leader.state)

    run(main())


def test_a_ledger_that_begins_beyond_every_snapshot_is_not_guessed_over() -> None:
    """LOG-6: the first sequence must be snapshot + 1."""

    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        for i in range(3):
            await leader.decide(queue(f"q{i}"))
        cell.nats.streams["LEDGER_main"].purge_below(3)
        with pytest.raises(LedgerBroken):
            await cell.follower()

    run(main())


def test_a_ledger_shorter_than_its_snapshot_is_not_followed() -> None:
    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        follower = await cell.follower()
        await leader.decide(queue())
        await settle()
        await take_snapshot(cell, follower)
        del cell.nats.streams["LEDGER_main"]
        with pytest.raises(LedgerBroken):
            await cell.follower("late")

    run(main())


def test_waiting_for_a_position_ends_when_it_is_applied_and_not_before() -> None:
    """LOG-12."""

    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        follower = await cell.follower()
        waits = [asyncio.create_task(follower.wait_applied(InboxPosition(2, i), 60.0)) for i in (1, 0)]
        await leader.decide(queue())
        await settle()
        assert not any(w.done() for w in waits)
        await leader.decide(job(1), job(2))
        await asyncio.gather(*waits)
        assert len(follower.state.jobs) == 2
        await follower.wait_applied(InboxPosition(1, 0), 0.0)
        with pytest.raises(TimeoutError):
            await follower.wait_applied(InboxPosition(9, 0), 2.0)

    run(main())


def test_while_paused_the_state_stands_still_and_then_catches_up() -> None:
    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        follower = await cell.follower()
        async with follower.paused() as state:
            await leader.decide(queue())
            await settle()
            assert state.ledger_seq == 1
        await settle()
        assert follower.state.ledger_seq == 2

    run(main())


def test_a_stopped_follower_stops_waiters_of_its_progress() -> None:
    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        follower = await cell.follower()
        async with follower.paused():
            await leader.decide(queue())
            catching_up = asyncio.create_task(follower.catch_up())
            await settle()
            await cancel(catching_up)
        await follower.stop()
        await follower.wait_stopped()

    run(main())


class Skipping:
    """A bus whose ledger leaves one message out, as a reader with a bug would."""

    def __init__(self, bus: Bus, skip: int) -> None:
        self._bus = bus
        self._skip = skip

    async def stream(self, spec: StreamSpec) -> Stream:
        stream = await self._bus.stream(spec)
        if spec.name != "LEDGER_main":
            return stream
        skip, read = self._skip, stream.read

        async def skipping(from_seq: int, *, subject: str | None = None) -> AsyncIterator[Sequence[StoredMessage]]:
            async for batch in read(from_seq, subject=subject):
                yield [m for m in batch if m.seq != skip]

        stream.read = skipping  # type: ignore[method-assign]
        return stream


def test_a_missing_message_stops_it() -> None:
    """The next one would only look void, and the follower would show an old state for ever."""

    async def main() -> None:
        cell = SimCell()
        leader = await Writer.of(cell)
        for i in range(4):
            await leader.decide(queue(f"q{i}"))
        follower = Follower(Skipping(cell.connect("f"), 3), "main", clock=SimClock())  # type: ignore[arg-type]
        with pytest.raises(LedgerBroken):
            await follower.start()
        assert not follower.ready

    run(main())
