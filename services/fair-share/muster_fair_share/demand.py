"""What each leaf queue asks for, kept up to date with the ledger so that a computation never walks the jobs.

Demand is what pending and running jobs ask for at their maximum (rule F1), by leaf and by the set of resources a job
asks for (F3); it changes when a job is accepted and when it ends, and when indices of an array job succeed, never by
who runs. A queue that starts nothing asks only for what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from muster.core import transitions as tr
from muster.core.entitlements import Demand
from muster.core.flows import FlowDemand
from muster.core.jobs import Job, is_over
from muster.core.model import Amounts
from muster.core.state import CellState

Kind = tuple[str, ...]  # the resources a job asks for, sorted
Totals = dict[str, int]


class DemandIndex:
    """Demand by leaf queue id. `load` once a state, then `follow` every transition applied to it."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[str, Amounts]] = {}
        self._leaves: dict[str, _Leaf] = {}
        self._arrays: set[str] = set()  # jobs that ask for less as their indices succeed

    def load(self, state: CellState) -> None:
        """Start from all jobs of a state."""
        self._jobs.clear()
        self._leaves.clear()
        self._arrays.clear()
        for job in state.jobs.values():
            if job.live:
                self._add(job)

    def follow(self, state: CellState, transitions: Iterable[tr.AnyTransition]) -> None:
        """Keep up with transitions that were just applied to `state`."""
        for transition in transitions:
            effect = _EFFECTS.get(type(transition))
            if effect is not None:
                effect(self, state, transition)

    def flows(self, state: CellState) -> Demand:
        """Demand by leaf queue (rule F1); queues that nobody asks anything of are left out.

        As long as nothing changes in a leaf, what it asks for is the same object.
        """
        result: dict[str, FlowDemand] = {}
        for queue, leaf in self._leaves.items():
            node = state.queues.by_id.get(queue)
            if node is not None:
                flows = leaf.flows() if node.starts_jobs else leaf.running(state)
                if flows:
                    result[queue] = flows
        return result

    def queued(self, state: CellState, transition: tr.JobQueued) -> None:
        job = state.jobs.get(transition.spec.id)
        if job is not None and job.live:
            self._add(job)

    def ended(self, _state: CellState, transition: tr.JobSucceeded | tr.JobFailed | tr.JobCancelled) -> None:
        self._remove(transition.job)

    def moved(self, state: CellState, transition: tr.PodsChanged) -> None:
        """Indices of an array job may have succeeded."""
        if transition.job in self._arrays:
            job = state.jobs.get(transition.job)
            if job is not None and job.live and job.wanted() != self._jobs[transition.job][1]:
                self._remove(transition.job)
                self._add(job)

    def _remove(self, job: str) -> None:
        queue, amounts = self._jobs.pop(job, ("", ()))
        leaf = self._leaves.get(queue)
        if leaf is not None and leaf.remove(job, amounts):
            del self._leaves[queue]
        self._arrays.discard(job)

    def _add(self, job: Job) -> None:
        amounts = job.wanted()
        self._jobs[job.spec.id] = (job.queue, amounts)
        if job.spec.completion:
            self._arrays.add(job.spec.id)
        leaf = self._leaves.get(job.queue)
        if leaf is None:
            leaf = self._leaves[job.queue] = _Leaf()
        leaf.add(job.spec.id, amounts)


class _Leaf:
    """The live jobs of a leaf and what they ask for."""

    __slots__ = ("_flows", "_jobs", "_totals")

    def __init__(self) -> None:
        self._jobs: dict[str, None] = {}
        self._totals: dict[Kind, Totals] = {}
        self._flows: FlowDemand | None = None

    def add(self, job: str, amounts: Amounts) -> None:
        self._jobs[job] = None
        _add_to(self._totals, amounts)
        self._flows = None

    def remove(self, job: str, amounts: Amounts) -> bool:
        """Returns whether no job is left."""
        del self._jobs[job]
        if not amounts:
            return not self._jobs
        kind = _kind(amounts)
        totals = self._totals[kind]
        for resource, amount in amounts:
            totals[resource] -= amount
        if not any(totals.values()):
            del self._totals[kind]
        self._flows = None
        return not self._jobs

    def flows(self) -> FlowDemand:
        if self._flows is None:
            self._flows = _demand(self._totals)
        return self._flows

    def running(self, state: CellState) -> FlowDemand:
        """What pods of its jobs hold now."""
        totals: dict[Kind, Totals] = {}
        for job in self._jobs:
            found = state.jobs.get(job)
            if found is not None and found.charged:
                _add_to(totals, _held(found))
        return _demand(totals)


def _held(job: Job) -> Amounts:
    return job.gang.of_positions([position for position, phase in enumerate(job.phases) if not is_over(phase)])


def _kind(amounts: Amounts) -> Kind:
    return tuple([resource for resource, _ in amounts])


def _add_to(kinds: dict[Kind, Totals], amounts: Amounts) -> None:
    if amounts:
        totals = kinds.setdefault(_kind(amounts), {})
        for resource, amount in amounts:
            totals[resource] = totals.get(resource, 0) + amount


def _demand(kinds: dict[Kind, Totals]) -> FlowDemand:
    return tuple(tuple(totals.items()) for _, totals in sorted(kinds.items()))


_EFFECTS: Final[dict[type[tr.Transition], Callable[..., None]]] = {
    tr.JobQueued: DemandIndex.queued,
    tr.PodsChanged: DemandIndex.moved,
    tr.JobSucceeded: DemandIndex.ended,
    tr.JobFailed: DemandIndex.ended,
    tr.JobCancelled: DemandIndex.ended,
}
