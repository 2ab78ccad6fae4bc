"""JetStream in memory, with the real one's semantics and with faults on demand.

`SimNats` is the server: it holds the streams and never forgets what it stored (like a server that syncs every write).
`connect` gives a `SimBus`, one client's connection, which implements `Bus`; the contract suite runs the same tests
against it and the real server. What can go wrong between a client and a server goes wrong here, drawn from the
injected random numbers: a request is lost before it is stored, an answer is lost after it was, either is slow, the
client is cut off, or it crashes with requests on their way. As on a TCP connection, what one client sends arrives in
order; what arrives late may arrive after the client gave up on it.

Not modelled: several servers. A retried compare-and-set answers Conflict, as one real server does (code 10071).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from random import Random
from typing import Final

from msgspec import Struct

from muster.runtime.bus_errors import BusRefused, ConnectionClosed
from muster.runtime.ports import (
    Clock,
    OutcomeUnknown,
    Outgoing,
    StoredMessage,
    Stream,
    StreamInfo,
    StreamSpec,
)
from muster.sim.streams import StreamLog, Write, subject_matches

READ_BATCH_MAX: Final = 256
ASK_RETRY_S: Final = 0.1
TICK_S: Final = 1e-6  # between two arrivals on one connection: timers of the same time have no order


class Faults(Struct):
    """How bad the network is. Chances are per request; everything may be changed while running."""

    delay_min_s: float = 0.0  # one way
    delay_max_s: float = 0.0
    request_lost_chance: float = 0.0  # not stored, no answer
    answer_lost_chance: float = 0.0  # stored, no answer
    stall_chance: float = 0.0  # this message, and what follows it on the connection, is late by
    stall_s: float = 8.0
    repeat_chance: float = 0.0  # a message without expectations, of a client in `repeating`, comes again within stall_s
    repeating: tuple[str, ...] = ()
    short_batch_chance: float = 0.0  # a reader gets fewer messages at a time than there are


class SimNats:
    """The server. `rng` decides all faults, in the order of requests."""

    def __init__(self, clock: Clock, rng: Random, faults: Faults | None = None) -> None:
        self.clock = clock
        self.rng = rng
        self.faults = faults or Faults()
        self.streams: dict[str, StreamLog] = {}
        self._clients: list[SimBus] = []

    def connect(self, client: str) -> SimBus:
        """A new connection; `client` is the name that the fault methods use."""
        bus = SimBus(self, client)
        self._clients.append(bus)
        return bus

    def partition(self, client: str) -> None:
        """Cut a client off. What it has sent and was not answered has an unknown outcome, for it and in fact."""
        for bus in self._of(client):
            bus.cut()

    def heal(self, client: str) -> None:
        for bus in self._of(client):
            bus.restore()

    def stall(self, client: str, stall_s: float) -> None:
        """A client's path to the server is choked: what it sends from now on arrives that much later, all of it."""
        for bus in self._of(client):
            bus.choke(stall_s)

    def crash(self, client: str) -> None:
        """The client's process is gone. Cancel its tasks; requests on their way may still be stored."""
        for bus in self._of(client):
            bus.drop()
        self._clients = [bus for bus in self._clients if bus.client != client]

    def restart(self) -> None:
        """The server was down for a moment: every connection was lost, all that was stored is there."""
        for bus in self._clients:
            bus.cut()
            bus.restore()

    def _of(self, client: str) -> list[SimBus]:
        return [bus for bus in self._clients if bus.client == client]

    def delay_s(self) -> float:
        """One way, drawn."""
        faults = self.faults
        delay = faults.delay_min_s
        if faults.delay_max_s > delay:
            delay = self.rng.uniform(delay, faults.delay_max_s)
        if self.hits(faults.stall_chance):
            delay += faults.stall_s
        return delay

    def hits(self, chance: float) -> bool:
        return chance > 0.0 and self.rng.random() < chance


class SimBus:
    """One client's connection."""

    def __init__(self, server: SimNats, client: str) -> None:
        self.server = server
        self.client = client
        self._up = asyncio.Event()
        self._up.set()
        self._gone = asyncio.Event()
        self._in_flight: dict[asyncio.Future[int], asyncio.TimerHandle] = {}
        self._arrival_s = 0.0  # when the latest request arrives: later ones not before it

    # --- Bus ---

    async def stream(self, spec: StreamSpec) -> Stream:
        await self.round_trip()
        log = self.server.streams.get(spec.name)
        if log is None:
            log = self.server.streams[spec.name] = StreamLog(spec)
        return SimStream(self, log)

    async def publish_core(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Nobody in the simulation listens to hints: they may be lost, so they always are."""

    async def wait_closed(self) -> None:
        await self._gone.wait()

    async def close(self) -> None:
        self.drop()

    # --- the connection ---

    def cut(self) -> None:
        self._up.clear()
        self._lose_in_flight()
        for future in list(self._in_flight):
            if not future.done():
                future.set_exception(OutcomeUnknown("the connection was lost before the answer came"))
        self._in_flight.clear()

    def restore(self) -> None:
        if not self._gone.is_set():
            self._up.set()

    def choke(self, stall_s: float) -> None:
        self._arrival_s = max(self._arrival_s, asyncio.get_running_loop().time() + stall_s)

    def drop(self) -> None:
        self._lose_in_flight()
        for future in list(self._in_flight):
            if not future.done():
                future.set_exception(ConnectionClosed("the connection is closed"))
        self._in_flight.clear()
        self._gone.set()
        self._up.set()
        for log in self.server.streams.values():
            log.notify()  # readers of this connection find it closed

    def _lose_in_flight(self) -> None:
        # Each request that has not arrived is lost or not, as if some bytes had left before the cut.
        for arrival in self._in_flight.values():
            if self.server.rng.random() < 0.5:
                arrival.cancel()

    def check(self) -> None:
        if self._gone.is_set():
            raise ConnectionClosed("the connection is closed")

    async def reachable(self) -> None:
        """Returns when the server can be reached. Raises ConnectionClosed."""
        self.check()
        if not self._up.is_set():
            await self._up.wait()
            self.check()

    async def round_trip(self) -> None:
        """What a question and its answer cost; asked again for as long as it takes."""
        while True:
            await self.reachable()
            lost = self.server.hits(self.server.faults.request_lost_chance)
            await asyncio.sleep(ASK_RETRY_S if lost else 2 * self.server.delay_s())
            if not lost and self._up.is_set():
                self.check()
                return

    async def send(self, log: StreamLog, write: Write | Sequence[Write], timeout_s: float) -> int:
        """Publish: the request travels, is stored or refused, the answer travels."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        timer = loop.call_later(timeout_s, _fail, future, OutcomeUnknown(f"no answer within {timeout_s:g} s"))
        try:
            if not self._up.is_set():
                waiting = asyncio.ensure_future(self._up.wait())
                await asyncio.wait((waiting, future), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
            self.check()
            if not future.done():
                self._arrival_s = max(self._arrival_s + TICK_S, loop.time() + self.server.delay_s())
                self._in_flight[future] = loop.call_at(self._arrival_s, self._arrive, log, write, future)
            return await future
        finally:
            timer.cancel()
            self._in_flight.pop(future, None)

    def _arrive(self, log: StreamLog, write: Write | Sequence[Write], future: asyncio.Future[int]) -> None:
        server = self.server
        if server.hits(server.faults.request_lost_chance):
            return
        try:
            now_ms = server.clock.now_ms()
            seq = log.store(write, now_ms) if isinstance(write, Write) else log.store_batch(write, now_ms)
        except Exception as error:
            if not server.hits(server.faults.answer_lost_chance):
                asyncio.get_running_loop().call_later(server.delay_s(), _fail, future, error)
            return
        if isinstance(write, Write) and write.expects_nothing and self.client in server.faults.repeating:
            self._repeat(log, write)
        if not server.hits(server.faults.answer_lost_chance):
            asyncio.get_running_loop().call_later(server.delay_s(), _succeed, future, seq)

    def _repeat(self, log: StreamLog, write: Write) -> None:
        """Perhaps the network has another copy of it, which comes later, when the server has forgotten its id."""
        server = self.server
        if server.hits(server.faults.repeat_chance):
            again_s = server.rng.uniform(0.0, server.faults.stall_s)
            copy = Write(write.subject, write.data, write.headers)
            asyncio.get_running_loop().call_later(again_s, lambda: log.store(copy, server.clock.now_ms()))


class SimStream:
    """One stream as a client sees it."""

    def __init__(self, bus: SimBus, log: StreamLog) -> None:
        self.name = log.spec.name
        self._bus = bus
        self._log = log

    async def publish(
        self,
        data: bytes,
        *,
        subject: str | None = None,
        headers: Mapping[str, str] | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        message_id: str | None = None,
        timeout_s: float = 5.0,
    ) -> int:
        """As `Stream.publish`; `BusRefused` when the message can never be stored."""
        write = Write(
            subject=subject or self._log.spec.subjects[0],
            data=data,
            headers=headers,
            expected_last_seq=expected_last_seq,
            expected_last_subject_seq=expected_last_subject_seq,
            message_id=message_id,
        )
        self._check_subject(write.subject)
        return await self._bus.send(self._log, write, timeout_s)

    async def publish_batch(
        self, messages: Sequence[Outgoing], *, expected_last_seq: int, timeout_s: float = 5.0
    ) -> int:
        """As `Stream.publish_batch`."""
        writes: list[Write] = []
        for message in messages:
            self._check_subject(message.subject)
            expected = None if writes else expected_last_seq
            writes.append(Write(message.subject, message.data, message.headers, expected_last_seq=expected))
        await self._bus.reachable()  # what cannot be sent now is not sent later
        return await self._bus.send(self._log, writes, timeout_s)

    def _check_subject(self, subject: str) -> None:
        if not any(subject_matches(pattern, subject) for pattern in self._log.spec.subjects):
            raise BusRefused(0, f"{subject} is no subject of {self.name}")

    async def info(self) -> StreamInfo:
        await self._bus.round_trip()
        return self._log.info()

    async def get(self, seq: int) -> StoredMessage | None:
        await self._bus.round_trip()
        return self._log.messages.get(seq)

    async def last(self, subject: str) -> StoredMessage | None:
        await self._bus.round_trip()
        return self._log.last(subject)

    async def purge_below(self, seq: int) -> None:
        await self._bus.round_trip()
        self._log.purge_below(seq)

    async def read(self, from_seq: int, *, subject: str | None = None) -> AsyncIterator[Sequence[StoredMessage]]:
        """As `Stream.read`."""
        bus, log, server = self._bus, self._log, self._bus.server
        next_seq = max(1, from_seq)
        while True:
            await bus.reachable()
            limit = server.rng.randint(1, 8) if server.hits(server.faults.short_batch_chance) else READ_BATCH_MAX
            batch = log.read(next_seq, subject, limit)
            if not batch:
                await log.wait_change()
                continue
            await asyncio.sleep(server.delay_s())
            await bus.reachable()
            next_seq = batch[-1].seq + 1
            yield batch


def _fail(future: asyncio.Future[int], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _succeed(future: asyncio.Future[int], seq: int) -> None:
    if not future.done():
        future.set_result(seq)
