"""LOG-3: from the committed position on, in order, each item once, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from tests.unit.runtime.cells import SimCell, job

from muster.core.commands import Undecodable
from muster.core.model import InboxPosition
from muster.core.state import FIRST_POSITION
from muster.runtime.ports import StoredMessage, Stream
from muster.runtime.reader import ITEMS_AHEAD_MAX, InboxReader, SequenceBroken
from muster.sim.loop import run
from muster.wire import codec


class Script:
    """A stream that delivers exactly what it is told, right or wrong."""

    name = "INBOX_main"

    def __init__(self, messages: list[StoredMessage]) -> None:
        self._messages = messages

    async def read(self, _from_seq: int) -> AsyncIterator[Sequence[StoredMessage]]:
        for message in self._messages:
            yield [message]
        await asyncio.Event().wait()


def message(seq: int, count: int = 1) -> StoredMessage:
    return StoredMessage(seq, 0, "muster.inbox.main", codec.encode_inbox([job(10 * seq + i) for i in range(count)]))


async def started(stream: object, position: InboxPosition = FIRST_POSITION) -> InboxReader:
    reader = InboxReader(stream, position, lambda: None)  # type: ignore[arg-type]
    reader.start()
    await asyncio.sleep(1)
    return reader


def test_items_come_in_whole_messages_and_stay_until_consumed() -> None:
    async def main() -> None:
        reader = await started(Script([message(1, 3), message(2, 2), message(3, 1)]))
        assert [p for p, _ in reader.peek(1)] == [InboxPosition(1, i) for i in range(3)]
        assert [p for p, _ in reader.peek(4)] == [p for p, _ in reader.peek(5)]
        assert len(reader.peek(5)) == 5
        reader.consume(InboxPosition(1, 2))
        assert (reader.waiting, reader.peek(1)[0][0]) == (4, InboxPosition(1, 2))
        reader.consume(InboxPosition(2, 0))
        assert (reader.waiting, reader.peek(1)[0][0]) == (3, InboxPosition(2, 0))
        reader.consume(InboxPosition(4, 0))
        assert (reader.waiting, reader.peek(1)) == (0, [])
        await reader.stop()

    run(main())


def test_reading_begins_inside_a_message() -> None:
    async def main() -> None:
        cell = SimCell()
        stream: Stream = await cell.inbox()
        await stream.publish(codec.encode_inbox([job(1)]))
        await stream.publish(codec.encode_inbox([job(2), job(3), job(4)]))
        reader = await started(stream, InboxPosition(2, 1))
        assert reader.peek(9) == [(InboxPosition(2, 1), job(3)), (InboxPosition(2, 2), job(4))]
        await reader.stop()

    run(main())


@pytest.mark.parametrize("seqs", [(1, 3), (1, 1), (2,), (1, 2, 1)])
def test_another_sequence_than_the_next_stops_the_reader(seqs: tuple[int, ...]) -> None:
    async def main() -> None:
        reader = await started(Script([message(seq) for seq in seqs]))
        while reader.peek(1):  # what came before the break is still good
            reader.consume(InboxPosition(reader.peek(1)[0][0].seq + 1, 0))

    with pytest.raises(SequenceBroken):
        run(main())


def test_a_newer_version_stops_after_what_came_before_it() -> None:
    async def main() -> None:
        newer = StoredMessage(2, 0, "muster.inbox.main", msgspec.msgpack.encode([99, []]))
        reader = await started(Script([message(1), newer, message(3)]))
        assert len(reader.peek(9)) == 1
        reader.consume(InboxPosition(2, 0))
        with pytest.raises(codec.UnknownVersion):
            reader.peek(9)

    run(main())


def test_garbage_is_an_item_that_the_core_refuses() -> None:
    async def main() -> None:
        reader = await started(Script([StoredMessage(1, 0, "muster.inbox.main", b"\xc1 no message"), message(2)]))
        (first, garbage), (second, _) = reader.peek(9)
        assert isinstance(garbage, Undecodable)
        assert (first, second) == (InboxPosition(1, 0), InboxPosition(2, 0))
        await reader.stop()

    run(main())


def test_it_reads_ahead_only_so_far() -> None:
    async def main() -> None:
        each = 500
        messages = [message(seq, each) for seq in range(1, 2 * ITEMS_AHEAD_MAX // each)]
        reader = await started(Script(messages))
        assert ITEMS_AHEAD_MAX <= reader.waiting < ITEMS_AHEAD_MAX + each
        reader.consume(InboxPosition(11, 0))
        await asyncio.sleep(1)
        assert ITEMS_AHEAD_MAX <= reader.waiting < ITEMS_AHEAD_MAX + each
        await reader.stop()

    run(main())
