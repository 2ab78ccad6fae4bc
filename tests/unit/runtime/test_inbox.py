"""LOG-7: few messages for many writes, durable on return, stored once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random

import pytest
from tests.unit.runtime.cells import SimCell, job

from muster.core.commands import AnyItem, SubmitJob
from muster.core.model import InboxPosition
from muster.runtime.backpressure import InboxFull
from muster.runtime.inbox import BATCH_BYTES_MAX, GIVE_UP_S, LINGER_S, InboxWriter, ItemTooLarge
from muster.runtime.ports import OutcomeUnknown, StreamSpec
from muster.runtime.streams import inbox_spec
from muster.sim.bus import Faults, SimNats
from muster.sim.loop import SimClock, run
from muster.wire import codec


def stored(cell: SimCell) -> dict[InboxPosition, AnyItem]:
    log = cell.nats.streams["INBOX_main"]
    return {
        InboxPosition(seq, i): item  # type: ignore[misc]
        for seq, message in log.messages.items()
        for i, item in enumerate(codec.decode_inbox(message.data))
    }


def names(cell: SimCell) -> list[str]:
    return [item.spec.name for item in stored(cell).values() if isinstance(item, SubmitJob)]


def with_template(number: int, size: int) -> SubmitJob:
    item = job(number)
    group = item.spec.tasks[0]
    big = type(group)(**{f: getattr(group, f) for f in group.__struct_fields__} | {"template": bytes(size)})
    fields = {f: getattr(item.spec, f) for f in item.spec.__struct_fields__} | {"tasks": (big,)}
    return SubmitJob(type(item.spec)(**fields))


def test_callers_at_the_same_time_share_messages_and_get_their_own_positions() -> None:
    async def main() -> None:
        cell = SimCell(faults=Faults(delay_min_s=0.001, delay_max_s=0.001))
        writer = await cell.writer()
        batches = [[job(100 * i + k) for k in range(3)] for i in range(200)]
        positions = await asyncio.gather(*(writer.write(batch) for batch in batches))
        assert len(cell.nats.streams["INBOX_main"].messages) <= 3
        found = stored(cell)
        for batch, at in zip(batches, positions, strict=True):
            assert [found[p] for p in at] == batch

    run(main())


def test_what_is_returned_is_already_stored() -> None:
    """I9: an acknowledgement before the bus has answered would lose jobs with the process."""

    async def main() -> None:
        cell = SimCell(faults=Faults(delay_min_s=0.05, delay_max_s=0.05))
        writer = await cell.writer()
        for i in range(5):
            (position,) = await writer.write([job(i)])
            assert position in stored(cell)

    run(main())


def test_a_lonely_write_does_not_linger_and_company_waits_at_most_5_ms() -> None:
    async def main() -> None:
        cell = SimCell(faults=Faults(delay_min_s=0.01, delay_max_s=0.01))
        writer = await cell.writer()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await writer.write([job(0)])
        assert loop.time() - began_s < 0.0201
        first = asyncio.create_task(writer.write([job(1)]))
        await asyncio.sleep(0.001)
        began_s = loop.time()
        await writer.write([job(2)])
        assert loop.time() - began_s < 0.0201 + LINGER_S
        await first

    run(main())


def test_messages_stay_below_the_limit_and_a_large_write_becomes_several() -> None:
    async def main() -> None:
        cell = SimCell()
        writer = await cell.writer()
        items = [with_template(i, 100_000) for i in range(20)]
        positions = await writer.write(items)
        log = cell.nats.streams["INBOX_main"]
        assert len(log.messages) == 4
        assert all(len(m.data) <= BATCH_BYTES_MAX + 1024 for m in log.messages.values())
        assert positions == sorted(positions)
        assert [stored(cell)[p] for p in positions] == items
        with pytest.raises(ItemTooLarge):
            await writer.write([with_template(99, 1 << 20)])
        assert len(stored(cell)) == 20

    run(main())


def test_a_bad_network_neither_loses_nor_repeats() -> None:
    async def main(seed: int) -> None:
        faults = Faults(delay_max_s=0.05, request_lost_chance=0.2, answer_lost_chance=0.2, stall_chance=0.02)
        cell = SimCell(seed, faults)
        writer = await cell.writer()
        rng = Random(seed)

        async def caller(first: int) -> None:
            for i in range(first, first + 20):
                (position,) = await writer.write([job(i)])
                assert stored(cell)[position] == job(i)
                await asyncio.sleep(rng.random() * 0.05)

        await asyncio.gather(*(caller(1000 * c) for c in range(10)))
        assert sorted(names(cell)) == sorted(f"job-{1000 * c + i}" for c in range(10) for i in range(20))

    for seed in range(3):
        run(main(seed))


def test_an_order_key_keeps_concurrent_writes_in_order_while_messages_are_repeated() -> None:
    async def main(order_key: str | None) -> bool:
        cell = SimCell(3, Faults(delay_max_s=0.02, request_lost_chance=0.3))
        writer = await cell.writer()
        writes = []
        for i in range(60):
            writes.append(asyncio.create_task(writer.write([job(i)], order_key=order_key)))
            await asyncio.sleep(0.004)
        await asyncio.gather(*writes)
        return names(cell) == [f"job-{i}" for i in range(60)]

    assert run(main("stream-1"))
    assert not run(main(None)), "the network is not bad enough to show anything"


def test_a_full_inbox_is_a_typed_refusal_and_stores_nothing() -> None:
    async def main() -> None:
        cell = SimCell()
        spec = inbox_spec("main")
        small = StreamSpec(name=spec.name, subjects=spec.subjects, max_messages=2)
        writer = InboxWriter(await cell.connect("a").stream(small), clock=SimClock())
        await writer.write([job(0)])
        await writer.write([job(1)])
        with pytest.raises(InboxFull):
            await writer.write([job(2)])
        assert names(cell) == ["job-0", "job-1"]

    run(main())


def test_writing_gives_up_before_a_repeat_could_be_stored_twice() -> None:
    async def main() -> None:
        cell = SimCell()
        writer = await cell.writer()
        cell.nats.faults.request_lost_chance = 1.0
        loop = asyncio.get_running_loop()
        with pytest.raises(OutcomeUnknown):
            await writer.write([job(0)])
        assert GIVE_UP_S < loop.time() < GIVE_UP_S + 10

    run(main())


def test_close_waits_for_what_was_taken() -> None:
    async def main() -> None:
        cell = SimCell(faults=Faults(delay_min_s=1.0, delay_max_s=1.0))
        writer = await cell.writer()
        writes = [asyncio.create_task(writer.write([job(i)])) for i in range(30)]
        await asyncio.sleep(0)
        await writer.close()
        assert len(names(cell)) == 30
        await asyncio.gather(*writes)
        with pytest.raises(RuntimeError):
            await writer.write([job(99)])

    run(main())


def test_a_message_carries_the_trace_of_its_first_caller() -> None:
    async def main() -> None:
        nats = SimNats(SimClock(), Random(1))
        stream = await nats.connect("a").stream(inbox_spec("main"))

        def headers() -> Mapping[str, str]:
            return {"traceparent": "00-1-2-01"}

        await InboxWriter(stream, clock=SimClock(), trace_headers=headers).write([job(0)])
        message = nats.streams["INBOX_main"].messages[1]
        assert message.headers is not None
        assert message.headers["traceparent"] == "00-1-2-01"

    run(main())
