"""A follower as part of a service: readiness waits for it, and the process ends with what stops it.

One case is different: a ledger version newer than this build (LOG-10). The replica stays up, unready and where it is,
so that an operator finds a process that says what it needs instead of one that restarts for ever; a replica that meets
it while starting ends with `TOO_OLD`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.follower import Follower
from muster.runtime.logs import get_logger
from muster.runtime.service import ServiceContext
from muster.wire.codec import UnknownVersion

log = get_logger(__name__)


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
