"""Replaying a cell: recorded headers over the recorded inbox give the recorded transactions again (I8).

A header says what `decide` was given (items, time, work units) and a quarantined item shows in the transitions, so a
transaction can be decided again and compared with what the ledger holds. A difference means that something undefined
got into a decision (order of a set, a clock, a float), or that the rules of another version made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from muster.core import transitions as tr
from muster.core.apply import apply_transaction
from muster.core.decide import AnyItem, decide, transaction
from muster.core.model import InboxPosition
from muster.core.state import CellState

Items = Sequence[tuple[InboxPosition, AnyItem]]


class Difference(Struct, frozen=True):
    """The first transition in which a replayed transaction differs."""

    ledger_seq: int
    index: int
    recorded: tr.Transition | None
    replayed: tr.Transition | None
    message: str


class Replayed(Struct, frozen=True):
    """One transaction of the ledger and what deciding it again gave."""

    ledger_seq: int
    recorded: tr.Transaction
    again: tr.Transaction

    def difference(self) -> Difference | None:
        """None when they are equal; the same encoder then gives the same bytes."""
        if self.recorded == self.again:
            return None
        pairs = max(len(self.recorded.transitions), len(self.again.transitions))
        for index in range(pairs):
            recorded = _at(self.recorded.transitions, index)
            replayed = _at(self.again.transitions, index)
            if recorded != replayed:
                return Difference(self.ledger_seq, index, recorded, replayed, "transitions differ")
        message = f"headers differ: {self.recorded.header} and {self.again.header}"
        return Difference(self.ledger_seq, -1, None, None, message)


def replay(state: CellState, ledger: Iterable[tuple[int, tr.Transaction]], inbox: Items) -> Iterator[Replayed]:
    """Decide every recorded transaction again, then apply the recorded one to `state`.

    `inbox` holds the items from `state.position` on, at least up to the end of the ledger.
    """
    start = 0
    for ledger_seq, recorded in ledger:
        while start < len(inbox) and inbox[start][0] < state.position:
            start += 1
        again = redecide(state, recorded, inbox[start:])
        yield Replayed(ledger_seq, recorded, again)
        apply_transaction(state, recorded, ledger_seq)


def redecide(state: CellState, recorded: tr.Transaction, items: Items) -> tr.Transaction:
    """What `decide` makes of what it was given then. A term's first message is not decided: it is as recorded."""
    header = recorded.header
    if any(isinstance(transition, tr.LeaderElected) for transition in recorded.transitions):
        return recorded
    given = [(position, item) for position, item in items if position < header.inbox_to]
    quarantined = [t.position for t in recorded.transitions if isinstance(t, tr.InboxItemQuarantined)]
    after = _next_of(items, len(given), header.inbox_to)
    decision = decide(
        state, [*given, *after], header.now_ms, header.work_limit, quarantined[0] if quarantined else None
    )
    return transaction(state, decision, transaction_id=header.id, now_ms=header.now_ms, work_limit=header.work_limit)


def _next_of(items: Items, taken: int, inbox_to: InboxPosition) -> Items:
    """The rest of a message that was consumed in part: its limits ended it there, so it has to see more."""
    if inbox_to.item == 0:
        return ()
    return [(position, item) for position, item in items[taken:] if position.seq == inbox_to.seq]


def _at(transitions: Sequence[tr.Transition], index: int) -> tr.Transition | None:
    return transitions[index] if index < len(transitions) else None
