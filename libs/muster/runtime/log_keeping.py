"""Keeping a cell's log short as part of a service: snapshots, trimming, their settings and metrics (LOG-6).

Standbys of the queue-manager do it. fair-share does it at half their pace while it alone holds the snapshot lease, so
that a cell with a single queue-manager, which leads and never serialises its state, keeps its log short as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Gauge, Histogram

from muster.runtime.follower import Follower
from muster.runtime.lease import Lease
from muster.runtime.logs import get_logger
from muster.runtime.ports import Stream
from muster.runtime.relayed import relayed_up_to
from muster.runtime.service import ServiceContext
from muster.runtime.settings import CommonSettings, setting
from muster.runtime.snapshots import SnapshotFailed, SnapshotInfo
from muster.runtime.snapshotter import EVERY_S, EVERY_TRANSACTIONS, LEASE_TTL_S, Snapshotter
from muster.runtime.streams import events_spec
from muster.runtime.trim import Trimmer

HOUR_MS: Final = 3600 * 1000
SECONDS_BUCKETS: Final = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class LogKeepingSettings(CommonSettings):
    """What a service reads that may take snapshots."""

    ledger_retention_hours: int = setting("how long ledger and inbox are kept at least", 7 * 24, minimum=0)
    snapshot_every_transactions: int = setting(
        "ledger messages after which a snapshot is taken", EVERY_TRANSACTIONS, minimum=1
    )


S = TypeVar("S", bound=LogKeepingSettings)


class SnapshotMetrics:
    """What operators see of snapshots taken here."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "muster_snapshot_duration_seconds",
            "Time to write and verify one snapshot.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._seq = Gauge("muster_snapshot_ledger_seq", "Ledger sequence of the last snapshot.", registry=registry)

    def taken(self, info: SnapshotInfo, seconds: float) -> None:
        self._seconds.observe(seconds)
        self._seq.set(info.ledger_seq)
        log.info("snapshot", ledger_seq=info.ledger_seq, bytes=info.bytes, seconds=round(seconds, 3))

    def failed(self, error: SnapshotFailed) -> None:
        log.error("snapshot failed, the ones before it stay", reason=str(error))


async def log_keeper(
    context: ServiceContext[S], follower: Follower, inbox: Stream, leases: Stream, *, times_slower: int = 1
) -> Snapshotter:
    """Takes snapshots of the follower's state and trims the cell's streams, once it is run."""
    settings, clock = context.settings, context.clock
    events = await context.bus.stream(events_spec(settings.nats_replicas))
    metrics = SnapshotMetrics(context.registry)

    async def relay_seq() -> int | None:
        return await relayed_up_to(events, settings.cell)

    trimmer = Trimmer(
        follower.ledger,
        inbox,
        clock=clock,
        relay_seq=relay_seq,
        retention_ms=settings.ledger_retention_hours * HOUR_MS,
    )
    return Snapshotter(
        follower,
        Lease(leases, f"{settings.cell}.snapshots", settings.replica, clock=clock, ttl_s=LEASE_TTL_S),
        trimmer,
        clock=clock,
        every_transactions=settings.snapshot_every_transactions * times_slower,
        every_s=EVERY_S * times_slower,
        on_snapshot=metrics.taken,
        on_failure=metrics.failed,
    )
