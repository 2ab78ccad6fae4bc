"""A leader's term: read the inbox, decide, commit, apply, for ever (LOG-1 to LOG-5).

    lease held -> clock checked -> caught up -> LeaderElected committed -> inbox read
                                                          |
                        +-------- items, now <------------+
                        v
                     decide (pure) -> encode -> commit (compare-and-set) -> apply -> tell followers of this process
                        ^                                                                 |
                        +-----------------------------------------------------------------+

One transaction is in flight at a time and the next is decided only on what is committed. The term ends by an
exception: another leader wrote (Deposed), this machine's clock is off (ClockSkewed), an item cannot be decided
(Poisoned), or it is cancelled. In every case the process starts again as a standby; nothing is lost with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from muster.core import decide as core
from muster.core import transitions as tr
from muster.core.model import InboxPosition
from muster.runtime.committer import Committer
from muster.runtime.follower import Follower
from muster.runtime.observer import Committed, LeaderObserver
from muster.runtime.pace import ITEMS_MAX, Pace
from muster.runtime.poison import DEATHS_BEFORE_QUARANTINE, PoisonBook, Poisoned
from muster.runtime.ports import Clock, Stream
from muster.runtime.reader import Entry, InboxReader
from muster.runtime.streams import MESSAGE_BYTES_MAX
from muster.wire import codec

IDLE_MAX_S: Final = 60.0
IDLE_MIN_S: Final = 0.005
REASON_CHARS_MAX: Final = 500
TRANSACTION_ROOM_BYTES: Final = MESSAGE_BYTES_MAX - 4096  # what the stream takes, less headers


class TransactionTooLarge(Exception):
    """`decide` closes transactions well below this by estimate (LOG-8), so the estimate of something is wrong."""


class Term:
    """One term of one cell. `follower` brings the state and becomes the leader's; `run` once."""

    def __init__(
        self,
        follower: Follower,
        inbox: Stream,
        poison: PoisonBook,
        *,
        leader: str,
        clock: Clock,
        observer: LeaderObserver | None = None,
    ) -> None:
        self._follower = follower
        self._inbox = inbox
        self._poison_book = poison
        self._leader = leader
        self._clock = clock
        self._observer = observer or LeaderObserver()
        self._pace = Pace()
        self._wake = asyncio.Event()
        self._count = 0  # transactions of this term
        self._quarantine: InboxPosition | None = None

    async def run(self) -> None:
        """Lead until an exception ends the term."""
        await self._follower.lead()
        self._committer = Committer(self._follower.ledger, self._follower.tail_seq, self._clock)
        await self._begin()
        await self._read_poison()
        reader = InboxReader(self._inbox, self._follower.state.position, self._wake.set)
        reader.start()
        try:
            await self._lead(reader)
        finally:
            await reader.stop()

    async def _begin(self) -> None:
        """LOG-5: a term starts with a committed LeaderElected."""
        elected = core.leader_elected(self._follower.state, leader=self._leader, now_ms=self._now_ms())
        await self._commit(elected, codec.encode_transaction(elected))
        self._observer.elected(elected.header.epoch)

    async def _lead(self, reader: InboxReader) -> None:
        more = True  # a paused cycle or due timers may have been left by the last leader
        while True:
            self._wake.clear()
            entries = reader.peek(ITEMS_MAX)
            if not entries and not more:
                self._observer.idle()
                await self._sleep()
                more = True  # a timer may be due, or there are items
                continue
            more = await self._step(entries)
            reader.consume(self._follower.state.position)
            self._observer.backlog(reader.waiting)
            await asyncio.sleep(0)

    async def _step(self, entries: list[Entry]) -> bool:
        """Decide and commit once. True: there is more to do at once."""
        state = self._follower.state
        now_ms, limit = self._now_ms(), self._pace.work_limit
        began_s = self._clock.monotonic()
        try:
            decision, tx, data = self._draft(entries, now_ms, limit)
        except Exception as error:
            await self._find_poison(entries, now_ms, limit, error)
            raise
        if not decision.transitions and decision.inbox_to == state.position:
            return False
        seconds = self._clock.monotonic() - began_s
        self._pace.measured(decision.work_spent, seconds)
        self._observer.decided(seconds, decision.work_spent, len(entries))
        await self._commit(tx, data)
        self._tell_quarantined(tx)
        return decision.more

    def _draft(self, entries: Sequence[Entry], now_ms: int, limit: int) -> tuple[core.Decision, tr.Transaction, bytes]:
        """What would be committed next. Pure: nothing has changed until `_commit`."""
        state = self._follower.state
        decision = core.decide(state, entries, now_ms, limit, self._quarantine)
        tx = core.transaction(
            state, decision, transaction_id=f"{state.epoch}-{self._count}", now_ms=now_ms, work_limit=limit
        )
        data = codec.encode_transaction(tx)
        if len(data) > TRANSACTION_ROOM_BYTES:
            raise TransactionTooLarge(f"transaction {tx.header.id} has {len(data)} bytes (LOG-8)")
        return decision, tx, data

    async def _find_poison(self, entries: list[Entry], now_ms: int, limit: int, error: Exception) -> None:
        """Raises Poisoned if one item is to blame for `error`, having written that down (LOG-9).

        `decide` never mutates and takes items in order, so a prefix raises if it holds the culprit.
        """

        def raises(count: int) -> bool:
            try:
                self._draft(entries[:count], now_ms, limit)
            except Exception:
                return True
            return False

        if raises(0) or not raises(len(entries)):
            return  # no item does it, the cycle fails by itself
        innocent, guilty = 0, len(entries)
        while guilty - innocent > 1:
            middle = (innocent + guilty) // 2
            innocent, guilty = (innocent, middle) if raises(middle) else (middle, guilty)
        position = entries[guilty - 1][0]
        reason = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
        await self._poison_book.add(position, reason)
        raise Poisoned(position, reason) from error

    async def _read_poison(self) -> None:
        """LOG-9: after two deaths at one position the item is put aside."""
        record = await self._poison_book.read()
        if record is not None and record.deaths >= DEATHS_BEFORE_QUARANTINE:
            self._quarantine = record.position

    def _tell_quarantined(self, tx: tr.Transaction) -> None:
        if self._quarantine is None:
            return
        for transition in tx.transitions:
            if isinstance(transition, tr.InboxItemQuarantined):
                self._observer.quarantined(transition.position, transition.reason)
        if self._follower.state.position > self._quarantine:
            self._quarantine = None

    async def _commit(self, tx: tr.Transaction, data: bytes) -> None:
        """Store, apply, tell. One at a time: the next decision needs the state after this one (LOG-4)."""
        sent_ms, sent_s = self._clock.now_ms(), self._clock.monotonic()
        seq = await self._committer.commit(data)
        commit_s = self._clock.monotonic() - sent_s
        self._count += 1
        self._follower.apply_own(tx, seq)
        self._observer.committed(
            Committed(
                tx=tx,
                ledger_seq=seq,
                bytes=len(data),
                began_ms=tx.header.now_ms,
                sent_ms=sent_ms,
                answered_ms=self._clock.now_ms(),
                commit_s=commit_s,
                resends=self._committer.resends,
            )
        )

    def _now_ms(self) -> int:
        """LOG-2: time in the ledger never goes back."""
        return max(self._follower.state.now_ms, self._clock.now_ms())

    async def _sleep(self) -> None:
        """Until there are items or a timer is due."""
        due_ms = core.next_wake_ms(self._follower.state)
        wait_s = IDLE_MAX_S if due_ms is None else (due_ms - self._clock.now_ms()) / 1000
        try:
            async with asyncio.timeout(max(IDLE_MIN_S, min(IDLE_MAX_S, wait_s))):
                await self._wake.wait()
        except TimeoutError:
            pass
