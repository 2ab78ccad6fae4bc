"""Watches: what happens to jobs, from a ledger sequence on or from now, as long as the reader keeps up (LOG-12).

The past is read from the LEDGER stream, the present comes from the follower's transactions. The change from one to the
other happens between two transactions without waiting in between, so nothing is missed and nothing sent twice. Each
watcher has a bounded buffer; one that falls behind is cut with the sequence to resume from, because neither the
process nor the other watchers may pay for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from google.rpc import status_pb2

from muster.api.v1 import query_pb2
from muster.core import transitions as tr
from muster.runtime.follower import Follower
from muster.runtime.ports import MessagesLost
from muster.wire import codec, errors, events
from muster_admission.calls import RETRY_AFTER_S, Refused
from muster_admission.filters import JobFilter

BOOKMARK_S: Final = 5.0  # how often an idle watch says how far it is
WATCHERS_MAX: Final = 10_000


class Watcher:
    """One watch: a filter and what waits to be sent."""

    def __init__(self, wanted: JobFilter, after_seq: int, limit: int) -> None:
        self.filter = wanted
        self.after_seq = after_seq  # everything up to here was sent before
        self.added = False  # to the hub
        self.cut = False
        self._limit = limit
        self._waiting: deque[events.PublicEvent] = deque()
        self._wake = asyncio.Event()

    def offer(self, made: list[events.PublicEvent]) -> None:
        if self.cut:
            return
        self._waiting.extend(
            event for event in made if event.ledger_seq > self.after_seq and self.filter.matches_event(event)
        )
        if len(self._waiting) > self._limit:
            self.cut = True
            self._waiting.clear()
        if self._waiting or self.cut:
            self._wake.set()

    def close(self) -> None:
        self.cut = True
        self._wake.set()

    async def next(self, timeout_s: float) -> list[events.PublicEvent]:
        """What waits; empty after a while without anything."""
        if not self._waiting and not self.cut:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                return []
        self._wake.clear()
        ready = list(self._waiting)
        self._waiting.clear()
        return ready


class WatchHub:
    """All watches of this replica."""

    def __init__(self, follower: Follower, cell: str, *, buffer_events: int) -> None:
        self._follower = follower
        self._cell = cell
        self._buffer_events = buffer_events
        self._names = events.StateNames(lambda: follower.state)
        self._broad: dict[Watcher, None] = {}
        self._of_job: dict[str, dict[Watcher, None]] = {}
        self._count = 0
        self._stopped = False
        follower.on_transaction(self._on_transaction)
        follower.on_reload(lambda _: self._cut_all())

    def stop(self) -> None:
        """End all watches: the process stops."""
        self._stopped = True
        self._cut_all()

    @property
    def watchers(self) -> int:
        return self._count

    async def watch(self, wanted: JobFilter, from_seq: int) -> AsyncGenerator[query_pb2.WatchJobsResponse, None]:
        """Answers for ever. Raises Refused: OUT_OF_RANGE, ABORTED (cut: resume), RESOURCE_EXHAUSTED."""
        if self._count >= WATCHERS_MAX:
            message = f"{WATCHERS_MAX} watches are open on this replica"
            raise Refused(errors.retry("RESOURCE_EXHAUSTED", message, RETRY_AFTER_S))
        next_seq = from_seq or self._follower.state.ledger_seq + 1
        yield query_pb2.WatchJobsResponse(ledger_sequence=next_seq)
        watcher = Watcher(wanted, next_seq - 1, self._buffer_events)
        try:
            if next_seq <= self._follower.tail_seq:
                async with aclosing(self._past(watcher, next_seq)) as past:
                    async for event in past:
                        yield _answer(event)
            else:
                self._add(watcher)
            async with aclosing(self._present(watcher, watcher.after_seq + 1)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            self._remove(watcher)

    async def _past(self, watcher: Watcher, from_seq: int) -> AsyncGenerator[events.PublicEvent, None]:
        """Matching events of the ledger from `from_seq` to this replica's present, where `watcher` goes on."""
        if from_seq < (await self._follower.ledger.info()).first_seq:
            raise MessagesLost(f"sequence {from_seq} is no longer in the ledger")
        names = events.Remembering(self._names)
        applied: int | None = None
        async with aclosing(self._follower.ledger.read(from_seq)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                for message in batch:
                    tx = codec.decode_transaction(message.data)
                    if applied is None or tx.header.prev == applied:  # else void (LOG-4)
                        applied = message.seq
                        names.observe(tx)
                        for event in events.public_events(tx, message.seq, names, self._cell):
                            if watcher.filter.matches_event(event):
                                yield event
                    if message.seq >= self._follower.tail_seq:
                        watcher.after_seq = message.seq
                        self._add(watcher)  # nothing is awaited between the comparison and this
                        return

    async def _present(self, watcher: Watcher, next_seq: int) -> AsyncGenerator[query_pb2.WatchJobsResponse, None]:
        while True:
            ready = await watcher.next(BOOKMARK_S)
            for event in ready:
                next_seq = event.ledger_seq
                yield _answer(event)
            if watcher.cut:
                raise Refused(self._cut_status(next_seq))
            if not ready:
                next_seq = max(next_seq, self._follower.state.ledger_seq + 1)
                yield query_pb2.WatchJobsResponse(ledger_sequence=next_seq)

    def _cut_status(self, next_seq: int) -> status_pb2.Status:
        if self._stopped:
            return errors.retry("UNAVAILABLE", "this replica stops: watch another one", 0.0)
        return errors.retry("ABORTED", f"the watch fell behind and was cut: resume from sequence {next_seq}", 0.0)

    def _on_transaction(self, tx: tr.Transaction, ledger_seq: int) -> None:
        if not self._count:
            return
        made = events.public_events(tx, ledger_seq, self._names, self._cell)
        for watcher in self._broad:
            watcher.offer(made)
        if self._of_job:
            by_job: dict[str, list[events.PublicEvent]] = {}
            for event in made:
                if event.subject in self._of_job:
                    by_job.setdefault(event.subject, []).append(event)
            for job, of_job in by_job.items():
                for watcher in self._of_job[job]:
                    watcher.offer(of_job)

    def _add(self, watcher: Watcher) -> None:
        self._count += 1
        watcher.added = True
        if not watcher.filter.job_ids:
            self._broad[watcher] = None
        for job in watcher.filter.job_ids:
            self._of_job.setdefault(job, {})[watcher] = None
        if self._stopped:
            watcher.close()

    def _remove(self, watcher: Watcher) -> None:
        if not watcher.added:
            return
        self._count -= 1
        self._broad.pop(watcher, None)
        for job in watcher.filter.job_ids:
            self._of_job[job].pop(watcher)
            if not self._of_job[job]:
                del self._of_job[job]

    def _cut_all(self) -> None:
        for watcher in list(self._broad):
            watcher.close()
        for watchers in self._of_job.values():
            for watcher in watchers:
                watcher.close()


def _answer(event: events.PublicEvent) -> query_pb2.WatchJobsResponse:
    return query_pb2.WatchJobsResponse(event=events.job_event_proto(event), ledger_sequence=event.ledger_seq)
