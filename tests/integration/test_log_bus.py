"""What a real server and connection can do to a reader and a writer that no fake does (see `nats_read`)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

from tests.integration.log_cell import real_cell
from tests.integration.tcp_proxy import Proxy
from tests.patience import PATIENCE_S, until

from muster.runtime.nats_bus import NatsBus
from muster.runtime.nats_read import FORGOTTEN_AFTER_S
from muster.runtime.ports import OutcomeUnknown, Stream, StreamSpec

SPEC = StreamSpec(name="T", subjects=("t",))


async def read(stream: Stream, count: int, seen: list[int]) -> None:
    async with aclosing(stream.read(1)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            seen.extend(m.seq for m in batch)
            if len(seen) >= count:
                return


async def consumers(bus: NatsBus) -> list[str]:
    names: list[str] = (await bus._requests.api("$JS.API.CONSUMER.NAMES.T", {}, PATIENCE_S))["consumers"] or []
    return names


async def delete_consumers(bus: NatsBus) -> int:
    """As a server that forgot them would; how many there were."""
    names = await consumers(bus)
    for name in names:
        await bus._requests.api(f"$JS.API.CONSUMER.DELETE.T.{name}", {}, PATIENCE_S)
    return len(names)


async def test_a_reader_whose_consumer_vanished_silently_gets_another(tmp_path: Path) -> None:
    async with real_cell(tmp_path) as cell:
        bus, other = await cell.bus("reader"), await cell.bus("other")
        stream, writer = await bus.stream(SPEC), await other.stream(SPEC)
        seen: list[int] = []
        reading = asyncio.create_task(read(stream, 20, seen))
        for _ in range(10):
            await writer.publish(b"x")
        await until(lambda: len(seen) == 10)
        assert await delete_consumers(other) == 1
        for _ in range(10):
            await writer.publish(b"y")
        await asyncio.wait_for(reading, PATIENCE_S)
        assert seen == list(range(1, 21))


async def test_a_reader_leaves_no_consumer_behind(tmp_path: Path) -> None:
    async with real_cell(tmp_path) as cell:
        bus = await cell.bus("reader")
        stream = await bus.stream(SPEC)
        await stream.publish(b"x")
        for _ in range(5):
            await read(stream, 1, [])

        async def none() -> bool:
            return not await consumers(bus)

        await until(none, "they are deleted, not forgotten", FORGOTTEN_AFTER_S / 2)


async def test_cut_connections_lose_no_message_and_store_none_twice(tmp_path: Path) -> None:
    async with real_cell(tmp_path) as cell:
        proxy = Proxy(cell.server.port)
        await proxy.start()
        direct, cell.server_url = cell.server_url, proxy.url
        bus = await cell.bus("through the proxy")
        cell.server_url = direct
        stream = await bus.stream(SPEC)
        seen: list[int] = []
        reading = asyncio.create_task(read(stream, 300, seen))

        async def write(i: int) -> None:
            while True:
                try:
                    await stream.publish(b"%d" % i, message_id=f"m{i}", timeout_s=1.0)
                    return
                except OutcomeUnknown:
                    await asyncio.sleep(0.05)

        for first in range(0, 300, 100):
            writes = [asyncio.create_task(write(i)) for i in range(first, first + 100)]
            await asyncio.sleep(0.005)
            proxy.cut()
            await asyncio.gather(*writes)
        await asyncio.wait_for(reading, PATIENCE_S)
        assert seen == list(range(1, 301))
        assert (await stream.info()).messages == 300
        await bus.close()
        await proxy.stop()
