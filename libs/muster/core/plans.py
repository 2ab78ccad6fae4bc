"""Preemption plans as they come back: still good, then the victims leave and what they free is held (rules P5, P6).

A plan is one action: all of it happens in this transaction or none. The answer to a request that leads to nothing is
written down with the time after which it may be asked again, so that leader and preemptors cannot feed each other: a
plan that was overtaken is asked for again after that time, "there is none" only when something has changed as well, or
when the protection ends that stood in the way.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.core import commands, resources
from muster.core import transitions as tr
from muster.core.backoff import backoff_ms
from muster.core.draft import Draft
from muster.core.further import of_placement
from muster.core.graces import first_end_ms
from muster.core.jobs import RUNNING_STATES, Job, may_grow, shunned
from muster.core.limits import (
    MESSAGE_CHARS_MAX,
    PLAN_VICTIMS_MAX,
    PREEMPTION_RETRY_FIRST_MS,
    PREEMPTION_RETRY_MAX_MS,
    TRANSACTION_BYTES_MAX,
)
from muster.core.model import Amounts, JobState, Reason
from muster.core.pods import finish_stopping
from muster.core.potential import ByPriority, add, staying
from muster.core.preemption import why_no_room
from muster.core.preemption_rules import Outlook, Taking, why_not
from muster.core.prospect import Prospect, leaving_positions, prospect
from muster.core.sizes import size_of
from muster.core.state import Ask, Hold
from muster.core.victim_table import spare_of


def preemption_planned(draft: Draft, fact: commands.PreemptionPlanned) -> None:
    ask = draft.state.asks.get(fact.job)
    if ask is None or ask.answered or ask.request != fact.request or fact.job in draft.answered_now:
        return  # an answer to something that is not asked any more
    draft.answered_now[fact.job] = None
    if not fact.victims and not fact.shrinks:
        _answer(draft, fact, ask, fact.reason[:MESSAGE_CHARS_MAX] or "no plan", fact.again_at_ms)
        return
    takings, reason = _takings(draft, fact)
    if reason is None:
        reason = _why_not(draft, fact, takings)
    if reason is not None:
        _answer(draft, fact, ask, reason, draft.now_ms)
        return
    for taking in takings:
        _take(draft, taking, fact.job)
    expires_ms = first_end_ms(draft.now_ms, [taking.victim for taking in takings])
    draft.make_hold(Hold(fact.job, fact.placement, fact.victims, expires_ms, fact.shrinks, draft.now_ms))


def _answer(draft: Draft, fact: commands.PreemptionPlanned, ask: Ask, reason: str, again_at_ms: int) -> None:
    """`again_at_ms`: it is worth asking again from then on whatever happens; 0: only when something changed."""
    retry_ms = min(PREEMPTION_RETRY_FIRST_MS << min(ask.tries - 1, 20), PREEMPTION_RETRY_MAX_MS)
    retry_ms = max(retry_ms, again_at_ms - draft.now_ms)
    draft.emit(tr.PreemptionAnswered(fact.job, fact.request, reason, retry_ms, again_at_ms > 0))


def _take(draft: Draft, taking: Taking, by: str) -> None:
    victim = draft.job(taking.victim.spec.id) or taking.victim
    if not taking.whole:
        draft.change(victim, tr.JobShrunk(victim.spec.id, victim.epoch, taking.positions, by))
        return
    not_before_ms = draft.now_ms + backoff_ms(Reason.PREEMPTED, victim.preemptions, draft.tree.by_id[victim.queue])
    finish_stopping(draft, draft.change(victim, tr.JobPreempted(victim.spec.id, victim.epoch, by, not_before_ms)))


def _takings(draft: Draft, fact: commands.PreemptionPlanned) -> tuple[list[Taking], str | None]:
    """What the plan takes, from the jobs as they are now; or why it cannot."""
    named = [job for job, _ in fact.victims] + [job for job, _, _ in fact.shrinks]
    if len(named) > PLAN_VICTIMS_MAX or len(dict.fromkeys(named)) != len(named):
        return [], "too many victims"
    takings = []
    for job_id, epoch, positions in [*((j, e, None) for j, e in fact.victims), *fact.shrinks]:
        victim = draft.job(job_id)
        if job_id in draft.holds:
            return [], "a victim waits for room that is held for it"
        if victim is None or victim.epoch != epoch or victim.state not in RUNNING_STATES:
            return [], "a victim is no longer running"
        if positions is None:
            takings.append(Taking(victim, tuple(staying(victim)), whole=True))
        elif _can_spare(victim, positions):
            takings.append(Taking(victim, positions, whole=False))
        else:
            return [], "a victim cannot spare these replicas"
    return takings, None


def _can_spare(victim: Job, positions: tuple[int, ...]) -> bool:
    """Whether these replicas may leave and the job keeps its minimum (rule P2c)."""
    if not positions or list(positions) != sorted(dict.fromkeys(positions)):
        return False
    left = dict.fromkeys(positions)
    for count, spare in spare_of(victim).values():
        mine = [position for position in spare if position in left]
        if len(mine) > count:
            return False
        for position in mine:
            del left[position]
    return not left


def _why_not(draft: Draft, fact: commands.PreemptionPlanned, takings: list[Taking]) -> str | None:
    job = draft.job(fact.job)
    if job is None or (job.state is not JobState.QUEUED and not may_grow(job, draft.now_ms)):
        return "the job is no longer queued"
    if size_of(tr.HoldMade(fact.job, fact.placement, fact.victims, 0, fact.shrinks)) > (TRANSACTION_BYTES_MAX // 4):
        return "the plan is too large for a transaction"  # LOG-8
    if job.not_before_ms > draft.now_ms:
        return "the job is in backoff"
    queue = draft.tree.by_id[job.queue]
    if queue.spec.preemption == "NEVER" or not queue.starts_jobs:
        return "the queue does not preempt now"
    if any(not 0 <= group.group < len(job.gang.tasks) for group in fact.placement):
        return "the placement is not the job's gang"
    shut = shunned(job, draft.now_ms)
    if shut and any(node in shut for group in fact.placement for node, _ in group.runs):
        return "the job does not go now where it failed to start"
    ahead = prospect_of(draft, {holder: hold for holder, hold in draft.holds.items() if holder != fact.job})
    outlook = outlook_of(draft, CommittedUsage(draft, without={fact.job: None}))
    if job.charged:
        job, reason = of_placement(draft.state.nodes, outlook, job, fact.placement)
        if reason is not None:
            return reason
    reason = why_no_room(ahead, outlook, job, takings, fact.placement)
    if reason is not None:
        return reason
    replicas = sum(count for group in fact.placement for _, count in group.runs)
    return why_not(outlook, job, takings, job.gang.of_groups(fact.placement), replicas)


def prospect_of(draft: Draft, holds: dict[str, Hold]) -> Prospect:
    """What the transaction in the making leaves, with these holds."""
    return prospect(
        draft.fresh_overlay,
        draft.usage,
        draft.usages.member,
        claims=draft.usages.claims.copy(),
        leaving=_leaving(draft),
        holds=holds,
        find=draft.job,
    )


def _leaving(draft: Draft) -> list[Job]:
    """Jobs with pods that were asked to leave, as they are now."""
    jobs = [draft.job(job_id) for job_id in dict.fromkeys([*draft.state.potential.leaving, *draft.changed])]
    return [job for job in jobs if job is not None and leaving_positions(job)]


def outlook_of(draft: Draft, usage: CommittedUsage) -> Outlook:
    """What the rules look at, as the transaction in the making leaves it."""
    return Outlook(draft.tree, draft.entitled, draft.state.nodes.capacity(), usage.of_leaf, draft.now_ms)


class CommittedUsage:
    """Committed usage of the leaves, with what this transaction changed. `without`: jobs that hold nothing here."""

    def __init__(self, draft: Draft, without: Mapping[str, object]) -> None:
        self._base = draft.state.potential.usage
        self._changed: dict[str, ByPriority] = {}
        state = draft.state
        for job_id in dict.fromkeys([*draft.changed, *state.holds, *draft.holds]):
            before, after = state.jobs.get(job_id), draft.job(job_id)
            old = _counted(before, state.holds.get(job_id))
            new = _counted(after, draft.holds.get(job_id) if job_id not in without else None)
            if old == new:
                continue
            for job, amounts, sign in ((before, old, -1), (after, new, 1)):
                if job is not None:
                    add(self._own(job.queue), job.spec.priority, amounts, sign)

    def of_leaf(self, queue: str) -> ByPriority:
        found = self._changed.get(queue)
        return found if found is not None else self._base.get(queue, {})

    def holds(self, job: Job, amounts: Amounts) -> None:
        """From now on it holds this."""
        add(self._own(job.queue), job.spec.priority, amounts, 1)

    def _own(self, queue: str) -> ByPriority:
        found = self._changed.get(queue)
        if found is None:
            found = self._changed[queue] = {p: dict(usage) for p, usage in self._base.get(queue, {}).items()}
        return found


def _counted(job: Job | None, hold: Hold | None) -> Amounts:
    """What the job adds to committed usage (rule Q3)."""
    if job is None:
        return ()
    held = job.gang.of_groups(hold.placement) if hold is not None else ()
    return resources.add(held, job.gang.of_positions(staying(job)))
