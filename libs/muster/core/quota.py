"""Whether a job may start, as far as numbers go, when committed plans and one more are done (rules F6, P4, Q1).

The cycle asks the same of the moment (`room`); a plan whose job the cycle would then not start frees room for nobody,
so planner and leader ask it of the prospect, and the leader again of everybody for whom something is held when what
may be used has changed. Limits of the path, allowances of namespaces and users, what lenders withhold from borrowers;
and for a job that nobody could reclaim from the entitlement itself, and what others are guaranteed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.core.jobs import Job
from muster.core.lending import withheld
from muster.core.members import Member, allowances, called, exceeded, keys_of
from muster.core.order import protected
from muster.core.potential import summed
from muster.core.preemption_rules import Outlook, Taking
from muster.core.prospect import Prospect
from muster.core.queues import Queue, Usage, over_limit
from muster.core.resources import PODS


def why_no_quota(
    ahead: Prospect,
    outlook: Outlook,
    job: Job,
    takings: Sequence[Taking],
    need: Mapping[str, int],
    *,
    holds: bool = False,
) -> str | None:
    """Why the job may not use `need` when all this is taken; None: it may. `holds`: room is held for it already, which
    neither `ahead` nor `outlook` counts."""
    queue = ahead.tree.by_id[job.queue]
    over = over_limit(queue, need, ahead.usage_without(takings), {}) if queue.limits else None
    if over is not None:
        return f"queue {over.queue.path} would exceed its limit"
    for above in queue.tracked:
        reason = _exceeds_allowance(ahead, above, job, takings, need)
        if reason is not None:
            return reason
    if protected(job) and not _within_entitlement(ahead, outlook, job, takings, need, holds=holds):
        return f"it cannot be reclaimed from, and queue {queue.path} is not entitled to so much more"
    if protected(job) and any(ahead.claims_without(takings).exceeded(job.queue, need, outlook.capacity)):
        return "it cannot be reclaimed from, and would use what others are guaranteed"
    if ahead.tree.lending and not outlook.below(job) and not _leaves_withheld(ahead, outlook, takings, need):
        return "what would be free is withheld from borrowers"
    return None


def _exceeds_allowance(
    ahead: Prospect, queue: Queue, job: Job, takings: Sequence[Taking], need: Mapping[str, int]
) -> str | None:
    for key, allowance in allowances(queue.spec, job.spec):
        member: Member = ahead.member(queue, key)
        for taking in takings:
            victim = taking.victim
            if key in keys_of(victim.spec) and queue in ahead.tree.by_id[victim.queue].chain:
                member.count(0, -int(taking.whole), taking.amounts, -1)
        if exceeded(key, allowance, member, need, starts=not job.charged) is not None:
            return f"{called(key)} would exceed its allowance in queue {queue.path}"
    return None


def _within_entitlement(
    ahead: Prospect, outlook: Outlook, job: Job, takings: Sequence[Taking], need: Mapping[str, int], *, holds: bool
) -> bool:
    """Rule P4: what nobody can reclaim must not be borrowed. Of those who came to the queue after room was held for the
    job only the protected count: the others can be reclaimed from."""
    if holds:
        used: Usage = dict(ahead.claims.used(job.queue))
    else:
        used = dict(summed(outlook.usage_of(job.queue)))
        for taking in takings:
            if taking.victim.queue == job.queue:
                for resource, amount in taking.amounts:
                    used[resource] = used.get(resource, 0) - amount
    share = outlook.entitled_of(job.queue).amounts
    return all(used.get(r, 0) + amount <= share.get(r, 0) for r, amount in need.items() if amount and r != PODS)


def _leaves_withheld(ahead: Prospect, outlook: Outlook, takings: Sequence[Taking], need: Mapping[str, int]) -> bool:
    usage = ahead.usage_without(takings)
    roots = [ahead.tree.by_id[root] for root in ahead.tree.roots.values()]
    for resource, kept in withheld(ahead.tree, outlook.capacity).items():
        if kept and need.get(resource):
            used = sum(usage(root).get(resource, 0) for root in roots)
            if used + need[resource] + kept > outlook.capacity.get(resource, 0):
                return False
    return True
