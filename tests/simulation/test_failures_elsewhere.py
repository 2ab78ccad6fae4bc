"""Who had to leave in vain, too often, or instead of somebody else in other systems, and that it is not so here.

Each story is a failure that users of another system have seen, in its plain words; the docstring says where. As in
`test_traps` everything goes through the services in virtual time, and a witness checks the invariants, usage and P1 at
every commit. `test_failures_elsewhere_quota` has what went wrong with quotas, gangs and restarts,
`test_guides_elsewhere` what other systems promise in their guides.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from .scenario import GI, Scenario, amounts, group, told

PAUSES_S = 200.0  # longer than the first two pauses of a victim together (rule P5)
WEIGHT_MAX = 1_000_000


@told()
async def test_two_queues_of_one_parent_take_a_core_from_each_other_for_ever(cell: Scenario) -> None:
    """Five cores, each is entitled to two and a half, jobs of one core: whoever has three keeps them.

    Within a queue the older of the victims may take the place of a newer job when its pause is over, and that is all.
    Seen in Kueue 3779 and 7101, Volcano 561, 3869 and 4949: the victim was back at once and took its place again.
    """
    cell.nodes(5, cpu=1000)
    for path in ("parent", "parent/first", "parent/second"):
        await cell.queue(path, preemption="ANY")
    await cell.submit("f", 5, queue="parent/first", cpu=1000)
    await cell.until(lambda: len(cell.running("parent/first")) == 5)
    await cell.submit("s", 5, queue="parent/second", cpu=1000)
    await cell.until(lambda: len(cell.running("parent/second")) == 2)
    await cell.wait(PAUSES_S)
    assert [cell.entitled(f"parent/{name}") for name in ("first", "second")] == [2500, 2500]
    assert [len(cell.running(f"parent/{name}")) for name in ("first", "second")] == [3, 2]
    across = [victim for by, victim in cell.record.took if by[0] != victim[0]]
    assert [name[0] for name in across] == ["f", "f"]
    assert max(Counter(cell.evicted).values()) == 1
    await cell.is_silent()
    await cell.writes_nothing(for_s=60.0)


@pytest.mark.parametrize("cores", [4, 5])
@told()
async def test_a_job_that_needs_victims_of_its_own_queue_and_of_another_one(cell: Scenario, cores: int) -> None:
    """Two cores are lent, its own queue has three: both borrowers leave, and of its own no more than needed.

    Seen in Kueue 14543: victims of its own queue were put back, so that others had left against the rules, for ever.
    """
    cell.nodes(1, cpu=10_000)
    for path in ("parent", "parent/mine", "parent/other"):
        await cell.queue(path, preemption="ANY")
    await cell.submit("other", 7, queue="parent/other", cpu=1000)
    await cell.until(lambda: len(cell.running("parent/other")) == 7)
    await cell.submit("low", 3, queue="parent/mine", cpu=1000)
    await cell.until(lambda: len(cell.running("parent/mine")) == 3)
    await cell.submit("high", queue="parent/mine", cpu=cores * 1000, priority=5)
    await cell.until(lambda: cell.runs("high"))
    assert Counter(name.split("-")[0] for name in cell.evicted) == {"other": 2, "low": cores - 2}
    assert (cell.used("parent/mine"), cell.used("parent/other")) == (5000, 5000)
    await cell.wait(PAUSES_S)
    assert {(by.split("-")[0], victim.split("-")[0]) for by, victim in cell.record.took if by != "high"} <= {
        ("low", "low"),
        ("other", "other"),
    }
    assert (cell.used("parent/mine"), cell.used("parent/other")) == (5000, 5000)
    await cell.is_silent()
    await cell.writes_nothing(for_s=60.0)


@told()
async def test_nobody_leaves_for_a_job_that_would_need_more_than_what_is_lent(cell: Scenario) -> None:
    """The same, but it needs six cores: two that are lent and its own three are not enough, so it waits.

    Seen in Kueue 14543 as well: more was taken of the other queue than it had borrowed, and it took it back.
    """
    cell.nodes(1, cpu=10_000)
    for path in ("parent", "parent/mine", "parent/other"):
        await cell.queue(path, preemption="ANY")
    await cell.submit("other", 7, queue="parent/other", cpu=1000)
    await cell.until(lambda: len(cell.running("parent/other")) == 7)
    await cell.submit("low", 3, queue="parent/mine", cpu=1000)
    await cell.until(lambda: len(cell.running("parent/mine")) == 3)
    await cell.submit("high", queue="parent/mine", cpu=6000, priority=5)
    await cell.is_silent()
    assert [cell.entitled(path) for path in ("parent/mine", "parent/other")] == [5000, 5000]
    assert cell.evicted == []
    assert cell.waits("high")


@told()
async def test_weights_of_zero_and_of_a_million_side_by_side(cell: Scenario) -> None:
    """Two queues of weight 0 divide what is left over; beside a weight of a million one of 1 rounds to nothing.

    Seen in Kueue 6774, 7101 and 13479: shares became infinite, saturated or were no numbers, and victims came back.
    """
    cell.nodes(8, cpu=1000)
    weights = {"none-1": 0, "none-2": 0, "one": 1, "million": WEIGHT_MAX}
    for name, weight in weights.items():
        await cell.queue(name, weight=weight, preemption="ANY")
    for name, jobs in (("none-1", 8), ("none-2", 8), ("one", 2), ("million", 3)):
        await cell.submit(name, jobs, queue=name, cpu=1000)
        await cell.rests()
    assert [cell.entitled(name) for name in weights] == [1500, 1500, 2000, 3000]
    assert sorted(len(cell.running(f"none-{n}")) for n in (1, 2)) == [1, 2]
    assert [len(cell.running(name)) for name in ("one", "million")] == [2, 3]
    await cell.submit("more", 8, queue="million", cpu=1000)
    await cell.until(lambda: len(cell.running("million")) == 8)
    assert [cell.entitled(name) for name in weights] == [0, 0, 0, 8000]
    await cell.wait(PAUSES_S)
    assert max(Counter(cell.evicted).values()) == 1
    await cell.is_silent()
    await cell.writes_nothing(for_s=60.0)


@told()
async def test_the_important_jobs_of_a_cousin_leave_for_jobs_of_no_importance(cell: Scenario) -> None:
    """What a leaf lacks its sibling has borrowed, with its least important jobs: those three leave and nobody else.

    Seen in Kueue 10131: in a tree, more jobs left than were needed, others each time, and important ones too.
    """
    cell.nodes(3, cpu=4000)
    for path in ("near", "near/mine", "near/sibling", "far"):
        await cell.queue(path, preemption="ANY")
    for name, queue in (("sibling", "near/sibling"), ("far", "far")):
        await cell.submit(f"{name}-low", 3, queue=queue, cpu=1000)
        await cell.submit(f"{name}-high", 3, queue=queue, cpu=1000, priority=9)
        await cell.until(lambda queue=queue: len(cell.running(queue)) == 6)
    await cell.submit("mine", 3, queue="near/mine", cpu=1000)
    await cell.until(lambda: len(cell.running("near/mine")) == 3)
    await cell.wait(PAUSES_S)
    assert sorted(cell.evicted) == [f"sibling-low-{n}" for n in range(3)]
    assert [cell.entitled(queue) for queue in ("near/mine", "near/sibling", "far")] == [3000, 3000, 6000]
    await cell.is_silent()


@told()
async def test_of_many_who_borrow_an_important_or_a_distant_one_leaves(cell: Scenario) -> None:
    """Three leaves borrow, and only one core can be used: of the two that are near it comes from the one whose jobs are
    less important, though others are newer. The distant one, which has a core too many, gives that to who came short.

    Seen in Kueue 10131 and Volcano 5964.
    """
    cell.node("special", labels={"pool": "special"}, cpu=4000)
    cell.kubes["sim-a"].cordon_node("special", True)
    cell.node("plain", cpu=14_000)
    for path in ("near", "near/mine", "near/low", "near/high", "far"):
        await cell.queue(path, preemption="ANY")
    for path, count, priority in (("near/low", 3, 0), ("near/high", 3, 9), ("far", 8, 0)):
        await cell.submit(path.replace("/", "-"), count, queue=path, cpu=1000, priority=priority)
        await cell.until(lambda path=path, count=count: len(cell.running(path)) == count)
        await cell.wait(5.0)
    elsewhere = group("main", 1, amounts(cpu=4000), node_selector=(("pool", "special"),))
    await cell.submit("blocked", queue="near/mine", tasks=(elsewhere,))
    await cell.submit("mine", queue="near/mine", cpu=1000)
    await cell.until(lambda: cell.runs("mine"))
    assert [cell.entitled(path) for path in ("near/mine", "near/low", "near/high", "far")] == [2333, 2333, 2334, 7000]
    assert [name.rsplit("-", 1)[0] for name in cell.evicted] == ["near-low"]
    await cell.wait(PAUSES_S)
    assert [cell.used(path) for path in ("near/mine", "near/low", "near/high", "far")] == [1000, 3000, 3000, 7000]
    assert not any(name.startswith("near-high") for name in cell.evicted)
    await cell.is_silent()


@told()
async def test_a_queue_that_is_protected_ends_the_search(cell: Scenario) -> None:
    """Of two borrowers one may not be touched yet: the other gives its part at once, the first when its time is over.

    Seen in KAI 1750: where one queue was protected, nothing was taken back from anybody.
    """
    cell.nodes(12, cpu=1000)
    await cell.queue("lender", preemption="ANY")
    await cell.queue("patient", min_runtime_ms=120_000)
    await cell.queue("plain")
    for name in ("patient", "plain"):
        await cell.submit(name, 6, queue=name, cpu=1000)
    await cell.until(lambda: [len(cell.running(name)) for name in ("patient", "plain")] == [6, 6])
    await cell.submit("mine", 6, queue="lender", cpu=1000)
    await cell.until(lambda: len(cell.running("lender")) == 2)
    await cell.rests()
    assert Counter(name.split("-")[0] for name in cell.evicted) == {"plain": 2}
    await cell.until(lambda: len(cell.running("lender")) == 4, within_s=130.0)
    assert Counter(name.split("-")[0] for name in cell.evicted) == {"plain": 2, "patient": 2}
    await cell.is_silent()


@told()
async def test_many_more_devices_are_taken_than_were_asked_for(cell: Scenario) -> None:
    """Sixteen GPUs on two whole nodes, of four that are full of one-GPU jobs: sixteen of those leave, of two nodes.

    Seen in KAI 1565: 376 GPUs were taken for 48. And in Volcano 5896, whose own numbers are in another story.
    """
    cell.nodes(4, cpu=64_000, gpu=8)
    await cell.queue("lender", guaranteed=amounts(gpu=16_000), preemption="ANY")
    await cell.queue("borrower")
    await cell.submit("one", 32, queue="borrower", cpu=1000, gpu=1000)
    await cell.until(lambda: len(cell.running("borrower")) == 32)
    await cell.submit("gang", queue="lender", replicas=2, cpu=1000, gpu=8000, priority=1)
    await cell.until(lambda: cell.runs("gang"))
    assert len(cell.evicted) == 16
    assert len({cell.node_of(name) for name in cell.running("borrower")}) == 2
    await cell.is_silent()


@told()
async def test_siblings_that_come_at_once_take_more_together_than_each_of_them_lacks(cell: Scenario) -> None:
    """Six queues ask at one moment for what one has borrowed: each gets its two cores, and the lender keeps its four.

    Seen in YuniKorn 2699, 2795 and 1951: each looked at the same victims, and a queue fell below its guarantee.
    """
    cell.nodes(4, cpu=4000)
    await cell.queue("lent", guaranteed=amounts(cpu=4000), preemption="ANY")
    names = [f"sibling-{n}" for n in range(6)]
    for name in names:
        await cell.queue(name, guaranteed=amounts(cpu=2000), preemption="ANY")
    await cell.submit("lent", 16, queue="lent", cpu=1000)
    await cell.until(lambda: len(cell.running("lent")) == 16)
    await asyncio.gather(*(cell.submit(name, 3, queue=name, cpu=1000) for name in names))
    await cell.until(lambda: all(len(cell.running(name)) == 2 for name in names))
    assert cell.used("lent") == 4000
    await cell.is_silent()
    assert len(cell.evicted) == 12


@told()
async def test_only_what_is_guaranteed_is_shared_between_siblings(cell: Scenario) -> None:
    """Their parent borrows half of the cell: who comes later gets its part of that too, not of the guarantees only.

    Seen in KAI 1934.
    """
    cell.nodes(8, cpu=1000)
    await cell.queue("parent", guaranteed=amounts(cpu=4000))
    for name in ("a", "b"):
        await cell.queue(f"parent/{name}", guaranteed=amounts(cpu=2000), preemption="ANY")
    await cell.queue("idle", guaranteed=amounts(cpu=4000))
    await cell.submit("a", 8, queue="parent/a", cpu=1000)
    await cell.until(lambda: len(cell.running("parent/a")) == 8)
    await cell.submit("b", 8, queue="parent/b", cpu=1000)
    await cell.until(lambda: [len(cell.running(f"parent/{name}")) for name in "ab"] == [4, 4])
    assert [cell.entitled(path) for path in ("parent", "parent/a", "parent/b", "idle")] == [8000, 4000, 4000, 0]
    await cell.is_silent()
    assert len(cell.evicted) == 4


@pytest.mark.parametrize("cores", [0, 1000])
@told()
async def test_for_a_device_jobs_leave_that_have_none(cell: Scenario, cores: int) -> None:
    """Two devices are asked for, with a core each or nothing beside; jobs without devices have borrowed most cores.

    Seen in Volcano 4151, 4658 and 4918: dimensions were mixed up, and the wrong jobs left or none at all.
    """
    cell.nodes(1, cpu=16_000, gpu=4)
    await cell.queue("lender", guaranteed=amounts(cpu=2000, gpu=4000), preemption="ANY")
    await cell.queue("devices")
    await cell.queue("cores")
    await cell.submit("device", 4, queue="devices", cpu=1000, gpu=1000)
    await cell.submit("core", 12, queue="cores", cpu=1000)
    await cell.until(lambda: [len(cell.running(queue)) for queue in ("devices", "cores")] == [4, 12])
    await cell.submit("mine", 2, queue="lender", cpu=cores, gpu=1000)
    await cell.until(lambda: len(cell.running("lender")) == 2)
    await cell.is_silent()
    assert Counter(name.split("-")[0] for name in cell.evicted) == {"device": 2}


@told()
async def test_a_queue_that_has_too_much_of_one_resource_gets_none_of_another_back(cell: Scenario) -> None:
    """It has more memory than it is entitled to, and fewer cores: it gets a quarter of a core from who has too many.

    As in the tests of Volcano's capacity plugin: one resource in which both queues are out of balance is enough.
    """
    small = {"cpu": 250, "memory": GI // 4}
    cell.node("node", cpu=2000, memory=4 * GI)
    await cell.queue("mine", weight=5, preemption="ANY")
    await cell.queue("other", weight=3)
    await cell.submit("large", queue="mine", cpu=1000, memory=3 * GI)
    await cell.submit("loan", 4, queue="other", **small)
    await cell.until(lambda: cell.runs("large") and len(cell.running("other")) == 4)
    await cell.submit("small", 4, queue="mine", **small)
    await cell.until(lambda: len(cell.running("mine")) == 2)
    assert [cell.entitled(name) for name in ("mine", "other")] == [1250, 750]
    assert (cell.entitled("mine", "memory"), cell.used("mine", "memory")) == (GI * 5 // 2, GI * 13 // 4)
    await cell.is_silent()
    assert len(cell.evicted) == 1
    assert (cell.used("mine"), cell.used("other")) == (1250, 750)


@told()
async def test_a_victim_that_is_too_large_ends_the_search(cell: Scenario) -> None:
    """The newest borrower has six cores, and without it its queue would be far below its guarantee: two small ones go.

    Seen in YuniKorn 3458 and 3463: the first victim that was too large was the last one looked at.
    """
    cell.nodes(1, cpu=8000)
    for name in ("lender", "borrower"):
        await cell.queue(name, guaranteed=amounts(cpu=4000), preemption="ANY")
    await cell.submit("small", 2, queue="borrower", cpu=1000)
    await cell.until(lambda: len(cell.running("borrower")) == 2)
    await cell.submit("large", queue="borrower", cpu=6000)
    await cell.until(lambda: len(cell.running("borrower")) == 3)
    await cell.submit("mine", queue="lender", cpu=2000)
    await cell.until(lambda: cell.runs("mine"))
    await cell.wait(PAUSES_S)
    assert sorted(cell.evicted) == ["small-0", "small-1"]
    assert (cell.used("lender"), cell.used("borrower")) == (2000, 6000)
    await cell.is_silent()


@told()
async def test_enough_leave_but_not_where_the_job_can_run(cell: Scenario) -> None:
    """A job of four cores that runs on fast nodes only: the four that leave are those of one fast node.

    Seen in Volcano 4925: jobs left until the sum was large enough, and the one they left for still had no place.
    """
    for n in range(4):
        cell.node(f"node-{n}", labels={"kind": "fast" if n < 2 else "slow"}, cpu=4000)
    await cell.queue("borrower")
    await cell.queue("lender", guaranteed=amounts(cpu=4000), preemption="ANY")
    await cell.submit("b", 16, queue="borrower", cpu=1000)
    await cell.until(lambda: len(cell.running("borrower")) == 16)
    places = {name: cell.node_of(name) for name in cell.running("borrower")}
    fast = group("main", 1, amounts(cpu=4000), node_selector=(("kind", "fast"),))
    await cell.submit("mine", queue="lender", tasks=(fast,))
    await cell.until(lambda: cell.runs("mine"))
    assert len(cell.evicted) == 4
    assert {places[name] for name in cell.evicted} == {cell.node_of("mine")}
    assert cell.node_of("mine") in ("node-0", "node-1")
    await cell.is_silent()


@told()
async def test_what_the_first_job_waits_for_is_lent_to_nobody(cell: Scenario) -> None:
    """The first job of a queue waits for nodes that are not there: the jobs behind it start, and other queues borrow.

    Seen in Kueue 4809 and 8309, where a head that waits blocks its queue and what others may borrow.
    """
    cell.node("special", labels={"pool": "special"}, cpu=4000)
    cell.kubes["sim-a"].cordon_node("special", True)
    for n in range(2):
        cell.node(f"plain-{n}", labels={"pool": "plain"}, cpu=4000)
    await cell.queue("first", guaranteed=amounts(cpu=8000), ordering="FIFO", preemption="ANY")
    await cell.queue("second", weight=0)
    special = group("main", 1, amounts(cpu=4000), node_selector=(("pool", "special"),))
    await cell.submit("head", queue="first", tasks=(special,), priority=9)
    await cell.submit("behind", 2, queue="first", cpu=1000)
    await cell.submit("loan", 8, queue="second", cpu=1000)
    await cell.until(lambda: len(cell.running("first")) == 2 and len(cell.running("second")) == 6)
    await cell.is_silent()
    assert cell.waits("head")
    cell.kubes["sim-a"].cordon_node("special", False)
    await cell.until(lambda: cell.runs("head"))
    assert cell.evicted == []
