"""The event relay: the ledger's public events, once each and in order, as CloudEvents on the stream EVENTS (LOG-13).

    LEDGER -> transactions -> public events -> EVENTS, each expecting the stream's last sequence

Where it goes on is in EVENTS itself: the id of the cell's last event is its ledger sequence and index. Every event is
published with compare-and-set on the stream's last sequence, so an event that is stored twice or out of order cannot
happen: not after a crash, not while two replicas relay at once. Many publishes are in flight, each expecting the
sequence of the one before it; when one fails, those behind it fail too, and the relay looks again at what is stored.
A replicated stream admits one such write at a time; the window then shrinks to what the server takes.

Events of other cells may come in between on the same stream; that is a conflict like any other, and costs a second
look. But then only one publish may be in flight (`window`): of several, the first may be lost and the second arrive
late, just behind another cell's event, where its expectation happens to hold. A full EVENTS stream loses its oldest
tenth: history is kept for readers that come late, and the present matters more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final

from muster.runtime import logs
from muster.runtime.ports import Clock, Conflict, MessagesLost, OutcomeUnknown, StoredMessage, Stream, StreamFull
from muster.runtime.relayed import last_of_cell, relayed_up_to
from muster.wire import codec, events

WINDOW_MAX: Final = 256
PUBLISH_TIMEOUT_S: Final = 5.0
RETRY_S: Final = 0.1
FULL_SHARE_DROPPED: Final = 10  # one part in so many

log = logs.get_logger(__name__)


class EventRelay:
    """Relays one cell. Run it under a lease; a second one at the same time is wasteful and harmless."""

    def __init__(
        self,
        *,
        cell: str,
        ledger: Stream,
        stream: Stream,
        names: events.Names,
        clock: Clock,
        window: int = WINDOW_MAX,
    ) -> None:
        self.relayed_seq = 0  # everything of the ledger up to here is in EVENTS
        self.published = 0
        self._cell = cell
        self._ledger = ledger
        self._events = stream
        self._names = events.Remembering(names)
        self._clock = clock
        self._done = (0, -1)  # id of the last event that is stored
        self._stream_seq = 0  # last sequence of EVENTS
        self._window_max = window
        self._window = window

    async def run(self) -> None:
        """For ever; cancel to stop."""
        await self._look()
        from_seq = max(1, self._done[0])
        while True:
            try:
                async with aclosing(self._ledger.read(from_seq)) as batches:  # type: ignore[type-var]
                    await self._relay_all(batches)
            except MessagesLost:
                first = (await self._ledger.info()).first_seq
                if self._done[0]:
                    log.error("events lost", reason="the ledger was trimmed", from_seq=self._done[0], to_seq=first)
                from_seq = max(first, self._done[0])

    async def _relay_all(self, batches: AsyncIterator[Sequence[StoredMessage]]) -> None:
        applied: int | None = None
        async for batch in batches:
            pending: list[events.PublicEvent] = []
            for message in batch:
                applied = self._collect(message, applied, pending)
            await self._publish(pending)
            if batch:
                self.relayed_seq = batch[-1].seq

    def _collect(self, message: StoredMessage, applied: int | None, pending: list[events.PublicEvent]) -> int:
        """Add the message's events to `pending`; returns the sequence of the last transaction that counts (LOG-4)."""
        tx = codec.decode_transaction(message.data)
        if applied is not None and tx.header.prev != applied:
            return applied
        self._names.observe(tx)
        made = events.public_events(tx, message.seq, self._names, self._cell)
        pending.extend(event for event in made if (event.ledger_seq, event.index) > self._done)
        return message.seq

    async def _publish(self, pending: Sequence[events.PublicEvent]) -> None:
        """Store all of `pending`, whatever it takes."""
        at = 0
        while at < len(pending):
            window = pending[at : at + self._window]
            stored, failure = await self._publish_window(window)
            if stored:
                self._done = (window[stored - 1].ledger_seq, window[stored - 1].index)
                self._stream_seq += stored
                self.published += stored
            at += stored
            if failure is None:
                self._window = min(self._window_max, 2 * self._window)
                continue
            self._window = max(1, self._window // 2)
            await self._recover(failure)
            while at < len(pending) and (pending[at].ledger_seq, pending[at].index) <= self._done:
                at += 1

    async def _publish_window(self, window: Sequence[events.PublicEvent]) -> tuple[int, BaseException | None]:
        """How many were stored one after the other, and what happened to the next one."""
        tasks = []
        for offset, event in enumerate(window):
            subject, headers, data = events.cloud_event(event, self._cell)
            publish = self._events.publish(
                data,
                subject=subject,
                headers=headers,
                expected_last_seq=self._stream_seq + offset,
                timeout_s=PUBLISH_TIMEOUT_S,
            )
            tasks.append(asyncio.ensure_future(publish))
        try:
            results = await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        for offset, result in enumerate(results):
            if isinstance(result, BaseException):
                return offset, result
        return len(results), None

    async def _recover(self, failure: BaseException) -> None:
        """Look at what is stored. Raises what is not a matter of trying again."""
        if isinstance(failure, StreamFull):
            info = await self._events.info()
            log.warning("the event stream is full", dropped=info.messages // FULL_SHARE_DROPPED)
            await self._events.purge_below(info.first_seq + max(1, info.messages // FULL_SHARE_DROPPED))
        elif isinstance(failure, OutcomeUnknown):
            await self._clock.sleep(RETRY_S)
        elif not isinstance(failure, Conflict):
            raise failure
        await self._look()

    async def _look(self) -> None:
        """Where EVENTS stands. The end is read before the last event: what comes in between makes the next publish a
        conflict; the other way round it would be published twice."""
        info = await self._events.info()
        done = await last_of_cell(self._events, self._cell, max(info.first_seq, self._stream_seq), info.last_seq)
        self._stream_seq = info.last_seq
        if done is not None:
            self._done = max(self._done, done)


__all__ = ["WINDOW_MAX", "EventRelay", "relayed_up_to"]
