"""The node table: rows tell the truth, whatever happens to a node (I1, LOG-15)."""

from __future__ import annotations

import numpy as np
import pytest

from muster.core.errors import InvariantBroken
from muster.core.model import GroupPlacement, NodeSpec, Taint, TaskGroup, Zone
from muster.core.node_arrays import Described
from muster.core.nodes import NodeTable
from muster.core.rows import LOG_ROWS_MIN, ChangeLog

GPU = "nvidia.com/gpu"
GIB = 1 << 30


def node(
    name: str = "n0", *, cpu: int = 8000, devices: int = 0, others: tuple = (), cluster: str = "c", **more
) -> NodeSpec:
    have = [("cpu", cpu), ("memory", 16 * GIB)] + ([(GPU, devices * 1000)] if devices else [])
    vendor = GPU if devices else ""
    return NodeSpec(cluster, name, tuple(have), device_resource=vendor, devices=devices, used_by_others=others, **more)


def table_of(*specs: NodeSpec) -> NodeTable:
    table = NodeTable()
    for n, spec in enumerate(specs):
        table.upsert(n, spec)
    return table


def test_pods_are_a_column_with_a_default():
    table = table_of(node(), NodeSpec("c", "n1", (("cpu", 1000), ("pods", 7))))
    assert dict(table.free_amounts(0))["pods"] == 110
    assert dict(table.free_amounts(1))["pods"] == 7


def test_what_others_use_is_not_free():
    table = table_of(node(others=(("cpu", 3000), ("pods", 4))))
    assert dict(table.free_amounts(0)) == {"cpu": 5000, "memory": 16 * GIB, "pods": 106}
    assert dict(table.capacity()) == {"cpu": 5000, "memory": 16 * GIB, "pods": 106}


def test_what_nobody_can_use_is_not_shared_out():
    table = table_of(node("a"), node("b", ready=False), node("c", cordoned=True), node("d", others=(("cpu", 9000),)))
    assert dict(table.capacity())["cpu"] == 8000
    table.upsert(1, node("b"))
    assert dict(table.capacity())["cpu"] == 16_000
    table.upsert(3, node("d", others=(("cpu", 1000), (GPU, 500))))  # a new column, too
    assert dict(table.capacity())["cpu"] == 23_000
    table.remove(3)
    assert dict(table.capacity())["cpu"] == 16_000
    assert dict(table.capacity("elsewhere")) == {}


def test_charge_and_release_are_opposites():
    table = table_of(node(devices=4))
    before = table.free_amounts(0)
    requests = (("cpu", 500), (GPU, 2000))
    table.charge(0, requests, 2, bytes([0, 1, 2, 3]))
    assert dict(table.free_amounts(0)) == {"cpu": 7000, "memory": 16 * GIB, "pods": 108}
    assert table.device_free[0].tolist() == [0, 0, 0, 0]
    table.release(0, requests, 1, bytes([0, 1]))
    assert table.device_free[0].tolist() == [1000, 1000, 0, 0]
    table.release(0, requests, 1, bytes([2, 3]))
    assert table.free_amounts(0) == before


def test_a_share_takes_from_its_device_alone():
    table = table_of(node(devices=2))
    table.charge(0, ((GPU, 460),), 2, bytes([1, 1]))
    assert table.device_free[0].tolist() == [1000, 80]
    assert dict(table.free_amounts(0))[GPU] == 1080


def test_devices_that_do_not_match_the_pods_are_a_bug():
    table = table_of(node(devices=2))
    with pytest.raises(InvariantBroken, match="I1"):
        table.charge(0, ((GPU, 2000),), 1, bytes([1]))


def test_a_node_that_shrinks_goes_below_zero_and_comes_back():
    table = table_of(node(cpu=8000, devices=2))
    table.charge(0, (("cpu", 6000), (GPU, 1000)), 1, bytes([1]))
    table.upsert(0, node(cpu=4000, devices=1))
    assert dict(table.free_amounts(0))["cpu"] == -2000
    assert table.rows[0].devices == [1000, -1000]
    assert dict(table.free_amounts(0)).get(GPU, 0) == 0  # the devices add up to the column
    assert table.rows[0].overdrawn()
    table.release(0, (("cpu", 6000), (GPU, 1000)), 1, bytes([1]))
    assert dict(table.free_amounts(0))["cpu"] == 4000
    assert table.rows[0].devices == [1000, 0]


def test_a_removed_node_keeps_what_is_charged_and_its_index():
    table = table_of(node("a"), node("b"))
    table.charge(0, (("cpu", 1000),), 1)
    table.remove(0)
    assert table.is_removed(0)
    assert table.live("c") == [1]
    assert dict(table.free_amounts(0)) == {"cpu": -1000, "pods": -1}
    assert dict(table.capacity())["cpu"] == 8000
    assert table.index_of("c", "a") == 0
    assert table.next_index == 2
    table.upsert(0, node("a"))  # the same machine came back, its pods may still run (LOG-15)
    assert dict(table.free_amounts(0))["cpu"] == 7000
    assert dict(table.capacity())["cpu"] == 16_000


def test_an_index_is_for_one_node_for_ever():
    table = table_of(node("a"))
    with pytest.raises(InvariantBroken, match="index 0"):
        table.upsert(1, node("a"))
    with pytest.raises(InvariantBroken):
        table.upsert(0, node("b"))
    with pytest.raises(InvariantBroken):
        table.upsert(5, node("b"))


def test_devices_of_others_are_the_highest_that_muster_has_not_touched():
    table = table_of(node(devices=4, others=((GPU, 1000),)))
    assert table.device_free[0].tolist() == [1000, 1000, 1000, 0]
    table.upsert(0, node(devices=4))
    table.charge(0, ((GPU, 500),), 1, bytes([3]))
    table.upsert(0, node(devices=4, others=((GPU, 2000),)))
    assert table.device_free[0].tolist() == [1000, 0, 0, 500]
    assert dict(table.free_amounts(0))[GPU] == 1500


@pytest.mark.parametrize(("held", "free"), [(1000, [1000, 0]), (1001, [0, 0]), (2000, [0, 0]), (3000, [0, -1000])])
def test_others_hold_whole_devices_up_to_all_and_more(held, free):
    table = table_of(node(devices=2, others=((GPU, held),)))
    assert table.rows[0].devices == free
    assert dict(table.free_amounts(0)).get(GPU, 0) == sum(free)


def test_devices_of_others_that_overlap_with_ours_show_as_too_many():
    table = table_of(node(devices=2))
    table.charge(0, ((GPU, 500),), 2, bytes([0, 1]))
    table.upsert(0, node(devices=2, others=((GPU, 1000),)))
    assert table.rows[0].devices == [500, -500]
    assert table.rows[0].overdrawn()


def test_devices_the_kubelet_does_not_offer_are_not_free():
    spec = NodeSpec("c", "n", (("cpu", 1000), (GPU, 3000)), device_resource=GPU, devices=4)
    assert table_of(spec).device_free[0].tolist() == [1000, 1000, 1000, 0]


def test_devices_are_read_from_allocatable_when_the_report_does_not_name_them():
    table = table_of(NodeSpec("c", "n", (("cpu", 1000), (GPU, 2000))))
    assert table.device_free[0].tolist() == [1000, 1000]


def test_new_resources_widen_every_row():
    table = table_of(node())
    assert table.free.shape == (1, 3)
    table.upsert(1, NodeSpec("c", "n1", (("cpu", 1000), ("example.com/fpga", 2))))
    assert table.free.shape == (2, 4)
    assert table.free[:, table.columns["example.com/fpga"]].tolist() == [0, 2]
    table.charge(0, (("example.com/gone", 5),), 1)  # runs there although no node offers it any more
    assert dict(table.free_amounts(0))["example.com/gone"] == -5


def test_arrays_follow_the_rows_and_cannot_be_written():
    table = table_of(*[node(f"n{i}", devices=i % 3) for i in range(20)])
    assert table.device_free.shape == (20, 2)
    table.charge(5, (("cpu", 1000), (GPU, 1000)), 1, bytes([1]))
    assert table.free.tolist() == [row.free for row in table.rows]
    assert table.device_free[5].tolist() == [1000, 0]
    assert table.free.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        table.free[0, 0] = 1


def test_placements_are_charged_and_released_by_position():
    tasks = (TaskGroup("a", 3, 1, (("cpu", 100),)), TaskGroup("b", 2, 2, ((GPU, 1000),)))
    placement = (GroupPlacement(0, ((0, 1), (1, 1))), GroupPlacement(1, ((1, 2),), bytes([0, 1])))
    table = table_of(node("n0"), node("n1", devices=2))
    before = [row.free.copy() for row in table.rows]
    table.charge_placement(tasks, placement)
    assert table.device_free[1].tolist() == [0, 0]
    table.release_pods(tasks, placement, [4, 2, 0])  # position 2 is an elastic replica that was never placed
    assert table.rows[0].free == before[0]
    assert table.device_free[1].tolist() == [0, 1000]
    table.release_pods(tasks, placement, [1, 3])
    assert [row.free for row in table.rows] == before
    table.charge_placement(tasks, placement)
    table.release_pods(tasks, placement)
    assert [row.free for row in table.rows] == before


def test_zones_outlive_a_new_description():
    table = table_of(node(devices=2))
    zones = (Zone(0, devices=(0, 1)),)
    table.set_zones(0, zones)
    table.upsert(0, node(devices=2, cpu=1000))
    assert table.zones(0) == zones


def test_the_change_log_forgets_and_says_so():
    log = ChangeLog()
    start = log.end
    for n in range(LOG_ROWS_MIN):
        log.append(n % 10, nodes=10)
    assert log.since(start) == list(range(10))
    near = log.end
    log.append(3, nodes=10)
    assert log.since(start) is None
    assert log.since(near) == [3]
    log.append(3, nodes=10)
    assert log.since(near) == [3]
    assert log.since(log.end) == []


def test_descriptions_as_arrays_follow_what_changes():
    table = NodeTable()
    taint = Taint("dedicated", "ml", "NoSchedule")
    for n in range(40):
        table.upsert(n, node(f"n{n}", devices=n % 3, cluster="ab"[n % 2], taints=(taint,) * (n % 5 == 0)))
    table.described  # noqa: B018  # a reader that follows
    for n in (3, 17, 30):
        table.upsert(n, node(f"n{n}", devices=4, cluster="ab"[n % 2], ready=False))
    table.remove(5)
    table.upsert(40, node("n40", cluster="b"))
    for follower in (table.described, Described().synced(table)):
        assert follower.clusters.tolist() == [facts.cluster for facts in table.facts]
        assert follower.removed.tolist() == [facts.removed for facts in table.facts]
        assert follower.open.tolist() == [facts.open for facts in table.facts]
        assert follower.has_taints.tolist() == [bool(facts.spec.taints) for facts in table.facts]
        assert follower.device_columns.tolist() == [facts.device_column for facts in table.facts]
        assert (follower.whole_devices == 1000).sum(axis=1).tolist() == [facts.devices for facts in table.facts]
    table.upsert(7, node("n7", devices=6, cluster="b"))  # one of many: the arrays stay the same
    clusters = table.described.clusters
    assert (table.described.whole_devices[7] == 1000).sum() == 6
    table.remove(8)
    assert table.described.clusters is clusters
    assert table.described.removed[8]
