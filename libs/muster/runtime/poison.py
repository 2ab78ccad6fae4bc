"""Items that kill their leader (LOG-9): remembering at which inbox position terms died.

`decide` refuses bad commands; an item at which it raises is a bug in the making, and every new leader would die at it.
So the leader that dies writes down where, in one small message of the stream LEASES, before it goes. The leader that
finds two deaths at the position it is about to decide puts the item aside (`InboxItemQuarantined`) and goes on.

Only deaths by an exception that the item alone causes are counted: a killed or deposed leader says nothing about the
item it was at.
"""

from __future__ import annotations

from typing import Final

import msgspec

from muster.core.model import InboxPosition
from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.ports import Clock, Conflict, OutcomeUnknown, Stream
from muster.runtime.streams import lease_subject

DEATHS_BEFORE_QUARANTINE: Final = 2  # LOG-9
RETRY_S: Final = 0.1


class Poisoned(ProcessMustEnd):
    """This term died at an inbox item."""

    def __init__(self, position: InboxPosition, reason: str) -> None:
        message = f"deciding inbox item {position.seq}/{position.item} failed: {reason}"
        super().__init__(ExitCode.POISONED, message)
        self.position = position


class PoisonRecord(msgspec.Struct, frozen=True):
    """The message, as JSON."""

    position: InboxPosition
    deaths: int
    reason: str


class PoisonBook:
    """Where the terms of one cell died last."""

    def __init__(self, leases: Stream, cell: str, clock: Clock) -> None:
        self._stream = leases
        self._subject = lease_subject(f"{cell}.poison")
        self._clock = clock

    async def read(self) -> PoisonRecord | None:
        """The last death, if there was one."""
        return (await self._read())[0]

    async def add(self, position: InboxPosition, reason: str) -> PoisonRecord:
        """One more death at `position`; the record as it is then."""
        while True:
            record, seq = await self._read()
            before = record.deaths if record is not None and record.position == position else 0
            new = PoisonRecord(position, before + 1, reason)
            data = msgspec.json.encode(new)
            try:
                await self._stream.publish(data, subject=self._subject, expected_last_subject_seq=seq)
            except Conflict:
                continue
            except OutcomeUnknown:  # at worst it is counted twice
                await self._clock.sleep(RETRY_S)
                continue
            return new

    async def _read(self) -> tuple[PoisonRecord | None, int]:
        message = await self._stream.last(self._subject)
        if message is None:
            return None, 0
        return msgspec.json.decode(message.data, type=PoisonRecord), message.seq
