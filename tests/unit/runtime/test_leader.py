"""LOG-1, LOG-2, LOG-4, LOG-5, LOG-9: terms that follow each other and lose or repeat nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.runtime.cells import SimCell, cancel, job, nodes, queue, transitions

from muster.core import decide as core
from muster.core import snapshot
from muster.core import transitions as tr
from muster.core.model import InboxPosition
from muster.core.replay import replay
from muster.core.state import CellState
from muster.runtime.candidate import Candidate
from muster.runtime.committer import Deposed
from muster.runtime.lease import TTL_S
from muster.runtime.observer import LeaderObserver
from muster.runtime.poison import Poisoned
from muster.runtime.skew import SKEW_MS_MAX, ClockSkewed
from muster.sim.bus import Faults
from muster.sim.loop import SimClock, run
from muster.wire import codec


async def lead(cell: SimCell, name: str, clock: SimClock | None = None) -> tuple[Candidate, asyncio.Task[None]]:
    candidate = await cell.candidate(name, clock)
    return candidate, asyncio.create_task(candidate.run(), name=name)


def bytes_of(state: CellState) -> list[bytes]:
    return [codec.encode_snapshot_part(part) for part in snapshot.dump(state)]


def check_ledger(cell: SimCell, jobs: int) -> None:
    """What must hold of any ledger, however many leaders wrote it."""
    ledger = cell.ledger()
    assert isinstance(ledger[0].transitions[0], tr.LeaderElected), "LOG-5: a term starts with its election"
    epoch, now_ms, position = 0, 0, InboxPosition(1, 0)
    for seq, tx in enumerate(ledger, 1):
        header = tx.header
        assert header.prev == seq - 1, "the compare-and-set lets no transaction in that builds on another one"
        assert header.inbox_from == position, "LOG-1: no item is skipped or taken twice"
        assert header.now_ms >= now_ms, "LOG-2"
        assert header.epoch == epoch + isinstance(tx.transitions[0], tr.LeaderElected)
        epoch, now_ms, position = header.epoch, header.now_ms, header.inbox_to
    queued = [t.spec.name for t in transitions(ledger, tr.JobQueued)]  # type: ignore[attr-defined]
    assert sorted(queued) == sorted(f"job-{i}" for i in range(jobs))
    placed = [t.job for t in transitions(ledger, tr.JobPlaced)]  # type: ignore[attr-defined]
    assert len(placed) == len(set(placed)), "no job runs twice"


def check_replay(cell: SimCell) -> None:
    """I8: the recorded headers over the recorded inbox give the ledger's bytes."""
    inbox = cell.nats.streams["INBOX_main"].messages
    items = [(InboxPosition(s, i), item) for s in inbox for i, item in enumerate(codec.decode_inbox(inbox[s].data))]
    ledger = list(enumerate(cell.ledger(), 1))
    for replayed in replay(CellState("main"), ledger, items):
        assert replayed.difference() is None
        stored = cell.nats.streams["LEDGER_main"].messages[replayed.ledger_seq].data
        assert codec.encode_transaction(replayed.again) == stored


def test_a_term_decides_what_comes_and_followers_see_it() -> None:
    async def main() -> None:
        cell = SimCell(faults=Faults(delay_min_s=0.001, delay_max_s=0.002))
        writer, follower = await cell.writer(), await cell.follower()
        _, leading = await lead(cell, "a")
        await writer.write([queue(), nodes(10)])
        positions = await writer.write([job(i) for i in range(50)])
        await follower.wait_applied(positions[-1], 10)
        await asyncio.sleep(1)
        check_ledger(cell, 50)
        assert len(transitions(cell.ledger(), tr.JobPlaced)) == 50
        await cancel(leading)

    run(main())


def test_the_inbox_is_read_only_after_the_election_is_committed() -> None:
    """LOG-5: a leader that decided first would build on a ledger another one may still be writing."""

    async def main() -> None:
        cell = SimCell()
        writer = await cell.writer()
        await writer.write([queue()])
        candidate = await cell.candidate("a")
        cell.nats.faults.request_lost_chance = 1.0
        leading = asyncio.create_task(candidate.run())
        await asyncio.sleep(30)
        assert not cell.ledger()
        cell.nats.faults.request_lost_chance = 0.0
        await asyncio.sleep(30)
        first, second = cell.ledger()[:2]
        assert [type(t) for t in first.transitions] == [tr.LeaderElected]
        assert first.header.inbox_to == first.header.inbox_from
        assert second.header.inbox_to > second.header.inbox_from
        await cancel(leading)

    run(main())


def test_what_only_a_standby_does_ends_before_the_term_begins() -> None:
    """LOG-6: a leader never serialises its state."""

    async def main() -> None:
        cell = SimCell()
        seen: list[tuple[bool, int]] = []

        async def before_leading() -> None:
            seen.append((candidate.leading, len(cell.ledger())))

        candidate = await cell.candidate("a", before_leading=before_leading)
        leading = asyncio.create_task(candidate.run())
        await asyncio.sleep(5)
        assert seen == [(False, 0)]
        assert candidate.leading
        await cancel(leading)

    run(main())


def test_a_graceful_stop_hands_over_at_once() -> None:
    async def main() -> None:
        cell = SimCell(faults=Faults(delay_min_s=0.001, delay_max_s=0.002))
        writer = await cell.writer()
        _, a = await lead(cell, "a")
        await writer.write([queue(), nodes(10), job(0)])
        await asyncio.sleep(1)
        b, leading = await lead(cell, "b")
        await asyncio.sleep(5)
        assert not b.leading
        await cancel(a)
        await asyncio.sleep(0.5)
        assert b.leading
        await writer.write([job(1)])
        await asyncio.sleep(1)
        check_ledger(cell, 2)
        await cancel(leading)

    run(main())


def test_a_crashed_leader_is_followed_within_five_seconds() -> None:
    async def main() -> None:
        cell = SimCell(faults=Faults(delay_min_s=0.001, delay_max_s=0.002))
        writer = await cell.writer()
        _, a = await lead(cell, "a")
        await writer.write([queue(), nodes(10)])
        b, leading = await lead(cell, "b")
        await asyncio.sleep(1)
        cell.nats.crash("a")
        a.cancel()
        await writer.write([job(0)])
        await asyncio.sleep(TTL_S + 1)
        assert b.leading
        check_ledger(cell, 1)
        await cancel(leading)

    run(main())


def test_a_leader_that_slept_through_its_lease_is_refused_and_ends() -> None:
    """Cut off with a commit on its way, as a paused process is: the new leader's election fences it off."""

    async def main() -> None:
        cell = SimCell(faults=Faults(delay_min_s=0.001, delay_max_s=0.002))
        writer = await cell.writer()
        _, a = await lead(cell, "a")
        await writer.write([queue(), nodes(10)])
        b, leading = await lead(cell, "b")
        await asyncio.sleep(1)
        cell.nats.partition("a")
        await writer.write([job(0)])
        await asyncio.sleep(TTL_S + 1)
        assert b.leading
        await writer.write([job(1)])
        await asyncio.sleep(1)
        cell.nats.heal("a")
        with pytest.raises(Deposed):
            await a
        check_ledger(cell, 2)
        await cancel(leading)

    run(main())


def test_time_in_the_ledger_never_goes_back_when_the_next_clock_is_behind() -> None:
    """LOG-2."""

    async def main() -> None:
        cell = SimCell()
        writer = await cell.writer()
        _, a = await lead(cell, "a", SimClock(offset_ms=SKEW_MS_MAX - 100))
        await writer.write([queue(), nodes(10), job(0)])
        await asyncio.sleep(1)
        await cancel(a)
        _, b = await lead(cell, "b", SimClock(offset_ms=100 - SKEW_MS_MAX))
        await writer.write([job(1)])
        await asyncio.sleep(1)
        check_ledger(cell, 2)
        await cancel(b)

    run(main())


def test_a_machine_with_a_wrong_clock_does_not_lead_and_leaves_the_lease_to_others() -> None:
    """LOG-2."""

    async def main() -> None:
        cell = SimCell()
        _, wrong = await lead(cell, "wrong", SimClock(offset_ms=60_000))
        with pytest.raises(ClockSkewed):
            await wrong
        assert not cell.ledger()
        right, leading = await lead(cell, "right")
        await asyncio.sleep(0.5)
        assert right.leading
        await cancel(leading)

    run(main())


def test_a_clock_that_goes_wrong_while_leading_ends_the_term() -> None:
    async def main() -> None:
        cell = SimCell()
        clock = SimClock()
        _, leading = await lead(cell, "a", clock)
        await asyncio.sleep(1)
        clock.offset_ms = -10_000
        with pytest.raises(ClockSkewed):
            await leading

    run(main())


@pytest.mark.parametrize("seed", range(12))
def test_crashes_partitions_and_a_bad_network_lose_and_repeat_nothing(seed: int) -> None:
    """Three replicas that come and go; every job that was acknowledged is queued exactly once, and all agree."""

    async def main() -> None:
        faults = Faults(
            delay_max_s=0.02, request_lost_chance=0.05, answer_lost_chance=0.05, stall_chance=0.005, stall_s=4.0
        )
        cell = SimCell(seed, faults)
        rng = cell.nats.rng
        writer, follower = await cell.writer(), await cell.follower()
        lives: dict[str, asyncio.Task[None]] = {}

        async def keep_alive(name: str) -> None:
            while True:
                _, lives[name] = await lead(cell, name)
                await asyncio.wait((lives[name],))
                if not lives[name].cancelled() and not isinstance(lives[name].exception(), Deposed):
                    lives[name].result()
                await asyncio.sleep(rng.uniform(0.1, 2))

        async def disturb() -> None:
            while True:
                await asyncio.sleep(rng.uniform(1, 6))
                name = rng.choice("abc")
                if rng.random() < 0.5:
                    cell.nats.crash(name)
                    if name in lives:
                        lives[name].cancel()
                else:
                    cell.nats.partition(name)
                    await asyncio.sleep(rng.uniform(0.5, 6))
                    cell.nats.heal(name)

        tasks = [asyncio.create_task(keep_alive(name)) for name in "abc"]
        disturbing = asyncio.create_task(disturb())
        await writer.write([queue(), nodes(20)])
        for i in range(0, 120, 3):
            await writer.write([job(i + k) for k in range(3)])
            await asyncio.sleep(rng.uniform(0.1, 1.0))
        await cancel(disturbing)
        for name in "abc":
            cell.nats.heal(name)
        faults.request_lost_chance = faults.answer_lost_chance = faults.stall_chance = 0.0
        await asyncio.sleep(60)
        check_ledger(cell, 120)
        check_replay(cell)
        assert len(transitions(cell.ledger(), tr.LeaderElected)) > 1, "nothing happened"
        late = await cell.follower("late")
        assert bytes_of(follower.state) == bytes_of(late.state)
        await cancel(*tasks, *(task for task in lives.values() if not task.done()))

    run(main())


# --- poison ---------------------------------------------------------------------------------------------------------


class Watch(LeaderObserver):
    def __init__(self) -> None:
        self.aside: list[InboxPosition] = []

    def quarantined(self, position: InboxPosition, reason: str) -> None:
        self.aside.append(position)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the core raise at the job of that name, as a bug would; an item put aside is not looked at."""
    names: set[str] = set()
    real = core.decide

    def decide(
        state: CellState, items: Any, now_ms: int, work_limit: int, quarantine: InboxPosition | None = None
    ) -> core.Decision:
        for position, item in items:
            if position != quarantine and item.__class__.__name__ == "SubmitJob" and item.spec.name in names:
                raise KeyError(item.spec.name)
        return real(state, items, now_ms, work_limit, quarantine)

    monkeypatch.setattr(core, "decide", decide)
    return names.add


def test_after_two_terms_died_at_an_item_the_third_puts_it_aside(poison: Callable[[str], None]) -> None:
    poison("job-7")

    async def main() -> None:
        cell = SimCell()
        writer = await cell.writer()
        await writer.write([queue(), nodes(10)])
        positions = await writer.write([job(i) for i in range(20)])
        for _ in range(2):
            _, dying = await lead(cell, "a")
            with pytest.raises(Poisoned) as died:
                await dying
            assert died.value.position == positions[7], "the item is found among its neighbours"
        watch = Watch()
        candidate = await cell.candidate("b", observer=watch)
        leading = asyncio.create_task(candidate.run())
        await asyncio.sleep(5)
        ledger = cell.ledger()
        (aside,) = transitions(ledger, tr.InboxItemQuarantined)
        assert aside.position == positions[7]  # type: ignore[attr-defined]
        assert watch.aside == [positions[7]]
        check_replay(cell)
        queued = [t.spec.name for t in transitions(ledger, tr.JobQueued)]  # type: ignore[attr-defined]
        assert queued == [f"job-{i}" for i in range(20) if i != 7]
        await writer.write([job(30)])
        await asyncio.sleep(1)
        assert not leading.done()
        await cancel(leading)

    run(main())


def test_one_death_is_not_enough_and_kills_from_outside_do_not_count(poison: Callable[[str], None]) -> None:
    async def main() -> None:
        cell = SimCell(faults=Faults(delay_min_s=0.01, delay_max_s=0.01))
        writer = await cell.writer()
        await writer.write([queue(), nodes(10), job(0)])
        for _ in range(4):
            candidate, leading = await lead(cell, "a")
            while not candidate.leading:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            cell.nats.crash("a")
            await cancel(leading)
        _, leading = await lead(cell, "b")
        await asyncio.sleep(10)
        assert not transitions(cell.ledger(), tr.InboxItemQuarantined)
        check_ledger(cell, 1)
        await cancel(leading)

    run(main())


def test_an_exception_that_no_item_causes_is_not_blamed_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(*_: object) -> core.Decision:
        raise ZeroDivisionError

    monkeypatch.setattr(core, "decide", decide)

    async def main() -> None:
        cell = SimCell()
        await (await cell.writer()).write([queue()])
        for _ in range(3):
            _, leading = await lead(cell, "a")
            with pytest.raises(ZeroDivisionError):
                await leading
        assert cell.nats.streams["LEASES"].last("muster.leases.main.poison") is None

    run(main())
