"""fair-share: tells the cell how much each queue is entitled to.

    ledger -> follower -> demand -> entitlements -> what differs from the state -> inbox

It follows the ledger like every reader, computes entitlements whenever something they depend on may have changed, and
writes only the values that changed, at most once an interval. One replica does this, by lease; being late, doubled or
dead does no harm: the leader orders by the entitlements it has, and by the guarantees before it has any (F2).
"""

from __future__ import annotations

import asyncio
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from muster.core import transitions as tr
from muster.core.commands import Entitlement, EntitlementsComputed
from muster.core.demand import demand, startable
from muster.core.entitlements import EntitlementEngine
from muster.core.model import Amounts, InboxPosition
from muster.core.state import FIRST_POSITION, CellState
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.lease import Lease
from muster.runtime.leased import work_while_held
from muster.runtime.ports import Clock

COMPUTE_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
# What entitlements depend on: the tree, the capacity, the demand (of a stopped queue: what it still uses).
RELEVANT: Final = frozenset(
    {
        tr.JobQueued,
        tr.JobSucceeded,
        tr.JobFailed,
        tr.JobCancelled,
        tr.JobRequeued,
        tr.QueueUpserted,
        tr.QueueRemoved,
        tr.NodeUpserted,
        tr.NodeRemoved,
        tr.EntitlementsSet,
    }
)


class FairShareMetrics:
    """What operators see of this service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.leading = Gauge("muster_fair_share_leading", "1 while this replica computes.", registry=registry)
        self.compute_seconds = Histogram(
            "muster_fair_share_compute_duration_seconds",
            "Time to compute the entitlements of the whole tree.",
            buckets=COMPUTE_BUCKETS,
            registry=registry,
        )
        self.published = Counter(
            "muster_fair_share_entitlements_published_total", "Changed entitlements written.", registry=registry
        )


class FairShare:
    """The service, on any bus and clock. `run` for ever."""

    def __init__(
        self,
        *,
        follower: Follower,
        inbox: InboxWriter,
        lease: Lease,
        clock: Clock,
        interval_s: float,
        metrics: FairShareMetrics,
    ) -> None:
        self._follower = follower
        self._inbox = inbox
        self._lease = lease
        self._clock = clock
        self._interval_s = interval_s
        self._metrics = metrics
        self._engine = EntitlementEngine()
        self._changed = asyncio.Event()
        self._written: dict[str, Amounts] = {}  # in the inbox, not yet decided
        self._written_at: InboxPosition = FIRST_POSITION

    async def run(self) -> None:
        """Follow, and publish while the lease is held. The follower has caught up."""
        self._reloaded(self._follower.state)
        self._follower.on_reload(self._reloaded)
        self._follower.on_transaction(self._applied)
        await work_while_held(self._lease, self._publish_changes)

    async def _publish_changes(self) -> None:
        self._written.clear()
        self._changed.set()
        self._metrics.leading.set(1)
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._publish_once()
                await self._clock.sleep(self._interval_s)
        finally:
            self._metrics.leading.set(0)

    async def _publish_once(self) -> None:
        state = self._follower.state
        with self._metrics.compute_seconds.time():
            changed = self._changes(state)
        if not changed or not self._lease.valid():
            return
        items = tuple(Entitlement(queue, amounts) for queue, amounts in sorted(changed.items()))
        positions = await self._inbox.write([EntitlementsComputed(state.ledger_seq, items)])
        self._written |= changed
        self._written_at = positions[-1]
        self._metrics.published.inc(len(items))

    def _changes(self, state: CellState) -> dict[str, Amounts]:
        """Entitlements that differ from what the state has, or will have once it consumed what was written."""
        if state.position > self._written_at:
            self._written.clear()
        computed = self._engine.entitlements(
            state.queues, startable(state, state.queues, demand(state)), state.nodes.capacity()
        )
        known = {**state.entitled, **self._written}
        # Also that a queue is entitled to nothing: as long as nothing is published, nobody reclaims from it (F2).
        return {queue: amounts for queue, amounts in computed.items() if known.get(queue) != amounts}

    def _applied(self, tx: tr.Transaction, _ledger_seq: int) -> None:
        state = self._follower.state
        if not RELEVANT.isdisjoint(map(type, tx.transitions)) or any(_asks_less(state, t) for t in tx.transitions):
            self._changed.set()

    def _reloaded(self, _state: CellState) -> None:
        self._changed.set()


def _asks_less(state: CellState, transition: tr.Transition) -> bool:
    """Whether pods were over of an array job, or in a queue that starts nothing: they are asked for no more."""
    job = state.jobs.get(transition.job) if isinstance(transition, tr.PodsChanged) else None
    return job is not None and bool(job.spec.completion or not state.queues.get(job.queue).starts_jobs)
