"""The production services of a cell as processes of a simulated machine room.

A process is a name and an async context of work. It is started, killed (its tasks cancelled, its connections gone with
whatever was on the wire) and started again after it exits for any reason, as a supervisor does. What runs inside is
what `__main__` of each service wires, on the simulation's bus, clock and clusters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from prometheus_client import CollectorRegistry

from muster.runtime import streams
from muster.runtime.bus_errors import ConnectionClosed
from muster.runtime.candidate import Candidate
from muster.runtime.committer import Deposed
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.kube_watch import WatchSettings
from muster.runtime.lease import Lease
from muster.runtime.leased import work_while_held
from muster.runtime.members import Members
from muster.runtime.poison import Poisoned
from muster.runtime.relay import EventRelay, relayed_up_to
from muster.runtime.skew import ClockSkewed
from muster.runtime.snapshotter import Snapshotter
from muster.runtime.tracing import Tracing
from muster.runtime.trim import Trimmer
from muster.sim.bus import SimBus, SimNats
from muster.sim.kube import SimKube
from muster.sim.kube_client import SimKubeApi
from muster.sim.loop import SimClock
from muster.wire import events
from muster_binder.binder import Binder, BinderOptions
from muster_binder.metrics import BinderMetrics
from muster_binder.partitions import PartitionLeases
from muster_binder.review import ReviewSettings
from muster_fair_share.service import FairShare, FairShareMetrics
from muster_preemptor.service import Preemptor, PreemptorMetrics

CELL = "main"
EXPECTED_ENDS = (Deposed, ConnectionClosed, ClockSkewed, Poisoned)
RESTART_S = 0.5
SNAPSHOT_EVERY = 60  # transactions: often, so that loading, verifying and trimming happen in every run
RETENTION_MS = 20_000  # more than a stalled message takes: the witness must see everything


class Process:
    """One supervised process. `main(process)` runs until it is killed or raises."""

    def __init__(self, name: str, world: Room, main: Callable[[Process], Awaitable[None]]) -> None:
        self.name = name
        self.world = world
        self.clock = SimClock()
        self.bus: SimBus | None = None
        self.apis: dict[str, SimKubeApi] = {}
        self.starts = 0
        self.crash: BaseException | None = None  # a bug
        self._main = main
        self._task: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._supervisor = asyncio.create_task(self._supervise(), name=f"supervisor of {self.name}")

    async def kill(self) -> None:
        """As kill -9: nothing it would do on the way out reaches anybody."""
        self.world.nats.crash(self.name)
        for api in self.apis.values():
            api.cut()
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
        await self.kill()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _supervise(self) -> None:
        while True:
            self.starts += 1
            self.bus = self.world.nats.connect(self.name)
            self.apis = {name: kube.client(self.name) for name, kube in self.world.kubes.items()}
            self._task = asyncio.create_task(_run(self._main(self)), name=self.name)
            await asyncio.wait((self._task,))
            self._note_end(self._task)
            self.world.nats.crash(self.name)
            await asyncio.sleep(RESTART_S)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        for leaf in _leaves(error) if error is not None else ():
            if not isinstance(leaf, (*EXPECTED_ENDS, asyncio.CancelledError)):
                self.crash = leaf
                self.world.failed(f"{self.name} crashed", leaf)


async def _run(main: Awaitable[None]) -> None:
    await main


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


class Room:
    """What all processes share. `failed` is called with anything that must not happen."""

    def __init__(self, nats: SimNats, kubes: dict[str, SimKube], rng: Random) -> None:
        self.nats = nats
        self.kubes = kubes
        self.rng = rng
        self.failures: list[tuple[str, BaseException]] = []

    def failed(self, what: str, error: BaseException) -> None:
        self.failures.append((what, error))


async def queue_manager(process: Process) -> None:
    """As muster_queue_manager: a candidate with a warm follower that takes snapshots while it stands by."""
    bus, clock = process.bus, process.clock
    assert bus is not None
    inbox = await bus.stream(streams.inbox_spec(CELL))
    leases = await bus.stream(streams.leases_spec())
    stored = await bus.stream(streams.events_spec())
    follower = Follower(bus, CELL, clock=clock)
    await follower.start()

    async def relay_seq() -> int | None:
        return await relayed_up_to(stored, CELL)

    trimmer = Trimmer(follower.ledger, inbox, clock=clock, relay_seq=relay_seq, retention_ms=RETENTION_MS)
    snapshotter = Snapshotter(
        follower,
        Lease(leases, f"{CELL}.snapshots", process.name, clock=clock),
        trimmer,
        clock=clock,
        every_transactions=SNAPSHOT_EVERY,
    )
    snapshots = asyncio.create_task(snapshotter.run(), name=f"snapshots of {process.name}")

    async def before_leading() -> None:
        snapshots.cancel()
        await asyncio.wait((snapshots,))

    candidate = Candidate(follower, inbox, leases, replica=process.name, clock=clock, before_leading=before_leading)
    try:
        await candidate.run()
    finally:
        snapshots.cancel()
        await asyncio.wait((snapshots,))
        await follower.stop()


async def binder(process: Process) -> None:
    """As muster_binder."""
    bus, clock = process.bus, process.clock
    assert bus is not None
    inbox = InboxWriter(await bus.stream(streams.inbox_spec(CELL)), clock=clock)
    leases = await bus.stream(streams.leases_spec())
    follower = Follower(bus, CELL, clock=clock)
    partitions = PartitionLeases(leases, f"binder-{CELL}", process.name, clock=clock)
    work = Binder(
        CELL,
        ledger=follower,
        apis=process.apis,
        inbox=inbox,
        partitions=partitions,
        clock=clock,
        random=Random(process.world.rng.random()),
        options=BinderOptions(
            resync_s=10.0,
            review=ReviewSettings(finished_pod_ttl_ms=5_000, orphan_grace_ms=5_000),
            watch=WatchSettings(watch_timeout_s=20.0, silence_s=30.0),
        ),
        tracing=Tracing.off(),
        metrics=BinderMetrics(CollectorRegistry()),
    )
    await follower.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follower.wait_stopped())
        tasks.create_task(partitions.run())
        tasks.create_task(work.run())


async def fair_share(process: Process) -> None:
    """As muster_fair_share."""
    bus, clock = process.bus, process.clock
    assert bus is not None
    inbox = InboxWriter(await bus.stream(streams.inbox_spec(CELL)), clock=clock)
    leases = await bus.stream(streams.leases_spec())
    follower = Follower(bus, CELL, clock=clock)
    await follower.start()
    service = FairShare(
        follower=follower,
        inbox=inbox,
        lease=Lease(leases, f"{CELL}.fair-share", process.name, clock=clock),
        clock=clock,
        interval_s=0.25,
        metrics=FairShareMetrics(CollectorRegistry()),
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follower.wait_stopped())
        tasks.create_task(service.run())


async def preemptor(process: Process) -> None:
    """As muster_preemptor."""
    bus, clock = process.bus, process.clock
    assert bus is not None
    inbox = InboxWriter(await bus.stream(streams.inbox_spec(CELL)), clock=clock)
    leases = await bus.stream(streams.leases_spec())
    follower = Follower(bus, CELL, clock=clock)
    await follower.start()
    service = Preemptor(
        follower=follower,
        inbox=inbox,
        members=Members(leases, f"{CELL}.preemptor", process.name, clock=clock),
        decided_timeout_s=2.0,
        metrics=PreemptorMetrics(CollectorRegistry()),
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follower.wait_stopped())
        tasks.create_task(service.run())


async def relay(process: Process) -> None:
    """As the event relay of muster_admission."""
    bus, clock = process.bus, process.clock
    assert bus is not None
    leases = await bus.stream(streams.leases_spec())
    follower = Follower(bus, CELL, clock=clock)
    await follower.start()
    stored = await bus.stream(streams.events_spec())
    lease = Lease(leases, f"{CELL}.relay", process.name, clock=clock)

    async def work() -> None:
        names = events.StateNames(lambda: follower.state)
        await EventRelay(cell=CELL, ledger=follower.ledger, stream=stored, names=names, clock=clock).run()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follower.wait_stopped())
        tasks.create_task(work_while_held(lease, work))
