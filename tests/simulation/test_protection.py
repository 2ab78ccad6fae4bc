"""What protects a job from preemption (P4), through the services in virtual time: classes and `max_preemptions`."""

from __future__ import annotations

from .scenario import Scenario, amounts, told

PAUSE_S = 60.0  # after the first preemption (rule P5)


@told()
async def test_a_class_protects_until_its_min_runtime_is_over(cell: Scenario) -> None:
    """Of two jobs that could leave the one of the class stays, and when it is alone its time is waited out, although
    nothing happens then. The class is changed meanwhile: that changes nothing for the job."""
    cell.nodes(2, cpu=4000)
    await cell.queue("research", min_runtime_ms=20_000)
    await cell.priority_class("patient", min_runtime_ms=300_000)
    await cell.priority_class("urgent", 10)
    await cell.submit("kept", queue="research", cpu=4000, priority_class="patient")
    await cell.submit("taken", queue="research", cpu=4000)
    await cell.until(lambda: cell.runs("kept") and cell.runs("taken"))
    began_ms = cell.job("kept").started_ms
    await cell.priority_class("patient", min_runtime_ms=0)
    await cell.submit("first", queue="research", cpu=4000, priority_class="urgent")
    await cell.wait(15.0)
    assert cell.evicted == []  # the queue protects both
    await cell.until(lambda: cell.runs("first"), within_s=15.0)
    assert cell.evicted == ["taken"]
    await cell.submit("second", queue="research", cpu=4000, priority_class="urgent")
    await cell.wait(240.0)
    assert cell.evicted == ["taken"]
    await cell.until(lambda: cell.evicted == ["taken", "kept"], within_s=60.0)
    assert 300_000 <= cell.state.now_ms - began_ms <= 310_000
    await cell.until(lambda: cell.runs("second"))
    await cell.is_silent()


@told()
async def test_the_second_time_only_priority_takes_its_place(cell: Scenario) -> None:
    """A job that may be preempted once runs on loan, gives it back once, and from then on starts only within E. There
    jobs of its own priority leave it alone, even if its queue is entitled to less later; a more urgent one does not."""
    cell.nodes(1, cpu=4000)
    await cell.queue("lender", guaranteed=amounts(cpu=4000), preemption="ANY")
    await cell.queue("borrower", preemption="ANY")
    await cell.submit("once", queue="borrower", cpu=4000, max_preemptions=1)
    await cell.until(lambda: cell.runs("once"))
    await cell.submit("mine", queue="lender", cpu=4000, run_s=5.0)
    await cell.until(lambda: cell.ended("mine"))
    assert cell.evicted == ["once"]
    await cell.wait(2 * PAUSE_S)
    assert cell.waits("once")  # nobody could reclaim it, and the lender is guaranteed all there is
    await cell.queue("lender", guaranteed=())
    await cell.until(lambda: cell.runs("once"))
    await cell.queue("lender", guaranteed=amounts(cpu=4000), weight=3)
    await cell.submit("same", queue="lender", cpu=4000)
    await cell.is_silent()
    assert cell.waits("same")
    assert cell.evicted == ["once"]
    await cell.submit("urgent", queue="lender", cpu=4000, priority=1)
    await cell.until(lambda: cell.runs("urgent"))
    assert cell.evicted == ["once", "once"]
    assert cell.job("once").preemptions == 2
    await cell.is_silent()


@told()
async def test_protection_that_is_lifted_protects_no_longer(cell: Scenario) -> None:
    """A queue keeps its jobs for an hour; when an operator thinks better of it, nobody waits for the hour to end."""
    cell.nodes(1, cpu=4000)
    await cell.queue("research", min_runtime_ms=3_600_000)
    await cell.submit("low", queue="research", cpu=4000)
    await cell.until(lambda: cell.runs("low"))
    await cell.submit("high", queue="research", cpu=4000, priority=1)
    await cell.wait(120.0)
    assert cell.evicted == []
    await cell.queue("research", min_runtime_ms=0)
    await cell.until(lambda: cell.runs("high"))
    assert cell.evicted == ["low"]
    await cell.is_silent()
