"""Array jobs (rule G1, EVERY_INDEX): each replica is an index that has to succeed once.

What has succeeded is kept over the epochs of a job and counts towards the minimum of its group, so what such a job asks
for shrinks while it goes on:

    rest(spec, phases)                  the task groups that are still to be placed, in the numbers of the original
                                        groups; a queued job asks for these (`Job.asks`)
    around(tasks, phases, placement)    a placement of the rest, with the indices that it passes over

`max_parallel` bounds how many pods are there at once, so it bounds what a job asks for as well (rule F1). Everything
else is what elastic jobs do: an index that fits no more is added later, by growth.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from muster.core.model import GroupPlacement, JobSpec, PodPhase, TaskGroup

SUCCEEDED = int(PodPhase.SUCCEEDED)
Phases = bytes | bytearray


def rest(spec: JobSpec, phases: Phases) -> tuple[TaskGroup, ...]:
    """What is still to be placed; the job's own groups when that is all of them. `phases` may be empty."""
    most, least = counts(spec, phases)
    if all(t.replicas == m and t.min_replicas == n for t, m, n in zip(spec.tasks, most, least, strict=True)):
        return spec.tasks
    return tuple(
        replace(task, replicas=replicas, min_replicas=minimum)
        for task, replicas, minimum in zip(spec.tasks, most, least, strict=True)
    )


def counts(spec: JobSpec, phases: Phases) -> tuple[list[int], list[int]]:
    """By group: how many pods the job asks for at most, and how many it needs to start, at least one in all."""
    left: list[int] = []
    least: list[int] = []
    first = 0
    for task in spec.tasks:
        done = phases.count(SUCCEEDED, first, first + task.replicas)
        left.append(task.replicas - done)
        least.append(max(task.min_replicas - done, 0))
        first += task.replicas
    if not any(least) and any(left):
        least[next(group for group, count in enumerate(left) if count)] = 1
    if not spec.max_parallel:
        return left, least
    room = spec.max_parallel - sum(least)
    most: list[int] = []
    for wanted, minimum in zip(left, least, strict=True):
        more = min(wanted - minimum, room)
        most.append(minimum + more)
        room -= more
    return most, least


def around(
    tasks: Sequence[TaskGroup], phases: Phases, placement: Sequence[GroupPlacement]
) -> tuple[GroupPlacement, ...]:
    """The placement with what its runs pass over: the indices that have succeeded already."""
    placed = {group.group: group for group in placement}
    found = []
    first = 0
    for number, task in enumerate(tasks):
        gaps = _succeeded_runs(phases, first, first + task.replicas)
        group = placed.get(number)
        if gaps or (group is not None and group.runs):
            found.append(replace(group or GroupPlacement(number, ()), skipped=gaps))
        first += task.replicas
    return tuple(found)


def _succeeded_runs(phases: Phases, first: int, end: int) -> tuple[tuple[int, int], ...]:
    """(first replica, count) of each stretch of a group that has succeeded."""
    found = []
    replica = 0
    for phase, stretch in groupby(phases[first:end]):
        length = sum(1 for _ in stretch)
        if phase == SUCCEEDED:
            found.append((replica, length))
        replica += length
    return tuple(found)


def skipped(placement: Sequence[GroupPlacement]) -> int:
    """How many indices had succeeded before this placement."""
    return sum(count for group in placement for _, count in group.skipped)


def vacated(phases: Phases) -> bytearray:
    """What is kept of a placement that is over: which indices have succeeded. Empty if none has."""
    if not phases.count(SUCCEEDED):
        return bytearray()
    return bytearray(phases).translate(_KEPT)


_KEPT = bytes(phase if phase == SUCCEEDED else int(PodPhase.GONE) for phase in range(256))
