"""Whose turn comes again now that entitlements, or what nobody can reclaim, have changed (rules P2a, P4).

A queue that is entitled to more may reclaim more. And where a queue is entitled to less than it uses, every other queue
may find victims there, although nothing has changed for it. Both the draft and `apply` ask, so that a request is
repeated in the transaction that brings the entitlements or in the next one, and never waits for something else to
happen.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.core.commands import Entitlement
from muster.core.order import protected
from muster.core.resources import PODS
from muster.core.state import CellState


def opened_by(state: CellState, published: Sequence[Entitlement]) -> list[str]:
    """The queues whose pending jobs have to be looked at, before `published` is folded into the state."""
    changed = [entitlement.queue for entitlement in published if entitlement.queue in state.queues]
    if state.asks and any(_sinks_below_use(state, entitlement) for entitlement in published):
        changed += [state.jobs[job].queue for job in state.asks]
    return list(dict.fromkeys(changed))


def claimants(state: CellState) -> list[str]:
    """The queues whose jobs have to be looked at when a job that nobody could reclaim from uses less (rule P4): those
    where others like it wait, or could grow."""
    growing = [state.jobs[job] for job in state.pending.growing]
    return list(dict.fromkeys([*state.pending.protected, *(job.queue for job in growing if protected(job))]))


def _sinks_below_use(state: CellState, entitlement: Entitlement) -> bool:
    """Whether there is more to take from the queue than before."""
    if entitlement.queue not in state.queues:
        return False
    before, after = state.entitled.get(entitlement.queue), dict(entitlement.amounts)
    known = None if before is None else dict(before)
    for resource, used in state.queues.by_id[entitlement.queue].committed.items():
        now = after.get(resource, 0)
        if resource != PODS and used > now and (known is None or known.get(resource, 0) > now):
            return True
    return False
