"""Wanting to lead a cell, and leading it: the lease around a term (LOG-5).

Every queue-manager replica has one candidate per cell. It waits for the lease while its follower keeps warm, checks
the clock, leads, and releases the lease on the way out whatever the reason was, so that the next one need not wait for
it to run out. Losing the lease to somebody else ends the term too: that the ledger is fenced makes a duel harmless, not
useful.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from muster.runtime.committer import Deposed
from muster.runtime.follower import Follower
from muster.runtime.leader import Term
from muster.runtime.lease import Lease, LeaseLost
from muster.runtime.observer import LeaderObserver
from muster.runtime.poison import PoisonBook
from muster.runtime.ports import Clock, Stream
from muster.runtime.skew import check_clock, watch_clock


def leader_lease_name(cell: str) -> str:
    return f"{cell}.leader"


async def nothing() -> None:
    """The default of `before_leading`."""


class Candidate:
    """`run` waits, leads once and ends by an exception. `before_leading` stops what only a standby does."""

    def __init__(
        self,
        follower: Follower,
        inbox: Stream,
        leases: Stream,
        *,
        replica: str,
        clock: Clock,
        observer: LeaderObserver | None = None,
        before_leading: Callable[[], Awaitable[None]] = nothing,
    ) -> None:
        cell = follower.state.cell
        self.lease = Lease(leases, leader_lease_name(cell), replica, clock=clock)
        self.leading = False
        self._leases = leases
        self._replica = replica
        self._clock = clock
        self._before_leading = before_leading
        book = PoisonBook(leases, cell, clock)
        self._term = Term(follower, inbox, book, leader=replica, clock=clock, observer=observer)

    async def run(self) -> None:
        """Raises Deposed, ClockSkewed, Poisoned, or what the follower or the reader stopped at."""
        await self.lease.acquire()
        try:
            await self._before_leading()
            await check_clock(self._leases, self._replica, self._clock)  # LOG-2
            self.leading = True
            await self._lead()
        except LeaseLost as error:
            raise Deposed(str(error)) from error
        finally:
            self.leading = False
            await self.lease.release()

    async def _lead(self) -> None:
        """The term and what may end it; the first to end ends all."""
        tasks = (
            asyncio.create_task(self._term.run(), name="term"),
            asyncio.create_task(self.lease.hold(), name="hold leader lease"),
            asyncio.create_task(watch_clock(self._leases, self._replica, self._clock), name="watch clock"),
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
