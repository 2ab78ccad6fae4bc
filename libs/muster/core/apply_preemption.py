"""What requests, answers and holds of preemption do to the state (rules P5, P6); called by `apply` only.

A request is remembered until its job is placed, holds something or ends, so that the next one can be spaced out. An
answer that asks to be repeated is repeated when its time has come whatever else happened; any other waits until
something changed as well (`Ask.changes`).

A placed job may ask and hold as well, for further replicas (`further`). It holds them until it has grown, and gives
them back when it grows no more or loses replicas; it is never in the index of pending jobs.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from muster.core import transitions as tr
from muster.core.jobs import Job, may_grow
from muster.core.limits import PREEMPTION_RETRY_MAX_MS, PREEMPTIONS_REQUESTED_MAX
from muster.core.model import Amounts, JobState
from muster.core.order import protected
from muster.core.state import Ask, CellState, Hold
from muster.core.timers import Due

TRIES_KEPT: Final = 6  # as if it had been asked so often: the pause stays long
REPEAT: Final = -1  # as Ask.changes: whatever has changed or not


def preemption_requested(state: CellState, t: tr.PreemptionRequested) -> None:
    before = state.asks.get(t.job)
    state.requests = t.request
    state.asks[t.job] = Ask(request=t.request, tries=before.tries + 1 if before else 1)


def preemption_answered(state: CellState, t: tr.PreemptionAnswered) -> None:
    ask = state.asks.get(t.job)
    if ask is None or ask.request != t.request:
        return
    if sum(not other.answered for other in state.asks.values()) >= PREEMPTIONS_REQUESTED_MAX:
        state.pending.loosen()  # others had to wait with their requests
    retry_at_ms = state.now_ms + t.retry_after_ms
    changes = REPEAT if t.repeat else state.changes
    state.asks[t.job] = Ask(
        ask.request, ask.tries, answered=True, retry_at_ms=retry_at_ms, changes=changes, reason=t.reason
    )
    state.timers.add(retry_at_ms, Due.REQUEST_AGAIN, t.job)


def hold_made(state: CellState, t: tr.HoldMade) -> None:
    job = state.jobs[t.job]
    state.asks.pop(t.job, None)
    queued = job.state is JobState.QUEUED
    if queued:
        _leave_class(state, job)
    state.holds[t.job] = Hold(t.job, t.placement, t.victims, t.expires_ms, t.shrinks, state.now_ms)
    held = job.gang.of_groups(t.placement)
    count_held(state, job, held, 1)
    state.sums.of(job, held).committed += 1
    state.potential.touch(t.job)
    if queued:
        state.pending.add(state.class_key(job), state.order_key(job))
    state.timers.add(t.expires_ms, Due.HOLD_EXPIRES, t.job, job.epoch)


def count_held(state: CellState, job: Job, held: Amounts, sign: int) -> None:
    """The holder counts as placed (rule Q3), or no longer."""
    state.queues.hold(job.queue, held, sign)
    if protected(job):
        state.queues.protect(job.queue, held, sign)


def hold_extended(state: CellState, t: tr.HoldExtended) -> None:
    state.holds[t.job] = replace(state.holds[t.job], expires_ms=t.expires_ms)
    state.timers.add(t.expires_ms, Due.HOLD_EXPIRES, t.job, state.jobs[t.job].epoch)


def _leave_class(state: CellState, job: Job) -> None:
    """The job gets or loses a class of its own. Who is first in its old class now may ask for a plan in its turn."""
    class_key = state.class_key(job)
    state.pending.remove(class_key, state.order_key(job))
    left = state.pending.classes.get(class_key)
    if left is not None:
        state.pending.open(left)


def unhold(state: CellState, job: Job) -> bool:
    """The job holds nothing any more; whether it did."""
    hold = state.holds.pop(job.spec.id, None)
    if hold is None:
        return False
    held = job.gang.of_groups(hold.placement)
    count_held(state, job, held, -1)
    state.sums.of(job, held).committed -= 1
    state.potential.touch(job.spec.id)
    return True


def grows(state: CellState, job: Job) -> None:
    """An elastic job has changed: whether it could grow. If not, it wants no more, and holds nothing for that."""
    yes = may_grow(job, state.now_ms)
    state.pending.may_grow(job.spec.id, yes)
    if not yes:
        state.asks.pop(job.spec.id, None)
        give_back(state, job)


def give_back(state: CellState, job: Job) -> None:
    """What was held for further replicas is free for all."""
    if unhold(state, job):
        state.loosened()


def hold_released(state: CellState, t: tr.HoldReleased) -> None:
    job = state.jobs[t.job]
    if job.state is JobState.QUEUED:
        _leave_class(state, job)
        unhold(state, job)
        state.pending.add(state.class_key(job), state.order_key(job))
    else:
        unhold(state, job)
    state.loosened()
    # The plan came to nothing: the next one is asked for no sooner than after the longest pause.
    retry_at_ms = state.now_ms + PREEMPTION_RETRY_MAX_MS
    state.asks[t.job] = Ask(
        state.requests, TRIES_KEPT, answered=True, retry_at_ms=retry_at_ms, changes=REPEAT, reason=t.reason
    )
    state.timers.add(retry_at_ms, Due.REQUEST_AGAIN, t.job)
