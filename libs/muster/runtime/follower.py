"""A replica of the cell's state: the newest snapshot, then the ledger, message by message.

Every reader of state (admission, fair-share, preemptor, binder, the standby queue-managers) holds one. It checks what
LOG-6 asks for: the first ledger message it reads is the one after its snapshot, each next one follows the last, and
when the ledger has been trimmed past it, it starts again from a newer snapshot. A transaction that does not build on
the last applied one is void (LOG-4). A version this build does not know makes the follower unready and stops it where
it is; it never skips (LOG-10).

Applying yields to the event loop every `SLICE_S`, so loading a large cell stalls nobody. Callbacks run synchronously
right after each applied transaction, in order, from the first one replayed on; look at `ready` to tell the past from
the present, and register `on_reload` if you keep anything derived from the state, for `state` is a new object then.

A queue-manager's follower may become the leader's state: `lead` catches up and stops reading, and from then on
`apply_own` is how it moves.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Final

from muster.core import apply, snapshot
from muster.core import transitions as tr
from muster.core.model import InboxPosition
from muster.core.state import CellState
from muster.runtime.gc import state_loaded
from muster.runtime.ports import Bus, Clock, MessagesLost, StoredMessage, Stream
from muster.runtime.snapshots import SnapshotDamaged, SnapshotInfo, SnapshotStore
from muster.runtime.streams import ledger_spec, snapshots_spec
from muster.wire import codec

SLICE_S: Final = 0.02
RELOAD_PAUSE_S: Final = 1.0
LOAD_TRIES: Final = 5

OnTransaction = Callable[[tr.Transaction, int], None]
OnReload = Callable[[CellState], None]


class LedgerBroken(Exception):
    """The ledger and the snapshots do not fit together: messages are missing. Operators must look."""


class Follower:
    """See the module. `replicas` is used when this process is the one that creates the streams."""

    def __init__(self, bus: Bus, cell: str, *, clock: Clock, replicas: int = 1) -> None:
        self.state = CellState(cell)
        self.ready = False
        self.tail_seq = 0  # last ledger sequence read, void ones included
        self.voided = 0
        self.failure: BaseException | None = None  # what stopped it
        self._bus = bus
        self._cell = cell
        self._clock = clock
        self._replicas = replicas
        self._ledger: Stream | None = None
        self._store: SnapshotStore | None = None
        self._callbacks: list[OnTransaction] = []
        self._reload_callbacks: list[OnReload] = []
        self._waiting: list[tuple[InboxPosition, int, asyncio.Future[None]]] = []
        self._tickets = itertools.count()
        self._moved = asyncio.Event()  # `tail_seq` has moved, or the task has ended
        self._applying = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._loaded = False
        self._ready_at_seq: int | None = None  # after a reload: ready once this is applied

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load, replay, and return once caught up with the ledger's end. Raises what stopped it."""
        self._ledger = await self._bus.stream(ledger_spec(self._cell, self._replicas))
        snapshots = await self._bus.stream(snapshots_spec(self._cell, self._replicas))
        self._store = SnapshotStore(snapshots, self._cell, self._clock)
        self._task = asyncio.create_task(self._follow(), name="ledger follower")
        self._task.add_done_callback(self._ended)
        await self.catch_up()
        self.ready = True

    async def stop(self) -> None:
        self.ready = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def wait_stopped(self) -> None:
        """Returns when it follows no more; raises what stopped it, if it was not `stop` or `lead`."""
        if self._task is not None:
            await asyncio.wait((self._task,))
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()  # raises: it never ends otherwise

    @property
    def ledger(self) -> Stream:
        assert self._ledger is not None, "not started"
        return self._ledger

    @property
    def snapshots(self) -> SnapshotStore:
        assert self._store is not None, "not started"
        return self._store

    # --- for readers of the state -----------------------------------------------------------------------------------

    def on_transaction(self, callback: OnTransaction) -> None:
        """Call `callback(transaction, ledger_seq)` after each applied transaction."""
        self._callbacks.append(callback)

    def on_reload(self, callback: OnReload) -> None:
        """Call `callback(state)` when a snapshot has replaced the state."""
        self._reload_callbacks.append(callback)

    async def wait_applied(self, position: InboxPosition, timeout_s: float) -> None:
        """Returns when the item at `position` has been decided and applied (LOG-12). Raises TimeoutError."""
        if self.state.position > position:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (position, next(self._tickets), future))
        async with asyncio.timeout(timeout_s):
            await future

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[CellState]:
        """The state, standing still inside the block; the ledger goes on without it."""
        async with self._applying:
            yield self.state

    async def catch_up(self) -> None:
        """Returns when everything that is in the ledger now is applied. Raises what stopped the follower."""
        target_seq = (await self.ledger.info()).last_seq
        while not self._loaded or self.tail_seq < target_seq:
            if self._task is None or self._task.done():
                self._raise_failure()
                raise LedgerBroken("the follower has been stopped")
            self._moved.clear()
            await self._moved.wait()

    # --- for the leader ---------------------------------------------------------------------------------------------

    async def lead(self) -> None:
        """Catch up and stop reading: the caller is about to write the ledger after `tail_seq`."""
        await self.catch_up()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._raise_failure()

    def apply_own(self, tx: tr.Transaction, ledger_seq: int) -> None:
        """Apply the transaction that this process has just committed."""
        if ledger_seq != self.tail_seq + 1 or not apply.apply_transaction(self.state, tx, ledger_seq):
            raise LedgerBroken(f"own transaction {tx.header.id} at {ledger_seq} does not follow {self.tail_seq}")
        self.tail_seq = ledger_seq
        self._tell(tx, ledger_seq)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        await self._load()
        self._loaded = True
        self._moved.set()
        while True:
            try:
                await self._replay()
                raise LedgerBroken("the ledger ended")
            except MessagesLost:  # trimmed past this follower (LOG-6)
                self.ready = False
                await self._clock.sleep(RELOAD_PAUSE_S)
                await self._load()
                self._ready_at_seq = (await self.ledger.info()).last_seq

    async def _load(self) -> None:
        """The newest snapshot that can be read and that the ledger goes on from; else the beginning.

        While a slow reader is at it, newer snapshots may be written and the ledger trimmed up to them: look again."""
        for _ in range(LOAD_TRIES):
            if await self._load_once():
                return
            await self._clock.sleep(RELOAD_PAUSE_S)
        first_seq = (await self.ledger.info()).first_seq
        raise LedgerBroken(f"the ledger begins at {first_seq} and no snapshot reaches it from {self.tail_seq}")

    async def _load_once(self) -> bool:
        """Whether the ledger goes on from the state that this replica has now."""
        for info in await self.snapshots.listed():
            if info.ledger_seq <= self.tail_seq and self.tail_seq > 0:
                break  # no newer than what we have
            try:
                state = await self._read_snapshot(info)
            except SnapshotDamaged:
                continue
            ledger = await self.ledger.info()
            if ledger.last_seq < info.ledger_seq:
                raise LedgerBroken(f"the ledger ends at {ledger.last_seq}, before snapshot {info.name}")
            if ledger.first_seq > info.ledger_seq + 1:
                break  # older ones are even further away
            self._replace(state, info.ledger_seq)
            return True
        return (await self.ledger.info()).first_seq <= self.tail_seq + 1

    async def _read_snapshot(self, info: SnapshotInfo) -> CellState:
        parts: list[bytes] = []
        async with aclosing(self.snapshots.read(info)) as pieces:  # type: ignore[type-var]  # a generator in fact
            async for piece in pieces:
                parts += piece
        # Building the state takes a second for 100,000 jobs and cannot pause; in a thread it lets the loop run.
        try:
            return await asyncio.to_thread(_build_state, parts)
        except (codec.Malformed, snapshot.IncompleteSnapshot) as error:
            raise SnapshotDamaged(f"snapshot {info.name}: {error}") from error

    def _replace(self, state: CellState, ledger_seq: int) -> None:
        self.state = state
        self.tail_seq = ledger_seq
        state_loaded()
        for callback in self._reload_callbacks:
            callback(state)
        self._wake()

    async def _replay(self) -> None:
        slice_end_s = 0.0
        async with aclosing(self.ledger.read(self.tail_seq + 1)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                for message in batch:
                    async with self._applying:
                        self._apply_message(message)
                    if self._clock.monotonic() > slice_end_s:
                        await asyncio.sleep(0)
                        slice_end_s = self._clock.monotonic() + SLICE_S

    def _apply_message(self, message: StoredMessage) -> None:
        if message.seq != self.tail_seq + 1:
            raise LedgerBroken(f"ledger: wanted {self.tail_seq + 1}, got {message.seq} (LOG-6)")
        tx = codec.decode_transaction(message.data)
        applied = apply.apply_transaction(self.state, tx, message.seq)
        self.tail_seq = message.seq
        if self._ready_at_seq is not None and message.seq >= self._ready_at_seq:
            self.ready, self._ready_at_seq = True, None
        if applied:
            self._tell(tx, message.seq)
        else:
            self.voided += 1
            self._moved.set()

    def _tell(self, tx: tr.Transaction, ledger_seq: int) -> None:
        for callback in self._callbacks:
            callback(tx, ledger_seq)
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        waiting, position = self._waiting, self.state.position
        while waiting and waiting[0][0] < position:
            future = heapq.heappop(waiting)[2]
            if not future.done():
                future.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.failure = task.exception()
            self.ready = False
        self._moved.set()


def _build_state(parts: list[bytes]) -> CellState:
    return snapshot.load(codec.decode_snapshot_part(part) for part in parts)
