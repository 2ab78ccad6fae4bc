"""Who has to give way to whom, told from beginning to end: worked cases of others and what became of them there.

Each runs through the services in virtual time (`scenario`), with the entitlements that fair-share computes from the
tree, and ends in silence: however often the cell looks at everybody again, nobody is evicted any more.
`tests/unit/core/test_reclaim.py` has the same rules step by step on the core alone.
"""

from __future__ import annotations

from muster.core.explain import explain

from .scenario import GI, Scenario, amounts, job_id, told


@told()
async def test_exactly_what_was_lent_comes_back(cell: Scenario) -> None:
    """64 units, guaranteed 32, 16 and 16; A uses half of its own and wants all of it (Volcano issue 5896)."""
    cell.nodes(16, cpu=4000)
    for name, own in (("a", 32_000), ("b", 16_000), ("c", 16_000)):
        await cell.queue(name, guaranteed=amounts(cpu=own), preemption="ANY")
    await cell.submit("a", 16, queue="a", cpu=1000)
    await cell.submit("b", 24, queue="b", cpu=1000)
    await cell.submit("c", 24, queue="c", cpu=1000)
    await cell.until(lambda: [len(cell.running(q)) for q in "abc"] == [16, 24, 24])
    assert cell.evicted == []
    await cell.submit("more", 16, queue="a", cpu=1000)
    await cell.until(lambda: [len(cell.running(q)) for q in "abc"] == [32, 16, 16])
    assert [cell.entitled(q) for q in "abc"] == [32_000, 16_000, 16_000]
    await cell.is_silent(cycles=100, every_s=1.0)
    await cell.writes_nothing()
    assert sorted(name[0] for name in cell.evicted) == ["b"] * 8 + ["c"] * 8
    assert [cell.used(q) for q in "abc"] == [32_000, 16_000, 16_000]


@told()
async def test_who_cannot_be_preempted_is_passed_over(cell: Scenario) -> None:
    """q3 has both nodes, one of them with a job that cannot be preempted (Volcano capacity_test.go, case 2)."""
    size = {"cpu": 2000, "memory": 4 * GI}
    for name in ("n1", "n2"):
        cell.node(name, **size)
    for name in ("q3", "q4"):
        await cell.queue(name, guaranteed=amounts(**size), preemption="ANY")
    await cell.submit("p5", queue="q3", preemptible=False, **size)
    await cell.until(lambda: cell.runs("p5"))
    await cell.submit("p6", queue="q3", **size)
    await cell.until(lambda: cell.runs("p6"))
    fixed, other = cell.node_of("p5"), cell.node_of("p6")
    assert {fixed, other} == {"n1", "n2"}
    await cell.submit("mine", queue="q4", **size)
    await cell.until(lambda: cell.runs("mine"))
    assert (cell.evicted, cell.node_of("mine"), cell.node_of("p5")) == (["p6"], other, fixed)
    await cell.is_silent()


@told()
async def test_nobody_leaves_for_a_job_above_its_limit(cell: Scenario) -> None:
    """Guarantee and limit are 1 cpu and 2 Gi, 1 cpu and 1 Gi are in use, it wants 1 cpu and 2 Gi (there, case 6)."""
    own = amounts(cpu=1000, memory=2 * GI)
    cell.node("small", cpu=1000, memory=GI)
    cell.nodes(3, cpu=1000, memory=5 * GI // 2)
    await cell.queue("small", guaranteed=own, limit=own, preemption="ANY")
    await cell.queue("other")
    await cell.submit("first", queue="small", cpu=1000, memory=GI)
    await cell.submit("theirs", 3, queue="other", cpu=1000, memory=5 * GI // 2)
    await cell.until(lambda: (len(cell.running("small")), len(cell.running("other"))) == (1, 3))
    await cell.submit("second", queue="small", cpu=1000, memory=2 * GI)
    await cell.is_silent()
    assert cell.used("other", "memory") > cell.entitled("other", "memory")  # it borrows, and keeps it
    assert cell.evicted == []
    assert cell.waits("second")
    why = explain(cell.state, job_id("second"))
    over = {(b.subject, b.resource): b.missing for b in why.blockers if b.kind == "queue-limit"}
    assert over == {("small", "cpu"): 1000, ("small", "memory"): GI}
    assert why.shares[0].over == amounts(cpu=1000, memory=GI)
    assert "queue small uses 1 of 1 cpu, the job needs 1" in why.summary


@told("sim-a", "sim-b")
async def test_the_newer_of_two_equals_leaves_and_is_back_before_who_came_later(cell: Scenario) -> None:
    """Two clusters of one node, two jobs that have run equally long (a talk on the Multi-Cluster App Dispatcher)."""
    cell.node("a", "sim-a", cpu=8000)
    cell.node("b", "sim-b", cpu=8000)
    await cell.queue("research", state="STOPPED")
    for name in ("job-1", "job-2"):
        await cell.submit(name, queue="research", cpu=6000)
        await cell.wait(1.0)
    await cell.queue("research", state="OPEN")
    await cell.until(lambda: cell.runs("job-1") and cell.runs("job-2"))
    assert cell.job("job-1").started_ms == cell.job("job-2").started_ms
    place = cell.node_of("job-2")
    await cell.wait(10.0)
    await cell.submit("job-3", queue="research", cpu=6000)
    await cell.wait(10.0)
    await cell.submit("job-4", queue="research", cpu=6000, priority=5, run_s=90.0)
    await cell.until(lambda: cell.runs("job-4"))
    assert (cell.evicted, cell.node_of("job-4")) == (["job-2"], place)
    assert cell.waits("job-2")
    assert cell.waits("job-3")
    await cell.until(lambda: cell.ended("job-4"), within_s=120.0)
    await cell.until(lambda: cell.runs("job-2"))
    await cell.is_silent()
    assert cell.waits("job-3")
    assert cell.evicted == ["job-2"]


@told()
async def test_elastic_replicas_go_first_and_come_back(cell: Scenario) -> None:
    """8 GPUs, an elastic job of 5 to 10, and one of 2 that is more important (from a talk on elastic training)."""
    cell.nodes(1, cpu=64_000, gpu=8)
    await cell.queue("research")
    await cell.submit("elastic", queue="research", replicas=10, least=5, cpu=1000, gpu=1000)
    await cell.until(lambda: cell.runs("elastic") and cell.live("elastic") == 8)
    await cell.rests()
    await cell.submit("high", queue="research", cpu=1000, gpu=2000, priority=5, run_s=60.0)
    await cell.until(lambda: cell.runs("high"))
    assert (cell.record.shrunk, cell.evicted) == ([("elastic", 2)], [])
    assert cell.live("elastic") == 6
    assert cell.runs("elastic")
    await cell.until(lambda: cell.ended("high"), within_s=90.0)
    await cell.until(lambda: cell.live("elastic") == 8, within_s=90.0)
    assert cell.record.placed == ["elastic", "high"]
    await cell.is_silent()
    assert cell.record.shrunk == [("elastic", 2)]


@told()
async def test_shares_by_weight(cell: Scenario) -> None:
    """q1 of weight 2 has everything until q2 of weight 1 comes (from a talk on queue sharing)."""
    cell.nodes(6, cpu=1000)
    await cell.queue("q1", weight=2, preemption="ANY")
    await cell.queue("q2", weight=1, preemption="ANY")
    await cell.submit("a", 6, queue="q1", cpu=1000)
    await cell.until(lambda: len(cell.running("q1")) == 6)
    await cell.submit("b", 4, queue="q2", cpu=1000)
    await cell.until(lambda: (len(cell.running("q1")), len(cell.running("q2"))) == (4, 2))
    assert (cell.entitled("q1"), cell.entitled("q2")) == (4000, 2000)
    await cell.is_silent()
    assert len(cell.evicted) == 2
    assert {name[0] for name in cell.evicted} == {"a"}


@told()
async def test_what_was_lent_comes_back_exactly_although_everybody_crashes_meanwhile(cell: Scenario) -> None:
    """The first case again: leader, preemptors, fair-share and binder are killed while the victims are leaving."""
    cell.nodes(4, cpu=4000)
    for name, own in (("a", 8000), ("b", 4000), ("c", 4000)):
        await cell.queue(name, guaranteed=amounts(cpu=own), preemption="ANY")
    await cell.submit("a", 4, queue="a", cpu=1000)
    await cell.submit("b", 6, queue="b", cpu=1000)
    await cell.submit("c", 6, queue="c", cpu=1000)
    await cell.until(lambda: [len(cell.running(q)) for q in "abc"] == [4, 6, 6])
    await cell.submit("more", 4, queue="a", cpu=1000)
    await cell.until(lambda: cell.evicted != [])
    for process in cell.processes:
        await process.kill()
    await cell.until(lambda: [len(cell.running(q)) for q in "abc"] == [8, 4, 4], within_s=120.0)
    await cell.is_silent()
    assert sorted(name[0] for name in cell.evicted) == ["b"] * 2 + ["c"] * 2
