"""When what is held for a preemptor is held no longer (rule P5), besides when it is placed or ends.

    end_or_extend    its time is over (`graces`): it waits on while pods of its victims are there, up to a limit
    release_closed   the preemptor's queue was stopped or a limit came in its way, or a node where it was to go takes no
                     pods any more: it may not start, so it holds nothing

A hold that has ended leaves an answered request behind: its job may ask for another plan when it may start again.
"""

from __future__ import annotations

from muster.core.draft import Draft
from muster.core.graces import first_end_ms
from muster.core.holds import freed_for, still_there
from muster.core.jobs import Job
from muster.core.limits import HOLD_LATE_MAX_MS, HOLD_TTL_MS
from muster.core.order import protected
from muster.core.plans import CommittedUsage, outlook_of, prospect_of
from muster.core.preemption_rules import Outlook
from muster.core.prospect import Prospect
from muster.core.quota import why_no_quota
from muster.core.state import Hold


def end_or_extend(draft: Draft, job_id: str) -> None:
    """The time of the hold is over."""
    hold = draft.holds[job_id]
    late = [victim for victim, live in still_there(hold, draft.job, freed_for(draft.holds)) if live]
    last_ms = first_end_ms(hold.made_ms or hold.expires_ms, late) + HOLD_LATE_MAX_MS
    if late and draft.now_ms < last_ms:
        draft.extend_hold(job_id, min(draft.now_ms + HOLD_TTL_MS, last_ms))
    elif late:
        draft.release_hold(job_id, "the victims were not gone in time")
    else:
        draft.release_hold(job_id, "the victims are gone and the job does not fit all the same")


def release_closed(draft: Draft) -> None:
    """Nodes, the tree of queues or what they are entitled to have changed in this transaction: who may not start any
    more gives back what is held for it."""
    if draft.holds:
        _release_on_closed_nodes(draft)
        _release_without_quota(draft)


def _release_on_closed_nodes(draft: Draft) -> None:
    """All of it: on the other nodes it would wait for a gang that cannot start, and nobody could use them."""
    closed = draft.nodes.closed()
    for job_id in sorted(draft.holds) if closed else ():
        draft.spend(1)
        held = [node for group in draft.holds[job_id].placement for node, _ in group.runs if node in closed]
        if held:
            name = closed[held[0]]
            draft.release_hold(job_id, f"the job may not start now: node {name} of its place takes no pods any more")


def _release_without_quota(draft: Draft) -> None:
    """The least important first, until those who are left may start together (rules Q1, F6, P4)."""
    same = draft.tree is draft.state.queues and draft.entitled is draft.state.entitled
    if same or not draft.holds:
        return
    ahead, used = prospect_of(draft, {}), CommittedUsage(draft, without=draft.holds)
    outlook, holders = outlook_of(draft, used), _by_importance(draft)
    for hold, job in holders:
        if protected(job):  # the claims know of all holds
            ahead.claims.count(job.queue, job.gang.of_groups(hold.placement), -1)
    for hold, job in holders:
        draft.spend(1)
        reason = _why_closed(draft, ahead, outlook, hold, job)
        if reason is None:
            ahead.holds(job, hold.placement)
            used.holds(job, job.gang.of_groups(hold.placement))
        else:
            draft.release_hold(job.spec.id, f"the job may not start now: {reason}")


def _by_importance(draft: Draft) -> list[tuple[Hold, Job]]:
    found = [(hold, job) for hold in draft.holds.values() if (job := draft.job(hold.job)) is not None]
    return sorted(found, key=lambda of: (-of[1].spec.priority, of[1].submit_ms, of[1].spec.id))


def _why_closed(draft: Draft, ahead: Prospect, outlook: Outlook, hold: Hold, job: Job) -> str | None:
    queue = draft.tree.by_id[job.queue]
    if not queue.starts_jobs:
        return queue.states()
    return why_no_quota(ahead, outlook, job, (), dict(job.gang.of_groups(hold.placement)), holds=True)
