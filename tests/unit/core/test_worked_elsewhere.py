"""Worked examples of other systems in numbers: entitlements, whose turn it is, and what a limit lets start.

Where the same rule gives the same result, it is theirs; where a rule of ours says something else, ours is expected and
the reason stands beside it. Examples that are in the acceptance list are in `test_entitlements` and `test_reclaim`.
"""

from __future__ import annotations

import pytest
from tests.property.reference_entitlements import Queue
from tests.unit.core.preempting import cpu, many
from tests.unit.core.test_entitlements import computed, one
from tests.unit.core.test_entitlements import cpu as cpus
from tests.unit.core.test_turns import entitle, started, submit

from muster.core import commands as c
from muster.core.explain import explain
from muster.core.model import Amounts, JobState, NodeSpec
from muster.core.turns import INFINITE, SHARE_BITS, share

GI = 1 << 30


def both(cores: int, gibibytes: int) -> Amounts:
    return tuple((name, amount) for name, amount in (("cpu", cores * 1000), ("memory", gibibytes * GI)) if amount)


def hardware(world, *sizes):
    specs = (NodeSpec("sim-a", f"node-{n}", (*size, ("pods", 110))) for n, size in enumerate(sizes, 1))
    world.cell.send(c.NodesReported("sim-a", tuple(specs), first=True, complete=True))


# --- entitlements (rules F1, F2) ------------------------------------------------------------------------------------


def test_three_weights_of_which_one_asks_for_little():
    """Volcano proportion: 2, 6 2/3 and 3 1/3 of 12; in thousandths the largest remainder gets the last one."""
    queues = [one("a", 3, 2000), one("b", 2, 12_000), one("c", 1, 12_000)]
    assert cpus(computed(queues, {"cpu": 12_000})) == {"a": 2000, "b": 6667, "c": 3333}


def test_weights_divide_everything_and_not_what_is_left_above_the_guarantees():
    """Koordinator's quota tree: 100, minimums of 5, 15, 20 and 15, and a wants no more than that.

    There each hungry queue gets its minimum and a part of the rest by weight: 5, 20, 35 and 40. Here a guarantee is a
    floor (rule F2): who is guaranteed more than others is not given more of the rest for it as well.
    """
    queues = [
        one("a", 10, 5, guaranteed={"cpu": 5}),
        one("b", 60, 20, guaranteed={"cpu": 15}),
        one("c", 50, 100, guaranteed={"cpu": 20}),
        one("d", 80, 100, guaranteed={"cpu": 15}),
    ]
    assert cpus(computed(queues, {"cpu": 100})) == {"a": 5, "b": 20, "c": 29, "d": 46}  # c : d is 50 : 80 of 75


def test_what_an_idle_sibling_is_guaranteed_is_shared_by_all_levels():
    """KAI 1934: siblings divide what their parent is entitled to, and that is more than what it is guaranteed."""
    queues = [
        one("idle", 1, 0, guaranteed={"cpu": 4}),
        Queue(
            "p",
            guaranteed={"cpu": 4},
            children=[one("a", 1, 9, guaranteed={"cpu": 2}), one("b", 3, 9, guaranteed={"cpu": 2})],
        ),
    ]
    assert cpus(computed(queues, {"cpu": 8})) == {"idle": 0, "p": 8, "p/a": 2, "p/b": 6}


def test_a_weight_of_a_million_beside_one_and_zero():
    """Kueue 6774, 7101: nothing saturates. What a weight of 1 gets beside a million rounds to nothing, or does not."""
    queues = [one("m", 1_000_000, 10**9), one("one", 1, 10**9), one("z", 0, 10**9)]
    assert cpus(computed(queues, {"cpu": 8000})) == {"m": 8000, "one": 0, "z": 0}
    assert cpus(computed(queues, {"cpu": 10**9})) == {"m": 999_999_000, "one": 1000, "z": 0}


# --- whose turn it is (rule F5) -------------------------------------------------------------------------------------

GUARANTEED = (500, 300, 200, 200)


@pytest.mark.parametrize(
    ("used", "priorities", "expected"),
    [
        ((300, 200, 100, 100), (0, 0, 0, 2), ["q3", "q2", "q0", "q1"]),
        ((200, 300, 100, 100), (0, 0, 0, 0), ["q0", "q3", "q2", "q1"]),
        ((200, 300, 100, 100), (0, 0, 0, 2), ["q3", "q0", "q2", "q1"]),
    ],
)
def test_queues_are_sorted_by_what_they_have_of_what_they_deserve(world, used, priorities, expected):
    """YuniKorn's sorters: shares 3/5, 2/3, 1/2, 1/2 and 2/5, 1, 1/2, 1/2. Equals there go by what they wait for, here
    by which head is older: q3's."""
    for n, priority in enumerate(priorities):
        world.queue(f"q{n}", guaranteed=cpu(GUARANTEED[n] * 1000), priority=priority)
    entitle(world, **{f"q{n}": guaranteed * 1000 for n, guaranteed in enumerate(GUARANTEED)})
    world.nodes(1, cpu=sum(used) * 1000)
    for n, amount in enumerate(used):
        world.submit(f"has-{n}", queue=f"q{n}", cpu=amount * 1000)
    for n in (3, 2, 1, 0):
        world.cell.now_ms += 1
        world.submit(f"wants-{n}", queue=f"q{n}", cpu=1)
    assert started(world.nodes(1, cpu=sum(used) * 1000 + 4), world) == expected


def test_each_queue_is_compared_with_what_it_deserves_itself(world):
    """YuniKorn's comparator looked up the maximum of another queue once two had changed places: there b, a, c."""
    deserved, used = {"a": 100, "b": 1000, "c": 40}, {"a": 90, "b": 50, "c": 30}
    for name in deserved:
        world.queue(name)
    entitle(world, **{name: amount * 1000 for name, amount in deserved.items()})
    world.nodes(1, cpu=170_000)
    for name, amount in used.items():
        world.submit(f"has-{name}", queue=name, cpu=amount * 1000)
    for name in deserved:
        world.submit(f"wants-{name}", queue=name, cpu=1)
    assert started(world.nodes(1, cpu=170_003), world) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("used", "entitled", "expected"),
    [
        ({"v": 100, "m": 2500}, {"v": 1000, "m": 5000}, (1, 2)),
        ({"v": 0, "m": 1000}, {"v": 0, "m": 5000}, (1, 5)),
        ({}, {"v": 1000}, (0, 1)),
        ({"v": 10}, {"v": 0}, None),  # 1 there: like a queue that has just what it deserves; here above all others
    ],
)
def test_fair_shares(used, entitled, expected):
    """YuniKorn's getFairShare."""
    if expected is None:
        assert share(entitled, used, {}) == INFINITE > share({"v": 1}, {"v": 10**15}, {})
    else:
        assert share(entitled, used, {}) == (expected[0] << SHARE_BITS) // expected[1]


def test_the_free_node_goes_to_the_queue_of_the_highest_priority_and_nobody_leaves(world, around):
    """Volcano proportion and capacity, both tests of allocate: priority 5 has a node, 1 and 10 want the other one."""
    world.nodes(1, cpu=2000)
    for name, priority in (("q1", 5), ("q2", 1), ("q3", 10)):
        world.queue(name, priority=priority)
    world.submit("has", queue="q1", cpu=2000)
    for name in ("q2", "q3"):
        submit(world, name, 1, cpu=2000)
    around.note(world.nodes(2, cpu=2000))
    around.calm()
    assert [world.job(name).state is JobState.QUEUED for name in ("has", "q2-0", "q3-0")] == [False, True, False]
    assert around.evicted == []


def test_a_queue_of_weight_zero_that_remembers_comes_last(world):
    """Kueue 13479: usage divided by a weight of 0 was no number at all, and sorted first."""
    world.queue("t", half_life_ms=3_600_000)
    for leaf, weight in (("t/none", 0), ("t/some", 1)):
        world.queue(leaf, weight=weight)
    world.nodes(1, cpu=2000)
    submit(world, "t/none", 2)
    world.cell.wait(3_600_000)
    for n in range(2):
        world.pods(f"t-none-{n}", 3)
    entitle(world, t=2000, t_none=0, t_some=2000)
    world.nodes(1, ready=False)
    world.cell.send(*[c.SubmitJob(world.spec(f"z-{n}", queue="t/none")) for n in range(2)])
    world.cell.now_ms += 10
    submit(world, "t/some", 3)
    assert started(world.nodes(1, cpu=4000), world) == ["t/some", "t/some", "t/some", "t/none"]


def test_one_job_of_each_queue_starts_in_a_cycle(world):
    """Kueue 14477: a queue of many small jobs drains at one a cycle. Here five hundred start at one moment."""
    many(world, "small", 500, "research")
    world.nodes(10, cpu=50_000)
    assert {world.job(f"small-{n}").placed_ms for n in range(500)} == {world.cell.now_ms}


# --- limits (rule F6) -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "size", "node"),
    [("q1", both(1, 0), 0), ("q2", both(0, 1), 1), ("q1", both(1, 1), None), ("shut", both(1, 0), None)],
)
def test_only_what_a_job_asks_for_counts_against_a_limit(world, queue, size, node):
    """Volcano proportion, enqueue and allocate: memory is used up and not asked for; asked for; the queue is shut.

    Theirs is closed. Here a closed queue only takes no more jobs, and one that starts none is stopped.
    """
    hardware(world, both(2, 2), both(2, 2))
    world.queue("q1", limit=both(2, 2))
    world.queue("q2", limit=both(3, 3))
    world.queue("shut", state="STOPPED")
    world.submit("first", queue="q1", requests=both(1, 2))
    world.submit("second", queue="q2", requests=both(2, 1))
    assert [world.job(name).placement[0].runs for name in ("first", "second")] == [((0, 1),), ((1, 1),)]
    world.submit("wants", queue=queue, requests=size)
    assert world.job("wants").placement == () if node is None else world.job("wants").placement[0].runs == ((node, 1),)


def test_what_is_placed_and_not_seen_yet_is_counted_once(world):
    """Volcano proportion: what was being bound was counted as waiting as well, 7 of 4, and a core stayed empty."""
    world.queue("research", limit=cpu(4000))
    world.nodes(1, cpu=4000)
    world.submit("gang", replicas=3)
    assert world.job("gang").state is JobState.PLACED
    world.submit("last")
    assert world.job("last").charged
    assert world.state.queues.find("research").usage["cpu"] == 4000


def test_nobody_leaves_for_a_job_that_passes_the_limit_in_one_resource(world, around):
    """Volcano capacity and issue 5048: 7 of 8 cores and 90 of 100 Gi are used, it wants 2 and 5: one core too many."""
    hardware(world, both(7, 90), both(4, 40))
    own = both(8, 100)
    world.queue("mine", guaranteed=own, limit=own, preemption="ANY")
    world.queue("other")
    world.submit("has", queue="mine", requests=both(7, 90))
    many(world, "loan", 4, "other", requests=both(1, 10))
    entitle(world, mine=own, other=())
    world.submit("wants", queue="mine", requests=both(2, 5))
    around.wait(120_000, 10_000)
    assert around.evicted == []
    blockers = {(b.subject, b.resource): b.missing for b in explain(world.state, world.id("wants")).blockers}
    assert blockers[("mine", "cpu")] == 1000
    assert ("mine", "memory") not in blockers
