"""Folding what changes in the tree of queues: shape, rules, and what queues are entitled to. Part of `apply`.

A queue's settings decide in which order and in which classes its jobs wait, and whether it keeps count of who shares
it; when those change, what was derived from the old ones is made again.
"""

from __future__ import annotations

from collections import Counter

from muster.core import transitions as tr
from muster.core.asks import opened_by
from muster.core.jobs import Job
from muster.core.members import Members
from muster.core.model import Amounts, JobSpec
from muster.core.queues import Queue
from muster.core.state import CellState


def queue_upserted(state: CellState, t: tr.QueueUpserted) -> None:
    tree, spec = state.queues, t.spec
    fading = tree.fading or spec.half_life_ms
    if tree.fading and spec.id in tree:  # if it moves, what is above it used its usage up to now, in both places
        for queue in (spec.id, spec.parent):
            if queue:
                tree.remember(queue, state.now_ms)
    old = tree.by_id.get(spec.id)
    if old is None:
        tree.put(spec)
    else:
        sorted_by, chain, counted = _sorting(state, old), old.chain, old.members is not None
        tree.put(spec)
        for leaf, before in sorted_by.items():
            if _sorts(tree.get(leaf)) != before:
                state.pending.reorder(tree.get(leaf), state.jobs)
        stale = [queue for queue in (*chain, *old.chain) if (queue in chain) != (queue in old.chain)]
        _recount(state, stale if counted else [*stale, old])
    if fading:
        tree.keep_histories(spec.id, state.now_ms)
    state.loosened()


def _sorting(state: CellState, top: Queue) -> dict[str, tuple[bool, bool]]:
    """By leaf below the queue: what of the tree decides the order and the classes of its pending jobs."""
    return {queue.id: _sorts(queue) for queue in state.queues.subtree(top.id) if not queue.children}


def _sorts(leaf: Queue) -> tuple[bool, bool]:
    return leaf.fifo, bool(leaf.tracked)


def _recount(state: CellState, stale: list[Queue]) -> None:
    """Those who share these queues are counted again: one began to keep count, or jobs came or left with a subtree."""
    stale = [queue for queue in stale if queue.members is not None]
    for queue in stale:
        queue.members = Members()
    concerned = {
        below.id: [q for q in below.chain if q in stale] for q in stale for below in state.queues.subtree(q.id)
    }
    if not any(state.queues.get(queue).jobs for queue in concerned):
        return
    alike: Counter[tuple[str, str, str, bool, Amounts]] = Counter()
    of: dict[tuple[str, str, str, bool, Amounts], JobSpec] = {}
    for job in state.jobs.values():
        if job.queue in concerned and job.live:
            spec = job.spec
            key = (job.queue, spec.namespace, spec.submitter, job.charged, job.held() if job.charged else ())
            alike[key] += 1
            of[key] = spec
    for key, many in alike.items():
        leaf, _, _, charged, amounts = key
        for queue in concerned[leaf]:
            if queue.members is not None:
                queue.members.count(of[key], 0 if charged else many, many if charged else 0, amounts, many)


def count_member(state: CellState, job: Job) -> None:
    """All that a job is and has, for those who share its queue."""
    for queue in state.queues.get(job.queue).tracked:
        if queue.members is not None:
            queue.members.count(job.spec, int(not job.charged), int(job.charged), job.held() if job.charged else ())


def queue_removed(state: CellState, t: tr.QueueRemoved) -> None:
    state.accounts.removed(t.queue, state.queues.path(t.queue))
    state.queues.remove(t.queue)
    state.entitled.pop(t.queue, None)
    state.loosened()  # what it was guaranteed is kept from nobody any more (rules P4, F6)


def entitlements_set(state: CellState, t: tr.EntitlementsSet) -> None:
    changed = dict.fromkeys(opened_by(state, t.entitlements))
    for queue in changed:
        state.pending.open_queue(queue)
    for entitlement in t.entitlements:
        if entitlement.queue in state.queues:
            state.entitled[entitlement.queue] = entitlement.amounts
    state.entitled_seq = t.ledger_seq
    state.changes += 1
    state.pending.open_growing(job for job in state.pending.growing if state.jobs[job].queue in changed)
    if state.queues.lending:
        state.pending.loosen()  # less may be withheld from borrowers
