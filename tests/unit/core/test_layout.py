"""Positions, runs and device bytes of placements."""

from __future__ import annotations

from muster.core import layout
from muster.core.model import GroupPlacement, TaskGroup

GPU = "nvidia.com/gpu"
TASKS = (
    TaskGroup("ps", 3, 1, (("cpu", 1),)),
    TaskGroup("worker", 4, 2, ((GPU, 2000),)),
)
PLACEMENT = (
    GroupPlacement(0, ((7, 2),)),
    GroupPlacement(1, ((7, 1), (9, 2)), bytes([0, 1, 4, 5, 6, 7])),
)


def test_every_pod_has_its_node_and_devices():
    assert list(layout.each_pod(TASKS, PLACEMENT)) == [
        layout.Pod(0, 0, 0, 7, b""),
        layout.Pod(1, 0, 1, 7, b""),
        layout.Pod(3, 1, 0, 7, bytes([0, 1])),
        layout.Pod(4, 1, 1, 9, bytes([4, 5])),
        layout.Pod(5, 1, 2, 9, bytes([6, 7])),
    ]
    assert layout.placed_positions(TASKS, PLACEMENT) == [0, 1, 3, 4, 5]
    assert layout.pods_total(TASKS) == 7


def test_runs_carry_their_devices():
    assert list(layout.runs_of(PLACEMENT)) == [
        (0, 7, 2, b""),
        (1, 7, 1, bytes([0, 1])),
        (1, 9, 2, bytes([4, 5, 6, 7])),
    ]


def test_select_takes_what_is_placed_of_the_positions():
    assert list(layout.select(TASKS, PLACEMENT, [1, 2, 3, 5, 6])) == [
        (0, 7, 1, b""),
        (1, 7, 1, bytes([0, 1])),
        (1, 9, 1, bytes([6, 7])),
    ]
    assert list(layout.select(TASKS, PLACEMENT, [])) == []
    everything = list(layout.select(TASKS, PLACEMENT, range(7)))
    assert everything == list(layout.runs_of(PLACEMENT))


def test_a_group_without_placed_pods_is_empty():
    assert layout.devices_per_pod(GroupPlacement(0, ())) == 0
    assert list(layout.each_pod(TASKS, (GroupPlacement(1, ()),))) == []
