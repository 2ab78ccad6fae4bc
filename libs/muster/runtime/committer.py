"""Writing the ledger: one transaction at a time, by compare-and-set, until the outcome is known (LOG-4).

The ledger is the fence: only a writer that knows the stream's last sequence can add to it. When no answer comes, the
transaction may or may not be stored, and to build the next one on a guess would be wrong either way. So the identical
bytes are sent again with the identical expectation, until JetStream says that they are stored or that something else
stands in their place. In the second case this process is no longer the leader, whatever its lease says.

A server that stored the first try answers the second with a conflict, so on a conflict the committer looks at what is
stored where its transaction belongs.
"""

from __future__ import annotations

from typing import Final

from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.ports import Clock, Conflict, OutcomeUnknown, Stream, StreamFull

TRY_TIMEOUT_S: Final = 2.0
RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 1.0


class Deposed(ProcessMustEnd):
    """Another leader has written to the ledger."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.DEPOSED, message)


class Committer:
    """Appends transactions after `tail_seq`, the ledger's last sequence as its writer knows it."""

    def __init__(self, ledger: Stream, tail_seq: int, clock: Clock) -> None:
        self.tail_seq = tail_seq
        self.resends = 0  # how often it had to be sent again
        self._ledger = ledger
        self._clock = clock

    async def commit(self, data: bytes) -> int:
        """Store the bytes of one transaction; returns its sequence. Raises Deposed. One call at a time."""
        expected_seq = self.tail_seq + 1
        pause_s = RETRY_FIRST_S
        while True:
            try:
                seq = await self._ledger.publish(data, expected_last_seq=self.tail_seq, timeout_s=TRY_TIMEOUT_S)
            except (OutcomeUnknown, StreamFull):  # full: the cell waits for room, and nothing is lost (I9)
                pass
            except Conflict as conflict:
                if await self._is_stored(expected_seq, data, conflict):
                    break
            else:
                if seq != expected_seq:
                    raise Deposed(f"the ledger acknowledged sequence {seq}, expected was {expected_seq}")
                break
            self.resends += 1
            await self._clock.sleep(pause_s)
            pause_s = min(RETRY_MAX_S, 2 * pause_s)
        self.tail_seq = expected_seq
        return expected_seq

    async def _is_stored(self, expected_seq: int, data: bytes, conflict: Conflict) -> bool:
        """Whether an earlier try was stored. False: nothing is there yet. Raises Deposed for somebody else's."""
        stored = await self._ledger.get(expected_seq)
        if stored is None:
            last_seq = (await self._ledger.info()).last_seq
            if last_seq == self.tail_seq:
                return False  # another write was on its way (code 10164) and came to nothing
            raise Deposed(f"the ledger is at {last_seq}, this leader built on {self.tail_seq}") from conflict
        if stored.data != data:
            raise Deposed(f"another leader wrote ledger sequence {expected_seq}") from conflict
        return True
