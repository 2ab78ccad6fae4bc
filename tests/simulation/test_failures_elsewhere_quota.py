"""What was counted wrong, forgotten or left half done in other systems: quotas, gangs, elastic jobs, restarts.

The other half of `test_failures_elsewhere`, told in the same way. In every story the witness compares usage with what
is placed after every transaction, and the audit of the clusters what ran with what was allowed.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from muster.core.explain import explain
from muster.core.model import JobState, Reason

from .scenario import LOOK_EVERY_S, Scenario, amounts, group, job_id, told


@told()
async def test_two_queues_get_the_same_node_in_one_cycle(cell: Scenario) -> None:
    """Both ask before there is a node that fits one of them: one has it, the other says what is missing, and follows.

    Seen in Kueue 14570: the node was promised twice, and both waited for ever.
    """
    for name in ("first", "second"):
        await cell.queue(name)
        await cell.submit(name, queue=name, cpu=3000, run_s=60.0)
    cell.nodes(1, cpu=4000)
    await cell.until(lambda: cell.runs("first") or cell.runs("second"))
    await cell.rests()
    ahead, behind = sorted(("first", "second"), key=cell.waits)
    assert cell.waits(behind)
    missing = {b.resource: b.missing for b in explain(cell.state, job_id(behind)).blockers if b.kind == "capacity"}
    assert missing == {"cpu": 2000}
    await cell.until(lambda: cell.ended(behind), within_s=150.0)
    assert cell.record.placed == [ahead, behind]
    assert cell.evicted == []


@told()
async def test_two_gangs_have_half_of_the_nodes_each_and_wait_for_each_other(cell: Scenario) -> None:
    """Each needs six of ten nodes. One has six, the other none, and small jobs run on the four that are left.

    Seen in Volcano 3373 and 2462.
    """
    await cell.queue("research")
    for name in ("one", "two"):
        await cell.submit(name, queue="research", replicas=6, cpu=1000, run_s=60.0)
    await cell.submit("small", 4, queue="research", cpu=1000, run_s=30.0)
    cell.nodes(10, cpu=1000)
    await cell.until(lambda: len(cell.running("research")) == 5)
    assert sorted((cell.live("one"), cell.live("two"))) == [0, 6]
    assert cell.used("research") == 10_000
    await cell.until(lambda: cell.ended("one") and cell.ended("two"), within_s=150.0)
    assert max(Counter(cell.record.placed).values()) == 1


@told()
async def test_a_gang_that_lost_a_node_waits_behind_queues_that_have_nothing(cell: Scenario) -> None:
    """All of it leaves, for a gang is whole or not at all; others borrow its room, and give it back for it before they
    do for the next gang of its queue.

    Seen in Volcano 5805: the rest of the gang was charged, so jobs of queues without any share always came first.
    """
    cell.nodes(4, cpu=1000)
    await cell.queue("research", guaranteed=amounts(cpu=4000), preemption="ANY")
    await cell.queue("newcomers")
    await cell.submit("gang", queue="research", replicas=4, cpu=1000)
    await cell.until(lambda: cell.runs("gang"))
    await cell.submit("behind", queue="research", replicas=4, cpu=1000)
    cell.kubes["sim-a"].remove_node("node-3")
    await cell.until(lambda: cell.waits("gang"))
    assert (cell.live("gang"), cell.used("research")) == (0, 0)
    await cell.submit("new", 8, queue="newcomers", cpu=1000)
    await cell.until(lambda: len(cell.running("newcomers")) == 3)
    await cell.rests()
    cell.node("node-3", cpu=1000)
    await cell.until(lambda: cell.runs("gang"), within_s=30.0)
    assert (cell.live("gang"), cell.used("research"), cell.used("newcomers")) == (4, 4000, 0)
    assert cell.waits("behind")
    await cell.is_silent()
    assert set(Counter(cell.evicted).values()) == {1}


@told()
async def test_what_had_finished_before_a_restart_is_not_charged_after_it(cell: Scenario) -> None:
    """Two pods of four are done when a third is lost: the gang begins again with all four, and all four are charged.

    Seen in Kueue 14609: what was done once counted as done for ever, and too much was admitted.
    """
    cell.nodes(4, cpu=2000)
    kube = cell.kubes["sim-a"]
    await cell.queue("research", limit=amounts(cpu=4000))
    halves = (group("short", 2, amounts(cpu=1000), run_s=20.0), group("long", 2, amounts(cpu=1000)))
    await cell.submit("gang", queue="research", tasks=halves)
    await cell.until(lambda: cell.runs("gang"))
    await cell.until(lambda: cell.live("gang") == 2, within_s=40.0)
    assert cell.used("research") == 2000
    await cell.submit("next", 4, queue="research", cpu=1000, run_s=100.0)
    await cell.until(lambda: len(cell.running("research")) == 3)
    running = sorted(name for (_, name), pod in kube.pods.items() if pod["status"]["phase"] == "Running")
    kube.delete_unasked("default", next(name for name in running if name.startswith("gang")))
    await cell.until(lambda: cell.waits("gang"))
    await cell.until(lambda: cell.runs("gang"), within_s=300.0)
    assert (cell.live("gang"), cell.used("research")) == (4, 4000)
    assert cell.job("gang").epoch == 2
    await cell.until(lambda: cell.live("gang") == 2, within_s=40.0)
    await cell.cancel("gang")
    await cell.until(lambda: all(cell.ended(name) for name in ("gang", *(f"next-{n}" for n in range(4)))), 200.0)
    assert cell.used("research") == 0


@told()
async def test_replicas_come_and_go_and_some_stay_charged_or_run_beside_the_quota(cell: Scenario) -> None:
    """Important jobs come one after the other, kubelets are slow: what runs never passes the limit, and in the end the
    elastic job has all that it had, and exactly that is charged.

    Seen in Kueue 11195, 11977 and 12670.
    """
    cell.nodes(4, cpu=4000)
    kube = cell.kubes["sim-a"]
    await cell.queue("research", limit=amounts(cpu=8000))
    await cell.submit("elastic", queue="research", replicas=12, least=2, cpu=1000)
    await cell.until(lambda: cell.live("elastic") == 8)
    kube.faults.delay_max_s = 2.0
    for n in range(6):
        await cell.submit(f"high-{n}", queue="research", replicas=2, cpu=1000, priority=5, run_s=5.0)
        for _ in range(140):
            await cell.wait(LOOK_EVERY_S)
            assert sum(pod["status"]["phase"] == "Running" for pod in kube.pods.values()) <= 8
            assert cell.used("research") <= 8000
    kube.faults.delay_max_s = 0.0
    await cell.until(lambda: all(cell.ended(f"high-{n}") for n in range(6)), within_s=120.0)
    await cell.until(lambda: cell.live("elastic") == 8, within_s=120.0)
    assert cell.used("research") == 8000
    assert len(cell.record.shrunk) >= 3
    assert cell.evicted == []
    assert cell.record.placed.count("elastic") == 1
    await cell.is_silent()
    await cell.cancel("elastic")
    await cell.until(lambda: cell.ended("elastic"))
    assert (cell.used("research"), len(kube.pods)) == (0, 0)


@told()
async def test_what_a_deleted_queue_was_guaranteed_is_still_kept_or_still_lent(cell: Scenario) -> None:
    """Half of what a queue was guaranteed may not be lent. It is deleted: its siblings have all of it at once.

    Seen in Kueue 5937: what could be borrowed was wrong after a member of the cohort was deleted.
    """
    cell.nodes(4, cpu=2000)
    await cell.queue("parent")
    await cell.queue("parent/gone", guaranteed=amounts(cpu=4000), lending_limit=amounts(cpu=2000))
    await cell.queue("parent/stays", preemption="ANY")
    await cell.submit("s", 10, queue="parent/stays", cpu=1000)
    await cell.until(lambda: len(cell.running("parent/stays")) == 6)
    await cell.rests()
    assert [cell.entitled(path) for path in ("parent", "parent/stays")] == [6000, 6000]
    assert cell.used("parent") == 6000
    await cell.delete_queue("parent/gone")
    await cell.until(lambda: len(cell.running("parent/stays")) == 8)
    assert [cell.entitled(path) for path in ("parent", "parent/stays")] == [8000, 8000]
    await cell.is_silent()


@told()
async def test_a_quota_that_is_lowered_below_what_is_used_stays_passed_for_ever(cell: Scenario) -> None:
    """A lower limit starts nothing more until enough has ended; a lower guarantee is taken back at once.

    Seen in Kueue 5176. Nobody leaves for a limit, here: that is what draining is for, and it says so.
    """
    cell.nodes(4, cpu=2000)
    await cell.queue("first", guaranteed=amounts(cpu=8000), limit=amounts(cpu=8000), preemption="ANY")
    await cell.queue("second", preemption="ANY")
    for n in range(8):
        await cell.submit(f"f-{n}", queue="first", cpu=1000, run_s=60.0 + 20.0 * n)
    await cell.until(lambda: len(cell.running("first")) == 8)
    await cell.submit("more", 4, queue="first", cpu=1000)
    await cell.queue("first", guaranteed=(), limit=amounts(cpu=4000))
    await cell.rests()
    assert (cell.used("first"), cell.evicted) == (8000, [])
    await cell.submit("s", 2, queue="second", cpu=1000)
    await cell.until(lambda: len(cell.running("second")) == 2)
    assert (cell.used("first"), len(cell.evicted)) == (6000, 2)
    most = 6000
    while not all(cell.ended(f"f-{n}") or cell.waits(f"f-{n}") for n in range(8)):
        await cell.wait(1.0)
        assert cell.used("first") <= max(most, 4000)
        most = min(most, cell.used("first"))
    await cell.until(lambda: len(cell.running("first")) == 4, within_s=600.0)
    await cell.wait(300.0)
    assert cell.used("first") == 4000


@told("sim-a", "sim-b")
async def test_a_job_that_is_sent_to_another_cluster_is_charged_twice_or_stuck(cell: Scenario) -> None:
    """Its cluster loses the only node, so it goes to the other one, and later both are full and all is charged once.

    Seen in the Multi-Cluster App Dispatcher 370, 388 and 527.
    """
    cell.node("a", "sim-a", cpu=4000)
    await cell.queue("research", limit=amounts(cpu=8000))
    await cell.submit("gang", queue="research", replicas=2, cpu=2000)
    await cell.until(lambda: cell.runs("gang"))
    cell.node("b", "sim-b", cpu=4000)
    cell.kubes["sim-a"].remove_node("a")
    await cell.until(lambda: cell.runs("gang") and cell.node_of("gang") == "b", within_s=60.0)
    assert (cell.used("research"), cell.live("gang")) == (4000, 2)
    await cell.submit("next", queue="research", cpu=4000)
    cell.node("a-again", "sim-a", cpu=4000)
    await cell.until(lambda: cell.runs("next"))
    assert cell.used("research") == 8000
    for name in ("gang", "next"):
        await cell.cancel(name)
    await cell.until(lambda: cell.ended("gang") and cell.ended("next"))
    assert cell.used("research") == 0


@told("sim-a", "sim-b")
async def test_a_job_that_is_refused_wherever_it_is_sent_keeps_the_others_waiting(cell: Scenario) -> None:
    """The most important job runs on nodes only that refuse everything. It is tried at ever longer intervals, and what
    its queue may use is there for the others meanwhile.

    Seen in KAI 2075: a pod whose binding was always refused won every cycle.
    """
    cell.node("good", "sim-a", labels={"pool": "good"}, cpu=4000)
    cell.node("bad", "sim-b", labels={"pool": "bad"}, cpu=4000)
    cell.kubes["sim-b"].faults.admission_refused_chance = 1.0
    await cell.queue("research", limit=amounts(cpu=8000))
    cursed = group("main", 1, amounts(cpu=4000), node_selector=(("pool", "bad"),))
    await cell.submit("cursed", queue="research", tasks=(cursed,), priority=9)
    await cell.until(lambda: cell.record.placed.count("cursed") >= 1)
    other = group("main", 1, amounts(cpu=1000), node_selector=(("pool", "good"),), run_s=60.0)
    await cell.submit("other", 24, queue="research", tasks=(other,))
    await cell.until(lambda: all(cell.ended(f"other-{n}") for n in range(24)), within_s=900.0)
    assert 5 <= cell.record.placed.count("cursed") <= 12  # in more than six minutes, after 1 s, 2 s, 4 s and so on
    assert not cell.ended("cursed")
    cell.kubes["sim-b"].faults.admission_refused_chance = 0.0
    await cell.until(lambda: cell.runs("cursed"), within_s=3600.0)
    assert (cell.used("research"), cell.evicted) == (4000, [])


@told()
async def test_a_gang_whose_images_are_slow_is_taken_for_one_that_does_not_start(cell: Scenario) -> None:
    """Its pods take nine minutes to start: nobody takes it down, and while it starts it is charged.

    Seen in the Multi-Cluster App Dispatcher 616.
    """
    cell.nodes(2, cpu=1000)
    await cell.queue("research")
    await cell.submit("slow", queue="research", tasks=(group("main", 2, amounts(cpu=1000), start_s=540.0),))
    await cell.submit("next", queue="research", cpu=1000)
    await cell.until(lambda: cell.job("slow").state is JobState.STARTING)
    await cell.wait(500.0)
    assert (cell.used("research"), cell.runs("slow"), cell.waits("next")) == (2000, False, True)
    await cell.until(lambda: cell.runs("slow"), within_s=60.0)
    assert cell.record.placed == ["slow"]


@told()
async def test_after_a_restart_a_victim_does_not_know_why_it_left_nor_until_when_it_waits(cell: Scenario) -> None:
    """Everybody is killed while a victim waits out its pause: by whom and until when is known as before, and those who
    wait start in the order in which they came.

    Seen in the Multi-Cluster App Dispatcher 490, Kueue 3984, and YuniKorn, whose timers are forgotten.
    """
    cell.nodes(1, cpu=2000)
    await cell.queue("research")
    await cell.submit("victim", queue="research", cpu=2000)
    await cell.until(lambda: cell.runs("victim"))
    await cell.submit("high", queue="research", cpu=2000, priority=5, run_s=40.0)
    for n in range(4):
        await cell.submit(f"later-{n}", queue="research", cpu=2000, run_s=5.0)
        await cell.wait(0.1)
    await cell.until(lambda: cell.runs("high"))
    until_ms = cell.job("victim").not_before_ms
    await cell.is_silent(cycles=60, every_s=0.1)  # as many transactions as there are to a snapshot
    for process in cell.processes:
        await process.kill()
    await asyncio.sleep(10.0)
    victim = cell.job("victim")
    assert (victim.reason, victim.not_before_ms) == (Reason.PREEMPTED, until_ms)
    assert job_id("high") in victim.message
    assert [attempt.reason for attempt in victim.attempts] == [Reason.PREEMPTED]
    await cell.until(lambda: cell.runs("victim"), within_s=120.0)
    assert cell.state.now_ms >= until_ms
    assert cell.record.placed == ["victim", "high", *(f"later-{n}" for n in range(4)), "victim"]


@told()
async def test_a_node_that_shrinks_below_what_runs_on_it_stops_the_scheduler(cell: Scenario) -> None:
    """More is charged than there is: nothing breaks, nothing new comes to the node, and everybody's share is smaller.

    Seen in Volcano 3301, where an assertion about amounts ended the process, and 1052, where nodes got more than fits.
    """
    cell.nodes(2, cpu=4000)
    for name in ("first", "second"):
        await cell.queue(name, preemption="ANY")
    await cell.submit("f", 8, queue="first", cpu=1000, run_s=300.0)
    await cell.until(lambda: len(cell.running("first")) == 8)
    cell.node("node-1", cpu=2000)
    await cell.until(lambda: dict(cell.state.nodes.capacity())["cpu"] == 6000)
    await cell.submit("s", 6, queue="second", cpu=1000, run_s=100.0)
    await cell.until(lambda: len(cell.running("second")) == 3, within_s=60.0)
    await cell.rests()
    assert (cell.entitled("first"), cell.entitled("second")) == (3000, 3000)
    assert cell.used("first") + cell.used("second") <= 8000
    await cell.until(lambda: all(cell.ended(f"s-{n}") for n in range(6)), within_s=900.0)
    await cell.until(lambda: all(cell.ended(f"f-{n}") for n in range(8)), within_s=1200.0)
    assert max(Counter(cell.evicted).values()) <= 2
