"""Runs the preemptor: `python -m muster_preemptor` (`--help` lists its settings)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from muster.runtime import streams
from muster.runtime.following import start_follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.members import Members
from muster.runtime.service import ServiceContext, run_service
from muster.runtime.warmth import Warmth
from muster_preemptor.service import Preemptor, PreemptorMetrics
from muster_preemptor.settings import PreemptorSettings


@asynccontextmanager
async def build(context: ServiceContext[PreemptorSettings]) -> AsyncIterator[None]:
    """Wire the service to the real bus and clock."""
    settings, clock = context.settings, context.clock
    inbox = InboxWriter(
        await context.bus.stream(streams.inbox_spec(settings.cell, settings.nats_replicas)),
        clock=clock,
        trace_headers=context.tracing.headers,
    )
    leases = await context.bus.stream(streams.leases_spec(settings.nats_replicas))
    follower = await start_follower(context)
    warmth = Warmth(follower, clock)
    await warmth.get_ready()
    members = Members(leases, f"{settings.cell}.preemptor", settings.replica, clock=clock)
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
    await inbox.close()
    await follower.stop()


def main() -> int:
    return run_service("preemptor", PreemptorSettings, build)


if __name__ == "__main__":
    sys.exit(main())
