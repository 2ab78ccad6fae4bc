"""What preemption owes to both sides, looked at naively after every transaction (rule P5).

What victims free is kept for the job they left for: what stays on a node and what is held there never exceed it. And a
victim is given its pause: it is not started again before.
"""

from __future__ import annotations

from collections import Counter

from muster.core import layout, resources
from muster.core import transitions as tr
from muster.core.jobs import RUNNING_STATES, is_over
from muster.core.limits import BACKOFF_FIRST_MS
from muster.core.model import GroupPlacement, TaskGroup
from muster.core.state import CellState

Used = dict[int, Counter[str]]


class Keeping:
    """Told every transaction after it was applied."""

    def __init__(self) -> None:
        self._left_ms: dict[str, int] = {}  # victims that have not started again -> when they were told to leave

    def applied(self, state: CellState, tx: tr.Transaction) -> None:
        for transition in tx.transitions:
            if isinstance(transition, tr.JobPreempted):
                self._left_ms[transition.job] = state.now_ms
            elif isinstance(transition, tr.JobPlaced):
                left_ms = self._left_ms.pop(transition.job, None)
                assert left_ms is None or left_ms + BACKOFF_FIRST_MS <= state.now_ms, (
                    f"P5: victim {transition.job} starts again {state.now_ms - (left_ms or 0)} ms after it had to leave"
                )
        if state.holds:
            _check_holds(state)


def _check_holds(state: CellState) -> None:
    held: Used = {}
    for hold in state.holds.values():
        _add(held, state.jobs[hold.job].spec.tasks, hold.placement, None)
    used: Used = {node: Counter(amounts) for node, amounts in held.items()}
    for job in state.jobs.values():
        if job.state in RUNNING_STATES:
            stays = {p for p, phase in enumerate(job.phases) if not is_over(phase) and p not in job.leaving}
            _add(used, job.spec.tasks, job.placement, stays)
    for node in sorted(held):
        spec = state.nodes.spec(node)
        has = dict(spec.allocatable)
        for what in held[node] if not state.nodes.is_removed(node) else ():
            most = resources.DEVICE_MILLIS if what.startswith("device ") else has.get(what, 0)
            assert used[node][what] <= most, (
                f"P5: node {spec.name} has {most} {what}; {used[node][what]} are used or held ({held[node][what]} held)"
            )


def _add(
    into: Used, tasks: tuple[TaskGroup, ...], placement: tuple[GroupPlacement, ...], only: set[int] | None
) -> None:
    """Count pods of a placement by node: what they request, and each device they are on."""
    for pod in layout.each_pod(tasks, placement):
        if only is not None and pod.position not in only:
            continue
        node = into.setdefault(pod.node, Counter())
        for resource, amount in tasks[pod.group].requests:
            if not resources.is_device(resource):
                node[resource] += amount
                continue
            for device in pod.devices:
                node[f"device {device}"] += min(amount, resources.DEVICE_MILLIS)
