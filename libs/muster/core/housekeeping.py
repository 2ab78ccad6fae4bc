"""What is due by time, and what a lost node or a draining queue leaves to do: the part of a transaction that nobody
asked for. A bounded number of steps each time, so that ten thousand pods lost at once do not stall the cell; what is
left is due again at once (`next_wake_ms`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from muster.core import transitions as tr
from muster.core.draft import Draft
from muster.core.due import start_is_spent, timer_is_spent
from muster.core.elastic import can_do_without, shrink, suspects_of
from muster.core.hold_ends import end_or_extend, release_closed
from muster.core.jobs import GONE, RUNNING_STATES, Job, late_positions
from muster.core.limits import (
    FINISHED_JOBS_MAX,
    FINISHED_TTL_MS,
    REQUEST_ID_TTL_MS,
    REQUEST_IDS_MAX,
    START_TIMEOUT_MS,
)
from muster.core.model import JobState, PodChange, Reason
from muster.core.pods import finish_stopping, requeue, settle
from muster.core.state import CellState
from muster.core.timers import Due
from muster.core.whereabouts import live_positions

STEPS_MAX: Final = 512  # per transaction


def housekeeping(draft: Draft) -> None:
    """Everything that is due, up to a number of steps."""
    release_closed(draft)
    for _ in islice(_steps(draft), STEPS_MAX):
        draft.spend(1)
        if draft.exhausted:
            return


def _steps(draft: Draft) -> Iterator[None]:
    yield from _vanished_nodes(draft)
    yield from _timers(draft)
    yield from _start_timeouts(draft)
    yield from _draining(draft)
    yield from _forgetting(draft)


def _vanished_nodes(draft: Draft) -> Iterator[None]:
    """Pods on removed nodes are gone (LOG-15)."""
    for node in sorted(draft.state.vanished):
        if draft.nodes.is_present(node):
            continue
        for job_id in sorted(draft.state.vanished[node]):
            job = draft.job(job_id)
            lost = live_positions(job, node) if job is not None and job.charged else []
            if job is not None and lost:
                changes = tuple(PodChange(position, GONE, reason=Reason.NODE_LOST) for position in lost)
                settle(draft, job, changes, Reason.NODE_LOST)
                yield


def _timers(draft: Draft) -> Iterator[None]:
    for entry in draft.state.timers.due(draft.now_ms):
        _, what, job_id, epoch = entry
        if timer_is_spent(draft.state, entry):
            continue
        if what == Due.MAX_RUNTIME:
            job = draft.job(job_id)
            if job is not None and job.epoch == epoch and job.state in RUNNING_STATES:
                _max_runtime(draft, job)
                yield
        elif what == Due.GROWN:
            yield from _late_replicas(draft, draft.job(job_id), epoch)
        elif what == Due.HOLD_EXPIRES and job_id in draft.holds:
            end_or_extend(draft, job_id)
            yield


def _max_runtime(draft: Draft, job: Job) -> None:
    """Counted from the placement, so that the end bound of rule B1 holds."""
    stopping = tr.JobStopping(
        job=job.id,
        epoch=job.epoch,
        next=JobState.FAILED,
        reason=Reason.MAX_RUNTIME,
        message=f"did not end within its max_runtime of {job.spec.max_runtime_ms // 1000} s",
    )
    finish_stopping(draft, draft.change(job, stopping))


def _late_replicas(draft: Draft, job: Job | None, epoch: int) -> Iterator[None]:
    """Rule L3 for replicas that were added to a running job: those that did not start leave again."""
    if job is None or job.epoch != epoch or job.state is not JobState.RUNNING:
        return
    late = late_positions(job)
    message = f"{len(late)} pods did not start in {START_TIMEOUT_MS // 1000} s"
    if late and can_do_without(job, late):
        shrink(draft, job, late, Reason.START_TIMEOUT, message, suspects=suspects_of(job, late))
    elif late:
        requeue(draft, job, Reason.START_TIMEOUT, message, suspects_of(job, late))
    yield


def _start_timeouts(draft: Draft) -> Iterator[None]:
    """Rule L3: a gang that does not become ready is taken down; where it did not start is suspect."""
    for placed_ms, job_id, epoch in draft.state.timers.starts:
        if placed_ms + START_TIMEOUT_MS > draft.now_ms:
            return
        job = draft.job(job_id)
        if start_is_spent(draft.state, job_id, epoch) or job is None:
            continue
        if job.epoch != epoch or job.state not in (JobState.PLACED, JobState.STARTING):
            continue
        late = late_positions(job)
        suspects = suspects_of(job, late)
        message = f"{len(late)} of {len(job.phases) - job.unplaced} pods did not start in {START_TIMEOUT_MS // 1000} s"
        requeue(draft, job, Reason.START_TIMEOUT, message, suspects)
        yield


def _draining(draft: Draft) -> Iterator[None]:
    """Running jobs leave a draining queue and wait (rule Q1)."""
    for drained in sorted(draft.tree.draining):
        for queue in draft.tree.subtree(drained):
            for job_id in sorted(queue.running):
                job = draft.job(job_id)
                if job is not None and job.state in RUNNING_STATES:
                    requeue(draft, job, Reason.QUEUE_DRAINED, f"queue {queue.path} is draining")
                    yield


def _forgetting(draft: Draft) -> Iterator[None]:
    """Finished jobs and old request ids leave the state (LOG-11, LOG-16)."""
    state, now_ms = draft.state, draft.now_ms
    too_many = len(state.timers.finished) - FINISHED_JOBS_MAX
    for number, job_id in enumerate(state.timers.finished):
        if number >= too_many and state.jobs[job_id].finished_ms + FINISHED_TTL_MS > now_ms:
            break
        draft.emit(tr.JobForgotten(job_id))
        yield
    old = 0
    too_many = len(state.forgotten_order) - REQUEST_IDS_MAX
    for number, job_id in enumerate(state.forgotten_order):
        if old >= STEPS_MAX or (number >= too_many and state.forgotten[job_id].at_ms + REQUEST_ID_TTL_MS > now_ms):
            break
        old += 1
    if old:
        draft.emit(tr.RequestIdsDropped(old))
        yield


def next_wake_ms(state: CellState) -> int | None:
    """When `decide` has something to do although no item came; not after `state.now_ms`: at once. None: never."""
    if state.vanished or state.pending.paused or state.pending.has_candidates or _drains(state):
        return state.now_ms
    due = []
    timers = state.timers
    if timers.others:
        due.append(timers.others[0][0])
    if timers.starts:
        due.append(timers.starts[0][0] + START_TIMEOUT_MS)
    if timers.finished:
        due.append(state.jobs[timers.finished[0]].finished_ms + FINISHED_TTL_MS)
        if len(timers.finished) > FINISHED_JOBS_MAX:
            due.append(state.now_ms)
    if state.forgotten_order:
        due.append(state.forgotten[state.forgotten_order[0]].at_ms + REQUEST_ID_TTL_MS)
        if len(state.forgotten_order) > REQUEST_IDS_MAX:
            due.append(state.now_ms)
    return min(due) if due else None


def _drains(state: CellState) -> bool:
    return any(queue.running for drained in state.queues.draining for queue in state.queues.subtree(drained))
