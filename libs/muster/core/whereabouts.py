"""Where the pods of a job are: on which node which positions, and the other way round."""

from __future__ import annotations

from muster.core import layout
from muster.core.jobs import Job, is_over


def live_positions(job: Job, node: int) -> list[int]:
    """Positions of the job's pods on `node` that are not over, ascending."""
    return [
        position
        for first, count in runs_on(job, node)
        for position in range(first, first + count)
        if not is_over(job.phases[position])
    ]


def runs_on(job: Job, node: int) -> list[tuple[int, int]]:
    """(first position, count) of the runs of the placement that lie on `node`."""
    found = []
    for group in job.placement:
        position = job.gang.firsts[group.group]
        for index, count in layout.laid(group):
            if index == node:
                found.append((position, count))
            position += count
    return found


def node_of(job: Job, position: int) -> int:
    """The node index of a placed pod; -1 if the position is not placed."""
    for group in job.placement:
        first = job.gang.firsts[group.group]
        for node, count in layout.laid(group):
            if first <= position < first + count:
                return node
            first += count
    return -1
