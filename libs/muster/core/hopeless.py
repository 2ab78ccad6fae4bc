"""What has no place on any node for the rest of a pass.

Within a pass nothing becomes free, so when a job of one pod fits nowhere, no other of its shape does (rule G4). In a
full cell that is the fate of nearly all heads: they are set aside together, instead of each having its turn in an order
that no longer matters. That is worth a walk over all heads when it concerns many of them, so it is done when the number
of those that were found hopeless is a fair part of what is left; all walks of a pass together cost what it has heads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from muster.core.gangs import GangShape
from muster.core.jobs import Job, shunned
from muster.core.model import Pairs
from muster.core.turns import Head

MANY: Final = 4  # one of so many
Kind = tuple[GangShape, Pairs, tuple[int, ...]]  # shape, clusters it may use, nodes that are closed to it


class Hopeless:
    """Of one pass. Only jobs of one pod: where a gang of several goes is a search, not a matter of each node."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.kinds: dict[Kind, None] = {}  # what was found hopeless
        self._heads: Counter[Kind] = Counter()
        self._new = 0

    def count(self, heads: Iterable[Head]) -> None:
        """These are about to have their turns."""
        self._heads = Counter([self._kind(head.job) for head in heads])
        self._new = sum(self._heads[kind] for kind in self.kinds)

    def looked_through(self) -> None:
        """What is hopeless by now was set aside, or has its turn for another reason."""
        self._new = 0

    def add(self, job: Job) -> None:
        """No node takes it."""
        kind = self._kind(job)
        if job.asks.pods == 1 and kind not in self.kinds:
            self.kinds[kind] = None
            self._new += self._heads[kind]

    def has(self, job: Job) -> bool:
        kind = self._kind(job)
        return kind in self.kinds or (bool(kind[2]) and (*kind[:2], ()) in self.kinds)

    def are_many(self, heads: int) -> bool:
        """Whether it is worth looking through all heads that are left."""
        return self._new > 1 and self._new * MANY >= heads > 0

    def _kind(self, job: Job) -> Kind:
        shut = shunned(job, self._now_ms)
        return job.asks.shape, job.spec.cluster_selector, tuple(sorted(shut)) if shut else ()
