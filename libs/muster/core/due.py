"""What is due, and what no longer is.

Time moves with the transactions: `apply_transaction` calls `wake` when it has moved and `drop_spent_timers` when the
transaction is folded. What the leader has to decide on (ends of runtimes, of holds, start timeouts) it reads from the
timers itself, in `housekeeping`.
"""

from __future__ import annotations

from typing import Final

from muster.core.jobs import RUNNING_STATES, Job, late_positions, may_grow
from muster.core.lifecycle import PLACED, QUEUED, STARTING
from muster.core.limits import START_TIMEOUT_MS
from muster.core.state import CellState
from muster.core.timers import Due, TimerEntry

NOT_STARTED: Final = frozenset({PLACED, STARTING})
WOKEN: Final = (Due.BACKOFF_OVER, Due.REQUEST_AGAIN, Due.GROW_AGAIN, Due.SUSPECTS_AGAIN)  # the others are decided on


def waits(state: CellState, job: Job) -> None:
    """The job was queued again: it is pending, or will be when its pause is over."""
    if job.not_before_ms > state.now_ms:
        state.timers.add(job.not_before_ms, Due.BACKOFF_OVER, job.spec.id, job.epoch)
    else:
        state.pending.add(state.class_key(job), state.order_key(job))
    avoids(state, job)


def avoids(state: CellState, job: Job) -> None:
    """The job has suspects and waits, or could grow, from now on: it is looked at when they are open to it again."""
    later = job.suspects_until_ms > max(state.now_ms, job.not_before_ms)
    if later and (job.state is QUEUED or job.gang.minimum_tasks is not None):
        state.timers.add(job.suspects_until_ms, Due.SUSPECTS_AGAIN, job.spec.id, job.epoch)


def wake(state: CellState) -> None:
    """Time has moved: jobs whose backoff is over are pending again, preemption may be asked for again."""
    others = state.timers.others
    if not others or others[0][0] > state.now_ms:
        return
    _open_suspects(state)  # first: whatever looks for a pending job looks for it by its class as it is now
    kept = []  # those that the leader decides stay until it has
    while others and others[0][0] <= state.now_ms:
        entry = others.pop(0)
        if entry[1] not in WOKEN:
            kept.append(entry)
        elif entry[1] != Due.SUSPECTS_AGAIN and not timer_is_spent(state, entry):
            job = state.jobs[entry[2]]
            if entry[1] == Due.BACKOFF_OVER:
                state.pending.add(state.class_key(job), state.order_key(job))
            elif entry[1] == Due.GROW_AGAIN or job.charged:
                state.pending.may_grow(job.spec.id, may_grow(job, state.now_ms))
            else:
                state.pending.open(state.pending.classes[state.class_key(job)])
    others.update(kept)


def _open_suspects(state: CellState) -> None:
    """The nodes that jobs avoid are open to them again: they change their class, or may grow there."""
    for entry in state.timers.due(state.now_ms):
        if entry[1] != Due.SUSPECTS_AGAIN or timer_is_spent(state, entry):
            continue
        job = state.jobs[entry[2]]
        if job.charged:
            state.pending.may_grow(job.spec.id, may_grow(job, state.now_ms))
            continue
        key, order = state.class_key(job), state.order_key(job)
        shunning = (*key[:3], (True, *key[3][1:]), *key[4:])
        found = state.pending.classes.get(shunning)
        if found is not None and found.holds(order):
            state.pending.remove(shunning, order)
            state.pending.add(key, order)


def timer_is_spent(state: CellState, entry: TimerEntry) -> bool:
    """Whether a timer's reason to be is gone."""
    due_ms, what, job_id, epoch = entry
    if what == Due.HOLD_EXPIRES:
        hold = state.holds.get(job_id)
        return hold is None or hold.expires_ms != due_ms
    if what == Due.REQUEST_AGAIN:
        ask = state.asks.get(job_id)
        return ask is None or not ask.answered or ask.retry_at_ms != due_ms
    job = state.jobs.get(job_id)
    if job is None or job.epoch != epoch:
        return True
    if what == Due.BACKOFF_OVER:
        return job.state is not QUEUED
    if what == Due.SUSPECTS_AGAIN:
        if job.suspects_until_ms != due_ms:
            return True
        return job.not_before_ms >= due_ms if job.state is QUEUED else job.state not in RUNNING_STATES
    if what == Due.GROWN:
        if job.state not in RUNNING_STATES or job.grown_ms + START_TIMEOUT_MS != due_ms:
            return True
        waiting = job.phases.count(0) + job.phases.count(1)
        return not waiting or bool(job.leaving and not late_positions(job))
    if what == Due.GROW_AGAIN:
        return job.state not in RUNNING_STATES or job.grow_after_ms != due_ms
    return job.state not in RUNNING_STATES


def start_is_spent(state: CellState, job_id: str, epoch: int) -> bool:
    """Whether the start timeout of this placement no longer matters (rule L3)."""
    job = state.jobs.get(job_id)
    return job is None or job.epoch != epoch or job.state not in NOT_STARTED


def drop_spent_timers(state: CellState) -> None:
    """Take timers off the front that have nothing left to do."""
    starts, others = state.timers.starts, state.timers.others
    while starts and start_is_spent(state, starts[0][1], starts[0][2]):
        starts.popleft()
    while others and timer_is_spent(state, others[0]):
        del others[0]
