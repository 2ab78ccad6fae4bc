"""A cell whose leader is the real core, on virtual time: what is written to its inbox is decided and applied."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import pytest

from muster.core import apply, decide
from muster.core.commands import AnyItem
from muster.core.model import InboxPosition
from muster.core.state import CellState
from muster.sim import loop


class CoreCell:
    """`write` stores like an inbox; `decide_all` is the leader. While `paused`, the inbox only fills up."""

    def __init__(self) -> None:
        self.state = CellState("main")
        self.items: list[AnyItem] = []
        self.paused = False
        self.failures: deque[Exception] = deque()
        self._waiting: list[tuple[InboxPosition, AnyItem]] = []
        self._seq = 0

    async def write(self, items: Sequence[AnyItem]) -> list[InboxPosition]:
        await asyncio.sleep(0.001)
        if self.failures:
            raise self.failures.popleft()
        self._seq += 1
        self.items += items
        stored = [(InboxPosition(self._seq, number), item) for number, item in enumerate(items)]
        self._waiting += stored
        if not self.paused:
            self.decide_all()
        return [position for position, _ in stored]

    def decide_all(self) -> None:
        more = True
        while self._waiting or more:
            now_ms = loop.EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)
            decision = decide.decide(self.state, self._waiting, now_ms, 100_000)
            tx = decide.transaction(self.state, decision, transaction_id="t", now_ms=now_ms, work_limit=100_000)
            assert apply.apply_transaction(self.state, tx, self.state.ledger_seq + 1)
            self._waiting = [(p, item) for p, item in self._waiting if p >= decision.inbox_to]
            more = decision.more


@pytest.fixture
def new_cell() -> Callable[[], CoreCell]:
    return CoreCell
