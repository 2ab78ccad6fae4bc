"""A TCP proxy between one client and the server, which can hold answers back and cut connections."""

from __future__ import annotations

import asyncio


class Proxy:
    """`hold` keeps what the server says from the client while requests still get through; `cut` resets connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._trigger = b""
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold(self) -> None:
        self._flowing.clear()

    def hold_when_sent(self, data: bytes) -> None:
        """Hold from the next request on that contains `data`; that one still gets through."""
        self._trigger = data

    @property
    def holds(self) -> bool:
        return not self._flowing.is_set()

    def release(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def stop(self) -> None:
        self.cut()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, up_writer]
        for source, sink, held in ((reader, up_writer, False), (up_reader, writer, True)):
            pump = asyncio.create_task(self._pump(source, sink, held))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, held: bool) -> None:
        try:
            while data := await source.read(65536):
                if held:
                    await self._flowing.wait()
                elif self._trigger and self._trigger in data:
                    self._trigger = b""
                    self.hold()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()
