"""Asking for preemption plans: who may take the place of others, and does not ask for the same twice (rules P2, F6).

The cycle notes every job that it could not place. Those that may preempt, because their queue is below its entitlement
or because jobs run in it that have to give way, are asked for, in order, and with each of them the next few of its
class, so that equal jobs need not queue for their plans one by one: of a queue that is below its entitlement, as many
as that takes. Placed jobs that are entitled to further replicas and found no room for them are asked for after the jobs
that wait, as growth comes after starts. An ask is repeated only when its time has come and something relevant has
changed, or its answer said so, and leader and preemptors cannot feed each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from muster.core.draft import Draft
from muster.core.jobs import Job
from muster.core.limits import PREEMPTIONS_REQUESTED_MAX
from muster.core.members import fair_member
from muster.core.model import JobState
from muster.core.queues import Newest, Queue
from muster.core.room import Room

FOLLOWERS_MAX: Final = 15  # of one class that are asked for with its first job


class Requests:
    """Of one pass of the cycle."""

    def __init__(self, draft: Draft, room: Room) -> None:
        self._draft = draft
        self._room = room
        self._asked = sum(1 for ask in draft.state.asks.values() if not ask.answered)
        self._wanted: list[tuple[Job, int]] = []  # and how many of its class are asked for with it

    def blocked(self, job: Job, queue: Queue, *, entitled: bool) -> None:
        """The job was not placed. `entitled`: its queue is below its entitlement in something that it asks for."""
        followers = self.followers(job, queue, entitled=entitled)
        if followers is not None:
            self._wanted.append((job, followers))

    def short(self, jobs: Iterable[str]) -> None:
        """These placed jobs could not grow although their queue is below its entitlement (rule P2a)."""
        for job_id in jobs:
            job = self._draft.job(job_id)
            if job is not None and may_reclaim(self._draft.tree.by_id[job.queue]) and self._worthwhile(job):
                self._wanted.append((job, 0))

    def followers(self, job: Job, queue: Queue, *, entitled: bool) -> int | None:
        """How many of its class would be asked for with the job, if it is not placed. None: not even itself."""
        if self._asked >= PREEMPTIONS_REQUESTED_MAX or not self._worthwhile(job):
            return None
        if entitled and may_reclaim(queue) and not may_displace_lower(job, queue):
            return min(self._room.entitled_count(job) - 1, FOLLOWERS_MAX)
        return FOLLOWERS_MAX if may_displace(job, queue, self._draft.state.jobs) else None

    def ask(self) -> None:
        """Write the requests for those that were noted since the last time."""
        draft = self._draft
        for first, followers in self._wanted:
            for job in self._with_followers(first, followers):
                if self._asked >= PREEMPTIONS_REQUESTED_MAX:
                    break
                if not self._worthwhile(job):
                    break
                draft.ask(job.spec.id)
                self._asked += 1
        self._wanted = []

    def _with_followers(self, first: Job, followers: int) -> Iterator[Job]:
        """The job, and the next of its class that the same plan might be made for."""
        draft = self._draft
        yield first
        if not followers:
            return
        found = draft.state.pending.classes.get(draft.class_key(first))
        if found is None:
            return
        begin = bisect_right(found.keys, draft.order_key(first), lo=found.head)
        for key in found.keys[begin : begin + followers]:
            job = draft.job(key[2])
            same = job is not None and job.state is JobState.QUEUED and job.spec.priority == first.spec.priority
            if job is None or not same or job.not_before_ms > draft.now_ms:
                return
            yield job

    def _worthwhile(self, job: Job) -> bool:
        """Whether the answer may be another one now."""
        draft = self._draft
        if job.spec.id in draft.holds or job.spec.id in draft.asked_now or job.spec.id in draft.answered_now:
            return False
        ask = draft.state.asks.get(job.spec.id)
        if ask is None:
            return True
        unchanged = ask.changes == draft.state.changes and not draft.loosened and not draft.reopened
        return ask.answered and ask.retry_at_ms <= draft.now_ms and not unchanged


def may_reclaim(queue: Queue) -> bool:
    """Whether entitled jobs of the queue take back what others borrow (rule P2a)."""
    return queue.spec.preemption != "NEVER"


def may_displace(job: Job, queue: Queue, jobs: Mapping[str, Job]) -> bool:
    """Whether some job of its own queue has to give way to it (rule P2b)."""
    if may_displace_lower(job, queue):
        return True
    if not queue.preempts or queue.spec.preemption != "ANY" or job.spec.priority not in queue.placed:
        return False
    newest = newest_of(queue, (job.spec.priority, fair_member(queue.spec, job.spec)), jobs)
    return newest is not None and newest > (job.submit_ms, job.spec.id)


def may_displace_lower(job: Job, queue: Queue) -> bool:
    """Whether jobs of lower priority run there that have to give way to it."""
    return queue.preempts and bool(queue.placed) and min(queue.placed) < job.spec.priority


def newest_of(queue: Queue, equals: tuple[int, str], jobs: Mapping[str, Job]) -> tuple[int, str] | None:
    """(Submit time, id) of the newest job of this priority and member that runs in the queue. Costs what started since
    it was asked last, and all of them only when the newest itself has left."""
    known = queue.newest
    if known is None or (equals in known.jobs and known.jobs[equals][1] not in queue.running):
        known = Newest(queue.starts - len(queue.running), {})
    since = queue.starts - known.starts
    if since:
        newest = dict(known.jobs)
        for job_id in islice(reversed(queue.running), since):
            job = jobs[job_id]
            age, of = (job.submit_ms, job_id), (job.spec.priority, fair_member(queue.spec, job.spec))
            if age > newest.get(of, (-1, "")):
                newest[of] = age
        queue.newest = known = Newest(queue.starts, newest)
    return known.jobs.get(equals)
