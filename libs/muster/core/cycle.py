"""The scheduling cycle: who starts and who grows now (rules F5, F6, G1).

A pass has five parts, each in the order of `turns`: entitled starts, entitled growth of elastic jobs, requests for
preemption plans, then what is borrowed: starts and growth above the entitlement. A job is entitled if its queue is
below its entitlement, before the job, in a resource that it asks for (P2a). A job that fits its limits along the path
and the nodes, with what holds keep left alone, is placed with the minimum of its groups; what more it may have it grows
to. One that does not fit blocks nobody but its own class (see `order`).

A pass that runs out of work units or bytes is paused and goes on in the next transaction without the classes that it
has found blocked, so one huge queue cannot stall the cell.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from muster.core import resources
from muster.core import transitions as tr
from muster.core.arrays import around
from muster.core.avoiding import place_avoiding
from muster.core.draft import Draft
from muster.core.due import timer_is_spent
from muster.core.growth import Growth
from muster.core.hopeless import Hopeless
from muster.core.jobs import Job
from muster.core.lifecycle import QUEUED
from muster.core.limits import DEVICES_PER_NODE_MAX, TRANSACTION_BYTES_MAX
from muster.core.model import GroupPlacement
from muster.core.order import PendingClass
from muster.core.preemption import cluster_mask
from muster.core.queues import room_below
from muster.core.requests import Requests
from muster.core.room import Room
from muster.core.sizes import placed_bytes
from muster.core.timers import Due
from muster.core.turns import Head, Source, Turns

PODS_PER_WORK_UNIT: Final = 32
RUN_MIN: Final = 4  # fewer equal jobs in a row are placed one by one
RUN_MAX: Final = 4096
ONE_POD_DEVICES: Final = bytes(DEVICES_PER_NODE_MAX)  # for an upper bound of the size
BLOCKED_BYTES: Final = 36  # of the id of a job in CyclePaused
WAITERS: Final = (Due.BACKOFF_OVER, Due.REQUEST_AGAIN, Due.SUSPECTS_AGAIN)  # what they wait for, queued jobs


def run_cycle(draft: Draft) -> None:
    """One pass, or as much of it as the transaction takes."""
    pending = draft.state.pending
    full = not pending.paused and (pending.all_open or draft.loosened)
    heads = list(_heads(draft, full=full))
    growth = Growth(draft, full=full)
    if heads or growth or pending.paused:
        _Pass(draft, heads, growth).run()


def _heads(draft: Draft, *, full: bool) -> Iterator[Head]:
    """What the pass has to look at: a first job for every open class, jobs whose time has come, and fresh ones."""
    state, pending = draft.state, draft.state.pending
    number = 0
    opened = list(pending.candidates(full=full))
    if not full:
        for queue in draft.reopened:
            opened += [c for key, c in pending.of_queue.get(queue, {}).items() if key not in pending.opened]
    for found in opened:
        head = _next_in(draft, found, found.head, number)
        if head is not None:
            yield head
            number += 1
    for entry in state.timers.due(draft.now_ms):
        job = draft.job(entry[2])
        if job is None or entry[1] not in WAITERS or timer_is_spent(state, entry):
            continue
        if job.state is QUEUED and job.not_before_ms <= draft.now_ms:
            yield Head(draft.order_key(job), number, job, job.asks.minimum_map)
            number += 1
    for found in draft.fresh.classes.values():
        waiting = pending.classes.get(found.key)
        blocked = waiting is not None and not full and found.key not in pending.opened
        blocked = blocked and found.key[0] not in draft.reopened
        if waiting is None or not blocked or found.first() < waiting.first():
            head = _next_in(draft, found, found.head, number)
            if head is not None:
                yield head
                number += 1


def _next_in(draft: Draft, found: PendingClass, index: int, number: int) -> Head | None:
    """The first job of the class from `index` on that is still to be looked at."""
    keys, changed, jobs = found.keys, draft.changed, draft.state.jobs
    while index < len(keys):
        key = keys[index]
        job = changed.get(key[2]) or jobs.get(key[2])
        if job is None or job.state is not QUEUED or job.not_before_ms > draft.now_ms:
            index += 1
        elif found.shuns and job.suspects_until_ms <= draft.now_ms:
            index += 1  # its suspects are open to it by now: it has left the class, and comes by itself (`_heads`)
        else:
            return Head(key, number, job, job.asks.minimum_map, (found, index))
    return None


class _Pass:
    """One pass in the making."""

    def __init__(self, draft: Draft, heads: list[Head], growth: Growth) -> None:
        self.draft = draft
        self.heads = heads
        self.growth = growth
        self.room = Room(draft)
        self.requests = Requests(draft, self.room)
        self.number = len(heads)
        self.seen: dict[str, None] = {}
        self.later: list[Head] = []  # heads that are not entitled: they may borrow
        self.hopeless = Hopeless(draft.now_ms)
        self.blocked: list[str] = []  # of each class that was found blocked, the job that was looked at
        self.worked = False

    def run(self) -> None:
        if self._starts(entitled=True) and self.growth.run(self.room, entitled=True):
            self._ask()
            if self._starts(entitled=False) and self.growth.run(self.room, entitled=False):
                self._ask()
                self.draft.emit(tr.CyclePaused())
                self.growth.requeue_idle()
                return
        self._ask()  # those that were found blocked are not looked at again in this pass
        blocked = (*self.blocked, *self.growth.blocked)
        if blocked or self.worked or self.growth.worked:
            self.draft.emit(tr.CyclePaused(paused=True, blocked=blocked))

    def _ask(self) -> None:
        """For plans, for all that could not be placed so far (rule P2)."""
        self.requests.short(self.growth.short)
        self.growth.short = []
        self.requests.ask()

    def _starts(self, *, entitled: bool) -> bool:
        """Start what can start, of what is entitled or of what has to borrow. False: the transaction is full."""
        if entitled:
            self._set_borrowers_aside()
        heads = self.heads if entitled else self.later
        self.hopeless.count(heads)
        if self.hopeless.are_many(len(heads)):
            heads = self._without_hopeless(heads, entitled=entitled)
        turns = Turns(self.draft.tree, self.room.views, heads)
        while turns.left:
            if self.draft.exhausted:
                return False
            head = turns.first()
            if entitled and not self.room.entitled(head.job):
                self.later.append(head)
                turns.replace(None, used=False)
                continue
            done = self._run_of_equals(turns, head, entitled=entitled) if turns.alone else 0
            if done and head.source is not None:
                turns.replace(self._after(head.source, done), used=True)
                continue
            outcome = self._look_at(head.job, entitled=entitled)
            if outcome is None:
                return False
            turns.replace(self._after(head.source, 1) if outcome and head.source is not None else None, used=outcome)
            if self.hopeless.kinds and self.hopeless.are_many(turns.left):
                heads = self._without_hopeless(turns.heads(), entitled=entitled)
                turns = Turns(self.draft.tree, self.room.views, heads)
        return True

    def _set_borrowers_aside(self) -> None:
        """Those who are not entitled have their turn later; nobody becomes entitled within a pass."""
        heads, self.heads = self.heads, []
        for head in heads:
            (self.heads if self.room.entitled(head.job) else self.later).append(head)

    def _without_hopeless(self, heads: Iterable[Head], *, entitled: bool) -> list[Head]:
        """The heads that may still come to something: a place, or a request for a plan in their turn."""
        self.hopeless.looked_through()
        left = []
        blocked = []
        for head in heads:
            job = head.job
            queue = self.draft.tree.by_id[job.queue]
            if self._has_no_place(job) and self.requests.followers(job, queue, entitled=entitled) is None:
                blocked.append(job.spec.id)
            else:
                left.append(head)
        if blocked:
            self.seen.update(dict.fromkeys(blocked))
            self.blocked += sorted(blocked)  # heads come in no order that every replica shares (I8)
            self.worked = True
            self.draft.work += len(blocked)
            self.draft.bytes += BLOCKED_BYTES * len(blocked)
        return left

    def _has_no_place(self, job: Job) -> bool:
        return job.spec.id not in self.draft.holds and self.hopeless.has(job)

    def _after(self, source: Source, done: int) -> Head | None:
        if source is None:
            return None
        self.number += 1
        return _next_in(self.draft, source[0], source[1] + done, self.number)

    def _look_at(self, job: Job, *, entitled: bool) -> bool | None:
        """True: the next of the class may fit. False: it is blocked. None: the transaction is full."""
        draft, job_id = self.draft, job.spec.id
        if job_id in self.seen:
            return True
        draft.work += 1
        self.worked = True
        queue = draft.tree.by_id[job.queue]
        if not queue.starts_jobs:
            self.blocked.append(job_id)
            return False
        self.seen[job_id] = None
        held = job_id in draft.holds
        if held:
            self.room.lift(job)
        placement = self._place(job, entitled=entitled)
        if placement is None:
            if held:
                self.room.restore(job)
            self.blocked.append(job_id)
            draft.bytes += BLOCKED_BYTES
            self.requests.blocked(job, queue, entitled=entitled)
            return False
        if not self._commit(job, placement):
            return None
        if held:
            self.room.drop(job)
        return True

    def _place(self, job: Job, *, entitled: bool) -> tuple[GroupPlacement, ...] | None:
        """A placement of the minimum within the limits, charged to the overlay (rule F6)."""
        draft, gang = self.draft, job.asks
        if not self.room.allows(job, gang.minimum_map, entitled=entitled):
            return None
        if self.hopeless.kinds and self._has_no_place(job):
            return None
        tasks, mask = gang.minimum_tasks or gang.tasks, cluster_mask(job)
        placement = place_avoiding(draft.overlay, job, tasks, mask, draft.now_ms)
        if placement is None:
            self.hopeless.add(job)
        return placement

    def _run_of_equals(self, turns: Turns, head: Head, *, entitled: bool) -> int:
        """Place equal one-pod jobs that follow each other in the order, all at once, exactly as one by one.

        Returns how many of the class, from the head on, are done with; 0: take the next one by itself.
        """
        draft = self.draft
        jobs = self._equals(turns, head)
        if len(jobs) < RUN_MIN:
            return 0
        queue, gang = draft.tree.by_id[head.job.queue], head.job.asks
        size = placed_bytes((GroupPlacement(0, ((0, 1),), ONE_POD_DEVICES),))
        most = min(
            (TRANSACTION_BYTES_MAX - draft.bytes) // size,
            draft.work_limit - draft.work,
            room_below(queue, gang.full_map, draft.usage, self.room.held, len(jobs)),
        )
        if entitled:
            most = min(most, self.room.entitled_count(head.job))
        if most < RUN_MIN:
            return 0
        done = 0
        for node, pods, devices in draft.overlay.place_many(gang.tasks[0], most, cluster_mask=cluster_mask(head.job)):
            width = len(devices) // pods
            for pod in range(pods):
                job = jobs[done]
                placement = (GroupPlacement(0, ((node, 1),), devices[pod * width : (pod + 1) * width]),)
                draft.placed(job, tr.JobPlaced(job.spec.id, job.epoch + 1, placement), size, ())
                self.seen[job.spec.id] = None
                done += 1
        draft.charge(head.job, resources.scale(gang.full, done))
        draft.spend(done)
        self.worked = self.worked or done > 0
        return done

    def _equals(self, turns: Turns, head: Head) -> list[Job]:
        """The head and the jobs of its class that come before every other head, if they can go together."""
        first, source = head.job, head.source
        if source is None or first.asks.pods != 1 or first.phases or first.suspects or first.spec.id in self.seen:
            return []
        found, index = source
        if found.key[4] or found.key[5] or found.key[6] or len(found.keys) - index < RUN_MIN:
            return []  # a hold, members or protection: each is checked by itself
        limit = turns.room()
        if limit is not None and found.keys[index + RUN_MIN - 1] >= limit:
            return []
        queue = self.draft.tree.by_id[first.queue]
        if not queue.starts_jobs or self.draft.tree.lending or first.spec.id in self.draft.holds:
            return []
        end = len(found.keys) if limit is None else bisect_left(found.keys, limit, lo=index)
        jobs = [first]
        for key in found.keys[index + 1 : min(end, index + RUN_MAX)]:
            job = self.draft.job(key[2])
            if job is None or job.state is not QUEUED or job.not_before_ms > self.draft.now_ms:
                break
            if key[2] in self.draft.holds or key[2] in self.seen or job.phases:
                break
            jobs.append(job)
        return jobs

    def _commit(self, job: Job, placement: tuple[GroupPlacement, ...]) -> bool:
        """Write it, if the transaction still takes it."""
        draft, gang = self.draft, job.asks
        if job.phases:
            placement = around(job.gang.tasks, job.phases, placement)
        transition = tr.JobPlaced(job.spec.id, job.epoch + 1, placement)
        size = placed_bytes(placement)
        if not draft.fits(size):
            return False
        draft.work += gang.pods // PODS_PER_WORK_UNIT
        draft.placed(job, transition, size, gang.minimum)
        if job.gang.minimum_tasks is not None:
            self.growth.add(job.spec.id)
        return True
