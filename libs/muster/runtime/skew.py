"""How far this machine's clock is from JetStream's (LOG-2).

The leader's `now` goes into every decision, so a leader whose clock is wrong would start, expire and time out jobs at
the wrong moment, for ever after (time never goes back). It therefore asks, before it leads and while it does: a small
message is stored, and the time JetStream put on it is compared with this machine's time before and after.
"""

from __future__ import annotations

from typing import Final

from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.ports import Clock, OutcomeUnknown, Stream
from muster.runtime.streams import lease_subject

SKEW_MS_MAX: Final = 2000
CHECK_INTERVAL_S: Final = 10.0


class ClockSkewed(ProcessMustEnd):
    """This machine's clock is not to be trusted with `now`."""

    def __init__(self, offset_ms: int) -> None:
        message = f"this machine's clock is {offset_ms} ms off JetStream's, at most {SKEW_MS_MAX} are allowed (LOG-2)"
        super().__init__(ExitCode.CLOCK_SKEW, message)
        self.offset_ms = offset_ms


async def clock_offset_ms(leases: Stream, owner: str, clock: Clock) -> int:
    """At least how many ms this clock is ahead of (positive) or behind JetStream's; 0 if it may well be right."""
    while True:
        before_ms = clock.now_ms()
        try:
            seq = await leases.publish(b"", subject=lease_subject(f"clock.{owner}"))
        except OutcomeUnknown:
            continue
        after_ms = clock.now_ms()
        stored = await leases.get(seq)
        if stored is not None:  # None: another check of ours replaced it
            return max(0, before_ms - stored.time_ms) + min(0, after_ms - stored.time_ms)


async def check_clock(leases: Stream, owner: str, clock: Clock) -> None:
    """Raises ClockSkewed."""
    offset_ms = await clock_offset_ms(leases, owner, clock)
    if abs(offset_ms) > SKEW_MS_MAX:
        raise ClockSkewed(offset_ms)


async def watch_clock(leases: Stream, owner: str, clock: Clock) -> None:
    """Check for ever. Raises ClockSkewed."""
    while True:
        await clock.sleep(CHECK_INTERVAL_S)
        await check_clock(leases, owner, clock)
