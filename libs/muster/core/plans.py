"""Preemption plans as they come back: still good, then the victims leave and what they free is held (rules P5, P6).

A plan is one action: all of it happens in this transaction or none. The answer to a request that leads to nothing is
written down with the time after which it may be asked again, so that leader and preemptors cannot feed each other.
"""

from __future__ import annotations

from muster.core import commands
from muster.core import transitions as tr
from muster.core.draft import Draft
from muster.core.holds import Kepts
from muster.core.limits import (
    HOLD_TTL_MS,
    PLAN_VICTIMS_MAX,
    PREEMPTION_RETRY_FIRST_MS,
    PREEMPTION_RETRY_MAX_MS,
    TRANSACTION_BYTES_MAX,
)
from muster.core.model import Reason
from muster.core.pods import backoff_ms, finish_stopping
from muster.core.preemption import why_invalid
from muster.core.state import Hold


def preemption_planned(draft: Draft, fact: commands.PreemptionPlanned) -> None:
    ask = draft.state.asks.get(fact.job)
    if ask is None or ask.answered or ask.request != fact.request or fact.job in draft.answered_now:
        return  # an answer to something that is not asked any more
    draft.answered_now[fact.job] = None
    reason = _why_not(draft, fact)
    if reason is not None:
        retry_ms = min(PREEMPTION_RETRY_FIRST_MS << min(ask.tries - 1, 20), PREEMPTION_RETRY_MAX_MS)
        draft.emit(tr.PreemptionAnswered(fact.job, fact.request, reason, retry_ms))
        return
    expires_ms = draft.now_ms + HOLD_TTL_MS
    hold = Hold(fact.job, fact.placement, fact.victims, expires_ms)
    for victim_id, epoch in fact.victims:
        victim = draft.job(victim_id)
        if victim is not None:
            not_before_ms = draft.now_ms + backoff_ms(Reason.PREEMPTED, victim.preemptions)
            stopping = draft.change(victim, tr.JobPreempted(victim_id, epoch, fact.job, not_before_ms))
            finish_stopping(draft, stopping)
    draft.make_hold(hold)


def _why_not(draft: Draft, fact: commands.PreemptionPlanned) -> str | None:
    if not fact.victims:
        return "no plan"
    if len(fact.victims) > PLAN_VICTIMS_MAX or len(dict(fact.victims)) != len(fact.victims):
        return "too many victims"
    hold = tr.HoldMade(fact.job, fact.placement, fact.victims, 0)
    if tr.estimated_bytes(hold) > TRANSACTION_BYTES_MAX // 4:
        return "the plan is too large for a transaction"  # LOG-8
    job = draft.job(fact.job)
    if job is not None and job.not_before_ms > draft.now_ms:
        return "the job is in backoff"
    overlay = draft.fresh_overlay()
    others = {holder: hold for holder, hold in draft.holds.items() if holder != fact.job}
    return why_invalid(
        job,
        [(draft.job(victim), epoch) for victim, epoch in fact.victims],
        queue_of=lambda of: draft.tree.by_id[of.queue],
        usage_of=draft.usage,
        overlay=overlay,
        kepts=Kepts(others, draft.job, overlay, draft.tree),
        placement=fact.placement,
    )
