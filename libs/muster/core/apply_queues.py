"""Folding what changes in the tree of queues: shape, rules, and what queues are entitled to. Part of `apply`.

A queue's settings decide in which order and in which classes its jobs wait, and whether it keeps count of who shares
it; when those change, what was derived from the old ones is made again.
"""

from __future__ import annotations

from muster.core import transitions as tr
from muster.core.asks import opened_by
from muster.core.jobs import Job, is_over
from muster.core.state import CellState


def queue_upserted(state: CellState, t: tr.QueueUpserted) -> None:
    if state.queues.put(t.spec):
        _reorder(state)
    state.loosened()


def _reorder(state: CellState) -> None:
    """What decides the order or the classes of pending jobs has changed: all are sorted in again, and those who share
    a queue are counted again."""
    old = state.pending
    fresh = state.pending = type(old)()
    for found in old.classes.values():
        for key in found.keys[found.head :]:
            job = state.jobs[key[2]]
            fresh.add(state.class_key(job), state.order_key(job))
    fresh.growing = old.growing
    fresh.loosen()
    if state.queues.forget_members():
        for job in state.jobs.values():
            if job.live:
                count_member(state, job)


def count_member(state: CellState, job: Job) -> None:
    """All that a job is and has, for those who share its queue."""
    state.queues.count_members(job.spec, job.queue, int(not job.charged), int(job.charged))
    if job.charged:
        live = [position for position, phase in enumerate(job.phases) if not is_over(phase)]
        state.queues.charge_members(job.spec, job.queue, job.gang.of_positions(live), 1)


def queue_removed(state: CellState, t: tr.QueueRemoved) -> None:
    state.accounts.removed(t.queue, state.queues.path(t.queue))
    state.queues.remove(t.queue)
    state.entitled.pop(t.queue, None)


def entitlements_set(state: CellState, t: tr.EntitlementsSet) -> None:
    changed = dict.fromkeys(opened_by(state, t.entitlements))
    for queue in changed:
        state.pending.open_queue(queue)
    for entitlement in t.entitlements:
        if entitlement.queue in state.queues:
            state.entitled[entitlement.queue] = entitlement.amounts
    state.entitled_seq = t.ledger_seq
    state.changes += 1
    for job in state.pending.growing:
        if state.jobs[job].queue in changed:
            state.pending.growing_opened[job] = None
    if state.queues.lending:
        state.pending.loosen()  # less may be withheld from borrowers
