"""Entitlements of small trees, worked out by hand or published by others (rules F1-F3)."""

import pytest
from tests.property.reference_entitlements import Queue, queue_tree

from muster.core.entitlements import EntitlementEngine, entitlements


def computed(queues, capacity):
    """Entitlements by path."""
    tree, demand, ids = queue_tree(Queue("", children=queues))
    result = entitlements(tree, demand, tuple(sorted(capacity.items())))
    return {path: dict(result[queue]) for path, queue in ids.items() if path}


def one(name, weight, demand, **settings):
    return Queue(name, weight, flows=[{"cpu": demand}] if demand else [], **settings)


def cpu(result):
    return {path: amounts.get("cpu", 0) for path, amounts in result.items()}


# (where the case comes from, capacity, queues, expected)
ONE_RESOURCE = {
    "weights 2 to 1": ("Volcano docs/design/queue/queue.md", 6, [one("a", 2, 6), one("b", 1, 6)], {"a": 4, "b": 2}),
    "an unused share flows on": ("Volcano proportion", 6, [one("a", 2, 2), one("b", 1, 6)], {"a": 2, "b": 4}),
    "a limit caps": ("Volcano proportion", 6, [one("a", 2, 6, limit={"cpu": 3}), one("b", 1, 6)], {"a": 3, "b": 3}),
    "a guarantee goes first": (
        "Volcano proportion",
        6,
        [one("a", 2, 6), one("b", 1, 6, guaranteed={"cpu": 4})],
        {"a": 2, "b": 4},
    ),
    "a lending limit withholds": (
        "Kueue lendingLimit",
        10,
        [one("a", 1, 0, guaranteed={"cpu": 6}, lending={"cpu": 2}), one("b", 1, 10, guaranteed={"cpu": 4})],
        {"a": 0, "b": 6},
    ),
    "weight 0 takes leftovers": ("Kueue issues 6774, 13479", 10, [one("a", 0, 10), one("b", 1, 4)], {"a": 6, "b": 4}),
    "weight 0 gets nothing where others want it": (
        "rule Q3",
        10,
        [one("a", 0, 10), one("b", 1, 40)],
        {"a": 0, "b": 10},
    ),
    "leftovers are shared equally": (
        "rule F2",
        10,
        [one("a", 0, 10), one("b", 0, 10), one("c", 5, 4)],
        {"a": 3, "b": 3, "c": 4},
    ),
    "a guarantee of weight 0 is still a guarantee": (
        "rule F2",
        10,
        [one("a", 0, 10, guaranteed={"cpu": 3}), one("b", 1, 40)],
        {"a": 3, "b": 7},
    ),
    "the guaranteed wait until the others have caught up": (
        "rule F2, clamp(lambda * w, floor, cap)",
        12,
        [one("a", 1, 12, guaranteed={"cpu": 6}), one("b", 1, 12), one("c", 1, 12)],
        {"a": 6, "b": 3, "c": 3},
    ),
    "guarantees that do not fit are scaled down": (
        "rule F2, capacity was lost",
        6,
        [one("a", 1, 12, guaranteed={"cpu": 8}), one("b", 9, 12, guaranteed={"cpu": 4}), one("c", 9, 12)],
        {"a": 4, "b": 2, "c": 0},
    ),
    "remainders go to the largest, then by name": (
        "rule F2, integers",
        10,
        [one("b", 1, 9), one("a", 1, 9), one("c", 1, 9)],
        {"a": 4, "b": 3, "c": 3},
    ),
    "a guarantee that nobody uses is lent": (
        "rule F2, no lending limit",
        10,
        [one("a", 1, 0, guaranteed={"cpu": 6}), one("b", 1, 10)],
        {"a": 0, "b": 10},
    ),
    "what demand uses of a guarantee is not withheld again": (
        "rule F2, withheld",
        10,
        [one("a", 1, 3, guaranteed={"cpu": 6}, lending={"cpu": 1}), one("b", 1, 10)],
        {"a": 3, "b": 5},
    ),
    "nothing to share": ("rule F2", 0, [one("a", 1, 3)], {"a": 0}),
}


@pytest.mark.parametrize("case", ONE_RESOURCE)
def test_one_resource_and_one_level(case):
    _, capacity, queues, expected = ONE_RESOURCE[case]
    assert cpu(computed(queues, {"cpu": capacity})) == expected


def test_dominant_shares_of_two_users():
    """Ghodsi et al., Dominant Resource Fairness, NSDI 2011, section 4.1: 3 tasks of (1, 4) and 2 tasks of (3, 1)."""
    users = [
        Queue("a", flows=[{"cpu": 100 * 1, "memory": 100 * 4}]),
        Queue("b", flows=[{"cpu": 100 * 3, "memory": 100 * 1}]),
    ]
    result = computed(users, {"cpu": 9, "memory": 18})
    assert result == {"a": {"cpu": 3, "memory": 12}, "b": {"cpu": 6, "memory": 2}}


def test_a_queue_is_not_starved_by_what_its_siblings_children_leave():
    """Volcano pkg/scheduler/plugins/drf/hdrf_test.go."""
    queues = [
        Queue("sci", 50, flows=[{"cpu": 10, "memory": 10}]),
        Queue("eng", 50, children=[Queue("dev", 50, flows=[{"cpu": 10}]), Queue("prod", 50, flows=[{"memory": 10}])]),
    ]
    result = computed(queues, {"cpu": 10, "memory": 10})
    assert result["sci"] == {"cpu": 5, "memory": 5}
    assert result["eng/dev"] == {"cpu": 5}
    assert result["eng/prod"] == {"memory": 5}
    assert result["eng"] == {"cpu": 5, "memory": 5}


def test_a_saturated_resource_does_not_block_the_other():
    """Volcano docs/design/hdrf.md."""
    queues = [
        Queue("n1", 25, flows=[{"cpu": 30}]),
        Queue("n2", 25, flows=[{"cpu": 30}]),
        Queue("n3", 25, children=[Queue("c", 1, flows=[{"cpu": 30}]), Queue("m", 1, flows=[{"memory": 30}])]),
        Queue("n4", 25, flows=[{"memory": 30}]),
    ]
    result = computed(queues, {"cpu": 30, "memory": 30})
    assert result["n1"] == result["n2"] == result["n3/c"] == {"cpu": 10}
    assert result["n3/m"] == result["n4"] == {"memory": 15}


def test_an_exhausted_resource_freezes_only_the_flows_that_need_it():  # rule F3
    queues = [Queue("a", flows=[{"cpu": 100, "gpu": 100}, {"cpu": 100}]), Queue("b", flows=[{"gpu": 100}])]
    result = computed(queues, {"cpu": 100, "gpu": 10})
    assert result["b"]["gpu"] + result["a"]["gpu"] == 10
    assert result["a"]["cpu"] == 100


def test_a_flow_that_asks_for_what_there_is_not_gets_nothing_and_disturbs_nobody():
    queues = [Queue("a", flows=[{"cpu": 10, "tpu": 1}, {"cpu": 10}]), Queue("b", flows=[{"cpu": 10}])]
    assert computed(queues, {"cpu": 10, "tpu": 0}) == {"a": {"cpu": 5}, "b": {"cpu": 5}}


def test_an_unnamed_resource_never_gets_a_larger_share_than_the_guaranteed_one():
    queues = [
        Queue("a", 0, guaranteed={"gpu": 4}, flows=[{"cpu": 100, "gpu": 10}, {"cpu": 100}]),
        Queue("b", flows=[{"cpu": 1000}]),
    ]
    result = computed(queues, {"cpu": 100, "gpu": 10})
    # Its flow with cpu and gpu has the share 1 of both, so it is covered by the gpu: 4 of 10 of each.
    assert result["a"] == {"cpu": 40, "gpu": 4}
    assert result["b"] == {"cpu": 60}


def test_limits_above_the_guaranteed_queue_count_when_they_hold_nothing_else():
    """A queue put between another and its only child changes nothing."""
    limited = {"cpu": 3}
    flows = [{"cpu": 10, "gpu": 10}, {"gpu": 10}]
    flat = [Queue("a", guaranteed={"gpu": 8}, limit=limited, flows=flows), Queue("b", flows=[{"gpu": 20}])]
    nested = [
        Queue("a", limit=limited, children=[Queue("x", guaranteed={"gpu": 8}, flows=flows)]),
        Queue("b", flows=[{"gpu": 20}]),
    ]
    capacity = {"cpu": 20, "gpu": 20}
    assert computed(flat, capacity)["a"] == computed(nested, capacity)["a"] == {"cpu": 3, "gpu": 10}


def test_parents_have_what_their_children_have_and_every_unit_goes_somewhere():
    leaves = [Queue(f"l{i}", 1, flows=[{"cpu": 1000}]) for i in range(7)]
    queues = [Queue("p", 1, children=leaves), Queue("q", 2, flows=[{"cpu": 1000}])]
    result = cpu(computed(queues, {"cpu": 100}))
    assert (result["p"], result["q"]) == (33, 67)
    assert [result[f"p/l{i}"] for i in range(7)] == [5, 5, 5, 5, 5, 4, 4]


def test_an_engine_that_is_asked_again_gives_the_same_object_as_long_as_nothing_matters():
    tree, demand, _ = queue_tree(Queue("", children=[one("a", 1, 100), one("b", 1, 2)]))
    engine, capacity = EntitlementEngine(), (("cpu", 10),)
    first = engine.entitlements(tree, demand, capacity)
    assert first == {"q1": (("cpu", 8),), "q2": (("cpu", 2),)}
    assert engine.entitlements(tree, dict(demand), capacity) is first
    more = {**demand, "q1": ((("cpu", 200),),)}  # it did not get the 100 either
    assert engine.entitlements(tree, more, capacity) is first
    less = {**more, "q1": ((("cpu", 7),),)}
    assert engine.entitlements(tree, less, capacity) == {"q1": (("cpu", 7),), "q2": (("cpu", 2),)}
    assert engine.entitlements(tree, less, (("cpu", 6),)) == {"q1": (("cpu", 4),), "q2": (("cpu", 2),)}
    assert engine.entitlements(tree, {}, (("cpu", 6),)) == {"q1": (), "q2": ()}


def test_a_thousand_alike_queues_are_shared_out_exactly():
    """Numbers with many ties: what is decided by names is decided by names."""
    leaves = [Queue(f"l{i:03}", 1, flows=[{"cpu": 10_000, "gpu": 1000, "pods": 10}]) for i in range(300)]
    result = computed(leaves, {"cpu": 1_000_001, "gpu": 100_000, "pods": 9_999})
    assert [result[f"l{i:03}"]["gpu"] for i in (0, 99, 100, 299)] == [334, 334, 333, 333]
    assert sum(amounts["gpu"] for amounts in result.values()) == 100_000
    assert {amounts["pods"] for amounts in result.values()} == {3, 4}


def test_where_there_are_no_queues_nobody_is_entitled_to_anything():
    nothing, _, _ = queue_tree(Queue(""))
    engine = EntitlementEngine()
    assert engine.entitlements(nothing, {}, (("cpu", 1000),)) == {}
    assert engine.entitlements(nothing, {}, ()) == {}
    tree, demand, _ = queue_tree(Queue("", children=[one("a", 1, 5)]))
    assert engine.entitlements(tree, {}, ()) == {"q1": ()}
    assert engine.entitlements(tree, demand, (("cpu", 3),)) == {"q1": (("cpu", 3),)}
