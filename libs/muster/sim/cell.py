"""A cell by itself: the production core driven step by step in virtual time, without bus, processes or clusters.

Items go in, `decide` makes transactions, their bytes are encoded, decoded and applied, as a leader and a follower would
do, and the naive invariants are checked after each. Everything is recorded, so a run can be replayed and compared (I8).
Tests of the core and the what-if tools use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from muster.core import commands, invariants
from muster.core import transitions as tr
from muster.core.apply import apply_transaction
from muster.core.decide import AnyItem, Decision, decide, leader_elected, next_wake_ms, transaction
from muster.core.invariants_potential import Calm
from muster.core.model import InboxPosition
from muster.core.state import CellState
from muster.wire import codec

ROUNDS_MAX: Final = 10_000  # of one `settle`; more means that the core does not come to rest


class Cell:
    """One cell. `now_ms` is the wall clock; `log` and `inbox` hold what was written, as bytes."""

    def __init__(self, name: str = "main", *, work_limit: int = 10_000, checked: bool = True) -> None:
        self.state = CellState(name)
        self.now_ms = 1_700_000_000_000
        self.work_limit = work_limit
        self.checked = checked
        self.inbox: list[bytes] = []
        self.log: list[bytes] = []
        self._number = 0

    def start_term(self, leader: str = "leader") -> None:
        """A leader takes over (LOG-5)."""
        self._number = 0
        self._commit(leader_elected(self.state, leader=leader, now_ms=self.now_ms))

    def send(self, *items: commands.AnyItem) -> list[tr.Transition]:
        """Write one inbox message and decide until nothing is left to do; returns the transitions."""
        self.write(*items)
        return self.settle()

    def write(self, *items: commands.AnyItem) -> int:
        """Write one inbox message; returns its sequence."""
        self.inbox.append(codec.encode_inbox(items))
        return len(self.inbox)

    def write_bytes(self, data: bytes) -> int:
        self.inbox.append(data)
        return len(self.inbox)

    def settle(self) -> list[tr.Transition]:
        """Decide until the inbox is read and nothing is due now."""
        done: list[tr.Transition] = []
        for _ in range(ROUNDS_MAX):
            wake = next_wake_ms(self.state)
            due = wake is not None and wake <= max(self.now_ms, self.state.now_ms)
            if not self.waiting() and not due:
                return done
            done += self.step()
        raise AssertionError(f"the cell does not come to rest: {done[-5:]}")

    def step(self) -> list[tr.Transition]:
        """One transaction, if there is anything to commit."""
        if self.state.epoch == 0:
            self.start_term()
        decision = decide(self.state, self.waiting(), self.now_ms, self.work_limit)
        if not decision.transitions and decision.inbox_to == self.state.position:
            return []
        self._number += 1
        tx = transaction(
            self.state,
            decision,
            transaction_id=f"{self.state.epoch}-{self._number}",
            now_ms=self.now_ms,
            work_limit=self.work_limit,
        )
        self._commit(tx)
        return list(tx.transitions)

    def by_hand(self, *transitions: tr.AnyTransition) -> None:
        """Commit these, as if the leader had decided them: to bring about what takes a plan or an accident."""
        now_ms = max(self.now_ms, self.state.now_ms)
        decision = Decision(transitions, self.state.position, 0, more=False)
        self._number += 1
        number = f"{self.state.epoch}-{self._number}"
        self._commit(transaction(self.state, decision, transaction_id=number, now_ms=now_ms, work_limit=0))

    def wait(self, milliseconds: int) -> list[tr.Transition]:
        """Time passes; what becomes due on the way happens at its time."""
        until_ms = self.now_ms + milliseconds
        done = self.settle()
        while True:
            wake = next_wake_ms(self.state)
            if wake is None or wake > until_ms:
                break
            self.now_ms = max(self.now_ms, wake)
            before = self.state.ledger_seq
            done += self.settle()
            if self.state.ledger_seq == before:
                self.now_ms = min(self.now_ms + 1, until_ms)
                if self.now_ms == until_ms:
                    break
        self.now_ms = until_ms
        return done + self.settle()

    def waiting(self) -> Sequence[tuple[InboxPosition, AnyItem]]:
        """The items that are not consumed yet."""
        return items_from(self.inbox, self.state.position)

    def _commit(self, tx: tr.Transaction) -> None:
        data = codec.encode_transaction(tx)
        self.log.append(data)
        before = invariants.Before(self.state) if self.checked else None
        calm = Calm(self.state) if self.checked else None
        if not apply_transaction(self.state, codec.decode_transaction(data), len(self.log)):
            raise AssertionError(f"transaction {tx.header.id} is void")
        if before is not None and calm is not None:
            calm.check(tx.transitions, self.state.now_ms)
            before.check(self.state)
            invariants.check(self.state)


def items_from(inbox: Sequence[bytes], position: InboxPosition) -> list[tuple[InboxPosition, AnyItem]]:
    """The items of an inbox (message i has sequence i + 1) from `position` on."""
    items: list[tuple[InboxPosition, AnyItem]] = []
    for seq in range(position.seq, len(inbox) + 1):
        for number, item in enumerate(codec.decode_inbox(inbox[seq - 1])):
            if seq > position.seq or number >= position.item:
                items.append((InboxPosition(seq, number), item))
    return items
