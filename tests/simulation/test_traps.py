"""Where other systems went round in circles or starved somebody, one story each, through the services in virtual time.

The names say what went wrong elsewhere. Nothing is set by hand: entitlements are fair-share's, plans the preemptors',
pods leave when their kubelets let them go, and a witness checks the invariants, usage and P1 at every commit
(`scenario`). `tests/unit/core/test_traps.py` has the same traps on the core alone, under entitlements of its choice.
"""

from __future__ import annotations

from collections import Counter

from muster.core.explain import explain
from muster.core.limits import PREEMPTIONS_MAX

from .scenario import Scenario, amounts, group, job_id, told


@told()
async def test_infinite_preemption_between_siblings_in_a_deep_tree(cell: Scenario) -> None:
    """Four levels deep, every queue may reclaim from every other, and each job is larger than the share of its queue.

    With policy ANY an older job takes the place of a newer one of its queue when its pause is over: once, then silence.
    """
    cell.nodes(3, cpu=4000)
    leaves = [f"{team}/x/y/{leaf}" for team in "ab" for leaf in "12"]
    for team in "ab":
        for path in (team, f"{team}/x", f"{team}/x/y"):
            await cell.queue(path, preemption="ANY")
    for leaf in leaves:
        await cell.queue(leaf, preemption="ANY")
    for leaf in leaves:
        await cell.submit(leaf.replace("/", "-"), 2, queue=leaf, cpu=4000)
        await cell.rests()
    assert [cell.entitled(leaf) for leaf in leaves] == [3000] * 4
    across = len(cell.record.took)
    assert across <= 3
    await cell.wait(300.0)  # the pauses of all victims are over
    assert sorted(cell.used(leaf) for leaf in leaves) == [0, 4000, 4000, 4000]
    assert all(cell.job(by).queue == cell.job(victim).queue for by, victim in cell.record.took[across:])
    assert set(Counter(cell.evicted).values()) == {1}
    await cell.is_silent()
    await cell.writes_nothing()


@told()
async def test_thrash_because_freed_capacity_is_taken_by_another(cell: Scenario) -> None:
    """The victims of a wide job die one after the other, while small jobs of other queues keep coming."""
    cell.nodes(1, cpu=8000)
    await cell.queue("owner", weight=2, preemption="ANY")
    await cell.queue("borrower", preemption="ANY")
    await cell.queue("third", preemption="ANY")
    await cell.submit("b", 8, queue="borrower", cpu=1000)
    await cell.until(lambda: len(cell.running("borrower")) == 8)
    cell.kubes["sim-a"].faults.delay_max_s = 3.0
    await cell.submit("wide", queue="owner", cpu=4000)
    for n in range(20):
        await cell.submit(f"third-{n}", queue="third", cpu=1000)
        await cell.submit(f"again-{n}", queue="borrower", cpu=1000)
        await cell.wait(0.5)
    cell.kubes["sim-a"].faults.delay_max_s = 0.0
    await cell.until(lambda: cell.runs("wide"))
    await cell.rests()
    assert [len(cell.running(q)) for q in ("owner", "borrower", "third")] == [1, 2, 2]
    assert len(cell.evicted) == 6
    assert set(Counter(cell.evicted).values()) == {1}
    await cell.is_silent()


@told()
async def test_a_large_gang_starved_by_overlapping_victim_sets(cell: Scenario) -> None:
    """A gang that needs half the cell and small jobs that always come before it, all with the same few to choose from.

    Victims leave one after the other, and others like them wait for every place that becomes free.
    """
    cell.nodes(4, cpu=4000)
    await cell.queue("low", weight=0)
    await cell.queue("large", preemption="ANY")
    await cell.queue("small", preemption="ANY", priority=1, limit=amounts(cpu=4000))
    await cell.submit("l", 24, queue="low", cpu=1000)
    await cell.until(lambda: len(cell.running("low")) == 16)
    cell.kubes["sim-a"].faults.delay_max_s = 3.0
    await cell.submit("small", 40, queue="small", cpu=1000, run_s=5.0)
    await cell.submit("gang", queue="large", replicas=4, cpu=2000, run_s=60.0)
    await cell.until(lambda: cell.runs("gang"), within_s=15.0)
    evicted = Counter(cell.evicted)
    assert (sum(evicted.values()), max(evicted.values())) == (12, 1)
    await cell.until(lambda: all(cell.ended(f"small-{n}") for n in range(40)), within_s=200.0)
    await cell.until(lambda: cell.ended("gang"), within_s=60.0)
    assert cell.record.placed.count("gang") == 1


@told()
async def test_weight_zero(cell: Scenario) -> None:
    """It has what nobody else wants, gives it all back at once, takes from nobody, and has it again afterwards."""
    cell.nodes(2, cpu=4000)
    await cell.queue("nobody", weight=0, preemption="ANY")
    await cell.queue("team", preemption="ANY")
    await cell.submit("n", 8, queue="nobody", cpu=1000)
    await cell.until(lambda: len(cell.running("nobody")) == 8)
    await cell.submit("t", 12, queue="team", cpu=1000, run_s=300.0)
    await cell.until(lambda: len(cell.running("team")) == 8)
    assert (cell.entitled("nobody"), cell.entitled("team")) == (0, 8000)
    await cell.is_silent()
    assert Counter(name[0] for name in cell.evicted) == {"n": 8}
    await cell.until(lambda: len(cell.running("nobody")) == 8, within_s=1200.0)
    assert all(cell.ended(f"t-{n}") for n in range(12))
    assert len(cell.evicted) == 8


@told()
async def test_a_tiny_sibling_triggers_evictions(cell: Scenario) -> None:
    """It wants a tenth of what any victim would lose: nobody leaves for that, and the next room is its own."""
    cell.nodes(4, cpu=4000)
    await cell.queue("team")
    await cell.queue("team/large", preemption="ANY")
    await cell.queue("team/tiny", preemption="ANY")
    await cell.submit("short", queue="team/large", cpu=1000, run_s=300.0)
    await cell.submit("l", 15, queue="team/large", cpu=1000)
    await cell.until(lambda: len(cell.running("team/large")) == 16)
    await cell.submit("l-more", 4, queue="team/large", cpu=1000)
    await cell.submit("tiny", queue="team/tiny", cpu=100)
    await cell.is_silent()
    assert (cell.entitled("team/large"), cell.entitled("team/tiny")) == (15_900, 100)
    assert cell.waits("tiny")
    assert explain(cell.state, job_id("tiny")).preemption.startswith("not preempting: the potential would not rise")
    await cell.until(lambda: cell.ended("short"), within_s=300.0)
    await cell.until(lambda: cell.runs("tiny"))
    await cell.is_silent()
    assert cell.evicted == []


@told()
async def test_a_preemptor_that_does_not_fit_after_its_victims_died(cell: Scenario) -> None:
    """The node is cordoned while the victim dies: nothing is held there, another plan is made, no room is lost."""
    cell.nodes(2, cpu=4000)
    kube = cell.kubes["sim-a"]
    await cell.queue("research")
    await cell.submit("low", 2, queue="research", cpu=4000)
    await cell.until(lambda: len(cell.running("research")) == 2)
    await cell.submit("high", queue="research", cpu=4000, priority=5)
    await cell.until(lambda: cell.evicted != [])
    first = cell.node_of(cell.evicted[0])
    kube.cordon_node(first, True)
    await cell.rests()
    assert cell.waits("high")
    assert not cell.state.holds
    await cell.until(lambda: cell.runs("high"), within_s=600.0)
    assert sorted(cell.evicted) == ["low-0", "low-1"]
    assert cell.node_of("high") != first
    assert not cell.state.holds
    kube.cordon_node(first, False)
    await cell.until(lambda: len(cell.running("research")) == 2)
    await cell.is_silent()
    assert len(cell.evicted) == 2


@told()
async def test_a_whole_bundle_is_evicted_where_one_suffices(cell: Scenario) -> None:
    """A gang is the newest and so the first that is borrowed, but one single job is enough and the gang is not."""
    cell.nodes(2, cpu=4000)
    await cell.queue("low", weight=7)
    await cell.queue("research", preemption="ANY")
    await cell.submit("single", 4, queue="low", cpu=1000)
    await cell.until(lambda: len(cell.running("low")) == 4)
    await cell.submit("gang", queue="low", replicas=4, cpu=1000)
    await cell.until(lambda: cell.runs("gang"))
    await cell.submit("mine", queue="research", cpu=1000)
    await cell.until(lambda: cell.runs("mine"))
    await cell.is_silent()
    assert len(cell.evicted) == 1
    assert cell.evicted[0].startswith("single")
    assert cell.runs("gang")


@told()
async def test_who_was_chosen_first_stays_when_a_bundle_turns_out_to_be_enough(cell: Scenario) -> None:
    """Room for the first pod is cheapest where a single job runs, for the second only a gang can make it; that gang has
    a pod beside the single job too, so the single job need not leave."""
    for name in ("a", "b"):
        cell.node(name, labels={"place": name}, cpu=4000)
    await cell.queue("research")
    here, there = ({"node_selector": (("place", name),)} for name in ("a", "b"))
    half = amounts(cpu=2000)
    await cell.submit("fixed", queue="research", tasks=(group("main", 1, half, **there),), preemptible=False)
    gang = (group("first", 1, half, **here), group("second", 1, half, **there))
    await cell.submit("gang", queue="research", tasks=gang)
    await cell.until(lambda: cell.runs("fixed") and cell.runs("gang"))
    await cell.submit("single", queue="research", tasks=(group("main", 1, half, **here),))
    await cell.until(lambda: cell.runs("single"))
    await cell.submit("high", queue="research", replicas=2, cpu=2000, priority=5)
    await cell.until(lambda: cell.runs("high"))
    await cell.is_silent()
    assert cell.evicted == ["gang"]
    assert cell.runs("single")


@told()
async def test_quota_leaks_on_partial_deletion(cell: Scenario) -> None:
    """A victim's pods leave node by node, some only when their nodes answer again: those are charged, no others."""
    cell.nodes(4, cpu=1000)
    kube = cell.kubes["sim-a"]
    await cell.queue("research")
    await cell.submit("victim", queue="research", replicas=4, cpu=1000)
    await cell.until(lambda: cell.runs("victim"))
    for name in ("node-2", "node-3"):
        kube.set_node_ready(name, False)
    await cell.submit("high", queue="research", replicas=2, cpu=1000, priority=5)
    await cell.until(lambda: cell.runs("high"))
    assert (cell.live("victim"), cell.used("research")) == (2, 4000)
    await cell.wait(120.0)
    assert (cell.live("victim"), cell.used("research")) == (2, 4000)
    kube.set_node_ready("node-2", True)
    await cell.until(lambda: cell.live("victim") == 1)
    assert cell.used("research") == 3000
    kube.set_node_ready("node-3", True)
    await cell.until(lambda: cell.waits("victim"))
    assert cell.used("research") == 2000
    await cell.cancel("high")
    await cell.until(lambda: cell.runs("victim"), within_s=120.0)
    assert cell.used("research") == 4000
    pod = min(name for _, name in kube.pods)
    kube.delete_unasked("default", pod)  # somebody deletes one pod of the gang
    await cell.until(lambda: not cell.runs("victim"))
    await cell.until(lambda: cell.runs("victim"), within_s=120.0)
    assert (cell.live("victim"), cell.used("research")) == (4, 4000)
    await cell.cancel("victim")
    await cell.until(lambda: cell.ended("victim"))
    assert cell.used("research") == 0


@told()
async def test_over_admission_after_pods_finished_one_by_one(cell: Scenario) -> None:
    """A gang ends pod by pod: what ended is free, what runs is not, and the limit is never passed."""
    cell.nodes(4, cpu=4000)
    await cell.queue("research", limit=amounts(cpu=4000))
    parts = tuple(group(f"part-{n}", 1, amounts(cpu=1000), run_s=10.0 * (n + 1)) for n in range(4))
    await cell.submit("gang", queue="research", tasks=parts)
    await cell.until(lambda: cell.runs("gang"))
    await cell.submit("next", 8, queue="research", cpu=1000, run_s=100.0)
    for ended in range(1, 5):
        await cell.until(lambda ended=ended: len(cell.running("research")) - cell.runs("gang") == ended)
        assert (cell.live("gang"), cell.used("research")) == (4 - ended, 4000)
    assert cell.ended("gang")
    await cell.until(lambda: all(cell.ended(f"next-{n}") for n in range(8)), within_s=300.0)
    assert cell.used("research") == 0


@told()
async def test_a_queue_whose_entitlement_is_smaller_than_its_only_job(cell: Scenario) -> None:
    """It gets its turn when that brings the cell nearer to the entitlements, once, and not the other way round."""
    cell.nodes(1, cpu=9000)
    await cell.queue("small", weight=2, preemption="ANY")
    await cell.queue("large", weight=7, preemption="ANY")
    await cell.submit("l", 3, queue="large", cpu=3000)
    await cell.until(lambda: len(cell.running("large")) == 3)
    await cell.submit("only", queue="small", cpu=3000)
    await cell.until(lambda: cell.runs("only"))
    assert (cell.entitled("small"), cell.entitled("large")) == (2000, 7000)
    await cell.is_silent()
    assert (cell.used("small"), cell.used("large")) == (3000, 6000)
    assert len(cell.evicted) == 1


@told()
async def test_nobody_leaves_in_vain_for_a_job_larger_than_what_was_borrowed(cell: Scenario) -> None:
    """Small jobs have borrowed 2, the job needs 3: two of them would leave for nothing, so none does."""
    cell.nodes(1, cpu=8000)
    await cell.queue("small", weight=1, preemption="ANY")
    await cell.queue("large", weight=3, preemption="ANY")
    await cell.submit("l", 8, queue="large", cpu=1000)
    await cell.until(lambda: len(cell.running("large")) == 8)
    await cell.submit("only", queue="small", cpu=3000)
    await cell.is_silent()
    assert (cell.entitled("small"), cell.entitled("large")) == (2000, 6000)
    assert cell.waits("only")
    assert cell.evicted == []


@told()
async def test_a_borrower_that_became_immune(cell: Scenario) -> None:
    """Whoever was preempted as often as may be does not start on loan any more, so its lender need not wait for it.

    The lender wants as much as there is, but for a node that is cordoned: what it cannot use is lent.
    """
    cell.node("plain", cpu=4000)
    cell.node("special", labels={"pool": "special"}, cpu=4000)
    cell.kubes["sim-a"].cordon_node("special", True)
    await cell.queue("lender", guaranteed=amounts(cpu=8000), preemption="ANY")
    await cell.queue("borrower", preemption="ANY")
    elsewhere = group("main", 1, amounts(cpu=4000), node_selector=(("pool", "special"),))
    await cell.submit("blocked", 2, queue="lender", tasks=(elsewhere,))
    await cell.submit("often", queue="borrower", cpu=4000)
    for n in range(PREEMPTIONS_MAX):
        await cell.until(lambda: cell.runs("often"), within_s=(60 << n) + 30.0)
        await cell.submit(f"own-{n}", queue="lender", cpu=4000, run_s=5.0)
        await cell.until(lambda n=n: cell.ended(f"own-{n}"))
        assert len(cell.evicted) == n + 1
    assert (cell.entitled("lender"), cell.entitled("borrower")) == (4000, 0)
    await cell.wait((60 << (PREEMPTIONS_MAX - 1)) + 30.0)
    assert cell.waits("often")
    assert explain(cell.state, job_id("often")).rule == "P4"
    await cell.submit("mine", queue="lender", cpu=4000, run_s=60.0)
    await cell.until(lambda: cell.runs("mine"), within_s=5.0)
    assert set(cell.evicted) == {"often"}
    assert len(cell.evicted) == PREEMPTIONS_MAX
    for n in range(2):
        await cell.cancel(f"blocked-{n}")
    await cell.until(lambda: cell.ended("mine"), within_s=90.0)
    await cell.is_silent()
    assert (cell.entitled("lender"), cell.entitled("borrower")) == (0, 4000)  # the lender is idle
    assert cell.waits("often")  # for nobody could make it leave again
    (why,) = explain(cell.state, job_id("often")).blockers
    assert (why.kind, why.subject, why.missing) == ("guaranteed", "lender", 8000)
    await cell.submit("soon", queue="lender", cpu=4000, run_s=5.0)
    await cell.until(lambda: cell.runs("soon"), within_s=5.0)
    await cell.queue("lender", guaranteed=(), preemption="ANY")
    await cell.until(lambda: cell.runs("often"), within_s=30.0)
    assert len(cell.evicted) == PREEMPTIONS_MAX


@told()
async def test_a_borrower_that_is_immune_as_declared(cell: Scenario) -> None:
    """Jobs that are not preemptible fill a cell whose lender is idle, up to what it is guaranteed; the rest is lent to
    jobs that give it back. When the lender wants what is its own, it has it as soon as those are gone."""
    cell.nodes(4, cpu=2000)
    await cell.queue("lender", guaranteed=amounts(cpu=4000), preemption="ANY")
    await cell.queue("borrower", preemption="ANY")
    await cell.submit("fixed", 8, queue="borrower", cpu=1000, preemptible=False)
    await cell.until(lambda: len(cell.running("borrower")) == 4)
    assert cell.entitled("borrower") == 8000
    waiting = next(name for name in map("fixed-{}".format, range(8)) if cell.waits(name))
    assert explain(cell.state, job_id(waiting)).rule == "P4"
    await cell.submit("loan", 8, queue="borrower", cpu=1000)
    await cell.until(lambda: len(cell.running("borrower")) == 8)
    await cell.submit("mine", 4, queue="lender", cpu=1000)
    await cell.until(lambda: len(cell.running("lender")) == 4)
    assert sorted(name[:4] for name in cell.evicted) == ["loan"] * 4
    await cell.is_silent()
    assert len(cell.evicted) == 4
    assert sum(name.startswith("fixed") for name in cell.running("borrower")) == 4
    await cell.submit("own", queue="lender", cpu=1000, preemptible=False)
    await cell.cancel("mine-0")
    await cell.until(lambda: cell.runs("own"))  # within its own guarantee
    await cell.is_silent()


@told()
async def test_a_share_of_nodes_that_nobody_can_use(cell: Scenario) -> None:
    """Half of the nodes are cordoned: what is left is shared, not what there is on paper.

    Were shares computed of all nodes, each queue would be entitled to all that is usable, and who came first kept it.
    """
    cell.nodes(4, cpu=4000)
    for queue in ("first", "second"):
        await cell.queue(queue, preemption="ANY")
    for name in ("node-2", "node-3"):
        cell.kubes["sim-a"].cordon_node(name, True)
    await cell.submit("f", 20, queue="first", cpu=1000)
    await cell.until(lambda: cell.used("first") == 8000)
    await cell.submit("s", 20, queue="second", cpu=1000)
    await cell.until(lambda: cell.used("second") == 4000)
    assert (cell.used("first"), len(cell.evicted)) == (4000, 4)
    assert (cell.entitled("first"), cell.entitled("second")) == (4000, 4000)
    cell.kubes["sim-a"].cordon_node("node-2", False)
    await cell.until(lambda: cell.entitled("first") == cell.entitled("second") == 6000)
    await cell.until(lambda: cell.used("first") == cell.used("second") == 6000, within_s=300.0)
    await cell.wait(300.0)  # the pauses of all victims are over
    await cell.is_silent()
