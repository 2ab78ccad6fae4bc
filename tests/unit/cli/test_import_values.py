"""What of other systems' definitions keeps its meaning only when it is worked out: weights, properties, actions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from tests.unit.cli.definitions import cluster_queue, imported, partition, queue

from muster.cli.errors import CliError
from muster.cli.imports import reading, weights


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        (["1", "2"], [1, 2]),
        (["0.0001", "1"], [1, 10_000]),
        (["0.3", "500m", "0"], [3, 5, 0]),
        (["2k", "1Ki"], [2000, 1024]),
        (["2M", "3M"], [2, 3]),
        (["1e3", "1u"], [1_000_000, 1]),
        (["0.0000001", "3", "1.5", "0"], [1, 1_000_000, 500_000, 0]),
    ],
)
def test_weights_keep_their_proportion(stated, found):
    assert weights.proportional([reading.fraction(text, "") for text in stated]) == found


def test_what_is_rounded_is_told_with_what_it_became():
    shares = [("a", "0.0000001"), ("b", "3"), ("c", None)]
    queues = [cluster_queue(n, cohortName="o", **({"fairSharing": {"weight": w}} if w else {})) for n, w in shares]
    made, notes = imported("kueue", *queues)
    assert [made[f"o/{name}"].get("weight", 1) for name, _ in shares] == [1, 1_000_000, 333_333]
    assert notes == [
        'weights below "o": are whole numbers here, in the same proportion: ClusterQueue a 1e-07 -> 1 (rounded from '
        "0.0333333), ClusterQueue b 3 -> 1000000, ClusterQueue c 1 -> 333333 (rounded from 333333)"
    ]


def test_weights_of_volcano_may_be_greater_than_ours():
    made, notes = imported("volcano", queue("a", {"weight": 2_000_000}), queue("b", {"weight": 0}), queue("c", {}))
    assert [made[name].get("weight", 1) for name in "abc"] == [1_000_000, 1, 1]
    assert "Queue b 1 -> 1 (rounded from 0.5)" in notes[-1]


def test_properties_are_handed_down_as_yunikorn_does_it():
    handed = {"application.sort.policy": "fair", "preemption.policy": "disabled", "priority.offset": "4"}
    prod = {
        "name": "prod",
        "properties": handed,
        "queues": [
            {"name": "a"},
            {"name": "b", "properties": {"application.sort.policy": "fifo", "preemption.policy": "default"}},
            {"name": "c", "properties": {"application.sort.policy": "fifo", "application.sort.priority": "disabled"}},
        ],
    }
    fenced = {"name": "f", "properties": {"preemption.policy": "fence"}, "queues": [{"name": "x"}]}
    made, notes = imported("yunikorn", partition(prod, fenced, properties={"application.sort.priority": "enabled"}))
    assert made == {
        "f": {},
        "f/x": {"preemption": "ANY"},
        "prod": {"priority": 4},
        "prod/a": {"ordering": "FAIR", "preemption": "ANY"},
        "prod/b": {"preemption": "ANY"},
        "prod/c": {"ordering": "FIFO", "preemption": "ANY"},
    }
    protected = "preemption.policy disabled has no counterpart and is left out: others take back from it here as well"
    assert [note.split(":")[0] for note in notes if protected in note] == ["queue root.prod.a", "queue root.prod.c"]
    assert [note.split(":")[0] for note in notes if "policy fence has no counterpart" in note] == ["queue root.f"]
    assert "queue root.prod.a: application.sort.policy fair: fair between namespaces" in "\n".join(notes)


def test_what_the_root_states_is_handed_down_too():
    made, _ = imported("yunikorn", partition({"name": "a"}, properties={"application.sort.policy": "fair"}))
    assert made["a"]["ordering"] == "FAIR"


def test_guarantees_that_differ_share_the_rest_differently():
    named = [{"name": name, "resources": {"guaranteed": {"vcore": cores}}} for name, cores in (("a", 1), ("b", 2))]
    _, notes = imported("yunikorn", partition(*named))
    assert notes == [
        "weights at the top: YuniKorn shares the rest in proportion to guarantees, here all have the weight 1"
    ]
    assert imported("yunikorn", partition(named[0], named[0] | {"name": "c"}))[1] == []


@pytest.mark.parametrize(
    ("actions", "preemption"),
    [
        ("enqueue, allocate, backfill", "NEVER"),
        ("enqueue, allocate, preempt", None),
        ("enqueue, allocate, preempt, reclaim", "ANY"),
        ("allocate, gangreclaim", "ANY"),
    ],
)
def test_preemption_goes_by_the_actions_of_the_scheduler(actions, preemption):
    conf = f'actions: "{actions}"\ntiers:\n- plugins: [{{name: priority}}]\n- plugins: [{{name: capacity}}]'
    other = {"kind": "ConfigMap", "metadata": {"name": "web"}, "data": {"nginx.conf": "a: ["}}
    scheduler = {"kind": "ConfigMap", "metadata": {"name": "conf"}, "data": {"volcano-scheduler.conf": conf}}
    made, notes = imported("volcano", queue("a", {"weight": 2}), other, scheduler)
    assert made["a"].get("preemption") == preemption
    assert notes == [
        "ConfigMap web: has no counterpart and is left out",
        f"ConfigMap conf: with the actions {actions} the queues have preemption {preemption or 'LOWER_PRIORITY'} here",
        "ConfigMap conf: has no counterpart otherwise and is left out: plugins priority, capacity",
        "ConfigMap conf: plugin capacity reads no weight; here it shares what nobody is guaranteed",
    ]


def test_a_maximum_of_nothing_at_all_is_none_for_yunikorn():
    some = {"name": "a", "resources": {"max": {"vcore": 0, "memory": 1}}}
    made, notes = imported("yunikorn", partition(some, {"name": "b", "resources": {"max": {"vcore": 0}}}))
    assert made["a"]["limit"] == {"cpu": "0", "memory": "1"}
    assert "limit" not in made["b"]
    assert notes == ["queue root.b: resources.max is left out: where all of it is 0, YuniKorn takes none for set"]


def test_labels_stay():
    labelled = queue("a", {})
    labelled["metadata"]["labels"] = {"team": "x", "on": True}
    assert imported("volcano", labelled)[0]["a"]["labels"] == {"on": "True", "team": "x"}


def test_a_sum_that_is_too_great_for_a_limit_limits_nothing():
    groups = [{"flavors": [{"name": "f", "resources": [{"name": "memory", "nominalQuota": "1Pi"}]}]}]
    big = [cluster_queue(name, cohort="o", resourceGroups=groups) for name in "ab"]
    made, notes = imported("kueue", *big)
    assert "limit" not in made["o"]
    assert "o: limit of memory is left out: it is beyond 1Pi" in notes


def test_fractions_are_read_exactly():
    assert reading.fraction("1.5", "") == Fraction(3, 2)
    assert reading.fraction(".5Ki", "") == 512
    for text in ("-1", "", "1..2", "nan", "1e9999", "1x"):
        with pytest.raises(CliError):
            reading.fraction(text, "weight")
