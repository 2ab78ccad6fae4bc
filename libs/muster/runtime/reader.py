"""Reading the inbox: the items in order, from the committed position on, each once (LOG-3).

The leader does not acknowledge anything: where it stands is part of each transaction. A background task reads and
decodes ahead, up to a limit, so that the next decision finds its items ready; what the leader has not committed is
still here, or is read again by the next leader. Items are handed out in whole messages, as `decide` wants them. Any
other sequence than the next one stops the reader.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from muster.core.commands import AnyItem, Undecodable
from muster.core.model import InboxPosition
from muster.runtime.ports import StoredMessage, Stream
from muster.wire import codec

ITEMS_AHEAD_MAX: Final = 20_000
Entry = tuple[InboxPosition, AnyItem | Undecodable]


class SequenceBroken(Exception):
    """The inbox delivered another sequence than the next one: to go on would lose or repeat items."""


class InboxReader:
    """Items from `position` on. `on_change` is called when there is more to peek at, or an error to raise."""

    def __init__(self, inbox: Stream, position: InboxPosition, on_change: Callable[[], None]) -> None:
        self.last_read_seq = position.seq - 1
        self._inbox = inbox
        self._from = position
        self._messages: deque[list[Entry]] = deque()  # none is empty
        self.waiting = 0  # items read and not consumed
        self._on_change = on_change
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._read(), name="inbox reader")
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def peek(self, count: int) -> list[Entry]:
        """The next items, in order, in whole messages until there are `count`; they stay.

        Raises what stopped the reader, once nothing is left before it.
        """
        if not self._messages and self._error is not None:
            raise self._error
        entries: list[Entry] = []
        for message in self._messages:
            entries += message
            if len(entries) >= count:
                break
        return entries

    def consume(self, to: InboxPosition) -> None:
        """Forget the items before `to`: their transaction is committed."""
        messages = self._messages
        while messages and messages[0][0][0] < to:
            rest = [entry for entry in messages[0] if entry[0] >= to] if messages[0][-1][0] >= to else []
            self.waiting -= len(messages[0]) - len(rest)
            if rest:
                messages[0] = rest
            else:
                messages.popleft()
        if self.waiting < ITEMS_AHEAD_MAX:
            self._room.set()

    async def _read(self) -> None:
        next_seq = max(1, self._from.seq)
        async with aclosing(self._inbox.read(next_seq)) as batches:  # type: ignore[type-var]  # a generator in fact
            async for batch in batches:
                for message in batch:
                    if message.seq != next_seq:
                        raise SequenceBroken(f"inbox: wanted {next_seq}, got {message.seq} (LOG-3)")
                    self._take(message)
                    next_seq += 1
                    await self._make_room()

    def _take(self, message: StoredMessage) -> None:
        seq = message.seq
        skip = self._from.item if seq == self._from.seq else 0
        items = codec.decode_inbox(message.data)
        entries = [(InboxPosition(seq, index), item) for index, item in enumerate(items) if index >= skip]
        if entries:
            self._messages.append(entries)
            self.waiting += len(entries)
        self.last_read_seq = seq
        self._on_change()

    async def _make_room(self) -> None:
        await asyncio.sleep(0)  # decoding half a megabyte takes long enough
        while self.waiting >= ITEMS_AHEAD_MAX:
            self._room.clear()
            await self._room.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._error = task.exception() or SequenceBroken("the inbox ended")
        self._on_change()
