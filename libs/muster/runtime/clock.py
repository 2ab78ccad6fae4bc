"""The machine's clock, as the shell's `Clock`.

The core never sees a clock: `now_ms` reaches it as an argument (LOG-2). The simulation passes its own clock, so
no other module of the log's runtime may read the time.
"""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Wall clock and monotonic time of this machine."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some point; only differences mean anything."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
