"""Folding what operators set: the tree of queues, what queues are entitled to, priority classes. Part of `apply`.

A queue's settings decide in which order and in which classes its jobs wait, and whether it keeps count of who shares
it; when those change, what was derived from the old ones is made again.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from muster.core import transitions as tr
from muster.core.asks import opened_by
from muster.core.jobs import Job
from muster.core.limits import PREEMPTION_RETRY_FIRST_MS
from muster.core.members import NAMESPACE, USER
from muster.core.model import Amounts, JobState
from muster.core.order import MEMBER_PARTS, Sorting, sorting_of
from muster.core.queues import Queue
from muster.core.state import CellState
from muster.core.timers import Due


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
        protects_ms = old.spec.min_runtime_ms
        tree.put(spec)
        if protects_ms != spec.min_runtime_ms or chain != old.chain:
            _ask_sooner(state)
        left, joined = [q for q in chain if q not in old.chain], [q for q in old.chain if q not in chain]
        _recount(state, old, left, -1)
        for leaf, before in sorted_by.items():
            if sorting_of(tree.get(leaf)) != before:
                _sort_again(state, tree.get(leaf), before)
        _recount(state, old, joined if counted else [*joined, old], 1)
    if fading:
        tree.keep_histories(spec.id, state.now_ms)
    state.tree_log.note(tree.path(spec.id))
    state.loosened()


def _ask_sooner(state: CellState) -> None:
    """Who waits with the next request for a plan until a protection ends may find it ended already (rule P4)."""
    soon_ms = state.now_ms + PREEMPTION_RETRY_FIRST_MS
    for job_id, ask in state.asks.items():
        if ask.answered and ask.retry_at_ms > soon_ms:
            state.asks[job_id] = replace(ask, retry_at_ms=soon_ms)
            state.timers.add(soon_ms, Due.REQUEST_AGAIN, job_id)


def _sorting(state: CellState, top: Queue) -> dict[str, Sorting]:
    """By leaf below the queue: what of the tree decides the order and the classes of its pending jobs."""
    return {queue.id: sorting_of(queue) for queue in state.queues.subtree(top.id) if not queue.children}


def _sort_again(state: CellState, leaf: Queue, before: Sorting) -> None:
    """The jobs of the leaf that wait."""
    if leaf.fifo == before.fifo and not leaf.tracked:
        state.pending.merge(leaf)  # as they are sorted already
        return
    jobs, now_ms, queued = state.jobs, state.now_ms, JobState.QUEUED
    live = map(jobs.__getitem__, leaf.live)
    waiting = [job for job in live if job.state is queued and job.not_before_ms <= now_ms]
    holders = [jobs[job] for job in state.holds if jobs[job].queue == leaf.id]
    held = [job for job in holders if state.is_pending(job)]
    state.pending.reorder(leaf, waiting, held, jobs=jobs, now_ms=now_ms)


def _recount(state: CellState, top: Queue, queues: list[Queue], sign: int) -> None:
    """The jobs below `top` count from now on (-1: no longer) for those who share these queues: one of them began to
    keep count, or the jobs came or left with a subtree. They are sorted by member now, so classes are counted."""
    kept = [queue.members for queue in queues if queue.members is not None]
    if not kept:
        return
    for leaf in state.queues.subtree(top.id):
        waiting: Counter[str] = Counter()
        for key, found in state.pending.of_queue.get(leaf.id, {}).items():
            waiting[key[5]] += len(found)
        others = _others(state, leaf, waiting.total())
        for members in kept:
            for member, many in waiting.items():
                namespace, _, submitter = member.partition(MEMBER_PARTS)
                members.count_at((NAMESPACE, namespace), sign * many, 0)
                members.count_at((USER, submitter), sign * many, 0)
            for job, amounts in others:
                charged = int(job.charged)
                members.count(job.spec, sign - sign * charged, sign * charged, amounts, sign)


def _others(state: CellState, leaf: Queue, waiting: int) -> list[tuple[Job, Amounts]]:
    """The live jobs of the leaf that are not pending, with what they hold: they run, stop, or wait out a backoff."""
    if len(leaf.live) == waiting + len(leaf.running):  # often, and then there is nothing to look for
        others = [state.jobs[job] for job in leaf.running]
    else:
        now_ms, queued, live = state.now_ms, JobState.QUEUED, map(state.jobs.__getitem__, leaf.live)
        others = [job for job in live if job.state is not queued or job.not_before_ms > now_ms]
    return [(job, job.held() if job.charged else ()) for job in others]


def count_member(state: CellState, job: Job) -> None:
    """All that a job is and has, for those who share its queue."""
    for queue in state.queues.get(job.queue).tracked:
        if queue.members is not None:
            queue.members.count(job.spec, int(not job.charged), int(job.charged), job.held() if job.charged else ())


def queue_removed(state: CellState, t: tr.QueueRemoved) -> None:
    state.accounts.removed(t.queue, state.queues.path(t.queue))
    state.tree_log.note(state.queues.path(t.queue))
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


def class_upserted(state: CellState, t: tr.PriorityClassUpserted) -> None:
    """Jobs that exist keep what they took from it, so nothing else changes (rule P4)."""
    state.classes[t.spec.name] = t.spec


def class_removed(state: CellState, t: tr.PriorityClassRemoved) -> None:
    del state.classes[t.name]
