"""What each leaf queue asks for, kept up to date with the ledger so that a computation never walks the jobs.

Demand is what pending and running jobs ask for at their maximum (rule F1); it changes when a job is accepted and when
it ends, never by who runs. A queue that starts nothing asks only for what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from muster.core import transitions as tr
from muster.core.model import Amounts
from muster.core.state import CellState

Totals = dict[str, int]


class DemandIndex:
    """Demand by leaf queue id. `load` once a state, then `follow` every transition applied to it."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[str, Amounts]] = {}
        self._totals: dict[str, Totals] = {}

    def load(self, state: CellState) -> None:
        """Start from all jobs of a state."""
        self._jobs.clear()
        self._totals.clear()
        for job in state.jobs.values():
            if job.live:
                self._add(job.spec.id, job.queue, job.gang.full)

    def follow(self, state: CellState, transitions: Iterable[tr.AnyTransition]) -> None:
        """Keep up with transitions that were just applied to `state`."""
        for transition in transitions:
            effect = _EFFECTS.get(type(transition))
            if effect is not None:
                effect(self, state, transition)

    def amounts(self, state: CellState) -> dict[str, Amounts]:
        """Demand by leaf queue (rule F1); queues that nobody asks anything of are left out."""
        result: dict[str, Amounts] = {}
        for queue in state.queues.subtree():
            if queue.children:
                continue
            asked = self._totals.get(queue.id, {}) if queue.starts_jobs else queue.usage
            if asked:
                result[queue.id] = tuple(sorted(asked.items()))
        return result

    def queued(self, state: CellState, transition: tr.JobQueued) -> None:
        job = state.jobs.get(transition.spec.id)
        if job is not None and job.live:
            self._add(job.spec.id, job.queue, job.gang.full)

    def ended(self, _state: CellState, transition: tr.JobSucceeded | tr.JobFailed | tr.JobCancelled) -> None:
        queue, amounts = self._jobs.pop(transition.job, ("", ()))
        totals = self._totals.get(queue, {})
        for resource, amount in amounts:
            totals[resource] -= amount
            if not totals[resource]:
                del totals[resource]
        if queue and not totals:
            del self._totals[queue]

    def _add(self, job: str, queue: str, amounts: Amounts) -> None:
        self._jobs[job] = (queue, amounts)
        totals = self._totals.setdefault(queue, {})
        for resource, amount in amounts:
            totals[resource] = totals.get(resource, 0) + amount


_EFFECTS: Final[dict[type[tr.Transition], Callable[..., None]]] = {
    tr.JobQueued: DemandIndex.queued,
    tr.JobSucceeded: DemandIndex.ended,
    tr.JobFailed: DemandIndex.ended,
    tr.JobCancelled: DemandIndex.ended,
}
