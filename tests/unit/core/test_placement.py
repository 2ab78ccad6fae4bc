"""The profiles of rule G2 by example: what PACK and SPREAD mean, and which devices a pod gets (rule G4)."""

from __future__ import annotations

import pytest

from muster.core.model import NodeSpec, TaskGroup, Zone
from muster.core.nodes import NodeTable
from muster.core.overlay import Overlay
from muster.core.placement import dominant_column
from muster.core.rows import Demand

GPU = "nvidia.com/gpu"
GIB = 1 << 30


def table_of(*sizes: tuple[int, int, int]) -> NodeTable:
    """Nodes of (cpu, memory in GiB, devices)."""
    table = NodeTable()
    for n, (cpu, memory, devices) in enumerate(sizes):
        have = [("cpu", cpu * 1000), ("memory", memory * GIB)] + ([(GPU, devices * 1000)] if devices else [])
        spec = NodeSpec("c", f"n{n}", tuple(have), device_resource=GPU if devices else "", devices=devices)
        table.upsert(n, spec)
    return table


def pod(cpu: int = 0, memory: int = 0, gpu: int = 0, policy: str = "") -> TaskGroup:
    requests = {"cpu": cpu * 1000, "memory": memory * GIB, GPU: gpu}
    return TaskGroup("g", 1, 1, tuple(sorted((k, v) for k, v in requests.items() if v)), policy=policy)


def nodes_for(overlay: Overlay, group: TaskGroup, count: int) -> list[int | None]:
    found = [overlay.place_gang([group]) for _ in range(count)]
    return [p[0].runs[0][0] if p else None for p in found]


def devices_for(overlay: Overlay, group: TaskGroup, count: int) -> list[tuple[int, ...]]:
    found = [overlay.place_gang([group]) for _ in range(count)]
    return [tuple(p[0].devices) for p in found if p]


def test_pack_fills_the_fullest_node_that_still_fits():
    assert nodes_for(Overlay(table_of((8, 64, 0), (4, 64, 0), (2, 64, 0))), pod(2), 4) == [2, 1, 1, 0]


def test_spread_takes_the_emptiest():
    overlay = Overlay(table_of((8, 64, 0), (6, 64, 0)))
    assert nodes_for(overlay, pod(2, policy="SPREAD"), 4) == [0, 0, 1, 0]


def test_ties_go_to_the_lowest_index():
    assert nodes_for(Overlay(table_of(*[(4, 16, 0)] * 5)), pod(4), 6) == [0, 1, 2, 3, 4, None]
    assert nodes_for(Overlay(table_of(*[(4, 16, 0)] * 5)), pod(4, policy="SPREAD"), 6) == [0, 1, 2, 3, 4, None]


def test_the_dominant_resource_decides():
    # 1 of 12 cpu, 8 of 96 GiB are equal parts; 9 GiB makes memory the dominant one
    table = table_of((4, 64, 0), (8, 32, 0))
    assert nodes_for(Overlay(table), pod(1, 9), 1) == [1]
    assert nodes_for(Overlay(table), pod(1, 7), 1) == [0]


def test_pods_without_devices_leave_device_nodes_alone_while_others_fit():
    overlay = Overlay(table_of((2, 8, 4), (8, 8, 0)))
    assert nodes_for(overlay, pod(2), 6) == [1, 1, 1, 1, 0, None]


def test_whole_devices_go_where_fewest_are_left():
    overlay = Overlay(table_of((64, 64, 8), (64, 64, 4), (64, 64, 2)))
    assert nodes_for(overlay, pod(gpu=2000), 3) == [2, 1, 1]
    assert nodes_for(overlay, pod(gpu=8000), 2) == [0, None]


def test_shares_fill_the_device_with_the_least_sufficient_room():
    table = table_of((64, 64, 2), (64, 64, 1))
    overlay = Overlay(table)
    assert nodes_for(overlay, pod(gpu=600), 3) == [1, 0, 0]  # the node with the least device room opens first
    assert nodes_for(overlay, pod(gpu=300), 3) == [1, 0, 0]
    assert nodes_for(overlay, pod(gpu=100), 3) == [1, 0, 0]
    assert nodes_for(overlay, pod(gpu=1), 1) == [None]


def test_a_share_lives_on_one_device():
    overlay = Overlay(
        table_of(
            (64, 64, 2),
        )
    )
    assert devices_for(overlay, pod(gpu=600), 2) == [(0,), (1,)]
    assert nodes_for(overlay, pod(gpu=600), 1) == [None]  # 400 + 400 are free, on two devices
    assert devices_for(overlay, pod(gpu=400), 2) == [(0,), (1,)]


def test_whole_devices_are_the_lowest_untouched():
    overlay = Overlay(
        table_of(
            (64, 64, 4),
        )
    )
    assert devices_for(overlay, pod(gpu=500), 1) == [(0,)]
    assert devices_for(overlay, pod(gpu=2000), 2) == [(1, 2)]


def test_whole_devices_come_from_the_fullest_zone_that_has_enough():
    table = table_of((64, 64, 8))
    table.set_zones(0, (Zone(1, devices=(0, 1, 2, 3)), Zone(0, devices=(4, 5, 6, 7))))
    overlay = Overlay(table)
    assert devices_for(overlay, pod(gpu=3000), 2) == [(4, 5, 6), (0, 1, 2)]
    assert devices_for(overlay, pod(gpu=2000), 1) == [(3, 7)]  # no zone has two


def test_a_pod_that_asks_for_nothing_takes_a_slot():
    assert nodes_for(Overlay(table_of((1, 1, 0))), pod(), 111) == [0] * 110 + [None]


@pytest.mark.parametrize(
    ("requests", "dominant"),
    [
        ((("cpu", 10), ("memory", 10)), "memory"),
        ((("cpu", 20), ("memory", 10)), "cpu"),  # equal parts: the first name
        ((("cpu", 21), ("memory", 10)), "cpu"),
        ((("memory", 1), ("x", 1)), "x"),  # none of it anywhere
        ((), "pods"),
    ],
)
def test_dominant(requests, dominant):
    columns = {"cpu": 0, "memory": 1, "pods": 2, "x": 3}
    column = dominant_column(Demand(requests, columns), [200, 100, 1000, 0], list(columns), 2)
    assert list(columns)[column] == dominant
