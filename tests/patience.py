"""How tests wait for real processes and servers: for what has to happen, and never for time to pass.

`PATIENCE_S` is no promise that anything is fast: it is when a test gives up on a machine that is many times slower than
usual and busy besides. A test that passes never waits so long.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

PATIENCE_S: Final = 120.0
POLL_S: Final = 0.02
PORTS: Final = range(10_000, 20_000)  # below those that the system hands out to whoever connects to something


async def until(
    condition: Callable[[], object] | Callable[[], Awaitable[object]], what: str = "", within_s: float = PATIENCE_S
) -> None:
    """Return once `condition`, a function or a coroutine function, says yes; `what` is told when it never does."""
    ends_s = time.monotonic() + within_s
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        assert time.monotonic() < ends_s, f"not within {within_s:.0f} s: {what or condition}"
        await asyncio.sleep(POLL_S)


def wait_until(condition: Callable[[], object], said: Callable[[], str] = str) -> None:
    """The same where there is no event loop; `said` tells more when it never happens."""
    ends_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_s, f"not within {PATIENCE_S:.0f} s: {said()}"
        time.sleep(POLL_S)


def lasting_port() -> int:
    """A free port for a server that is killed and comes back to it. One that the system chose could by then be the near
    end of somebody's connection."""
    rng = Random(os.getpid() + time.monotonic_ns())
    while True:
        port = rng.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
