"""Why a placed job does not have the further replicas it asked for (rules G1, F6, P2a), as a part of `explain`.

The questions are those of the cycle, in its order: does it grow now at all, what limits its queue, is there room, is
the queue below its entitlement, and what became of the plan that was asked for then.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from muster.core.draft import Draft
from muster.core.further import as_job, wanted
from muster.core.jobs import RUNNING_STATES, Job, may_grow, shunned
from muster.core.layout import pods_placed
from muster.core.order import protected
from muster.core.preemption import cluster_mask
from muster.core.queues import over_limit
from muster.core.room import Room
from muster.core.state import CellState
from muster.core.words import several

NOTHING: Final = ("", "")


class Further(NamedTuple):
    """What is added to the story of a job, and what preempting others does for its growth."""

    story: str
    preemption: str


def further(state: CellState, job: Job, now_ms: int) -> Further:
    """Nothing for a job that is not placed, or has all it wants."""
    if job.state not in RUNNING_STATES or job.gang.minimum_tasks is None or job.queue not in state.queues:
        return Further(*NOTHING)
    waits_ms = job.grow_after_ms - now_ms
    counts = [wanted(job, group) for group in range(len(job.gang.tasks))]
    more = sum(counts)
    if job.spec.max_parallel:
        more = min(more, job.spec.max_parallel - job.live_pods())
    if more <= 0 or (waits_ms <= 0 and not may_grow(job, now_ms)):
        return Further(*NOTHING)
    told = f"; wants {more} more {'replica' if more == 1 else 'replicas'}"
    if waits_ms > 0:
        return Further(f"{told} and grows again in {-(-waits_ms // 1000)} s", "")
    hold = state.holds.get(job.id)
    if hold is not None:
        held = sum(pods_placed(group) for group in hold.placement)
        givers = several(hold.givers(), "job")
        return Further(told, f"preempting {givers}: what they free is held for {held} of its replicas")
    draft = Draft(state, state.now_ms, 1)  # of the cycle that would look at it; thrown away
    room = Room(draft)
    groups = [group for group, count in enumerate(counts) if count > 0]
    short = [_short(draft, room, as_job(state.nodes, job, group, 1), now_ms) for group in groups]
    if "" in short:
        return Further(f"{told}: there is room, it grows in the next cycle", "")
    return Further(f"{told}: {short[0]}", _preemption(state, job, entitled=room.entitled(job)))


def _short(draft: Draft, room: Room, one: Job, now_ms: int) -> str:
    """What one more replica is short of; empty: nothing."""
    queue, need = draft.tree.by_id[one.queue], one.asks.minimum_map
    if not queue.starts_jobs:
        return f"queue {queue.path} starts nothing"
    over = over_limit(queue, need, draft.usage, room.held)
    if over is not None:
        return f"one more would exceed the limit of queue {over.queue.path}"
    if any(room.over_allowance(one, need, starts=False)):
        return "one more would exceed what its namespace or user is allowed"
    if protected(one) and room.above_entitlement(one, need):
        return f"it cannot be reclaimed from, so it grows only within the entitlement of queue {queue.path}"
    if protected(one) and any(room.over_claims(queue, need)):
        return "it cannot be reclaimed from, so it leaves alone what other queues are guaranteed"
    if not room.entitled(one) and any(room.kept_by_lenders(need)):
        return f"queue {queue.path} would borrow what lenders keep back of their guarantees"
    shut, mask = shunned(one, now_ms), cluster_mask(one)
    if draft.overlay.place_gang(one.asks.tasks, cluster_mask=mask, suspects=shut) is not None:
        return ""
    if not shut or draft.overlay.place_gang(one.asks.tasks, cluster_mask=mask) is None:
        return "there is no room for one more now"
    again_s = -(-(one.suspects_until_ms - now_ms) // 1000)
    return f"there is room for one more only where some failed to start: tried there again in {again_s} s"


def _preemption(state: CellState, job: Job, *, entitled: bool) -> str:
    """Whether its growth takes the place of others (rule P2a)."""
    queue, ask = state.queues.get(job.queue), state.asks.get(job.id)
    if ask is not None and not ask.answered:
        return "a preemption plan has been asked for"
    if not entitled:
        return f"not preempting because queue {queue.path} is not below its entitlement in anything that the job needs"
    if queue.spec.preemption == "NEVER":
        return f"not preempting because the jobs of queue {queue.path} preempt nobody"
    return f"not preempting: {ask.reason}" if ask is not None and ask.reason else ""
