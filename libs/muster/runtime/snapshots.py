"""Snapshots on a stream: how a state gets there, and how it is found again (LOG-6).

    parts of a state -> chunks of at most 512 KiB -> messages on `muster.snapshots.<cell>.<name>`
                     -> read back and compared by checksum -> an entry in `muster.snapshots.<cell>.index`

Chunks are plain messages with a unique name, read at the speed of any stream; the index is one small message that
lists the verified snapshots, newest first, and is replaced by compare-and-set. What is not in the index does not exist
for readers, so a writer that dies half way leaves only chunks that are trimmed later. Nothing here knows what the
parts mean (`wire.codec` does).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Final
from uuid import uuid4

import msgspec

from muster.core.model import InboxPosition
from muster.runtime.ports import Clock, Conflict, MessagesLost, OutcomeUnknown, StoredMessage, Stream, StreamFull
from muster.runtime.streams import snapshot_subject

CHUNK_BYTES: Final = 512 * 1024
CHUNKS_IN_FLIGHT: Final = 8
SNAPSHOTS_KEPT: Final = 3  # LOG-6 trims below the second newest; one more for readers that started earlier
READ_SILENCE_S: Final = 30.0  # a chunk that does not come is not there
RETRY_S: Final = 0.2
INDEX: Final = "index"
CHUNK_HEADER: Final = "Muster-Chunk"


class SnapshotFailed(Exception):
    """A snapshot could not be written; there are still the ones before it."""


class SnapshotDamaged(SnapshotFailed):
    """What is stored is not what the index promises; take another snapshot."""


class SnapshotInfo(msgspec.Struct, frozen=True):
    """An entry of the index."""

    name: str
    ledger_seq: int  # the state after this ledger message
    position: InboxPosition
    taken_ms: int
    first_seq: int  # of its chunks on the stream
    last_seq: int
    chunks: int
    bytes: int
    sha256: str


class _Index(msgspec.Struct, frozen=True):
    snapshots: tuple[SnapshotInfo, ...] = ()


class SnapshotStore:
    """The snapshots of one cell."""

    def __init__(self, stream: Stream, cell: str, clock: Clock) -> None:
        self._stream = stream
        self._cell = cell
        self._clock = clock
        self._index_subject = snapshot_subject(cell, INDEX)

    async def listed(self) -> Sequence[SnapshotInfo]:
        """The verified snapshots, newest first."""
        return (await self._read_index())[0]

    async def write(self, parts: Iterable[bytes], ledger_seq: int, position: InboxPosition) -> SnapshotInfo:
        """Store, verify and list a snapshot. Yields to the event loop between chunks: `parts` must not change
        meanwhile. Raises SnapshotFailed when there is no room or what was stored cannot be read back."""
        name = f"{ledger_seq}-{uuid4().hex[:12]}"
        subject = snapshot_subject(self._cell, name)
        digest = hashlib.sha256()
        size = 0

        def counted() -> Iterator[bytes]:
            nonlocal size
            for chunk in _chunks(parts):
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        try:
            seqs = await self._send_all(counted(), subject, name)
        except* StreamFull as full:
            raise SnapshotFailed(f"no room for snapshot {name}: {full.exceptions[0]}") from None
        info = SnapshotInfo(
            name=name,
            ledger_seq=ledger_seq,
            position=position,
            taken_ms=self._clock.now_ms(),
            first_seq=min(seqs),
            last_seq=max(seqs),
            chunks=len(seqs),
            bytes=size,
            sha256=digest.hexdigest(),
        )
        async for _ in self.read(info):
            pass  # raises if anything is not as written
        await self._add(info)
        return info

    async def read(self, info: SnapshotInfo) -> AsyncIterator[list[bytes]]:
        """The parts, some at a time. Raises SnapshotDamaged, at the latest after the last of them."""
        digest = hashlib.sha256()
        # Chunks were sent side by side and may have been stored in any order: put them in theirs.
        chunks: dict[int, bytes] = {}
        next_number = 0
        subject = snapshot_subject(self._cell, info.name)
        async with aclosing(self._stream.read(info.first_seq, subject=subject)) as batches:  # type: ignore[type-var]
            while next_number < info.chunks:
                chunks.update(await _next_chunks(batches, info.name))
                while next_number in chunks:
                    chunk = chunks.pop(next_number)
                    digest.update(chunk)
                    next_number += 1
                    yield _parts(chunk, info.name)
        if digest.hexdigest() != info.sha256:
            raise SnapshotDamaged(f"snapshot {info.name}: checksum differs")

    async def drop_old(self) -> None:
        """Remove all but the newest `SNAPSHOTS_KEPT` snapshots, and chunks of writers that died."""
        kept, _ = await self._read_index()
        if len(kept) == SNAPSHOTS_KEPT:
            await self._stream.purge_below(min(info.first_seq for info in kept))

    async def _send_all(self, chunks: Iterable[bytes], subject: str, name: str) -> list[int]:
        sends: list[asyncio.Task[int]] = []
        window = asyncio.Semaphore(CHUNKS_IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            for number, chunk in enumerate(chunks):
                await window.acquire()
                send = group.create_task(self._send(chunk, subject, f"{name}.{number}"))
                send.add_done_callback(lambda _: window.release())
                sends.append(send)
                await asyncio.sleep(0)
        return [send.result() for send in sends]

    async def _send(self, chunk: bytes, subject: str, message_id: str) -> int:
        headers = {CHUNK_HEADER: message_id.rpartition(".")[2]}
        while True:
            try:
                return await self._stream.publish(chunk, subject=subject, headers=headers, message_id=message_id)
            except OutcomeUnknown:
                await self._clock.sleep(RETRY_S)

    async def _read_index(self) -> tuple[tuple[SnapshotInfo, ...], int]:
        message = await self._stream.last(self._index_subject)
        if message is None:
            return (), 0
        return msgspec.json.decode(message.data, type=_Index).snapshots, message.seq

    async def _add(self, info: SnapshotInfo) -> None:
        while True:
            listed, seq = await self._read_index()
            if any(other.name == info.name for other in listed):
                return  # an earlier try whose answer was lost
            newest = sorted((info, *listed), key=lambda s: (s.ledger_seq, s.taken_ms, s.name), reverse=True)
            data = msgspec.json.encode(_Index(tuple(newest[:SNAPSHOTS_KEPT])))
            try:
                await self._stream.publish(data, subject=self._index_subject, expected_last_subject_seq=seq)
            except (Conflict, OutcomeUnknown):
                await self._clock.sleep(RETRY_S)
            else:
                return


def _chunks(parts: Iterable[bytes]) -> Iterable[bytes]:
    """Whole parts in chunks of about CHUNK_BYTES, each a MessagePack list."""
    pending: list[bytes] = []
    size = 0
    for part in parts:
        if pending and size + len(part) > CHUNK_BYTES:
            yield msgspec.msgpack.encode(pending)
            pending, size = [], 0
        pending.append(part)
        size += len(part)
    yield msgspec.msgpack.encode(pending)


def _parts(chunk: bytes, name: str) -> list[bytes]:
    try:
        return msgspec.msgpack.decode(chunk, type=list[bytes])
    except msgspec.MsgspecError as error:
        raise SnapshotDamaged(f"snapshot {name}: a chunk does not decode: {error}") from error


async def _next_chunks(batches: AsyncIterator[Sequence[StoredMessage]], name: str) -> dict[int, bytes]:
    try:
        async with asyncio.timeout(READ_SILENCE_S):
            batch = await anext(batches)
    except TimeoutError:
        raise SnapshotDamaged(f"snapshot {name}: chunks are missing") from None
    except MessagesLost as error:
        raise SnapshotDamaged(f"snapshot {name}: {error}") from error
    return {int((message.headers or {}).get(CHUNK_HEADER, "-1")): message.data for message in batch}
