"""Keeps what is derived from a follower's state ready to be looked at, for services that answer questions or plan.

    start:  `get_ready` before the service is         then:  `keep` catches up now and then, beside everything else

What questions look at is made at first use and then follows the change logs of the state; logs are finite, and who has
fallen behind them starts afresh, which takes a good part of a second in a large cell. So nobody is let fall behind, and
nobody's question is the first. Work is done in small steps, between which the event loop runs.
"""

from __future__ import annotations

import asyncio
from typing import Final

from muster.core.prepare import prepare, rehearse
from muster.core.state import CellState
from muster.runtime.follower import Follower
from muster.runtime.ports import Clock

EVERY_S: Final = 0.25  # so that what is left to catch up with is a few milliseconds of work


class Warmth:
    """Of one follower, which has caught up."""

    def __init__(self, follower: Follower, clock: Clock) -> None:
        self._follower = follower
        self._clock = clock
        self._state: CellState | None = None  # what was prepared, and as of which ledger sequence
        self._seq = 0

    async def get_ready(self) -> None:
        """Everything, for the first time."""
        await self._catch_up()
        rehearse(self._follower.state)

    async def keep(self) -> None:
        """For ever."""
        while True:
            await self._clock.sleep(EVERY_S)
            await self._catch_up()

    async def _catch_up(self) -> None:
        state = self._follower.state
        if state is self._state and state.ledger_seq == self._seq:
            return
        seq = state.ledger_seq
        for _ in prepare(state):
            await asyncio.sleep(0)
            if state is not self._follower.state:  # a snapshot has replaced it: that one, the next time
                return
        self._state, self._seq = state, seq
