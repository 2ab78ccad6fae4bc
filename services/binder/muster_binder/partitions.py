"""Who of several binders looks after which jobs: partitions by job id, a lease each, shared evenly (LOG-5, LOG-15).

`Members` says which replicas live; partition `p` belongs to the `p mod n`-th of the n of them. Each replica takes the
leases of what belongs to it and gives back the rest, so a new replica has its share within a second, and a dead one's
share is taken over when its leases have run out. While views differ two replicas may want the same partition: its lease
decides, and the binder's own fences (names, uids, waiting) make even a paused holder harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from muster.runtime.lease import TTL_S, Lease, LeaseLost
from muster.runtime.logs import get_logger
from muster.runtime.members import Members
from muster.runtime.ports import Clock, OutcomeUnknown, Stream

PARTITIONS: Final = 16
ROUNDS_PER_TTL: Final = 6
RENEW_EVERY_ROUNDS: Final = 2
MEMBER_TTL_S: Final = TTL_S / 2  # a wrong guess costs nothing: the partition's lease still has to run out
HASH_DIGITS: Final = 8
_ALL: Final = range(PARTITIONS)

log = get_logger(__name__)


def partition_of(job: str) -> int:
    """The partition of a job id (hex digits, uniformly distributed)."""
    return int(job[:HASH_DIGITS], 16) % PARTITIONS


class PartitionLeases:
    """This replica's partitions. `run` keeps them; `changed` is set whenever one was taken or lost."""

    def __init__(self, stream: Stream, group: str, replica: str, *, clock: Clock, ttl_s: float = TTL_S) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._replica = replica
        self._members = Members(stream, group, replica, clock=clock, ttl_s=MEMBER_TTL_S)
        self._leases = [Lease(stream, f"{group}.{p}", replica, clock=clock, ttl_s=ttl_s) for p in _ALL]
        self._terms: dict[int, int] = {}  # held partitions -> number of the taking
        self._taken_s: dict[int, float] = {}
        self._takings = 0
        self.changed = asyncio.Event()

    # --- what the binder asks ---------------------------------------------------------------------------------------

    def holds(self, partition: int) -> bool:
        """Held, and surely by nobody else now."""
        return partition in self._terms and self._leases[partition].valid()

    def term(self, partition: int) -> int:
        """Tells one taking of the partition from the next; 0 while it is not held."""
        return self._terms.get(partition, 0)

    def taken_s(self, partition: int) -> float:
        """When it was last taken, by the monotonic clock."""
        return self._taken_s.get(partition, self._clock.monotonic())

    def held(self) -> list[int]:
        return sorted(self._terms)

    # --- keeping them -----------------------------------------------------------------------------------------------

    async def run(self, fit: Callable[[], bool] = lambda: True) -> None:
        """For ever; ends by cancellation. Call `release` afterwards. While not `fit`, others get this one's share."""
        while True:
            while not fit():
                await self._clock.sleep(self._ttl_s / ROUNDS_PER_TTL)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._members.run(), name="members")
                    tasks.create_task(self._keep(fit), name="partition leases")
            except* _Unfit:
                log.warning("not fit to act, leaving the partitions to others", held=self.held())
            await self.release()

    async def release(self) -> None:
        """Give everything back at once (a graceful stop)."""
        held = self.held()
        self._terms.clear()
        self.changed.set()
        await self._members.leave()
        await asyncio.gather(*(self._leases[p].release() for p in held))

    async def _keep(self, fit: Callable[[], bool]) -> None:
        rounds = 0
        while True:
            if not fit():
                raise _Unfit
            try:
                if rounds % RENEW_EVERY_ROUNDS == 0:
                    await self._renew()
                await self._share()
            except OutcomeUnknown:
                pass  # NATS is away: what we hold stays ours until somebody else is seen in it
            rounds += 1
            await self._clock.sleep(self._ttl_s / ROUNDS_PER_TTL)

    async def _renew(self) -> None:
        held = self.held()
        kept = await asyncio.gather(*(_kept(self._leases[p]) for p in held))
        for partition, ours in zip(held, kept, strict=True):
            if not ours:
                del self._terms[partition]
                self.changed.set()

    async def _share(self) -> None:
        """Hold what belongs to us among the live members, and only that."""
        live = self._members.live
        if self._replica not in live:
            return  # not announced yet, or NATS was away: nothing is known
        mine = [p for p in _ALL if live[p % len(live)] == self._replica]
        for partition in self.held():
            if partition not in mine:
                del self._terms[partition]  # nothing is done for it from here on
                self.changed.set()
                await self._leases[partition].release()
        wanted = [p for p in mine if p not in self._terms]
        taken = await asyncio.gather(*(self._leases[p].try_acquire() for p in wanted))
        for partition, success in zip(wanted, taken, strict=True):
            if success:
                self._takings += 1
                self._terms[partition] = self._takings
                self._taken_s[partition] = self._clock.monotonic()
                self.changed.set()


class _Unfit(Exception):
    pass


async def _kept(lease: Lease) -> bool:
    """Renew; False when it is somebody else's now."""
    try:
        await lease.renew()
    except LeaseLost as lost:
        log.warning("lease lost", lease=lease.name, holder=lease.holder, reason=str(lost))
        return False
    except OutcomeUnknown:
        pass  # it was ours when last seen; `valid` says whether it may be used
    return True
