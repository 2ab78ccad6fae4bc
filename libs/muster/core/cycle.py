"""The scheduling cycle: who starts now (rules F5, F6, G1).

Pending jobs are looked at in one strict order over all queues: queue priority, job priority, submit time, id. A job
that fits its limits along the path and the nodes, with what holds keep left alone, is placed. One that does not fit
blocks nobody but its own class (see `order`). If it may preempt, the preemptors are asked for a plan.

A pass through the order that runs out of work units or bytes is paused and goes on in the next transaction, so one huge
queue cannot stall the cell.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from muster.core import layout, resources
from muster.core import transitions as tr
from muster.core.draft import Draft
from muster.core.due import timer_is_spent
from muster.core.holds import Kepts
from muster.core.jobs import Job
from muster.core.limits import DEVICES_PER_NODE_MAX, PREEMPTIONS_REQUESTED_MAX, TRANSACTION_BYTES_MAX
from muster.core.model import GroupPlacement, JobState
from muster.core.order import OrderKey, PendingClass
from muster.core.preemption import cluster_mask
from muster.core.queues import Queue, over_limit, room_below
from muster.core.timers import Due

PODS_PER_WORK_UNIT: Final = 32
RUN_MIN: Final = 4  # fewer equal jobs in a row are placed one by one
RUN_MAX: Final = 4096
ONE_POD_DEVICES: Final = bytes(DEVICES_PER_NODE_MAX)  # for an upper bound of the size

Source = tuple[PendingClass, int] | None  # a class and the index of its next job; None: a job by itself
Entry = tuple[OrderKey, int, Source]  # the number only keeps sources from being compared


def run_cycle(draft: Draft) -> None:
    """One pass, or as much of it as the transaction takes."""
    state = draft.state
    entries = list(_entries(draft))
    if entries or state.cycle_after is not None:
        _Pass(draft, entries).run()


def _entries(draft: Draft) -> Iterator[Entry]:
    """What the pass has to look at: a first job for every open class, jobs whose time has come, and fresh ones."""
    state, pending = draft.state, draft.state.pending
    full = state.cycle_after is None and (pending.all_open or draft.loosened)
    number = 0
    for found in pending.candidates(full=full):
        index = found.after(state.cycle_after)
        if index < len(found.keys):
            yield found.keys[index], number, (found, index)
            number += 1
    for entry in state.timers.due(draft.now_ms):
        job = draft.job(entry[2])
        if entry[1] in (Due.BACKOFF_OVER, Due.REQUEST_AGAIN) and job is not None and not timer_is_spent(state, entry):
            yield draft.order_key(job), number, None
            number += 1
    for found in draft.fresh.classes.values():
        waiting = pending.classes.get(found.key)
        blocked = waiting is not None and not full and found.key not in pending.opened
        if waiting is None or not blocked or found.first() < waiting.first():
            yield found.first(), number, (found, found.head)
            number += 1


def heap_is_behind(heap: list[Entry], found: PendingClass, index: int) -> bool:
    """Whether the class goes on with several jobs before anybody else's turn comes."""
    ahead = index + RUN_MIN - 1
    return ahead < len(found.keys) and (not heap or found.keys[ahead] < heap[0][0])


def _later(last: OrderKey | None, key: OrderKey) -> OrderKey:
    return key if last is None or key > last else last


class _Pass:
    """One pass in the making."""

    def __init__(self, draft: Draft, entries: list[Entry]) -> None:
        self.draft = draft
        self.heap = entries
        heapify(self.heap)
        self.number = len(entries)
        self.seen: dict[str, None] = {}
        self.kepts = Kepts(draft.holds, draft.job, draft.overlay, draft.tree)
        self.asked = sum(1 for ask in draft.state.asks.values() if not ask.answered)

    def run(self) -> None:
        draft, heap = self.draft, self.heap
        last = draft.state.cycle_after
        while heap:
            if draft.exhausted:
                self._pause(last)
                return
            key, _, source = heappop(heap)
            if source is not None and heap_is_behind(heap, *source):
                done = self._place_run(*source)
                if done:
                    last = _later(last, source[0].keys[source[1] + done - 1])
                    self._next_of(source[0], source[1] + done - 1)
                    continue
            outcome = self._look_at(key[2])
            if outcome is None:
                self._pause(last)
                return
            last = _later(last, key)
            if outcome and source is not None:
                self._next_of(*source)
        draft.emit(tr.CyclePaused(None))

    def _pause(self, last: OrderKey | None) -> None:
        if last is not None and last != self.draft.state.cycle_after:
            self.draft.emit(tr.CyclePaused(last))

    def _next_of(self, found: PendingClass, index: int) -> None:
        if index + 1 < len(found.keys):
            self.number += 1
            heappush(self.heap, (found.keys[index + 1], self.number, (found, index + 1)))

    def _ready(self, job_id: str) -> Job | None:
        """The job, if it is still to be looked at."""
        job = self.draft.job(job_id)
        if job is None or job.state is not JobState.QUEUED or job.not_before_ms > self.draft.now_ms:
            return None
        return None if job_id in self.seen else job

    def _look_at(self, job_id: str) -> bool | None:
        """True: the next of the class may fit. False: it is blocked. None: the transaction is full."""
        draft = self.draft
        job = self._ready(job_id)
        if job is None:
            return True
        draft.spend(1)
        queue = draft.tree.by_id[job.queue]
        if not queue.starts_jobs:
            return False
        self.seen[job_id] = None
        held = job_id in draft.holds
        if held:
            self.kepts.lift(job_id)
        placement = self._place(job, queue)
        if placement is None:
            if held:
                self.kepts.restore(job_id)
            self._maybe_ask(job, queue)
            return False
        if held:
            self.kepts.drop(job_id)
        return True if self._commit(job, placement) else None

    def _place(self, job: Job, queue: Queue) -> tuple[GroupPlacement, ...] | None:
        """A placement within the limits, charged to the overlay (rule F6)."""
        gang, draft, held = job.gang, self.draft, self.kepts.usage
        tasks = gang.tasks
        if queue.limits and over_limit(queue, gang.full_map, draft.usage, held) is not None:
            if gang.minimum_tasks is None or over_limit(queue, gang.minimum_map, draft.usage, held) is not None:
                return None
            tasks = gang.minimum_tasks
        mask = cluster_mask(job)
        if not job.suspects:
            return draft.overlay.place_gang(tasks, cluster_mask=mask)
        # Where it failed before comes last, but a job must not wait for ever because of it (I7).
        avoiding = draft.overlay.place_gang(tasks, cluster_mask=mask, suspects=job.suspects)
        return avoiding if avoiding is not None else draft.overlay.place_gang(tasks, cluster_mask=mask)

    def _place_run(self, found: PendingClass, index: int) -> int:
        """Place equal one-pod jobs that follow each other in the order, all at once, exactly as one by one.

        Returns how many of the class, from `index` on, are done with; 0: take the next one by itself.
        """
        draft = self.draft
        jobs = self._run_of(found, index)
        if len(jobs) < RUN_MIN:
            return 0
        queue, gang = draft.tree.by_id[jobs[0].queue], jobs[0].gang
        size = tr.estimated_bytes(tr.JobPlaced(jobs[0].id, 1, (GroupPlacement(0, ((0, 1),), ONE_POD_DEVICES),)))
        most = min(
            (TRANSACTION_BYTES_MAX - draft.bytes) // size,
            draft.work_limit - draft.work,
            room_below(queue, gang.full_map, draft.usage, self.kepts.usage, len(jobs)),
        )
        if most < RUN_MIN:
            return 0
        done = 0
        for node, pods, devices in draft.overlay.place_many(gang.tasks[0], most, cluster_mask=cluster_mask(jobs[0])):
            width = len(devices) // pods
            for pod in range(pods):
                job = jobs[done]
                placement = (GroupPlacement(0, ((node, 1),), devices[pod * width : (pod + 1) * width]),)
                draft.placed(job, tr.JobPlaced(job.spec.id, job.epoch + 1, placement), size, ())
                self.seen[job.spec.id] = None
                done += 1
        draft.charge(queue.id, resources.scale(gang.full, done))
        draft.spend(done)
        return done

    def _run_of(self, found: PendingClass, index: int) -> list[Job]:
        """The jobs of the class from `index` on that come before every other candidate, if they can go together."""
        first = self._ready(found.keys[index][2])
        if first is None or first.gang.pods != 1 or found.key[3] or found.key[4]:
            return []
        if first.spec.id in self.draft.holds or not self.draft.tree.by_id[first.queue].starts_jobs:
            return []
        end = bisect_left(found.keys, self.heap[0][0], lo=index) if self.heap else len(found.keys)
        jobs = [first]
        for key in found.keys[index + 1 : min(end, index + RUN_MAX)]:
            job = self._ready(key[2])
            if job is None or key[2] in self.draft.holds:
                break
            jobs.append(job)
        return jobs

    def _commit(self, job: Job, placement: tuple[GroupPlacement, ...]) -> bool:
        """Write it, if the transaction still takes it."""
        draft, gang = self.draft, job.gang
        transition = tr.JobPlaced(job.spec.id, job.epoch + 1, placement)
        size = tr.estimated_bytes(transition)
        if not draft.fits(size):
            return False
        amounts = gang.full
        if gang.minimum_tasks is not None:
            amounts = gang.of_counts({group.group: layout.pods_placed(group) for group in placement})
        draft.spend(gang.pods // PODS_PER_WORK_UNIT)
        draft.placed(job, transition, size, amounts)
        return True

    def _maybe_ask(self, job: Job, queue: Queue) -> None:
        """Ask for a preemption plan if there may be one and none was asked for on the same grounds (rule P2b)."""
        draft, state = self.draft, self.draft.state
        if not queue.preempts or not queue.placed or min(queue.placed) >= job.spec.priority:
            return
        if job.spec.id in draft.holds or self.asked >= PREEMPTIONS_REQUESTED_MAX:
            return
        ask = state.asks.get(job.spec.id)
        if ask is not None:
            unchanged = ask.changes == state.changes and not draft.loosened
            if not ask.answered or ask.retry_at_ms > draft.now_ms or unchanged:
                return
        draft.ask(job.spec.id)
        self.asked += 1
