"""Runs fair-share: `python -m muster_fair_share` (`--help` lists its settings)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from muster.runtime.following import inbox_of, taking_part
from muster.runtime.lease import Lease
from muster.runtime.log_keeping import log_keeper
from muster.runtime.service import ServiceContext, run_service
from muster_fair_share.service import FairShare, FairShareMetrics
from muster_fair_share.settings import FairShareSettings


@asynccontextmanager
async def build(context: ServiceContext[FairShareSettings]) -> AsyncIterator[None]:
    """Wire the service to the real bus and clock."""
    settings, clock = context.settings, context.clock
    async with taking_part(context) as (follower, inbox, leases):
        service = FairShare(
            follower=follower,
            inbox=inbox,
            lease=Lease(leases, f"{settings.cell}.fair-share", settings.replica, clock=clock),
            clock=clock,
            interval_s=settings.publish_interval_ms / 1000,
            metrics=FairShareMetrics(context.registry),
        )
        context.spawn("fair-share", service.run())
        keeper = await log_keeper(context, follower, await inbox_of(context), leases, times_slower=2)
        context.spawn("snapshots", keeper.run())
        yield


def main() -> int:
    return run_service("fair-share", FairShareSettings, build)


if __name__ == "__main__":
    sys.exit(main())
