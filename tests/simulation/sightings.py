"""What was to be seen in a run, by name: a rule that no run exercises is not tested by any of them."""

from __future__ import annotations

from collections import Counter

from muster.core import transitions as tr
from muster.core.model import Reason
from muster.core.state import CellState

# What the runs together have to show.
SHARING = (
    "entitlements published",
    "reclaim",  # a victim in another queue (rule P2a)
    "priority preemption",  # in the same queue (P2b)
    "shrink",  # elastic replicas leave for another job (P2c)
    "hold made",
    "hold expired",  # the victims did not go in time (P5)
    "plan dropped",  # it no longer held (P6)
    "victim in backoff",
    "victim placed again",
    "growth",
    "growth takes from others",  # entitled growth is made room for (P2a)
)
ONLY_THE_LEADER_SAYS = (
    "a victim is no longer running",
    "a victim cannot spare these replicas",
    "the job is no longer queued",
    "the job is in backoff",
    "the job would not fit after the eviction",
    "the queue does not preempt now",
)


class Sightings:
    """Counts, from transitions that were just applied to `state`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def applied(self, state: CellState, tx: tr.Transaction) -> None:
        for transition in tx.transitions:
            name = _name(state, transition)
            if name:
                self.counts[name] += 1


def _name(state: CellState, t: tr.AnyTransition) -> str:
    if isinstance(t, (tr.JobPreempted, tr.JobShrunk)):
        return _taken(state, t)
    if isinstance(t, tr.HoldMade):
        grows = t.job in state.holds and state.jobs[t.job].charged
        return "growth takes from others" if grows else "hold made"
    if isinstance(t, tr.HoldReleased):
        return "hold expired" if "not gone in time" in t.reason else "hold given up"
    if isinstance(t, tr.PreemptionAnswered):
        return "plan dropped" if t.reason in ONLY_THE_LEADER_SAYS else ""
    if isinstance(t, tr.JobRequeued):
        return "victim in backoff" if t.reason == Reason.PREEMPTED and t.not_before_ms > state.now_ms else ""
    if isinstance(t, tr.JobPlaced):
        return "victim placed again" if state.jobs[t.job].preemptions else ""
    return {tr.JobGrown: "growth", tr.EntitlementsSet: "entitlements published"}.get(type(t), "")


def _taken(state: CellState, t: tr.JobPreempted | tr.JobShrunk) -> str:
    if isinstance(t, tr.JobShrunk):
        return "shrink" if t.by else "shrunk for nobody"
    same = state.jobs[t.job].queue == state.jobs[t.by].queue
    return "priority preemption" if same else "reclaim"
