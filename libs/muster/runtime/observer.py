"""What a leader tells those who watch it: metrics and traces hang here, and the fast loop knows neither."""

from __future__ import annotations

from msgspec import Struct

from muster.core import transitions as tr
from muster.core.model import InboxPosition


class Committed(Struct, frozen=True):
    """One committed transaction. Wall times are of the leader's machine."""

    tx: tr.Transaction
    ledger_seq: int
    bytes: int
    began_ms: int  # deciding
    sent_ms: int
    answered_ms: int
    commit_s: float
    resends: int  # of this term, so far


class LeaderObserver:
    """Does nothing; override what you care about. Called synchronously, so be quick."""

    def elected(self, epoch: int) -> None:
        """The term has begun."""

    def decided(self, seconds: float, work_spent: int, items: int) -> None:
        """A decision with an effect was made."""

    def committed(self, committed: Committed) -> None:
        """A transaction is stored and applied."""

    def quarantined(self, position: InboxPosition, reason: str) -> None:
        """An inbox item was put aside: somebody has to look (LOG-9)."""

    def backlog(self, items: int) -> None:
        """Items read from the inbox and not decided."""

    def idle(self) -> None:
        """Nothing to do for now."""
