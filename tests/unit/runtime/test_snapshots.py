"""LOG-6: snapshots are whole and verified, or they do not exist."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random

import pytest

from muster.core.model import InboxPosition
from muster.runtime.ports import StreamSpec
from muster.runtime.snapshots import (
    CHUNK_BYTES,
    SNAPSHOTS_KEPT,
    SnapshotDamaged,
    SnapshotFailed,
    SnapshotInfo,
    SnapshotStore,
)
from muster.runtime.streams import snapshot_subject, snapshots_spec
from muster.sim.bus import Faults, SimNats
from muster.sim.loop import SimClock, run

PARTS = [b"part %d" % i * 5000 for i in range(100)]  # about 4 MiB


async def store(nats: SimNats, client: str = "a") -> SnapshotStore:
    return SnapshotStore(await nats.connect(client).stream(snapshots_spec("main")), "main", SimClock())


async def read(snapshots: SnapshotStore, info: SnapshotInfo) -> list[bytes]:
    found: list[bytes] = []
    async with aclosing(snapshots.read(info)) as pieces:  # type: ignore[type-var]
        async for parts in pieces:
            found.extend(parts)
    return found


def position(seq: int) -> InboxPosition:
    return InboxPosition(seq, 0)


def test_what_was_written_comes_back_in_order_over_a_bad_network() -> None:
    async def main() -> None:
        faults = Faults(delay_max_s=0.02, request_lost_chance=0.1, answer_lost_chance=0.1, short_batch_chance=0.5)
        nats = SimNats(SimClock(), Random(3), faults)
        snapshots = await store(nats)
        info = await snapshots.write(iter(PARTS), 7, position(4))
        assert info.chunks > 4
        assert all(len(m.data) <= CHUNK_BYTES + 1024 for m in nats.streams["SNAPSHOTS_main"].messages.values())
        assert await read(snapshots, info) == PARTS
        assert list(await (await store(nats, "b")).listed()) == [info]

    run(main())


def test_the_newest_is_listed_first_and_old_ones_go() -> None:
    async def main() -> None:
        nats = SimNats(SimClock(), Random(1))
        snapshots = await store(nats)
        infos = [await snapshots.write(PARTS, seq, position(seq)) for seq in range(1, 6)]
        assert list(await snapshots.listed()) == infos[:-4:-1]
        assert len(await snapshots.listed()) == SNAPSHOTS_KEPT
        await snapshots.drop_old()
        for info in await snapshots.listed():
            assert await read(snapshots, info) == PARTS
        with pytest.raises(SnapshotDamaged):
            await read(snapshots, infos[0])

    run(main())


def test_two_writers_at_once_both_end_up_whole() -> None:
    async def main() -> None:
        nats = SimNats(SimClock(), Random(1), Faults(delay_max_s=0.02))
        a, b = await store(nats, "a"), await store(nats, "b")
        first, second = await asyncio.gather(
            a.write(PARTS, 5, position(5)), b.write(list(reversed(PARTS)), 9, position(9))
        )
        assert list(await a.listed()) == [second, first]
        assert await read(b, first) == PARTS
        assert await read(a, second) == list(reversed(PARTS))

    run(main())


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damage_is_noticed(damage: str) -> None:
    async def main() -> None:
        nats = SimNats(SimClock(), Random(1))
        snapshots = await store(nats)
        info = await snapshots.write(PARTS, 1, position(1))
        log = nats.streams["SNAPSHOTS_main"]
        victim = log.messages[info.first_seq + 1]
        if damage == "changed":
            data = bytearray(victim.data)
            data[len(data) // 2] ^= 1
            log.messages[victim.seq] = type(victim)(
                victim.seq, victim.time_ms, victim.subject, bytes(data), victim.headers
            )
        else:
            del log.messages[victim.seq]
        with pytest.raises(SnapshotDamaged):
            await read(snapshots, info)

    run(main())


def test_a_snapshot_that_cannot_be_read_back_is_not_listed() -> None:
    """Without verification it would be the newest one, and trimming would rely on it."""

    async def main() -> None:
        nats = SimNats(SimClock(), Random(1), Faults(delay_min_s=0.01, delay_max_s=0.01))
        snapshots = await store(nats)
        writing = asyncio.create_task(snapshots.write(PARTS, 1, position(1)))
        log = nats.streams["SNAPSHOTS_main"]
        while log.last_seq < 5:
            await asyncio.sleep(0.001)
        broken = log.messages[2]
        log.messages[2] = type(broken)(2, broken.time_ms, broken.subject, b"\x90", broken.headers)
        with pytest.raises(SnapshotDamaged):
            await writing
        assert not await snapshots.listed()

    run(main())


def test_a_writer_that_dies_half_way_leaves_nothing_to_find() -> None:
    async def main() -> None:
        nats = SimNats(SimClock(), Random(1), Faults(delay_min_s=0.01, delay_max_s=0.01))
        writing = asyncio.create_task((await store(nats, "a")).write(PARTS, 1, position(1)))
        await asyncio.sleep(0.025)
        writing.cancel()
        await asyncio.wait((writing,))
        survivor = await store(nats, "b")
        assert not await survivor.listed()
        assert nats.streams["SNAPSHOTS_main"].last("muster.snapshots.main.index") is None
        for seq in range(2, 6):
            await survivor.write(PARTS, seq, position(seq))
        await survivor.drop_old()
        kept = {m.subject for m in nats.streams["SNAPSHOTS_main"].messages.values()}
        assert kept == {snapshot_subject("main", s.name) for s in await survivor.listed()} | {
            snapshot_subject("main", "index")
        }

    run(main())


def test_no_room_is_a_failure_that_leaves_the_older_ones() -> None:
    async def main() -> None:
        nats = SimNats(SimClock(), Random(1))
        small = StreamSpec("SNAPSHOTS_main", ("muster.snapshots.main.>",), max_bytes=6 << 20)
        snapshots = SnapshotStore(await nats.connect("a").stream(small), "main", SimClock())
        first = await snapshots.write(PARTS, 1, position(1))
        with pytest.raises(SnapshotFailed):
            await snapshots.write(PARTS, 2, position(2))
        assert list(await snapshots.listed()) == [first]
        assert await read(snapshots, first) == PARTS

    run(main())
