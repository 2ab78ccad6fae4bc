"""Overlays: gangs whole or not at all (rules G1, I2), clusters, suspects, and a base that never changes."""

from __future__ import annotations

import pytest

from muster.core.errors import InvariantBroken
from muster.core.model import GroupPlacement, NodeSpec, Taint, TaskGroup, Toleration
from muster.core.nodes import NodeTable
from muster.core.overlay import Overlay

GPU = "nvidia.com/gpu"


def node(name: str, cpu: int = 4, *, cluster: str = "c", devices: int = 0, **more) -> NodeSpec:
    have = [("cpu", cpu * 1000), ("memory", 1 << 36)] + ([(GPU, devices * 1000)] if devices else [])
    return NodeSpec(cluster, name, tuple(have), device_resource=GPU if devices else "", devices=devices, **more)


def table_of(*specs: NodeSpec) -> NodeTable:
    table = NodeTable()
    for n, spec in enumerate(specs):
        table.upsert(n, spec)
    return table


def group(name: str, replicas: int, minimum: int | None = None, cpu: int = 1, requests=(), **more) -> TaskGroup:
    minimum = replicas if minimum is None else minimum
    return TaskGroup(name, replicas, minimum, requests or (("cpu", cpu * 1000),), **more)


def test_a_gang_is_placed_whole_or_not_at_all():
    table = table_of(node("a"), node("b"))
    overlay = Overlay(table)
    assert overlay.place_gang([group("g", 9)]) is None
    assert overlay.touched() == []
    assert overlay.place_gang([group("g", 8)]) == (GroupPlacement(0, ((0, 4), (1, 4))),)
    assert overlay.place_gang([group("g", 1)]) is None
    assert table.rows[0].free == table.facts[0].allocatable


def test_all_groups_or_none():
    overlay = Overlay(table_of(node("a"), node("b")))
    assert overlay.place_gang([group("small", 7), group("big", 1, cpu=2)]) is None
    assert overlay.touched() == []
    placed = overlay.place_gang([group("small", 6), group("big", 1, cpu=2)])
    assert [sum(n for _, n in g.runs) for g in placed] == [6, 1]


def test_minimums_come_before_anybodys_extra_replicas():
    overlay = Overlay(table_of(node("a"), node("b")))
    placed = overlay.place_gang([group("elastic", 8, 1), group("fixed", 6)])
    assert [sum(n for _, n in g.runs) for g in placed] == [2, 6]


def test_groups_with_the_most_devices_per_pod_choose_first():
    overlay = Overlay(table_of(node("a", 64, devices=8), node("b", 64, devices=8)))
    small = group("small", 2, requests=((GPU, 1000),), policy="SPREAD")  # would put one pod on each node
    large = group("large", 1, requests=((GPU, 8000),))
    placed = overlay.place_gang([small, large])
    assert placed is not None
    assert [[pods for _, pods in g.runs] for g in placed] == [[2], [1]]


def test_groups_that_are_hard_to_place_choose_first():
    labelled = node("b", labels=(("pool", "x"),))
    overlay = Overlay(table_of(node("a", cpu=6), labelled))
    anywhere, picky = group("anywhere", 4), group("picky", 4, node_selector=(("pool", "x"),))
    assert overlay.place_gang([anywhere, picky]) == (GroupPlacement(0, ((0, 4),)), GroupPlacement(1, ((1, 4),)))


def test_spread_puts_a_gang_over_the_nodes_evenly():
    overlay = Overlay(table_of(node("a", 8), node("b", 4), node("c", 2)))
    placed = overlay.place_gang([group("g", 5, policy="SPREAD")])
    assert placed == (GroupPlacement(0, ((0, 2), (1, 2), (2, 1))),)


def test_a_gang_lies_in_one_cluster():
    table = table_of(node("a", cluster="x"), node("b", cluster="y"), node("c", cluster="y"))
    overlay = Overlay(table)
    assert overlay.place_gang([group("g", 9)]) is None
    assert overlay.place_gang([group("g", 6)]) == (GroupPlacement(0, ((1, 4), (2, 2))),)
    assert overlay.place_gang([group("g", 5)]) is None  # 4 + 2 are free, in two clusters
    assert overlay.can_fit_count(group("g", 1)) == 4


def test_the_cluster_with_more_pods_then_fewer_nodes_then_less_left_wins():
    table = table_of(node("a", 4, cluster="x"), node("b", 2, cluster="y"), node("c", 3, cluster="y"))
    assert Overlay(table).place_gang([group("g", 5, 1)])[0].runs == ((1, 2), (2, 3))
    assert Overlay(table).place_gang([group("g", 4)])[0].runs == ((0, 4),)
    assert Overlay(table).place_gang([group("g", 1)])[0].runs == ((1, 1),)
    spread = group("g", 4, policy="SPREAD")
    assert Overlay(table).place_gang([spread])[0].runs == ((2, 2), (1, 2))


def test_equal_clusters_go_by_name_not_by_appearance():
    table = table_of(node("a", cluster="zeta"), node("b", cluster="eta"))
    assert Overlay(table).place_gang([group("g", 2)])[0].runs == ((1, 2),)
    assert Overlay(table).place_gang([group("g", 1)])[0].runs == ((1, 1),)


def test_masked_clusters_and_suspect_nodes_are_left_out():
    table = table_of(node("a", cluster="x"), node("b", cluster="y"))
    overlay = Overlay(table)
    assert overlay.place_gang([group("g", 1)], cluster_mask=("y",))[0].runs == ((1, 1),)
    assert overlay.place_gang([group("g", 1)], suspects=frozenset({0, 1})) is None
    assert overlay.place_gang([group("g", 4)], suspects=frozenset({1}))[0].runs == ((0, 4),)
    assert overlay.can_fit_count(group("g", 1), suspects=(1,)) == 0
    assert overlay.can_fit_count(group("g", 1), cluster_mask=("x",)) == 0
    assert overlay.can_fit_count(group("g", 1)) == 3
    assert overlay.place_gang([group("g", 1)], cluster_mask=("z",)) is None


@pytest.mark.parametrize("change", [{"ready": False}, {"cordoned": True}, {"taints": (Taint("t"),)}])
def test_closed_nodes_take_nothing(change):
    overlay = Overlay(table_of(node("a", **change)))
    assert overlay.place_gang([group("g", 1)]) is None
    tolerant = group("g", 1, tolerations=(Toleration("t", "Exists"),))
    assert (overlay.place_gang([tolerant]) is not None) == ("taints" in change)


def test_an_overdrawn_node_takes_nothing_not_even_what_is_left():
    table = table_of(node("a", 4))
    table.charge(0, (("memory", 1 << 37),), 1)
    assert Overlay(table).place_gang([group("g", 1)]) is None


def test_release_makes_room_again_and_what_failed_before_fits():
    table = table_of(node("a"))
    victim = (group("v", 4),)
    table.charge_placement(victim, (GroupPlacement(0, ((0, 4),)),))
    overlay = Overlay(table)
    one, gang = [group("g", 1)], [group("g", 2)]
    assert overlay.place_gang(one) is None
    assert overlay.place_gang(gang) is None
    overlay.release(victim, (GroupPlacement(0, ((0, 4),)),), [0, 3])
    assert overlay.can_fit_count(one[0]) == 2
    assert overlay.place_gang(gang) == (GroupPlacement(0, ((0, 2),)),)
    assert table.rows[0].free[0] == 0


def test_a_hold_is_respected():
    overlay = Overlay(table_of(node("a", devices=2)))
    holder = (TaskGroup("h", 1, 1, ((GPU, 1000),)),)
    overlay.charge(holder, (GroupPlacement(0, ((0, 1),), bytes([0])),))
    assert overlay.place_gang(holder)[0].devices == bytes([1])
    assert overlay.place_gang(holder) is None


def test_place_many_is_in_runs():
    overlay = Overlay(table_of(node("a"), node("b")))
    assert overlay.place_many(group("g", 1), 6) == [(0, 4, b""), (1, 2, b"")]
    assert overlay.place_many(group("g", 1), 6) == [(1, 2, b"")]
    assert overlay.place_many(group("g", 1), 6) == []


def test_fits_says_whether_exactly_this_is_possible():
    table = table_of(node("a", devices=2), node("b"), node("x", cluster="other"))
    gpu = (TaskGroup("h", 2, 2, ((GPU, 1000),)),)
    overlay = Overlay(table)
    assert overlay.fits(gpu, (GroupPlacement(0, ((0, 2),), bytes([1, 0])),))
    assert not overlay.fits(gpu, (GroupPlacement(0, ((0, 2),), bytes([1, 1])),))
    assert not overlay.fits(gpu, (GroupPlacement(0, ((0, 2),), bytes([1])),))
    assert not overlay.fits(gpu, (GroupPlacement(0, ((0, 1),), bytes([2])),))
    assert not overlay.fits(gpu, (GroupPlacement(0, ((1, 1),), bytes([0])),))
    assert not overlay.fits(gpu, (GroupPlacement(0, ((9, 1),), bytes([0])),))
    assert not overlay.fits(gpu, (GroupPlacement(1, ((0, 1),), bytes([0])),))
    cpu = (group("g", 5),)
    assert overlay.fits(cpu, (GroupPlacement(0, ((0, 4),)),))
    assert not overlay.fits(cpu, (GroupPlacement(0, ((0, 5),)),))
    assert not overlay.fits(cpu, (GroupPlacement(0, ((0, 1), (2, 1))),))
    assert overlay.touched() == []


@pytest.mark.parametrize("requests", [((GPU, 1500),), (("amd.com/gpu", 1000), (GPU, 1000)), (("example.com/none", 1),)])
def test_impossible_requests_fit_nowhere(requests):
    overlay = Overlay(table_of(node("a", devices=4)))
    pod = TaskGroup("g", 1, 1, requests)
    assert overlay.place_gang([pod]) is None
    assert overlay.place_gang([pod, group("other", 1)]) is None
    assert overlay.place_many(pod, 3) == []
    assert overlay.can_fit_count(pod) == 0


def test_the_table_must_not_change_under_an_overlay():
    table = table_of(node("a"))
    overlay = Overlay(table)
    table.charge(0, (("cpu", 1000),), 1)
    with pytest.raises(InvariantBroken, match="changed under"):
        overlay.place_gang([group("g", 1)])
