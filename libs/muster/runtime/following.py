"""A follower as part of a service: readiness waits for it, and the process ends with what stops it.

`taking_part` is what a service needs that reads the ledger, answers in the inbox and shares its work by leases.

One case is different: a ledger version newer than this build (LOG-10). The replica stays up, unready and where it is,
so that an operator finds a process that says what it needs instead of one that restarts for ever; a replica that meets
it while starting ends with `TOO_OLD`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from muster.runtime import streams
from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.logs import get_logger
from muster.runtime.ports import Stream
from muster.runtime.service import ServiceContext
from muster.wire.codec import UnknownVersion

log = get_logger(__name__)


class Part(NamedTuple):
    """What a service reads, where it answers, and where its replicas agree who works."""

    follower: Follower
    inbox: InboxWriter
    leases: Stream


@asynccontextmanager
async def taking_part(context: ServiceContext[Any]) -> AsyncIterator[Part]:
    """Everything made and caught up; stopped at the end of the block. Raises ProcessMustEnd as `start_follower`."""
    settings = context.settings
    inbox = InboxWriter(
        await inbox_of(context),
        clock=context.clock,
        trace_headers=context.tracing.headers,
    )
    leases = await context.bus.stream(streams.leases_spec(settings.nats_replicas))
    follower = await start_follower(context)
    yield Part(follower, inbox, leases)
    await inbox.close()
    await follower.stop()


async def inbox_of(context: ServiceContext[Any]) -> Stream:
    """The inbox of the service's cell, made with the size that is set if it is not there yet."""
    settings = context.settings
    spec = streams.inbox_spec(settings.cell, settings.nats_replicas, settings.inbox_max_bytes)
    return await context.bus.stream(spec)


async def start_follower(context: ServiceContext[Any], *, cell: str = "") -> Follower:
    """A follower of the service's cell, caught up. The caller stops it. Raises ProcessMustEnd (TOO_OLD)."""
    settings = context.settings
    follower = Follower(context.bus, cell or settings.cell, clock=context.clock, replicas=settings.nats_replicas)
    context.ready_when("ledger replay", lambda: follower.ready)
    try:
        await follower.start()
    except UnknownVersion as error:
        raise ProcessMustEnd(ExitCode.TOO_OLD, f"{error}: upgrade this replica first") from error
    context.spawn("ledger follower", _watch(follower))
    return follower


async def _watch(follower: Follower) -> None:
    try:
        await follower.wait_stopped()
    except UnknownVersion as error:
        log.error("the ledger is newer than this build, upgrade this replica", reason=str(error))
        await asyncio.Event().wait()  # until the process stops
