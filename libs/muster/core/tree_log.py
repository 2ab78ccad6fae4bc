"""Of which revision the tree of queues is, and what made it so: for those who change a tree that they have read (Q4).

The revision is the position in the ledger of the last change of any queue, so it is the same on every replica, whatever
snapshot it began from, and it never goes back. The latest changes are remembered, to tell those who expected an older
revision what has changed meanwhile, and those whose change was decided what revision that made.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec import Struct

from muster.core.errors import Code, Rejected
from muster.core.model import InboxPosition

CHANGES_KEPT: Final = 64
PATHS_KEPT: Final = 5  # of each change


class TreeChange(Struct, array_like=True, frozen=True, gc=False):
    """One transaction that changed the tree."""

    seq: int  # in the ledger
    inbox_to: InboxPosition  # the first item that was not decided in it
    queues: int
    paths: tuple[str, ...]  # of the first of these


class TreeLog:
    """Written by `apply` alone."""

    __slots__ = ("_noted", "changes", "revision")

    def __init__(self) -> None:
        self.revision = 0  # 0: there never was a queue
        self.changes: deque[TreeChange] = deque(maxlen=CHANGES_KEPT)
        self._noted: list[str] = []  # of the transaction that is being folded

    def note(self, path: str) -> None:
        """A queue has changed, or has gone."""
        self._noted.append(path)

    def close(self, seq: int, inbox_to: InboxPosition) -> None:
        """The transaction is folded."""
        if self._noted:
            paths = tuple(dict.fromkeys(self._noted))
            self.changes.append(TreeChange(seq, inbox_to, len(paths), paths[:PATHS_KEPT]))
            self.revision = seq
            self._noted.clear()

    def restore(self, revision: int, changes: tuple[TreeChange, ...]) -> None:
        self.revision = revision
        self.changes.extend(changes)

    def made_by(self, item: InboxPosition) -> int:
        """The revision that a change made, by its position in the inbox; 0 when that is no longer known."""
        later = [change.seq for change in self.changes if change.inbox_to > item]
        return later[0] if later and (len(later) < len(self.changes) or len(later) < CHANGES_KEPT) else 0

    def check(self, expected: int) -> None:
        """Raises Rejected that tells what has changed since that revision."""
        if expected == self.revision:
            return
        if expected > self.revision:
            have = f"the tree of queues has revision {self.revision}, there is no {expected} yet"
        else:
            have = f"the tree of queues has changed since revision {expected}: {self._told(expected)}"
            have += f" (it has revision {self.revision} now)"
        raise Rejected(Code.ABORTED, "expected_revision", f"{have}; read it again", "Q4")

    def _told(self, since: int) -> str:
        found = [change for change in self.changes if change.seq > since]
        paths = list(dict.fromkeys(path for change in reversed(found) for path in change.paths))[:PATHS_KEPT]
        known = {path for change in found for path in change.paths}
        many = max(*(change.queues for change in found), len(known)) if found else 0
        if not many:
            return "what, is not known any more"
        return ", ".join(paths) + (" and others" if many > len(paths) or len(found) == CHANGES_KEPT else "")
