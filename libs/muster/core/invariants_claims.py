"""P4: what the tree keeps for its queues, worked out naively from the jobs and the settings of the queues.

The claim of a queue is what it is guaranteed, or what the claims below it come to, or, of a leaf, what its jobs use
that nobody can reclaim from, whichever is most. `check_claims` compares the totals that are kept with that; `Kept` says
whether a transaction has started something that leaves others too little. It shares no code with `claims`.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from muster.core import layout
from muster.core.errors import InvariantBroken
from muster.core.lifecycle import CHARGED
from muster.core.state import CellState

OVER = (3, 4, 5)  # SUCCEEDED, FAILED, GONE

Totals = dict[str, int]


def _protected(state: CellState) -> dict[str, Totals]:
    """By leaf, what jobs use that are declared not preemptible or were preempted too often: placed and not victims, or
    held for them."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for job in state.jobs.values():
        if job.spec.preemptible and job.preemptions < job.spec.max_preemptions:
            continue
        hold = state.holds.get(job.id)
        stays = job.state in CHARGED and not job.victim
        pods = list(layout.each_pod(job.spec.tasks, hold.placement)) if hold is not None else []
        for pod in layout.each_pod(job.spec.tasks, job.placement if stays else ()):
            if job.phases[pod.position] not in OVER and pod.position not in job.leaving:
                pods.append(pod)
        for pod in pods:
            for resource, amount in job.spec.tasks[pod.group].requests:
                if resource != "pods":
                    found[job.queue][resource] += amount
    return {leaf: dict(totals) for leaf, totals in found.items()}


def _claims(state: CellState) -> tuple[dict[str, Totals], Totals]:
    """What is claimed below every queue, and in all."""
    used = _protected(state)
    below: dict[str, Totals] = {}

    def claim(queue: str) -> Counter[str]:
        found = state.queues.by_id[queue]
        children = [other.id for other in state.queues.by_id.values() if other.spec.parent == queue]
        total = Counter(used.get(queue, {}))
        for child in children:
            total.update(claim(child))
        below[queue] = {resource: amount for resource, amount in total.items() if amount}
        return total | Counter({r: amount for r, amount in found.spec.guaranteed if r != "pods"})

    top: Counter[str] = Counter()
    for queue in state.queues.by_id.values():
        if not queue.spec.parent:
            top.update(claim(queue.id))
    return below, {resource: amount for resource, amount in top.items() if amount}


def check_claims(state: CellState) -> None:
    """Raises InvariantBroken unless the totals are those of the jobs and the tree."""
    below, top = _claims(state)
    for queue in state.queues.by_id.values():
        if queue.claimed != below[queue.id]:
            raise InvariantBroken(f"P4: queue {queue.path} has claims {queue.claimed} below, not {below[queue.id]}")
    if state.queues.claimed != top:
        raise InvariantBroken(f"P4: the roots claim {state.queues.claimed}, not {top}")


class Kept:
    """Taken before a transaction is applied."""

    def __init__(self, state: CellState) -> None:
        self._below, self._top = _claims(state)
        self._rules = _rules(state)

    def check(self, state: CellState) -> None:
        """What was claimed too much already (guarantees rose, nodes went) may stay so, but never by a start."""
        if self._rules != _rules(state):
            return
        below, top = _claims(state)
        capacity = dict(state.nodes.capacity())
        for resource, amount in top.items():
            if amount > max(capacity.get(resource, 0), self._top.get(resource, 0)):
                raise InvariantBroken(f"P4: jobs that nobody can reclaim from sit on guaranteed {resource}: {top}")
        for queue in state.queues.by_id.values():
            for resource, most in queue.spec.limit:
                amount = below[queue.id].get(resource, 0)
                if amount > max(most, self._below[queue.id].get(resource, 0)):
                    raise InvariantBroken(f"P4: below {queue.path}, {resource} is claimed beyond its limit: {amount}")


def _rules(state: CellState) -> tuple[object, ...]:
    return tuple(queue.spec for queue in state.queues.by_id.values()), state.nodes.capacity()
