"""Whom a job displaces when others borrow (P3), through the services in virtual time: entitlements come a bit late."""

from __future__ import annotations

from muster.core.limits import ENTITLEMENT_LATE_MS
from muster.core.whatif import forecast_job

from .scenario import Scenario, amounts, told

SOON_S = ENTITLEMENT_LATE_MS / 1000 / 2


@told()
async def test_own_jobs_stay_while_another_queue_borrows(cell: Scenario) -> None:
    """A queue that uses all it is entitled to, as it wants no more, gets an urgent job. It is entitled to more from
    then on, though nobody has said so yet; its own lower job must not leave in the meantime."""
    cell.nodes(8, cpu=1000)
    await cell.queue("mine", guaranteed=amounts(cpu=4000), preemption="LOWER_PRIORITY")
    await cell.queue("other", guaranteed=amounts(cpu=4000))
    await cell.submit("low", 2, queue="mine", cpu=1000)
    await cell.submit("borrowing", 6, queue="other", cpu=1000, priority=-1)
    await cell.until(lambda: cell.used("mine") == 2000 and cell.used("other") == 6000)
    await cell.rests()
    urgent = cell.spec("urgent", queue="mine", cpu=1000, priority=10)
    forecast = forecast_job(cell.state, urgent, cell.state.now_ms)
    await cell.submit("urgent", queue="mine", cpu=1000, priority=10)
    await cell.until(lambda: cell.runs("urgent"))
    assert [victim.name for victim in forecast.displaces] == cell.evicted
    (victim,) = cell.evicted
    assert victim.startswith("borrowing")
    await cell.is_silent()


@told()
async def test_own_jobs_leave_when_it_shows_that_nobody_borrows(cell: Scenario) -> None:
    """The other queue uses more than it is guaranteed and is entitled to it all the same."""
    cell.nodes(4, cpu=1000)
    await cell.queue("mine")
    await cell.queue("other")
    await cell.submit("low", 2, queue="mine", cpu=1000)
    await cell.submit("equal", 2, queue="other", cpu=1000, priority=-1)
    await cell.until(lambda: cell.used("mine") == 2000 and cell.used("other") == 2000)
    await cell.submit("urgent", queue="mine", cpu=1000, priority=10)
    await cell.wait(SOON_S)
    assert cell.evicted == []
    await cell.until(lambda: cell.runs("urgent"), within_s=10.0)
    (victim,) = cell.evicted
    assert victim.startswith("low")
    await cell.is_silent()


@told()
async def test_nobody_waits_where_nobody_can_be_found_to_borrow(cell: Scenario) -> None:
    """What the other queue uses it is guaranteed: whatever entitlements will say, it keeps that."""
    cell.nodes(4, cpu=1000)
    await cell.queue("mine")
    await cell.queue("other", guaranteed=amounts(cpu=2000))
    await cell.submit("low", 2, queue="mine", cpu=1000)
    await cell.submit("equal", 2, queue="other", cpu=1000)
    await cell.until(lambda: cell.used("mine") == 2000 and cell.used("other") == 2000)
    await cell.submit("urgent", queue="mine", cpu=1000, priority=10)
    await cell.wait(SOON_S)
    (victim,) = cell.evicted
    assert victim.startswith("low")
