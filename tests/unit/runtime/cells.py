"""A cell's log on the fake bus in virtual time, and items to put into it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import Any

from muster.core import commands
from muster.core import transitions as tr
from muster.core.model import JobSpec, NodeSpec, QueueSpec, TaskGroup
from muster.runtime.candidate import Candidate
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.observer import LeaderObserver
from muster.runtime.ports import Bus, Stream
from muster.runtime.streams import inbox_spec, leases_spec
from muster.sim.bus import Faults, SimNats
from muster.sim.loop import SimClock
from muster.wire import codec

CELL = "main"


def queue(path: str = "team", **fields: object) -> commands.UpsertQueue:
    return commands.UpsertQueue(path=path, spec=QueueSpec(id="", name=path, parent="", **fields))  # type: ignore[arg-type]


def nodes(count: int, *, complete: bool = True) -> commands.NodesReported:
    allocatable = (("cpu", 8000), ("memory", 1 << 35), ("pods", 110))
    specs = tuple(NodeSpec(cluster="c", name=f"n{i:03}", allocatable=allocatable) for i in range(count))
    return commands.NodesReported(cluster="c", nodes=specs, first=True, complete=complete)


def job(number: int, path: str = "team", cpu_millis: int = 1000) -> commands.SubmitJob:
    group = TaskGroup(name="main", replicas=1, min_replicas=1, requests=(("cpu", cpu_millis), ("memory", 1 << 20)))
    return commands.SubmitJob(
        JobSpec(
            id=sha256(b"%d" % number).hexdigest()[:32],
            namespace="default",
            name=f"job-{number}",
            queue=path,
            tasks=(group,),
            request_id=f"r{number}",
            digest=f"d{number}",
        )
    )


class SimCell:
    """One cell on one fake server. Every client has a connection of its own, named as given."""

    def __init__(self, seed: int = 1, faults: Faults | None = None) -> None:
        self.nats = SimNats(SimClock(), Random(seed), faults)

    def connect(self, client: str) -> Bus:
        return self.nats.connect(client)

    async def writer(self, client: str = "writer") -> InboxWriter:
        return InboxWriter(await self.inbox(client), clock=SimClock())

    async def inbox(self, client: str = "inbox") -> Stream:
        return await self.connect(client).stream(inbox_spec(CELL))

    async def follower(self, client: str = "follower") -> Follower:
        follower = Follower(self.connect(client), CELL, clock=SimClock())
        await follower.start()
        return follower

    async def candidate(
        self, name: str, clock: SimClock | None = None, observer: LeaderObserver | None = None, **more: Any
    ) -> Candidate:
        """A queue-manager's core, caught up and not yet contending."""
        bus, clock = self.connect(name), clock or SimClock()
        follower = Follower(bus, CELL, clock=clock)
        await follower.start()
        inbox, leases = await bus.stream(inbox_spec(CELL)), await bus.stream(leases_spec())
        return Candidate(follower, inbox, leases, replica=name, clock=clock, observer=observer, **more)

    def ledger(self) -> list[tr.Transaction]:
        log = self.nats.streams["LEDGER_main"]
        return [codec.decode_transaction(log.messages[seq].data) for seq in sorted(log.messages)]


def transitions(ledger: Sequence[tr.Transaction], kind: type[tr.Transition]) -> list[tr.Transition]:
    return [t for tx in ledger for t in tx.transitions if isinstance(t, kind)]


async def cancel(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
