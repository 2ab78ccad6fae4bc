"""The wall clock and sleeping, as the port `Clock`. The simulation has its own on virtual time (`muster.sim.loop`)."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Time of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
