"""Taking snapshots and trimming, on a replica that is not the leader (LOG-6).

Any ready follower may do it; the snapshot lease keeps it to one. While the state is written out the follower stands
still and what the ledger brings waits, which a standby can afford and the leader cannot. A snapshot is due when
`every_transactions` have been applied since the newest one, or `every_s` have passed and anything has changed, or the
inbox needs room and `PRESSED_EVERY_S` have passed. After each, the streams are trimmed as far as `trim` allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from muster.core import snapshot
from muster.runtime.follower import Follower
from muster.runtime.lease import Lease, LeaseLost
from muster.runtime.ports import Clock
from muster.runtime.snapshots import SnapshotFailed, SnapshotInfo
from muster.runtime.trim import Trimmer
from muster.wire import codec

EVERY_TRANSACTIONS: Final = 20_000
EVERY_S: Final = 600.0
PRESSED_EVERY_S: Final = 30.0
LOOK_S: Final = 5.0
AFTER_FAILURE_S: Final = 60.0
LEASE_TTL_S: Final = 15.0


class Snapshotter:
    """Run `run` beside a follower until it stops being a mere follower. `on_snapshot` is told of each one written."""

    def __init__(
        self,
        follower: Follower,
        lease: Lease,
        trimmer: Trimmer,
        *,
        clock: Clock,
        every_transactions: int = EVERY_TRANSACTIONS,
        every_s: float = EVERY_S,
        on_snapshot: Callable[[SnapshotInfo, float], None] = lambda _info, _seconds: None,
        on_failure: Callable[[SnapshotFailed], None] = lambda _error: None,
    ) -> None:
        self._follower = follower
        self._lease = lease
        self._trimmer = trimmer
        self._clock = clock
        self._every_transactions = every_transactions
        self._every_s = every_s
        self._on_snapshot = on_snapshot
        self._on_failure = on_failure

    async def run(self) -> None:
        """For ever: wait for the lease, keep it, and take snapshots while it is held."""
        while True:
            await self._lease.acquire()
            holding = asyncio.create_task(self._lease.hold(), name="hold snapshot lease")
            working = asyncio.create_task(self._work(), name="take snapshots")
            try:
                await asyncio.wait((holding, working), return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    working.result()
                holding.result()
            except LeaseLost:
                pass
            finally:
                for task in (holding, working):
                    task.cancel()
                await asyncio.gather(holding, working, return_exceptions=True)  # read, whatever comes of it
                await self._lease.release()

    async def _work(self) -> None:
        while True:
            if self._follower.ready and await self._due():
                try:
                    await self.take()
                except SnapshotFailed as error:
                    self._on_failure(error)
                    await self._clock.sleep(AFTER_FAILURE_S)
            await self._clock.sleep(LOOK_S)

    async def _due(self) -> bool:
        listed = await self._follower.snapshots.listed()
        applied = self._follower.state.ledger_seq - (listed[0].ledger_seq if listed else 0)
        old_ms = self._clock.now_ms() - (listed[0].taken_ms if listed else 0)
        if applied >= self._every_transactions:
            return True
        if applied <= 0 or old_ms <= PRESSED_EVERY_S * 1000:
            return False
        return old_ms > self._every_s * 1000 or await self._trimmer.pressed()

    async def take(self) -> SnapshotInfo:
        """Write a snapshot of the follower's state now, then trim. Raises SnapshotFailed."""
        began_s = self._clock.monotonic()
        store = self._follower.snapshots
        async with self._follower.paused() as state:
            parts = (codec.encode_snapshot_part(part) for part in snapshot.dump(state))
            info = await store.write(parts, state.ledger_seq, state.position)
        self._on_snapshot(info, self._clock.monotonic() - began_s)
        await self._trimmer.trim(await store.listed())
        await store.drop_old()
        return info
