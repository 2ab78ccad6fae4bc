"""LOG-6: what may leave ledger and inbox, rule by rule."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from muster.core.model import InboxPosition
from muster.runtime.ports import StreamInfo
from muster.runtime.snapshots import SnapshotInfo
from muster.runtime.streams import inbox_spec, ledger_spec
from muster.runtime.trim import Trimmer, first_seq_since
from muster.sim.bus import SimNats
from muster.sim.loop import EPOCH_MS, SimClock, run

HOUR_MS = 3600 * 1000


def snapshot(ledger_seq: int, inbox_seq: int) -> SnapshotInfo:
    return SnapshotInfo(
        name=f"s{ledger_seq}",
        ledger_seq=ledger_seq,
        position=InboxPosition(inbox_seq, 3),
        taken_ms=0,
        first_seq=1,
        last_seq=1,
        chunks=1,
        bytes=1,
        sha256="",
    )


def trimmed(
    snapshots: list[SnapshotInfo], *, relay_seq: int | None = 999, retention_ms: int = 0, inbox_bytes: int = -1
) -> tuple[StreamInfo, StreamInfo]:
    """100 ledger and 50 inbox messages, one ledger message a minute; what is left an hour later."""

    async def main() -> tuple[StreamInfo, StreamInfo]:
        nats = SimNats(SimClock(), Random(1))
        bus = nats.connect("a")
        ledger, inbox = (
            await bus.stream(ledger_spec("main")),
            await bus.stream(inbox_spec("main", max_bytes=inbox_bytes)),
        )
        for i in range(100):
            await ledger.publish(b"x")
            if i % 2:
                await inbox.publish(bytes(100))
            await asyncio.sleep(60)

        async def relay() -> int | None:
            return relay_seq

        trimmer = Trimmer(ledger, inbox, clock=SimClock(), relay_seq=relay, retention_ms=retention_ms)
        await trimmer.trim(snapshots)
        return await ledger.info(), await inbox.info()

    return run(main())


def test_the_second_newest_snapshot_is_the_border() -> None:
    ledger, inbox = trimmed([snapshot(90, 45), snapshot(60, 30), snapshot(20, 10)])
    assert ledger.first_seq == 61, "a follower of that snapshot begins with the next one"
    assert inbox.first_seq == 30, "a leader of that snapshot begins with the message it stands in"


@pytest.mark.parametrize("snapshots", [[], [snapshot(90, 45)]])
def test_without_two_snapshots_nothing_goes(snapshots: list[SnapshotInfo]) -> None:
    ledger, inbox = trimmed(snapshots)
    assert (ledger.first_seq, inbox.first_seq) == (1, 1)


def test_the_relay_is_not_overtaken() -> None:
    ledger, _ = trimmed([snapshot(90, 45), snapshot(60, 30)], relay_seq=40)
    assert ledger.first_seq == 41
    ledger, inbox = trimmed([snapshot(90, 45), snapshot(60, 30)], relay_seq=None)
    assert (ledger.first_seq, inbox.first_seq) == (1, 1)


def test_what_is_younger_than_the_retention_stays() -> None:
    ledger, inbox = trimmed([snapshot(99, 50), snapshot(98, 49)], retention_ms=HOUR_MS)
    assert ledger.first_seq == 41
    assert inbox.first_seq == 21


@pytest.mark.parametrize(("inbox_bytes", "first"), [(-1, 1), (100_000, 1), (9_000, 49)])
def test_the_history_of_the_inbox_goes_when_the_stream_is_more_than_half_full(inbox_bytes: int, first: int) -> None:
    """Not that of the ledger, which has no size."""
    snapshots = [snapshot(99, 50), snapshot(98, 49)]
    ledger, inbox = trimmed(snapshots, retention_ms=10 * HOUR_MS, inbox_bytes=inbox_bytes)
    assert (ledger.first_seq, inbox.first_seq) == (1, first)
    _, inbox = trimmed([], retention_ms=10 * HOUR_MS, inbox_bytes=inbox_bytes)
    assert inbox.first_seq == 1, "never what a snapshot does not cover"


def test_the_last_message_stays_whatever_the_snapshot_says() -> None:
    ledger, inbox = trimmed([snapshot(100, 51), snapshot(100, 51)])
    assert (ledger.first_seq, ledger.last_seq, ledger.messages) == (100, 100, 1)
    assert (inbox.first_seq, inbox.last_seq, inbox.messages) == (50, 50, 1)


def test_the_search_by_time_finds_the_first_at_or_after_it() -> None:
    async def main() -> None:
        stream = await SimNats(SimClock(), Random(1)).connect("a").stream(ledger_spec("main"))
        assert await first_seq_since(stream, EPOCH_MS) == 1
        for _ in range(10):
            await stream.publish(b"x")
            await asyncio.sleep(10)
        await stream.purge_below(4)
        for since_s, expected in ((0, 4), (30, 4), (31, 5), (89, 10), (90, 10), (91, 11)):
            assert await first_seq_since(stream, EPOCH_MS + since_s * 1000) == expected

    run(main())
