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
from muster.runtime.pace import Pace
from muster.runtime.poison import DEATHS_BEFORE_QUARANTINE, PoisonBook, Poisoned, PoisonRecord
from muster.runtime.ports import Clock, Stream
from muster.runtime.reader import Entry, InboxReader
from muster.runtime.streams import MESSAGE_BYTES_MAX
from muster.wire import codec

IDLE_MAX_S: Final = 60.0
IDLE_MIN_S: Final = 0.005
REASON_CHARS_MAX: Final = 500
TRANSACTION_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 4096  # what the stream takes, less headers


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
        self._epoch = 0
        self._count = 0
        self._poison: PoisonRecord | None = None

    async def run(self) -> None:
        """Lead until an exception ends the term."""
        await self._follower.lead()
        self._committer = Committer(self._follower.ledger, self._follower.tail_seq, self._clock)
        await self._begin()
        self._poison = await self._poison_book.read()
        reader = InboxReader(self._inbox, self._follower.state.position, self._wake.set)
        reader.start()
        try:
            await self._lead(reader)
        finally:
            await reader.stop()

    async def _begin(self) -> None:
        """LOG-5: a term starts with a committed LeaderElected."""
        self._epoch = self._follower.state.epoch + 1
        elected = tr.LeaderElected(epoch=self._epoch, leader=self._leader)
        await self._commit(self._build((elected,), self._follower.state.position))
        self._observer.elected(self._epoch)

    async def _lead(self, reader: InboxReader) -> None:
        more = True  # a paused cycle or due timers may have been left by the last leader
        while True:
            self._wake.clear()
            entries = self._to_decide(reader.peek(self._pace.items_max))
            if not entries and not more:
                self._observer.idle()
                await self._sleep()
                more = True  # a timer may be due, or there are items
                continue
            if self._is_quarantined(entries):
                await self._quarantine(entries[0][0])
                reader.consume(self._follower.state.position)
                continue
            more = await self._step(entries)
            reader.consume(self._follower.state.position)
            self._observer.backlog(reader.waiting)
            await asyncio.sleep(0)

    def _to_decide(self, entries: list[Entry]) -> list[Entry]:
        """Up to, but not including, an item at which terms have died; that one comes alone."""
        poison = self._poison
        if poison is None or not entries or entries[0][0] > poison.position:
            return entries
        before = [entry for entry in entries if entry[0] < poison.position]
        return before or entries[:1]

    def _is_quarantined(self, entries: Sequence[Entry]) -> bool:
        poison = self._poison
        return (
            poison is not None
            and poison.deaths >= DEATHS_BEFORE_QUARANTINE
            and len(entries) == 1
            and entries[0][0] == poison.position
        )

    async def _quarantine(self, position: InboxPosition) -> None:
        assert self._poison is not None
        aside = tr.InboxItemQuarantined(position=position, reason=self._poison.reason)
        await self._commit(self._build((aside,), InboxPosition(position.seq, position.item + 1)))
        self._observer.quarantined(position, self._poison.reason)

    async def _step(self, entries: list[Entry]) -> bool:
        """Decide and commit once. True: there is more to do at once."""
        state = self._follower.state
        now_ms = self._now_ms()
        limit = self._pace.work_limit
        began_s = self._clock.monotonic()
        try:
            decision = core.decide(state, entries, now_ms, limit)
            if not decision.transitions and decision.inbox_to == state.position:
                return False
            built = self._build(decision.transitions, decision.inbox_to, now_ms, limit, decision.work_spent)
        except Exception as error:
            await self._failed(entries, now_ms, error)
            return True
        seconds = self._clock.monotonic() - began_s
        self._pace.measured(decision.work_spent, seconds)
        self._observer.decided(seconds, decision.work_spent, len(entries))
        await self._commit(built)
        return decision.more

    async def _failed(self, entries: list[Entry], now_ms: int, error: Exception) -> None:
        """Find out whether an item is to blame; raises when it is known (LOG-9)."""
        if len(entries) > 1:
            self._pace.failed(len(entries))  # decide never mutates: try again with fewer
            return
        if not entries:
            raise error
        core.decide(self._follower.state, [], now_ms, self._pace.work_limit)  # raises if the item is innocent
        position = entries[0][0]
        reason = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
        await self._poison_book.add(position, reason)
        raise Poisoned(position, reason) from error

    def _build(
        self,
        transitions: Sequence[tr.AnyTransition],
        inbox_to: InboxPosition,
        now_ms: int | None = None,
        work_limit: int = 0,
        work_spent: int = 0,
    ) -> tuple[tr.Transaction, bytes]:
        """The next transaction and its bytes. Raises TransactionTooLarge (LOG-8)."""
        state = self._follower.state
        header = tr.Header(
            version=tr.LEDGER_VERSION,
            id=f"{self._epoch}-{self._count + 1}",
            prev=state.ledger_seq,
            epoch=self._epoch,
            now_ms=self._now_ms() if now_ms is None else now_ms,
            inbox_from=state.position,
            inbox_to=inbox_to,
            work_limit=work_limit,
            work_spent=work_spent,
        )
        tx = tr.Transaction(header, tuple(transitions))
        data = codec.encode_transaction(tx)
        if len(data) > TRANSACTION_BYTES_MAX:
            raise TransactionTooLarge(f"transaction {header.id} has {len(data)} bytes, {TRANSACTION_BYTES_MAX} fit")
        return tx, data

    async def _commit(self, built: tuple[tr.Transaction, bytes]) -> None:
        """Store, apply, tell. One at a time: the next decision needs the state after this one (LOG-4)."""
        tx, data = built
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
