"""Why it does not fit, in numbers (I5), and what can never fit (rule Q2)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core import naive_shortfall as naive

from muster.core.model import NodeSpec, Taint, TaskGroup
from muster.core.nodes import NodeTable
from muster.core.overlay import Overlay
from muster.core.shortfall import never_fits, shortfall

GPU = "nvidia.com/gpu"
GIB = 1 << 30


def node(name: str, cpu: int = 16, memory: int = 64, devices: int = 0, *, cluster: str = "c", **more) -> NodeSpec:
    have = [("cpu", cpu * 1000), ("memory", memory * GIB)] + ([(GPU, devices * 1000)] if devices else [])
    return NodeSpec(cluster, name, tuple(have), device_resource=GPU if devices else "", devices=devices, **more)


def table_of(*specs: NodeSpec) -> NodeTable:
    table = NodeTable()
    for n, spec in enumerate(specs):
        table.upsert(n, spec)
    return table


def group(name: str, replicas: int, *, cpu: int = 0, memory: int = 0, gpu: int = 0, **more) -> TaskGroup:
    requests = {"cpu": cpu * 1000, "memory": memory * GIB, GPU: gpu}
    wanted = tuple(sorted((k, v) for k, v in requests.items() if v))
    return TaskGroup(name, replicas, more.pop("minimum", replicas), wanted, **more)


def test_the_missing_device_is_named_with_what_must_be_beside_it():
    table = table_of(node("a", devices=4), node("b", devices=4))
    workers = group("worker", 4, cpu=12, gpu=3000)
    answer = shortfall(table, [workers])
    part = answer.groups[0]
    assert (part.fitting_pods, part.needed_pods, part.fitting_nodes) == (2, 4, 2)
    assert answer.cluster == "c"
    # on a node with one placed, 4 of 16 cpu and 1 of 4 devices are left
    assert (part.limiting, part.missing_on_best, part.missing_total) == ("cpu", 8000, 16_000)
    assert part.unblock == "for each of 2 more pods 8 more cpu and 2 more gpu on any node"
    assert answer.message.startswith("2 of 4 worker fit")


def test_one_more_device_would_do():
    table = table_of(node("a", devices=2))
    table.charge(0, ((GPU, 1000),), 1, bytes([0]))
    part = shortfall(table, [group("w", 1, cpu=12, gpu=2000)]).groups[0]
    assert part.limiting == GPU
    assert part.missing_on_best == 1000
    assert part.missing_total == 1000
    assert part.best_node == "a"
    assert part.unblock == "1 more gpu on any node with 12 cpu free"
    assert part.excluded == (("busy", 1),)


def test_scattered_devices_are_short_though_the_sum_is_not():
    table = table_of(node("a", devices=2))
    table.charge(0, ((GPU, 500),), 2, bytes([0, 1]))
    part = shortfall(table, [group("w", 1, gpu=1000)]).groups[0]
    assert (part.limiting, part.missing_total) == (GPU, 0)
    assert part.missing_on_best == 1000
    share = shortfall(table, [group("w", 1, gpu=600)]).groups[0]
    assert (share.limiting, share.missing_on_best) == (GPU, 100)


def test_every_node_counts_once_for_its_first_cause():
    table = table_of(
        node("fits"),
        node("other-pool", labels=(("pool", "b"),)),
        node("tainted", labels=(("pool", "a"),), taints=(Taint("x"),)),
        node("tiny", cpu=1, labels=(("pool", "a"),)),
        node("down", labels=(("pool", "a"),), ready=False),
        node("closed", labels=(("pool", "a"),), cordoned=True),
        node("busy", labels=(("pool", "a"),)),
        node("suspect", labels=(("pool", "a"),)),
        node("over", labels=(("pool", "a"),)),
        node("free", labels=(("pool", "a"),)),
        node("gone", labels=(("pool", "a"),)),
    )
    table.charge(6, (("cpu", 15_000),), 1)
    table.charge(8, (("memory", 65 * GIB),), 1)
    table.remove(10)
    wanted = group("w", 9, cpu=4, node_selector=(("pool", "a"),))
    part = shortfall(table, [wanted], suspects=(7,)).groups[0]
    assert dict(part.excluded) == {
        "selector": 2,
        "taint": 1,
        "too small": 1,
        "not ready": 1,
        "cordoned": 1,
        "busy": 1,
        "suspect": 1,
        "overcommitted": 1,
    }
    assert (part.fitting_nodes, part.fitting_pods, part.suitable_nodes) == (1, 4, 2)


def test_without_a_suitable_node_it_says_what_keeps_them_out():
    table = table_of(node("a", ready=False), node("b", cordoned=True))
    part = shortfall(table, [group("w", 1, cpu=1)]).groups[0]
    assert part.unblock == "nodes that suit are not ready or cordoned"
    selector = shortfall(table, [group("w", 1, cpu=1, node_selector=(("x", "y"),))]).groups[0]
    assert selector.unblock == "no node suits its constraints"
    assert shortfall(NodeTable(), [group("w", 1)]).message == "there are no nodes it may use"


def test_a_pod_larger_than_every_node():
    table = table_of(node("a", cpu=8), node("b", cpu=6))
    part = shortfall(table, [group("w", 1, cpu=12)]).groups[0]
    assert (part.limiting, part.missing_on_best, part.best_node) == ("cpu", 4000, "a")
    assert part.unblock == "4 more cpu on any node"


def test_the_cluster_that_comes_closest_is_told():
    table = table_of(node("a", 4, cluster="x"), node("b", 8, cluster="y"))
    assert shortfall(table, [group("w", 9, cpu=1)]).cluster == "y"
    assert shortfall(table, [group("w", 9, cpu=1)], cluster_mask=("x",)).cluster == "x"


def test_groups_that_fit_alone_but_not_together():
    table = table_of(node("a", 4))
    gang = [group("p", 3, cpu=1), group("w", 2, cpu=1)]
    assert Overlay(table).place_gang(gang) is None
    assert shortfall(table, gang).message == "every group fits alone, but not all together"


def test_an_overlay_is_explained_as_it_stands():
    table = table_of(node("a", 4))
    overlay = Overlay(table)
    overlay.place_gang([group("w", 3, cpu=1)])
    part = shortfall(overlay, [group("w", 2, cpu=1)]).groups[0]
    assert (part.fitting_pods, part.limiting, part.missing_on_best) == (1, "cpu", 1000)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_looking_at_all_nodes_at_once_says_what_each_node_says(random):
    table = table_of(
        *[
            node(
                f"n{n}",
                random.choice([4, 8, 16]),
                random.choice([8, 64]),
                random.choice([0, 0, 4]),
                labels=(("pool", random.choice("xy")),),
                taints=(Taint("t"),) if random.random() < 0.2 else (),
                ready=random.random() < 0.9,
                cordoned=random.random() < 0.1,
            )
            for n in range(random.randint(1, 9))
        ]
    )
    for _ in range(random.randint(0, 12)):
        filler = group("f", 1, cpu=random.choice([1, 3]), gpu=random.choice([0, 300, 1000]))
        placement = Overlay(table).place_gang([filler])
        if placement:
            table.charge_placement((filler,), placement)
    if random.random() < 0.3:
        table.remove(0)
    overlay = Overlay(table)
    overlay.place_gang([group("held", 1, cpu=2)])
    suspects = tuple(n for n in range(len(table)) if random.random() < 0.1)
    pool = (("pool", "x"),) if random.random() < 0.4 else ()
    wanted = group(
        "w", random.randint(1, 20), cpu=random.choice([1, 5, 20]), gpu=random.choice([0, 400, 2000]), node_selector=pool
    )
    told = shortfall(overlay, [wanted], suspects=suspects)
    if not told.groups:
        return  # no nodes at all
    part, found = told.groups[0], naive.causes(overlay, wanted, suspects)
    counts = [cause for cause in found.values() if cause is not None]
    assert dict(part.excluded) == {str(cause): counts.count(cause) for cause in counts}
    assert part.fitting_nodes == len(found) - len(counts)
    limiting, best, missing = naive.nearest(overlay, wanted, found)
    if part.fitting_pods < part.needed_pods:
        best_name = "" if best is None else table.spec(best).name
        assert (part.limiting, part.best_node, part.missing_on_best) == (limiting, best_name, missing)


# --- rule Q2 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gang", "field", "says"),
    [
        (
            [group("w", 1, cpu=17)],
            "[0].resources.cpu",
            "a pod asks for 17 cpu; the largest node it may use in c has 16",
        ),
        ([group("w", 3, cpu=10)], "[0].replicas", "needs 3 pods at once; cluster c takes 2 when empty"),
        (
            [group("v", 1), group("w", 1, gpu=5000)],
            "[1].resources.nvidia.com/gpu",
            "a pod asks for 5 gpu; the largest node it may use in c has 4",
        ),
        ([group("w", 1, gpu=1500)], "[0].resources", "1.5 devices"),
        ([group("w", 1, cpu=1, node_selector=(("x", "y"),))], "[0].node_selector", "no node of cluster c matches"),
        ([group("p", 1, cpu=16), group("w", 2, cpu=9)], "[1].resources.cpu", "needs 34 cpu in all; cluster c has 32"),
        (
            [TaskGroup("w", 1, 1, (("example.com/none", 1),))],
            "[0].resources.example.com/none",
            "the largest node it may use in c has 0",
        ),
        ([group("w", 1, memory=60, gpu=1000)], "[0].resources", "has all a pod asks for at once"),
    ],
)
def test_what_can_never_fit_is_said(gang, field, says):
    table = table_of(node("a"), node("b", memory=32, devices=4))
    never = never_fits(table, gang)
    assert never is not None
    assert never.field == f"tasks{field}"
    assert says in never.message


def test_what_fits_an_empty_cluster_may_wait():
    table = table_of(node("a", ready=False), node("b", devices=4, cordoned=True))
    table.charge(0, (("cpu", 16_000),), 1)
    assert never_fits(table, [group("w", 2, cpu=16)]) is None
    assert never_fits(table, [group("w", 8, gpu=500), group("p", 1, cpu=16)]) is None
    assert never_fits(table, [group("w", 99, cpu=16, minimum=2)]) is None


def test_one_large_enough_cluster_is_enough_and_none_judges_nothing():
    table = table_of(node("a", 4, cluster="x"), node("b", 8, cluster="y"))
    assert never_fits(table, [group("w", 8, cpu=1)]) is None
    assert never_fits(table, [group("w", 8, cpu=1)], cluster_mask=("x",)) is not None
    assert never_fits(table, [group("w", 8, cpu=1)], cluster_mask=()) is None
    assert never_fits(NodeTable(), [group("w", 8, cpu=1)]) is None
