"""Runs the preemptor: `python -m muster_preemptor` (`--help` lists its settings)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from muster.runtime.following import taking_part
from muster.runtime.members import Members
from muster.runtime.service import ServiceContext, run_service
from muster.runtime.warmth import Warmth
from muster_preemptor.service import Preemptor, PreemptorMetrics
from muster_preemptor.settings import PreemptorSettings


@asynccontextmanager
async def build(context: ServiceContext[PreemptorSettings]) -> AsyncIterator[None]:
    """Wire the service to the real bus and clock."""
    settings = context.settings
    async with taking_part(context) as (follower, inbox, leases):
        warmth = Warmth(follower, context.clock)
        await warmth.get_ready()
        members = Members(leases, f"{settings.cell}.preemptor", settings.replica, clock=context.clock)
        service = Preemptor(
            follower=follower,
            inbox=inbox,
            members=members,
            decided_timeout_s=settings.decided_timeout_ms / 1000,
            metrics=PreemptorMetrics(context.registry),
        )
        context.spawn("preemptor", service.run())
        context.spawn("keep warm", warmth.keep())
        yield
        await members.leave()


def main() -> int:
    return run_service("preemptor", PreemptorSettings, build)


if __name__ == "__main__":
    sys.exit(main())
