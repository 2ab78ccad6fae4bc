"""Doing something only while a lease is held: take it, work, and begin again when it is lost.

Three services have a job that one replica does (fair-share, the event relay, a cluster's node watcher). They differ in
the work, not in how they come to do it. The work is cancelled when the lease is lost or the process stops; it may still
be at its last step when somebody else begins, so that step must be harmless when late (`Lease`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from muster.runtime.lease import Lease, LeaseLost


async def work_while_held(lease: Lease, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work()` whenever `lease` is held, for ever; released on cancellation. What `work` raises is raised."""
    try:
        while True:
            await lease.acquire()
            await _until_lost(lease, work())
    finally:
        await lease.release()


async def _until_lost(lease: Lease, work: Coroutine[Any, Any, None]) -> None:
    working = asyncio.ensure_future(work)
    holding = asyncio.ensure_future(lease.hold())
    try:
        await asyncio.wait({working, holding}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            raise RuntimeError(f"the work under lease {lease.name} ended by itself")
        try:
            holding.result()
        except LeaseLost:
            pass
    finally:
        for task in (working, holding):
            task.cancel()
        await asyncio.gather(working, holding, return_exceptions=True)
