"""One server of each kind for the bus contract: the fake in virtual time, the real nats-server in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, Protocol

import uvloop

from muster.runtime.nats_bus import connect
from muster.runtime.nats_server import NatsServer
from muster.runtime.ports import Bus
from muster.sim.bus import Faults, SimNats
from muster.sim.loop import SimClock, VirtualTimeLoop


class Server(Protocol):
    """What the contract tests need of a server."""

    async def connect(self) -> Bus: ...

    async def restart(self) -> None: ...

    def run(self, main: Coroutine[Any, Any, None]) -> None: ...


class FakeServer:
    def __init__(self) -> None:
        faults = Faults(delay_min_s=0.0001, delay_max_s=0.002, short_batch_chance=0.3)
        self._nats = SimNats(SimClock(), Random(7), faults)

    async def connect(self) -> Bus:
        return self._nats.connect("client")

    async def restart(self) -> None:
        self._nats.restart()

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(main)


class RealServer:
    def __init__(self, process: NatsServer) -> None:
        self.process = process
        self._connections: list[Bus] = []

    async def connect(self) -> Bus:
        bus = await connect(self.process.url)
        self._connections.append(bus)
        return bus

    async def restart(self) -> None:
        self.process.kill()
        self.process.start()

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        async def closing() -> None:
            try:
                await asyncio.wait_for(main, 60)
            finally:
                for bus in self._connections:
                    await bus.close()
                self._connections.clear()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(closing())
