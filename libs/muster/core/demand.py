"""What each leaf queue asks for: pending and running requests, elastic jobs at their maximum (rules F1, F3).

Queues keep the sums as jobs come, end and (indices of array jobs) succeed, by the set of resources a job asks for, so
nobody walks the jobs; who runs makes no difference, but in a queue that starts nothing. Fair-share computes from this,
and so do what-if questions, so they cannot differ.
"""

from __future__ import annotations

from muster.core import resources
from muster.core.model import Amounts
from muster.core.queues import Queue, QueueTree
from muster.core.state import CellState

Flows = dict[str, tuple[Amounts, ...]]  # leaf queue id -> demand, one entry for each set of resources (rule F3)


def demand(state: CellState) -> Flows:
    """What live jobs ask for, by leaf. As long as nothing changes in a leaf, it is the same object."""
    return {queue.id: queue.demand() for queue in state.queues.by_id.values() if queue.flows}


def startable(state: CellState, tree: QueueTree, flows: Flows) -> Flows:
    """The demand with the queues of `tree` that start nothing asking only for what they use (rule F1)."""
    found = dict(flows)
    for queue in tree.by_id.values():
        if not queue.starts_jobs and queue.id in found:
            held = _held(state, state.queues.by_id[queue.id])
            if held:
                found[queue.id] = held
            else:
                del found[queue.id]
    return found


def _held(state: CellState, leaf: Queue) -> tuple[Amounts, ...]:
    """What pods of a leaf's jobs hold now, by the set of resources."""
    leaving = [job for job in state.potential.leaving if state.jobs[job].queue == leaf.id]
    flows: dict[tuple[str, ...], dict[str, int]] = {}
    for job_id in dict.fromkeys((*leaf.running, *leaving)):
        job = state.jobs[job_id]
        amounts = job.held()
        if amounts:
            resources.count(flows.setdefault(tuple([resource for resource, _ in amounts]), {}), amounts, 1)
    return tuple(resources.amounts(held) for _, held in sorted(flows.items()))
