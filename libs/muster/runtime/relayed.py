"""How far a cell's ledger has been relayed, as the stream EVENTS itself says (LOG-13).

Apart from the relay, because whoever trims the ledger asks this too and needs nothing of the API's messages.
"""

from __future__ import annotations

from muster.runtime.ports import Stream
from muster.wire.event_data import id_of


async def relayed_up_to(stream: Stream, cell: str) -> int | None:
    """The last ledger sequence all of whose events are surely in EVENTS; None before the first event. The ledger may
    be trimmed up to there (LOG-6): the relay goes on with the next one."""
    info = await stream.info()
    last = await last_of_cell(stream, cell, info.first_seq, info.last_seq)
    return last[0] - 1 if last is not None else None


async def last_of_cell(stream: Stream, cell: str, first_seq: int, last_seq: int) -> tuple[int, int] | None:
    """Looks from the end: the first look finds it unless other cells share the stream."""
    for seq in range(last_seq, first_seq - 1, -1):
        message = await stream.get(seq)
        if message is not None and message.subject.startswith(f"muster.events.{cell}."):
            return id_of(message.headers or {})
    return None
