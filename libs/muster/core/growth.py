"""Elastic jobs get more replicas (rules F6, G1): within the entitlement of their queue first, then on loan.

Replicas come one at a time, in the order of `turns`, so two elastic jobs grow in step with their shares; what a job
gets in one part of a pass is written as one `JobGrown`. A job grows while nothing of it has succeeded: one whose pods
begin to end is ending; an array job until every index is done, `max_parallel` at once. New replicas go to the cluster
of the gang; nodes that the job avoids come last. An array job of which nothing is left on the nodes, and that does not
grow, goes back to the queue (`requeue_idle`).

What keeps a job from growing within E may be what others borrow: it is `short` then, and a preemption plan is asked
for. What the victims free is held for it; it gets all of that at once, as soon as it is there, and grows by nothing
else before (rule P5).
"""

from __future__ import annotations

from collections.abc import Iterator

from muster.core import layout
from muster.core import transitions as tr
from muster.core.avoiding import place_avoiding
from muster.core.draft import Draft
from muster.core.due import timer_is_spent
from muster.core.further import as_job
from muster.core.gangs import GangShape
from muster.core.jobs import RUNNING_STATES, Job, may_grow, shunned
from muster.core.model import GroupPlacement
from muster.core.pods import requeue_idle
from muster.core.preemption import cluster_mask
from muster.core.room import Room
from muster.core.timers import Due
from muster.core.turns import Head, Turns

GROWN_BYTES = 160  # of a JobGrown, beside its runs
REPLICA_BYTES = 36  # of one more run, with devices
GROWERS = (Due.GROW_AGAIN, Due.REQUEST_AGAIN, Due.SUSPECTS_AGAIN)  # what they wait for, elastic jobs


class Growth:
    """The elastic jobs of one pass."""

    def __init__(self, draft: Draft, *, full: bool) -> None:
        self._draft = draft
        pending = draft.state.pending
        self._jobs = dict.fromkeys(pending.growers(full=full))
        if draft.reopened and not full:
            self._jobs.update((job, None) for job in pending.growing if draft.state.jobs[job].queue in draft.reopened)
        for entry in draft.state.timers.due(draft.now_ms):
            if entry[1] in GROWERS and not timer_is_spent(draft.state, entry):
                self._jobs[entry[2]] = None
        for job_id, job in draft.changed.items():
            if job.gang.minimum_tasks is not None and may_grow(job, draft.now_ms):
                self._jobs[job_id] = None
        self._full: dict[tuple[str, int], None] = {}  # (job, group) that cannot grow in this pass
        self._added: dict[str, dict[int, list[tuple[int, bytes]]]] = {}  # job -> group -> (node, devices)
        self._nowhere: dict[tuple[GangShape, int, str, tuple[int, ...], bool], None] = {}  # what fits nowhere any more
        self.blocked: list[str] = []
        self.short: list[str] = []  # entitled to more than there was room for
        self.worked = False

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, job_id: str) -> None:
        """It was placed just now, with its minimum."""
        self._jobs[job_id] = None

    def run(self, room: Room, *, entitled: bool) -> bool:
        """Grow what can grow. False: the transaction is full."""
        draft = self._draft
        done = not entitled or self._use_holds(room)
        turns = Turns(draft.tree, room.views, list(self._heads()) if done else [])
        while turns.left:
            if draft.exhausted:
                done = False
                break
            head = turns.first()
            group = self._next_group(head.job)
            if group is None or (entitled and not room.entitled(head.job)):
                turns.replace(None, used=False)
                continue
            draft.spend(1)
            self.worked = True
            grown = self._grow(head.job, group, room, entitled=entitled)
            if not grown:
                self._full[head.job.spec.id, group] = None
                draft.bytes += REPLICA_BYTES
            again = self._next_group(head.job)
            if again is None and head.job.spec.id not in self._added:
                self.blocked.append(head.job.spec.id)
            if again is None and entitled and self._wants_more(head.job) and room.entitled(head.job):
                self.short.append(head.job.spec.id)
            turns.replace(None if again is None else self._head(head.job, again, head.number), used=grown)
        self._write()
        return done

    def _heads(self) -> Iterator[Head]:
        for number, job_id in enumerate(self._jobs):
            job = self._draft.job(job_id)
            if job is not None and may_grow(job, self._draft.now_ms):
                if not self._draft.tree.by_id[job.queue].starts_jobs or job_id in self._draft.holds:
                    continue
                group = self._next_group(job)
                if group is not None:
                    yield self._head(job, group, number)

    def _head(self, job: Job, group: int, number: int) -> Head:
        return Head(self._draft.order_key(job), number, job, dict(job.gang.per_pod[group]))

    def _next_group(self, job: Job) -> int | None:
        """The first group with a vacant position that may still fit."""
        return next((group for group in self._unfilled(job) if (job.spec.id, group) not in self._full), None)

    def _wants_more(self, job: Job) -> bool:
        return next(self._unfilled(job), None) is not None

    def _unfilled(self, job: Job) -> Iterator[int]:
        """Groups with a vacant position that the job may use."""
        added = self._added.get(job.spec.id, {})
        most = job.spec.max_parallel
        if most and job.live_pods() + sum(map(len, added.values())) >= most:
            return
        for group in range(len(job.gang.tasks)):
            if job.vacant_in(group) > len(added.get(group, ())):
                yield group

    def _use_holds(self, room: Room) -> bool:
        """Who has room held grows by all of it, or waits on. False: the transaction is full."""
        draft = self._draft
        for job_id in sorted(draft.holds):
            job = draft.job(job_id)
            if job is None or job_id not in self._jobs or not may_grow(job, draft.now_ms):
                continue
            if not draft.tree.by_id[job.queue].starts_jobs:
                continue
            (held,) = draft.holds[job_id].placement
            count = layout.pods_placed(held)
            if draft.exhausted or not draft.fits(GROWN_BYTES + count * REPLICA_BYTES):
                return False
            draft.spend(1)
            self.worked = True
            room.lift(job)
            placed = self._place_held(as_job(draft.state.nodes, job, held.group, count), room)
            if placed is None:
                room.restore(job)
                self.blocked.append(job_id)
                continue
            room.drop(job)
            draft.charge(job, job.gang.of_groups(placed))
            draft.bytes += GROWN_BYTES + count * REPLICA_BYTES
            self._added[job_id] = {held.group: list(_replicas(placed[held.group]))}
        return True

    def _place_held(self, asked: Job, room: Room) -> tuple[GroupPlacement, ...] | None:
        """All the replicas that `asked` stands for, charged to the overlay; its hold is lifted."""
        if not room.allows(asked, asked.asks.minimum_map, entitled=room.entitled(asked), starts=False):
            return None
        draft = self._draft
        return place_avoiding(draft.overlay, asked, asked.asks.tasks, cluster_mask(asked), draft.now_ms)

    def _grow(self, job: Job, group: int, room: Room, *, entitled: bool) -> bool:
        """One more replica of the group, charged."""
        draft, gang = self._draft, job.gang
        if not room.allows(job, dict(gang.per_pod[group]), entitled=entitled, starts=False):
            return False
        node = next(node for of in job.placement for node, _ in of.runs)
        cluster = draft.state.nodes.spec(node).cluster
        tried = (gang.shape, group, cluster, job.suspects, bool(shunned(job, draft.now_ms)))
        if tried in self._nowhere:
            return False
        placed = place_avoiding(draft.overlay, job, (gang.one_more[group],), (cluster,), draft.now_ms)
        if placed is None:
            self._nowhere[tried] = None  # nothing becomes free within a pass
            return False
        ((node, _),) = placed[0].runs
        self._added.setdefault(job.spec.id, {}).setdefault(group, []).append((node, placed[0].devices))
        draft.charge(job, gang.per_pod[group])
        draft.bytes += REPLICA_BYTES
        return True

    def requeue_idle(self) -> None:
        """Those of which nothing runs wait like any other job. At the end of a pass: the next one looks at them."""
        for job_id in sorted(self._jobs):
            job = self._draft.job(job_id)
            if job is None or job_id in self._draft.holds:
                continue
            if job.spec.completion and job.state in RUNNING_STATES and not job.live_pods():
                requeue_idle(self._draft, job)

    def _write(self) -> None:
        """One transition a job for everything it got. Its bytes were counted on the way."""
        for job_id, groups in self._added.items():
            job = self._draft.job(job_id)
            if job is not None:
                placement = tuple(_placement(group, groups[group]) for group in sorted(groups))
                bytes_before = self._draft.bytes
                self._draft.change(job, tr.JobGrown(job_id, job.epoch, placement))
                self._draft.bytes = bytes_before + GROWN_BYTES
        self._added = {}


def _replicas(placed: GroupPlacement) -> Iterator[tuple[int, bytes]]:
    """(node, devices) of one after the other."""
    width, at = layout.devices_per_pod(placed), 0
    for node, count in placed.runs:
        for _ in range(count):
            yield node, placed.devices[at : at + width]
            at += width


def _placement(group: int, replicas: list[tuple[int, bytes]]) -> GroupPlacement:
    """Runs of replicas one after the other."""
    runs: list[tuple[int, int]] = []
    for node, _ in replicas:
        if runs and runs[-1][0] == node:
            runs[-1] = (node, runs[-1][1] + 1)
        else:
            runs.append((node, 1))
    return GroupPlacement(group, tuple(runs), b"".join(devices for _, devices in replicas))
