"""Writing the inbox: many callers' commands and facts in few messages (LOG-7).

What costs is one fsync a message, so `InboxWriter` packs what its callers write at the same time into one message: at
most 512 KiB, waiting at most 5 ms for company, and not at all while nothing is on its way. `write` returns the items'
positions once they are durable, never before (I9).

    write(items) -> pieces in a queue -> messages, several in flight -> acknowledged -> positions to the callers

A message whose outcome is unknown is sent again with identical bytes and the same message id, so it is stored once.
After `GIVE_UP_S` of that the callers get OutcomeUnknown, as those do who waited so long for their turn: it may be
stored, and asking again with the same request id is safe (LOG-11). While several messages are in flight, a repeated one
may land behind a later one; callers that need their own writes in order either await each or name an `order_key`, which
keeps one message with that key in flight.

A full inbox refuses commands before facts (LOG-14): see `InboxGauge`. What waits here to be sent is bounded as well,
by `QUEUED_BYTES_MAX`: then commands are refused in the same way, and facts wait their turn. A write whose caller has
gone before it was sent is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final
from uuid import uuid4

from muster.core.commands import AnyItem
from muster.core.model import InboxPosition
from muster.runtime.backpressure import RETRY_WHEN_STORED_FULL_MS, InboxFull, InboxGauge
from muster.runtime.ports import Clock, OutcomeUnknown, Stream, StreamFull
from muster.runtime.streams import MESSAGE_BYTES_MAX
from muster.wire import codec

BATCH_BYTES_MAX: Final = 512 * 1024  # LOG-7
LINGER_S: Final = 0.005  # LOG-7
IN_FLIGHT_MAX: Final = 8  # messages
ITEM_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 16 * 1024  # headers and framing
TRY_TIMEOUT_S: Final = 5.0
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
QUEUED_BYTES_MAX: Final = 64 * 1024 * 1024  # of writes that wait to be sent
GIVE_UP_S: Final = 60.0  # well inside JetStream's duplicate window, or a late repeat would be stored twice


class ItemTooLarge(ValueError):
    """One item does not fit a message; whoever makes items keeps them smaller (LOG-8)."""


class _Piece:
    """Items of one caller that go into one message together."""

    __slots__ = ("bytes", "give_up_s", "headers", "items", "key", "positions", "sent")

    def __init__(self, key: Hashable, headers: Mapping[str, str], give_up_s: float) -> None:
        self.items: list[bytes] = []  # encoded
        self.bytes = 0
        self.key = key
        self.sent = False
        self.give_up_s = give_up_s  # when nobody need hope any more that it is sent
        self.headers = headers
        self.positions: asyncio.Future[list[InboxPosition]] = asyncio.get_running_loop().create_future()


def no_headers() -> Mapping[str, str]:
    return {}


class InboxWriter:
    """Group commit to one cell's inbox. `gauge` is given for commands: they are refused early (LOG-14).

    `trace_headers` returns the headers of the caller's trace (W3C traceparent); a message carries those of the first
    write in it.
    """

    def __init__(
        self,
        inbox: Stream,
        *,
        clock: Clock,
        gauge: InboxGauge | None = None,
        trace_headers: Callable[[], Mapping[str, str]] = no_headers,
    ) -> None:
        self._inbox = inbox
        self._clock = clock
        self._gauge = gauge
        self._trace_headers = trace_headers
        self._id = uuid4().hex  # of this writer's life; message ids must not meet those of another
        self._sent = 0
        self._queue: deque[_Piece] = deque()
        self._queued_bytes = 0
        self._forsaken = 0  # still in the queue, without items
        self._made_room = asyncio.Event()
        self._arriving = asyncio.Lock()  # so that those who wait for room come in their order
        self._busy_keys: set[Hashable] = set()
        self._sends: set[asyncio.Task[None]] = set()
        self._linger: asyncio.TimerHandle | None = None
        self._closed = False

    async def write(self, items: Sequence[AnyItem], *, order_key: Hashable = None) -> list[InboxPosition]:
        """Store `items`, in this order, and return where they are; they are durable then.

        Many items may become several messages; if one of those fails the others may still be stored. Raises InboxFull
        (nothing of a refused message is stored), OutcomeUnknown, ItemTooLarge, ConnectionClosed.
        """
        if self._closed:
            raise RuntimeError("the inbox writer is closed")
        if self._gauge is not None:
            await self._gauge.check()
        pieces = self._split(items, order_key)
        await self._room(sum(piece.bytes for piece in pieces))
        for piece in pieces:
            self._queue.append(piece)
            self._queued_bytes += piece.bytes
        self._send_or_linger()
        try:
            results = await asyncio.gather(*(piece.positions for piece in pieces), return_exceptions=True)
        except asyncio.CancelledError:
            self._forsake(pieces)
            raise
        positions: list[InboxPosition] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            positions.extend(result)
        return positions

    async def _room(self, size: int) -> None:
        """Returns when `size` bytes may wait to be sent; a write larger than all there is waits for an empty queue."""
        if self._gauge is not None:
            if self._has_no_room(size):
                raise InboxFull(f"the inbox does not answer ({self._queued_bytes:,} bytes wait to be stored)")
            return
        async with self._arriving:
            while self._has_no_room(size):
                self._made_room.clear()
                await self._made_room.wait()
                if self._closed:
                    raise RuntimeError("the inbox writer is closed")

    def _has_no_room(self, size: int) -> bool:
        return self._queued_bytes > 0 and self._queued_bytes + size > QUEUED_BYTES_MAX

    def _forsake(self, pieces: Sequence[_Piece]) -> None:
        """Their caller has gone: what was not sent yet never is."""
        for piece in pieces:
            if not piece.sent:
                self._queued_bytes -= piece.bytes
                self._forsaken += 1
                piece.items.clear()
        if self._forsaken > len(self._queue) // 2:
            self._queue = deque(piece for piece in self._queue if piece.items)
            self._forsaken = 0
        self._made_room.set()

    async def close(self) -> None:
        """Take nothing more; returns when everything taken is durable or has failed."""
        self._closed = True
        self._made_room.set()
        self._fill()
        while self._sends:
            await asyncio.wait(self._sends)

    def _split(self, items: Sequence[AnyItem], key: Hashable) -> list[_Piece]:
        pieces: list[_Piece] = []
        headers, give_up_s = self._trace_headers(), self._clock.monotonic() + GIVE_UP_S
        for item in items:
            encoded = codec.encode_item(item)
            size = len(encoded)
            if size > ITEM_BYTES_MAX:
                raise ItemTooLarge(f"a {type(item).__name__} of {size} bytes, at most {ITEM_BYTES_MAX} fit a message")
            if not pieces or pieces[-1].bytes + size > BATCH_BYTES_MAX:
                pieces.append(_Piece(key, headers, give_up_s))
            pieces[-1].items.append(encoded)
            pieces[-1].bytes += size
        return pieces

    def _send_or_linger(self) -> None:
        if self._queued_bytes >= BATCH_BYTES_MAX:
            self._fill()
        elif self._linger is None and self._queue:
            # With nothing on its way, only what this turn of the loop brings is waited for.
            wait_s = LINGER_S if self._sends else 0.0
            self._linger = asyncio.get_running_loop().call_later(wait_s, self._fill)

    def _fill(self) -> None:
        """Send as many messages as may be in flight."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        while len(self._sends) < IN_FLIGHT_MAX:
            batch = self._next_batch()
            if not batch:
                return
            task = asyncio.get_running_loop().create_task(self._send(batch), name="inbox write")
            self._sends.add(task)
            task.add_done_callback(self._sent_one)

    def _next_batch(self) -> list[_Piece]:
        """The next pieces that fit one message and whose keys have none in flight; the rest stays, in order."""
        batch: list[_Piece] = []
        kept: deque[_Piece] = deque()
        kept_keys: set[Hashable] = set()
        size, now_s = 0, self._clock.monotonic()
        while self._queue:
            piece = self._queue.popleft()
            if not piece.items:
                self._forsaken -= 1
            elif now_s > piece.give_up_s:
                self._queued_bytes -= piece.bytes
                piece.positions.set_exception(OutcomeUnknown("the inbox does not answer; this was not sent"))
            elif piece.key is not None and (piece.key in self._busy_keys or piece.key in kept_keys):
                kept.append(piece)
                kept_keys.add(piece.key)
            elif batch and size + piece.bytes > BATCH_BYTES_MAX:
                kept.append(piece)
                break
            else:
                piece.sent = True
                batch.append(piece)
                size += piece.bytes
        kept.extend(self._queue)
        self._queue = kept
        self._queued_bytes -= size
        self._made_room.set()
        self._busy_keys.update(piece.key for piece in batch if piece.key is not None)
        return batch

    def _sent_one(self, task: asyncio.Task[None]) -> None:
        self._sends.discard(task)
        if not task.cancelled() and self._queue:
            self._fill()

    async def _send(self, batch: list[_Piece]) -> None:
        try:
            data = codec.join_inbox([item for piece in batch for item in piece.items])
            seq = await self._store(data, batch[0].headers)
        except asyncio.CancelledError:
            for piece in batch:
                piece.positions.cancel()
            raise
        except Exception as error:
            for piece in batch:
                if not piece.positions.done():  # its caller may have been cancelled
                    piece.positions.set_exception(error)
        else:
            item = 0
            for piece in batch:
                count = len(piece.items)
                if not piece.positions.done():
                    piece.positions.set_result([InboxPosition(seq, item + i) for i in range(count)])
                item += count
        finally:
            self._busy_keys.difference_update(piece.key for piece in batch if piece.key is not None)

    async def _store(self, data: bytes, headers: Mapping[str, str]) -> int:
        self._sent += 1
        message_id = f"{self._id}-{self._sent}"
        give_up_s = self._clock.monotonic() + GIVE_UP_S
        pause_s = RETRY_FIRST_S
        while True:
            try:
                seq = await self._inbox.publish(data, headers=headers, message_id=message_id, timeout_s=TRY_TIMEOUT_S)
            except StreamFull as error:
                raise InboxFull(f"the inbox is full: {error}", RETRY_WHEN_STORED_FULL_MS) from error
            except OutcomeUnknown:
                if self._clock.monotonic() > give_up_s:
                    raise
                await self._clock.sleep(pause_s)
                pause_s = min(RETRY_MAX_S, 2 * pause_s)
            else:
                if self._gauge is not None:
                    self._gauge.wrote(len(data))
                return seq
