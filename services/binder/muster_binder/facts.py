"""What the clusters show, on its way into the inbox: coalesced, batched, repeated until the ledger says it knows.

A pod that was created, ran and finished within one batch becomes one fact, because phases only move forward. A fact
stays here until the state shows its phase (or has moved on); one whose message was consumed without effect is sent
again. The core ignores duplicates, so at-least-once is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from muster.core.commands import AnyItem, PlacementRejected, PodFact, PodsObserved
from muster.core.model import InboxPosition
from muster.runtime.logs import get_logger
from muster.runtime.ports import Clock, OutcomeUnknown, StreamFull
from muster_binder.metrics import BinderMetrics
from muster_binder.names import PodKey

BATCH_FACTS_MAX: Final = 500
COALESCE_S: Final = 0.025
RESEND_AFTER_S: Final = 10.0
RETRY_S: Final = 0.5

log = get_logger(__name__)


class Inbox(Protocol):
    """The part of the inbox writer that is used here (LOG-7)."""

    async def write(self, items: Sequence[AnyItem]) -> list[InboxPosition]:
        """Durable on return."""


class Entry:
    __slots__ = ("cluster", "fact", "position", "sent_s")

    def __init__(self, cluster: str, fact: PodFact | PlacementRejected) -> None:
        self.cluster = cluster
        self.fact = fact
        self.position: InboxPosition | None = None  # where it was last written
        self.sent_s = 0.0


Slot = tuple[str, int]  # job, pod position; REJECTED for the job's rejection, and below it for those of single pods
REJECTED: Final = -1


class Outbox:
    """Facts that the ledger may not know yet.

    `needed` says whether the state still lacks a fact and this replica is the one to tell; `consumed` is the inbox
    position up to which the ledger has decided.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        needed: Callable[[PodFact | PlacementRejected], bool],
        consumed: Callable[[], InboxPosition],
        clock: Clock,
        metrics: BinderMetrics,
    ) -> None:
        self._inbox = inbox
        self._needed = needed
        self._consumed = consumed
        self._clock = clock
        self._metrics = metrics
        self._entries: dict[Slot, Entry] = {}
        self._unsent: dict[Slot, None] = {}  # in order
        self._wake = asyncio.Event()

    def phase(self, key: PodKey) -> int:
        """The highest phase on its way for this run of a pod, -1 if none."""
        entry = self._entries.get((key.job, key.pod))
        if entry is None or not isinstance(entry.fact, PodFact):
            return -1
        fact = entry.fact
        return fact.phase if (fact.epoch, fact.attempt) == (key.epoch, key.attempt) else -1

    def observe(self, cluster: str, fact: PodFact) -> None:
        if self.phase(PodKey(fact.job, fact.epoch, fact.pod, fact.attempt)) >= fact.phase:
            return
        self._put((fact.job, fact.pod), Entry(cluster, fact))

    def reject(self, rejection: PlacementRejected, *, alone: bool = False) -> None:
        """One rejection takes the whole gang down, so one for an epoch is enough. `alone`: its pod may go by itself."""
        slot = (rejection.job, REJECTED - rejection.pod if alone else REJECTED)
        known = self._entries.get(slot)
        if known is None or (known.fact.epoch, known.fact.attempt) < (rejection.epoch, rejection.attempt):
            self._metrics.rejected.labels(rejection.cluster, rejection.code).inc()
            self._put(slot, Entry(rejection.cluster, rejection))

    def settle(self, job: str, pod: int, phase: int, attempt: int = 0) -> None:
        """The ledger shows this phase."""
        entry = self._entries.get((job, pod))
        if entry is None or not isinstance(entry.fact, PodFact):
            return
        if (entry.fact.attempt, entry.fact.phase) <= (attempt, phase):
            self._drop((job, pod))

    def __len__(self) -> int:
        return len(self._entries)

    async def run(self) -> None:
        """Send for ever; ends by cancellation."""
        while True:
            await self._wake.wait()
            if len(self._unsent) < BATCH_FACTS_MAX:
                await self._clock.sleep(COALESCE_S)
            try:
                await self._flush()
            except (OutcomeUnknown, StreamFull) as error:
                log.warning("facts wait", facts=len(self._unsent), error=str(error))
                await self._clock.sleep(RETRY_S)

    def sweep(self) -> None:
        """Forget what is not needed any more; send again what was consumed without effect. Call it every second."""
        now_s, consumed = self._clock.monotonic(), self._consumed()
        for slot, entry in list(self._entries.items()):
            if not self._needed(entry.fact):
                self._drop(slot)
            elif entry.position is not None and entry.position < consumed and now_s - entry.sent_s >= RESEND_AFTER_S:
                entry.position = None
                self._unsent[slot] = None
                self._wake.set()

    async def _flush(self) -> None:
        slots = list(self._unsent)[:BATCH_FACTS_MAX]
        items: list[AnyItem] = []
        sent: list[tuple[Entry, int]] = []
        by_cluster: dict[str, list[Entry]] = {}
        for slot in slots:
            entry = self._entries[slot]
            if not self._needed(entry.fact):
                self._drop(slot)
            elif isinstance(entry.fact, PodFact):
                by_cluster.setdefault(entry.cluster, []).append(entry)
            else:
                sent.append((entry, len(items)))
                items.append(entry.fact)
        for cluster, entries in by_cluster.items():
            sent += [(entry, len(items)) for entry in entries]
            items.append(PodsObserved(cluster, tuple(e.fact for e in entries if isinstance(e.fact, PodFact))))
        if items:
            positions = await self._inbox.write(items)
            self._metrics.facts.inc(len(sent))
            now_s = self._clock.monotonic()
            for entry, index in sent:
                entry.position = positions[index]
                entry.sent_s = now_s
        for slot in slots:  # but not what got a newer fact while this was being written
            current = self._entries.get(slot)
            if current is None or current.position is not None:
                self._unsent.pop(slot, None)
        if not self._unsent:
            self._wake.clear()

    def _put(self, slot: Slot, entry: Entry) -> None:
        self._entries[slot] = entry
        self._unsent[slot] = None
        self._wake.set()

    def _drop(self, slot: Slot) -> None:
        self._entries.pop(slot, None)
        self._unsent.pop(slot, None)
