"""The event relay: the ledger's public events, once each and in order, as CloudEvents on the stream EVENTS (LOG-13).

    LEDGER -> transactions -> public events -> EVENTS, each expecting the stream's last sequence

Where it goes on is in EVENTS itself: the id of the cell's last event is its ledger sequence and index. Events are
stored in batches, all of a batch or nothing, each with compare-and-set on the stream's last sequence, so an event that
is stored twice or out of order cannot happen: not after a crash, not while two replicas relay at once, not when a batch
arrives late. When one fails the relay looks again at what is stored. One disk sync for each batch is what lets the
relay keep up with the ledger: one for each event is twenty times slower.

Events of other cells may come in between on the same stream; that is a conflict like any other, and costs a second
look. A full EVENTS stream loses its oldest tenth: history is kept for readers that come late, and the present matters
more. A stream that was made without batches (by an older build) takes one event at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final

from muster.runtime import logs
from muster.runtime.bus_errors import BusRefused
from muster.runtime.ports import (
    BATCH_MESSAGES_MAX,
    Clock,
    Conflict,
    MessagesLost,
    OutcomeUnknown,
    Outgoing,
    StoredMessage,
    Stream,
    StreamFull,
)
from muster.runtime.relayed import last_of_cell, relayed_up_to
from muster.wire import codec, events

BATCH_MAX: Final = 500  # events
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
        batch: int = BATCH_MAX,
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
        self._batch = min(batch, BATCH_MESSAGES_MAX)

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
        if message.seq <= self._done[0]:  # stored before, perhaps in part
            made = [event for event in made if (event.ledger_seq, event.index) > self._done]
        pending += made
        return message.seq

    async def _publish(self, pending: Sequence[events.PublicEvent]) -> None:
        """Store all of `pending`, whatever it takes."""
        at = 0
        while at < len(pending):
            batch = pending[at : at + self._batch]
            failure = await self._publish_batch(batch)
            if failure is None:
                self._done = (batch[-1].ledger_seq, batch[-1].index)
                self._stream_seq += len(batch)
                self.published += len(batch)
                at += len(batch)
                continue
            await self._recover(failure)
            while at < len(pending) and (pending[at].ledger_seq, pending[at].index) <= self._done:
                at += 1

    async def _publish_batch(self, batch: Sequence[events.PublicEvent]) -> Exception | None:
        """Store all or nothing; what happened if it is not known to be stored."""
        messages = [Outgoing(*events.cloud_event(event, self._cell)) for event in batch]
        expected_last_seq = self._stream_seq
        try:
            if len(messages) > 1:
                await self._events.publish_batch(
                    messages, expected_last_seq=expected_last_seq, timeout_s=PUBLISH_TIMEOUT_S
                )
            else:
                await self._events.publish(
                    messages[0].data,
                    subject=messages[0].subject,
                    headers=messages[0].headers,
                    expected_last_seq=expected_last_seq,
                    timeout_s=PUBLISH_TIMEOUT_S,
                )
        except BusRefused as refusal:
            if len(messages) == 1:
                raise
            log.warning("the event stream takes no batches, events go one by one", reason=str(refusal))
            self._batch = 1
            return refusal
        except (Conflict, OutcomeUnknown, StreamFull) as failure:
            return failure
        return None

    async def _recover(self, failure: Exception) -> None:
        """Look at what is stored."""
        if isinstance(failure, StreamFull):
            info = await self._events.info()
            log.warning("the event stream is full", dropped=info.messages // FULL_SHARE_DROPPED)
            await self._events.purge_below(info.first_seq + max(1, info.messages // FULL_SHARE_DROPPED))
        elif isinstance(failure, OutcomeUnknown):
            await self._clock.sleep(RETRY_S)
        await self._look()

    async def _look(self) -> None:
        """Where EVENTS stands. The end is read before the last event: what comes in between makes the next publish a
        conflict; the other way round it would be published twice."""
        info = await self._events.info()
        done = await last_of_cell(self._events, self._cell, max(info.first_seq, self._stream_seq), info.last_seq)
        self._stream_seq = info.last_seq
        if done is not None:
            self._done = max(self._done, done)


__all__ = ["BATCH_MAX", "EventRelay", "relayed_up_to"]
