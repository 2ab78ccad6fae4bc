"""The pods of a placement, one by one: what `GroupPlacement`'s runs and device bytes mean.

A job's pods are numbered through: groups in order, replicas in order, whether placed or not, so a pod keeps its
position when an elastic group grows. Within a group the positions that were ever placed in this epoch are the first
ones, laid along the runs; a pod that has left keeps its place there until the position is used again (`grown`), and the
job's phases say that it is gone. The runs pass over the indices of an array job that succeeded in an earlier epoch
(`skipped`, `laid`). `apply`, the node table, explain and the binder read placements through this module; only the
overlay writes them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from muster.core.model import GroupPlacement, TaskGroup

NOWHERE: Final = -1  # in `laid`, instead of a node: replicas that are passed over


class Pod(NamedTuple):
    """One placed pod. `devices` are the indices of its devices on the node, one byte each."""

    position: int
    group: int
    replica: int  # within the group
    node: int
    devices: bytes


def first_positions(tasks: Sequence[TaskGroup]) -> list[int]:
    """The position of each group's first pod."""
    firsts, position = [], 0
    for task in tasks:
        firsts.append(position)
        position += task.replicas
    return firsts


def pods_total(tasks: Sequence[TaskGroup]) -> int:
    """Positions of the job: all replicas, placed or not."""
    return sum(task.replicas for task in tasks)


def pods_placed(group: GroupPlacement) -> int:
    return sum(count for _, count in group.runs)


def devices_per_pod(group: GroupPlacement) -> int:
    """How many device bytes belong to each pod of the group."""
    if not group.devices:
        return 0
    return len(group.devices) // pods_placed(group)


def laid(group: GroupPlacement) -> tuple[tuple[int, int], ...]:
    """The runs with what they pass over between them, as (NOWHERE, count): replica after replica from the first on."""
    if not group.skipped:
        return group.runs
    found: list[tuple[int, int]] = []
    gaps = list(reversed(group.skipped))
    replica = 0
    for node, count in group.runs:
        left = count
        while left:
            if gaps and gaps[-1][0] == replica:
                gap = gaps.pop()[1]
                found.append((NOWHERE, gap))
                replica += gap
                continue
            part = min(left, gaps[-1][0] - replica) if gaps else left
            found.append((node, part))
            replica += part
            left -= part
    return tuple(found)


def place_in_runs(group: GroupPlacement, replica: int) -> int:
    """Which pod along the runs the replica is, counted from 0. The replica is not a skipped one."""
    return replica - sum(count for first, count in group.skipped if first < replica)


def each_pod(tasks: Sequence[TaskGroup], placement: Sequence[GroupPlacement]) -> Iterator[Pod]:
    """Every placed pod by ascending position (placements are stored in group order)."""
    firsts = first_positions(tasks)
    for group in placement:
        width = devices_per_pod(group)
        index = pod = 0
        for node, count in laid(group):
            if node == NOWHERE:
                index += count
                continue
            for _ in range(count):
                devices = group.devices[pod * width : (pod + 1) * width]
                yield Pod(firsts[group.group] + index, group.group, index, node, devices)
                index += 1
                pod += 1


def placed_positions(tasks: Sequence[TaskGroup], placement: Sequence[GroupPlacement]) -> list[int]:
    """Positions that are placed, ascending."""
    firsts = first_positions(tasks)
    found: list[int] = []
    for group in placement:
        start = firsts[group.group]
        for node, count in laid(group):
            if node != NOWHERE:
                found.extend(range(start, start + count))
            start += count
    return found


def select(
    tasks: Sequence[TaskGroup], placement: Sequence[GroupPlacement], positions: Sequence[int]
) -> Iterator[tuple[int, int, int, bytes]]:
    """Runs (group, node, count, devices) that hold just the pods at `positions` (ascending, no duplicates).

    Positions that are not placed are skipped. Costs one step per run and per position.
    """
    firsts = first_positions(tasks)
    at = 0
    for group in placement:
        width = devices_per_pod(group)
        start = first = firsts[group.group]  # `first`: where position numbers and device bytes begin together
        for node, count in laid(group):
            end = start + count
            while at < len(positions) and positions[at] < start:
                at += 1
            if node == NOWHERE:
                start = end
                first += count
                continue
            begin = at
            while at < len(positions) and positions[at] < end:
                at += 1
            if at > begin:
                devices = b"".join(
                    group.devices[(p - first) * width : (p - first + 1) * width] for p in positions[begin:at]
                )
                yield group.group, node, at - begin, devices
            start = end


def runs_of(placement: Sequence[GroupPlacement]) -> Iterator[tuple[int, int, int, bytes]]:
    """All runs as (group, node, count, devices)."""
    for group in placement:
        width, at = devices_per_pod(group), 0
        for node, count in group.runs:
            yield group.group, node, count, group.devices[at : at + width * count]
            at += width * count


def grown(
    tasks: Sequence[TaskGroup],
    placement: Sequence[GroupPlacement],
    added: Sequence[GroupPlacement],
    vacant: Sequence[int],
) -> tuple[tuple[GroupPlacement, ...], list[int]]:
    """The placement with the pods of `added` in it, and the positions they take.

    Each group's new pods take its first positions of `vacant` (ascending), so nothing is left out before the last one.
    """
    firsts = first_positions(tasks)
    merged = {group.group: group for group in placement}
    taken: list[int] = []
    for group in added:
        first = firsts[group.group]
        begin = bisect_left(vacant, first)
        free = vacant[begin : bisect_left(vacant, first + tasks[group.group].replicas, lo=begin)][: pods_placed(group)]
        old = merged.get(group.group, GroupPlacement(group.group, ()))
        merged[group.group] = _merged(old, group, [place_in_runs(old, p - first) for p in free])
        taken += free
    return tuple(merged[number] for number in sorted(merged)), sorted(taken)


def _merged(old: GroupPlacement, new: GroupPlacement, places: Sequence[int]) -> GroupPlacement:
    """`old` with the pods of `new` at these places along the runs (ascending)."""
    if places and places[0] == pods_placed(old):  # all of them come after what is there
        last, rest = old.runs[-1:], new.runs
        if last and last[0][0] == rest[0][0]:
            last, rest = ((last[0][0], last[0][1] + rest[0][1]),), rest[1:]
        return GroupPlacement(new.group, (*old.runs[:-1], *last, *rest), old.devices + new.devices, old.skipped)
    nodes: list[int] = []
    chunks: list[bytes] = []
    for part, at in ((old, None), (new, places)):
        width, index = devices_per_pod(part), 0
        for node, count in part.runs:
            for _ in range(count):
                place = index if at is None else at[index]
                chunk = part.devices[index * width : (index + 1) * width]
                if place < len(nodes):
                    nodes[place], chunks[place] = node, chunk
                else:
                    nodes.append(node)
                    chunks.append(chunk)
                index += 1
    runs: list[tuple[int, int]] = []
    for node in nodes:
        if runs and runs[-1][0] == node:
            runs[-1] = (node, runs[-1][1] + 1)
        else:
            runs.append((node, 1))
    return GroupPlacement(new.group, tuple(runs), b"".join(chunks), old.skipped)
