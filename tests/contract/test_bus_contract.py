"""What `ports.Bus` and `ports.Stream` promise, tried on the fake and on a real nats-server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest
from tests.contract.bus_servers import RealServer, Server

from muster.runtime.bus_errors import BusRefused, ConnectionClosed
from muster.runtime.ports import (
    Bus,
    Conflict,
    MessagesLost,
    OutcomeUnknown,
    Outgoing,
    StoredMessage,
    Stream,
    StreamFull,
    StreamInfo,
    StreamSpec,
)

_names = itertools.count(1)
Test = Callable[[Bus, Stream], Coroutine[Any, Any, None]]


def spec(**limits: int) -> StreamSpec:
    """A stream of its own for each test: the real server lives for the whole module."""
    name = f"T{next(_names)}"
    return StreamSpec(name=name, subjects=(f"t.{name}", f"t.{name}.>"), **limits)


def run(server: Server, test: Test, **limits: int) -> None:
    async def main() -> None:
        bus = await server.connect()
        await test(bus, await bus.stream(spec(**limits)))

    server.run(main())


async def collect(stream: Stream, from_seq: int, count: int, subject: str | None = None) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    async with aclosing(stream.read(from_seq, subject=subject)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            assert batch, "an empty batch means nothing"
            found.extend(batch)
            if len(found) >= count:
                break
    return found


def test_a_new_stream_is_empty(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        assert await stream.info() == StreamInfo(first_seq=1, last_seq=0, messages=0, bytes=0)
        assert await stream.get(1) is None
        assert await stream.last(f"t.{stream.name}") is None

    run(server, test)


def test_binding_again_finds_the_stream_whatever_its_limits(server: Server) -> None:
    async def main() -> None:
        bus = await server.connect()
        first = spec()
        await (await bus.stream(first)).publish(b"x")
        for again in (first, StreamSpec(name=first.name, subjects=first.subjects, max_messages=5)):
            assert (await (await bus.stream(again)).info()).last_seq == 1

    server.run(main())


def test_publishing_counts_from_one_and_keeps_what_was_given(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        body = bytes(range(256))
        assert await stream.publish(body, headers={"traceparent": "00-a-b-01", "x": "a: b"}) == 1
        assert await stream.publish(b"", subject=f"t.{stream.name}.other") == 2
        one, two = await stream.get(1), await stream.last(f"t.{stream.name}.other")
        assert one is not None
        assert two is not None
        assert (one.seq, one.subject, one.data) == (1, f"t.{stream.name}", body)
        assert one.headers is not None
        assert one.headers["traceparent"] == "00-a-b-01"
        assert one.headers["x"] == "a: b"
        assert (two.seq, two.data, two.headers) == (2, b"", None)
        assert one.time_ms <= two.time_ms
        read = await collect(stream, 1, 2)
        assert [(m.seq, m.subject, m.data, m.time_ms) for m in read] == [
            (m.seq, m.subject, m.data, m.time_ms) for m in (one, two)
        ]
        assert dict(read[0].headers or {}) == dict(one.headers)

    run(server, test)


def test_many_in_flight_keep_the_order_they_were_sent_in(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        seqs = await asyncio.gather(*(stream.publish(b"%d" % i) for i in range(300)))
        assert seqs == list(range(1, 301))
        assert [m.data for m in await collect(stream, 1, 300)] == [b"%d" % i for i in range(300)]

    run(server, test)


def test_compare_and_set_on_the_stream(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        assert await stream.publish(b"a", expected_last_seq=0) == 1
        assert await stream.publish(b"b", expected_last_seq=1) == 2
        with pytest.raises(Conflict) as stale:
            await stream.publish(b"c", expected_last_seq=1)
        assert stale.value.last_seq == 2
        with pytest.raises(Conflict):
            await stream.publish(b"c", expected_last_seq=9)
        assert (await stream.info()).last_seq == 2

    run(server, test)


def test_exactly_one_of_many_racing_writers_wins(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        other = await (await server.connect()).stream(
            StreamSpec(stream.name, (f"t.{stream.name}", f"t.{stream.name}.>"))
        )
        tries = (s.publish(b"%d" % i, expected_last_seq=0) for i in range(20) for s in (stream, other))
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert [r for r in results if not isinstance(r, Conflict)] == [1]
        assert (await stream.info()).messages == 1

    run(server, test)


def test_a_retried_compare_and_set_that_was_stored_answers_conflict(server: Server) -> None:
    """LOG-4: so the caller compares what is stored with what it sent."""

    async def test(bus: Bus, stream: Stream) -> None:
        await stream.publish(b"mine", expected_last_seq=0, message_id="m1")
        with pytest.raises(Conflict):
            await stream.publish(b"mine", expected_last_seq=0)
        stored = await stream.get(1)
        assert stored is not None
        assert stored.data == b"mine"

    run(server, test)


def test_compare_and_set_on_a_subject_ignores_the_others(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        a, b = f"t.{stream.name}.a", f"t.{stream.name}.b"
        assert await stream.publish(b"1", subject=a, expected_last_subject_seq=0) == 1
        assert await stream.publish(b"2", subject=b, expected_last_subject_seq=0) == 2
        assert await stream.publish(b"3", subject=a, expected_last_subject_seq=1) == 3
        with pytest.raises(Conflict):
            await stream.publish(b"4", subject=a, expected_last_subject_seq=1)
        with pytest.raises(Conflict):
            await stream.publish(b"4", subject=b, expected_last_subject_seq=0)

    run(server, test)


def batch_of(stream: Stream, count: int) -> list[Outgoing]:
    return [Outgoing(f"t.{stream.name}.{n % 2}", {"number": str(n)}, b"%d" % n) for n in range(count)]


def test_a_batch_is_stored_one_behind_the_other(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        await stream.publish(b"before")
        assert await stream.publish_batch(batch_of(stream, 300), expected_last_seq=1) == 301
        found = await collect(stream, 2, 300)
        assert [m.data for m in found] == [b"%d" % n for n in range(300)]
        assert found[7].subject == f"t.{stream.name}.1"
        assert (found[7].headers or {})["number"] == "7"
        assert await stream.publish_batch(batch_of(stream, 1), expected_last_seq=301) == 302

    run(server, test, batches=True)


def test_a_text_in_a_header_cannot_become_another_header(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        if not isinstance(server, RealServer):
            return  # the fake has no wire
        bad = Outgoing(f"t.{stream.name}", {"text": "a\r\nNats-Msg-Id: b\r\n\r\nc", "name": "Grüße"}, b"x")
        await stream.publish_batch([bad, bad], expected_last_seq=0)
        for message in await collect(stream, 1, 2):
            headers = message.headers or {}
            assert "Nats-Msg-Id" not in headers
            assert headers["text"].split() == ["a", "Nats-Msg-Id:", "b", "c"]
            assert headers["name"] == "Grüße"
            assert message.data == b"x"

    run(server, test, batches=True)


def test_a_batch_that_conflicts_stores_nothing(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        await stream.publish(b"before")
        with pytest.raises(Conflict) as stale:
            await stream.publish_batch(batch_of(stream, 10), expected_last_seq=0)
        assert stale.value.last_seq == 1
        assert (await stream.info()).last_seq == 1

    run(server, test, batches=True)


def test_exactly_one_of_many_racing_batches_wins(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        batch = batch_of(stream, 20)
        tries = (stream.publish_batch(batch, expected_last_seq=0) for _ in range(10))
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert [r for r in results if not isinstance(r, Conflict)] == [20]
        assert (await stream.info()).messages == 20

    run(server, test, batches=True)


def test_a_batch_for_which_there_is_no_room_stores_nothing(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        with pytest.raises(StreamFull):
            await stream.publish_batch(batch_of(stream, 10), expected_last_seq=0)
        assert (await stream.info()).messages == 0

    run(server, test, batches=True, max_messages=5)


def test_a_stream_takes_batches_only_if_it_was_made_so(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        with pytest.raises(BusRefused):
            await stream.publish_batch(batch_of(stream, 10), expected_last_seq=0)
        assert (await stream.info()).messages == 0

    run(server, test)


def test_a_message_id_is_stored_once(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        assert await stream.publish(b"a", message_id="id-1") == 1
        assert await stream.publish(b"b") == 2
        assert await stream.publish(b"a", message_id="id-1") == 1
        assert (await stream.info()).messages == 2

    run(server, test)


def test_one_message_a_subject_replaces_the_older_one(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        a, b = f"t.{stream.name}.a", f"t.{stream.name}.b"
        for i in range(3):
            await stream.publish(b"%d" % i, subject=a)
        await stream.publish(b"b", subject=b)
        await stream.publish(b"last", subject=a)
        info = await stream.info()
        assert (info.first_seq, info.last_seq, info.messages) == (4, 5, 2)
        last = await stream.last(a)
        assert last is not None
        assert (last.seq, last.data) == (5, b"last")
        assert await stream.get(1) is None

    run(server, test, max_messages_per_subject=1)


def test_a_full_stream_refuses(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        for _ in range(3):
            await stream.publish(b"x")
        with pytest.raises(StreamFull):
            await stream.publish(b"x")
        await stream.purge_below(3)
        assert await stream.publish(b"x") == 4

    run(server, test, max_messages=3)


def test_a_stream_full_by_bytes_refuses(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        async def fill() -> None:
            for _ in range(50):
                await stream.publish(bytes(1000))

        with pytest.raises(StreamFull):
            await fill()
        assert 10_000 < (await stream.info()).bytes <= 20_000

    run(server, test, max_bytes=20_000)


def test_a_message_over_the_limit_is_refused_for_good(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        with pytest.raises(BusRefused):
            await stream.publish(bytes(2000))
        assert await stream.publish(bytes(900)) == 1

    run(server, test, max_message_bytes=1000)


def test_purging_moves_the_first_and_never_takes_the_last(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        for i in range(10):
            await stream.publish(b"%d" % i)
        await stream.purge_below(0)
        await stream.purge_below(1)
        assert (await stream.info()).messages == 10
        await stream.purge_below(4)
        info = await stream.info()
        assert (info.first_seq, info.last_seq, info.messages) == (4, 10, 7)
        assert await stream.get(3) is None
        await stream.purge_below(99)
        info = await stream.info()
        assert (info.first_seq, info.last_seq, info.messages) == (10, 10, 1)
        assert await stream.publish(b"next", expected_last_seq=10) == 11

    run(server, test)


def test_reading_follows_what_is_published_later(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        await stream.publish(b"0")
        reading = asyncio.create_task(collect(stream, 1, 20))
        for i in range(1, 20):
            await stream.publish(b"%d" % i)
        assert [m.seq for m in await reading] == list(range(1, 21))

    run(server, test)


def test_reading_from_the_middle_and_from_beyond_the_end(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        for i in range(5):
            await stream.publish(b"%d" % i)
        assert [m.seq for m in await collect(stream, 4, 2)] == [4, 5]
        beyond = asyncio.create_task(collect(stream, 8, 1))
        for i in range(4):
            await stream.publish(b"%d" % i)
        assert [m.seq for m in await beyond] == [8, 9][: len(beyond.result())]

    run(server, test)


def test_reading_one_subject(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        for i in range(9):
            await stream.publish(b"%d" % i, subject=f"t.{stream.name}.{'abc'[i % 3]}.x")
        found = await collect(stream, 2, 3, subject=f"t.{stream.name}.b.*")
        assert [m.seq for m in found] == [2, 5, 8]

    run(server, test)


def test_reading_what_was_trimmed_is_an_error(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        for i in range(5):
            await stream.publish(b"%d" % i)
        await stream.purge_below(4)
        for subject in (None, f"t.{stream.name}"):
            with pytest.raises(MessagesLost):
                await collect(stream, 3, 1, subject)
        assert [m.seq for m in await collect(stream, 4, 2)] == [4, 5]

    run(server, test)


def test_a_restart_while_reading_and_writing_loses_and_repeats_nothing(server: Server) -> None:
    """The server dies (kill -9 for the real one) with writes in flight; readers go on where they were."""

    async def test(bus: Bus, stream: Stream) -> None:
        async def write(i: int) -> int:
            while True:
                try:
                    return await stream.publish(b"%d" % i, message_id=f"w{i}", timeout_s=2.0)
                except OutcomeUnknown:
                    await asyncio.sleep(0.05)

        reading = asyncio.create_task(collect(stream, 1, 400))
        slow = asyncio.create_task(collect(stream, 1, 400, f"t.{stream.name}"))
        before = await asyncio.gather(*(write(i) for i in range(100)))
        during = [asyncio.create_task(write(i)) for i in range(100, 300)]
        await asyncio.sleep(0)
        await server.restart()
        acked = before + await asyncio.gather(*during)
        acked += await asyncio.gather(*(write(i) for i in range(300, 400)))
        for found in (await reading, await slow):
            assert [m.seq for m in found] == list(range(1, 401))
            by_seq = {m.seq: m.data for m in found}
            assert sorted(acked) == list(range(1, 401)), "an acknowledged message is in exactly one place"
            assert all(by_seq[seq] == b"%d" % i for i, seq in enumerate(acked))

    run(server, test)


def test_a_slow_reader_gets_everything(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        body = bytes(20_000)
        await asyncio.gather(*(stream.publish(body) for _ in range(400)))
        seen = 0
        async with aclosing(stream.read(1)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                for message in batch:
                    seen += 1
                    assert message.seq == seen
                await asyncio.sleep(0.01)
                if seen == 400:
                    break

    run(server, test)


def test_a_closed_connection_ends_everything(server: Server) -> None:
    async def test(bus: Bus, stream: Stream) -> None:
        closed = asyncio.create_task(bus.wait_closed())
        reading = asyncio.create_task(collect(stream, 1, 1))
        await asyncio.sleep(0.05)
        assert not closed.done()
        await bus.close()
        await closed
        with pytest.raises(ConnectionClosed):
            await stream.publish(b"x")
        with pytest.raises(ConnectionClosed):
            await reading

    run(server, test)


def test_a_server_that_is_down_leaves_the_outcome_unknown(nats_process: Any) -> None:
    """Only the real one can be down for long; the fake's partitions are in its unit tests."""
    server = RealServer(nats_process)

    async def main() -> None:
        bus = await server.connect()
        stream = await bus.stream(spec())
        await stream.publish(b"a")
        nats_process.kill()
        try:
            with pytest.raises(OutcomeUnknown):
                await stream.publish(b"b", timeout_s=0.3)
        finally:
            nats_process.start()
        while True:
            try:
                assert await stream.publish(b"c", timeout_s=1.0) == 2
                return
            except OutcomeUnknown:
                await asyncio.sleep(0.05)

    server.run(main())
