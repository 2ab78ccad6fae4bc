"""queue-manager: leads its cell, or stands by warm and keeps the log short.

    follower (always) --> candidate: waits for the lease, then leads; the process ends when its term does
                      \\-> snapshotter: while standing by, takes snapshots and trims

All policy is in the core, all of the log in `muster.runtime`; this wires them to one process. A term that ends for any
reason but a graceful stop ends the process with a code that says why (`exit_codes`), because the state it holds may be
ahead of what others agreed on: the next life starts from the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from muster.runtime import streams
from muster.runtime.candidate import Candidate
from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.follower import Follower
from muster.runtime.following import inbox_of, start_follower
from muster.runtime.log_keeping import log_keeper
from muster.runtime.service import ServiceContext
from muster.runtime.snapshotter import Snapshotter
from muster.wire.codec import UnknownVersion
from muster_queue_manager.metrics import Watch
from muster_queue_manager.settings import QueueManagerSettings

Context = ServiceContext[QueueManagerSettings]


@asynccontextmanager
async def build(context: Context) -> AsyncIterator[None]:
    """Wire the service to the real bus and clock."""
    settings, clock = context.settings, context.clock
    inbox = await inbox_of(context)
    leases = await context.bus.stream(streams.leases_spec(settings.nats_replicas))
    follower = await start_follower(context)
    watch = Watch(context.registry, context.tracing, follower.state)
    follower.on_reload(watch.reloaded)
    standing_by = StandingBy(context, await log_keeper(context, follower, inbox, leases))
    candidate = Candidate(
        follower,
        inbox,
        leases,
        replica=settings.replica,
        clock=clock,
        observer=watch,
        before_leading=standing_by.end,
    )
    standing_by.begin()
    context.spawn("candidate", _lead(candidate, follower))
    try:
        yield
    finally:
        await standing_by.end()
        await follower.stop()


async def _lead(candidate: Candidate, follower: Follower) -> None:
    """The candidate's life; what ends a term becomes the process's exit code."""
    try:
        await candidate.run()
    except UnknownVersion as error:
        if follower.failure is error:
            return  # stays up and unready (LOG-10), see `following`
        raise ProcessMustEnd(ExitCode.TOO_OLD, f"{error}: upgrade this replica first") from error


class StandingBy:
    """What this replica does only while it does not lead."""

    def __init__(self, context: Context, snapshotter: Snapshotter) -> None:
        self._context = context
        self._snapshotter = snapshotter
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = self._context.spawn("snapshots", self._snapshotter.run())

    async def end(self) -> None:
        """A snapshot that is being written is given up; its chunks are trimmed later."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
