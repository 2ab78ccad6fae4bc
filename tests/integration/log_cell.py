"""A cell's log on a real nats-server: connections, candidates and writers, each with a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.patience import PATIENCE_S, lasting_port, until
from tests.unit.runtime.cells import job

from muster.core import transitions as tr
from muster.core.model import InboxPosition
from muster.runtime.candidate import Candidate
from muster.runtime.clock import SystemClock
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.nats_bus import NatsBus, connect
from muster.runtime.nats_server import NatsServer
from muster.runtime.observer import LeaderObserver
from muster.runtime.ports import Stream
from muster.runtime.streams import inbox_spec, leases_spec, ledger_spec
from muster.wire import codec

CELL = "main"
BETWEEN_JOBS_S = 0.02


class RealCell:
    """Everything on one server; `close` ends all that was started."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.server_url = server.url  # of the connections made from now on
        self.clock = SystemClock()
        self._buses: list[NatsBus] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def bus(self, name: str) -> NatsBus:
        bus = await connect(self.server_url, name=name)
        self._buses.append(bus)
        return bus

    async def writer(self) -> InboxWriter:
        return InboxWriter(await (await self.bus("writer")).stream(inbox_spec(CELL)), clock=self.clock)

    async def follower(self, name: str = "follower") -> Follower:
        follower = Follower(await self.bus(name), CELL, clock=self.clock)
        await follower.start()
        return follower

    async def candidate(self, name: str, observer: LeaderObserver | None = None) -> tuple[Candidate, NatsBus]:
        bus = await self.bus(name)
        follower = Follower(bus, CELL, clock=self.clock)
        await follower.start()
        inbox, leases = await bus.stream(inbox_spec(CELL)), await bus.stream(leases_spec())
        return Candidate(follower, inbox, leases, replica=name, clock=self.clock, observer=observer), bus

    def spawn(self, candidate: Candidate) -> asyncio.Task[None]:
        task = asyncio.create_task(candidate.run())
        self._tasks.append(task)
        return task

    async def ledger(self) -> list[tr.Transaction]:
        """All of it, in order."""
        stream: Stream = await (await self.bus("reader")).stream(ledger_spec(CELL))
        last_seq = (await stream.info()).last_seq
        found: list[tr.Transaction] = []
        async for batch in stream.read(1):
            found.extend(codec.decode_transaction(m.data) for m in batch)
            if batch[-1].seq >= last_seq:
                return found
        raise AssertionError("reading ended")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for bus in self._buses:
            await bus.close()


@asynccontextmanager
async def real_cell(tmp_path: Path) -> AsyncIterator[RealCell]:
    server = NatsServer(tmp_path / "nats", port=lasting_port())
    server.start()
    cell = RealCell(server)
    try:
        yield cell
    finally:
        await cell.close()
        server.stop()


class Traffic:
    """A job, and another one, until a test has done to the cell what it wanted to do while there is work."""

    def __init__(self, writer: InboxWriter, follower: Follower) -> None:
        self.count = 0
        self._follower = follower
        self._enough = False
        self._task = asyncio.create_task(self._run(writer))

    async def _run(self, writer: InboxWriter) -> InboxPosition:
        while not self._enough:
            (position,) = await writer.write([job(self.count)])
            self.count += 1
            await asyncio.sleep(BETWEEN_JOBS_S)
        return position

    async def flows(self) -> None:
        """Wait until jobs that were not yet written when this was called are decided."""
        awaited = self.count + 5
        await until(lambda: self._task.done() or len(self._follower.state.jobs) >= awaited, "more jobs are decided")

    async def end(self) -> int:
        """How many there were, when all of them are decided."""
        self._enough = True
        await self._follower.wait_applied(await self._task, PATIENCE_S)
        return self.count
