"""What was lent comes back also to jobs that run already: entitled growth, through the services in virtual time.

An elastic job or an array job that started with its minimum is entitled to more, and others borrow it. As in the other
stories nothing is set by hand: entitlements are fair-share's, plans the preemptors', and P1 is checked at every commit.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from muster.core.explain import explain
from muster.core.model import EVERY_INDEX

from .scenario import Scenario, amounts, job_id, told

ELASTIC: dict[str, Any] = {"replicas": 8, "least": 2}
ARRAY: dict[str, Any] = {"replicas": 100, "least": 1, "completion": EVERY_INDEX}


async def lending(cell: Scenario) -> None:
    """Eight cores are the lender's, and a borrower has all of them."""
    cell.nodes(4, cpu=2000)
    await cell.queue("lender", preemption="ANY", guaranteed=amounts(cpu=8000))
    await cell.queue("borrower", weight=0, preemption="ANY")
    await cell.submit("b", 8, queue="borrower", cpu=1000)
    await cell.until(lambda: len(cell.running("borrower")) == 8)


@pytest.mark.parametrize("job", [ELASTIC, ARRAY], ids=["elastic", "array"])
@told()
async def test_a_lender_gets_back_what_its_running_job_may_grow_to(cell: Scenario, job: dict[str, Any]) -> None:
    await lending(cell)
    await cell.submit("mine", queue="lender", cpu=1000, **job)
    await cell.until(lambda: cell.live("mine") == 8, within_s=60.0)
    assert (cell.entitled("lender"), cell.entitled("borrower")) == (8000, 0)
    assert set(Counter(cell.evicted).values()) == {1}
    assert {by for by, _ in cell.record.took} == {"mine"}
    await cell.is_silent()
    await cell.writes_nothing()
    assert not cell.state.holds
    await cell.cancel("mine")
    await cell.until(lambda: len(cell.running("borrower")) == 8, within_s=1200.0)
    assert len(cell.evicted) == 8


@told()
async def test_growth_gets_it_back_although_everybody_crashes_meanwhile(cell: Scenario) -> None:
    """Once the plan for growth is decided, leader, preemptors, fair-share and binder are killed; pods leave slowly."""
    await lending(cell)
    cell.kubes["sim-a"].faults.delay_max_s = 3.0
    await cell.submit("mine", queue="lender", cpu=1000, **ELASTIC)
    await cell.until(lambda: job_id("mine") in cell.state.holds and cell.job("mine").charged, within_s=60.0)
    for process in cell.processes:
        await process.kill()
    cell.kubes["sim-a"].faults.delay_max_s = 0.0
    await cell.until(lambda: cell.live("mine") == 8, within_s=60.0)
    await cell.is_silent()
    assert Counter(cell.evicted) == {f"b-{n}": 1 for n in range(8)}


@told()
async def test_two_lenders_grow_at_the_cost_of_a_borrower_and_not_of_each_other(cell: Scenario) -> None:
    cell.nodes(4, cpu=4000)
    await cell.queue("borrower", weight=0, preemption="ANY")
    for name in ("one", "two"):
        await cell.queue(name, preemption="ANY")
    await cell.submit("b", 16, queue="borrower", cpu=1000)
    await cell.until(lambda: len(cell.running("borrower")) == 16)
    await cell.submit("elastic", queue="one", cpu=1000, replicas=20, least=2)
    await cell.until(lambda: cell.live("elastic") == 16, within_s=60.0)
    assert len(cell.evicted) == 16
    await cell.submit("array", queue="two", cpu=1000, **ARRAY)
    await cell.until(lambda: (cell.live("elastic"), cell.live("array")) == (8, 8), within_s=60.0)
    assert {victim for by, victim in cell.record.took if by == "array"} == {"elastic"}
    assert sum(replicas for _, replicas in cell.record.shrunk) == 8
    await cell.is_silent()
    await cell.writes_nothing()


@told()
async def test_indices_that_end_give_way_to_the_next_ones_and_to_nobody_else(cell: Scenario) -> None:
    """An array goes on within what it is entitled to while the borrower waits for every core that becomes free."""
    await lending(cell)
    await cell.submit("mine", queue="lender", cpu=1000, replicas=40, least=1, completion=EVERY_INDEX, run_s=20.0)
    await cell.until(lambda: cell.live("mine") == 8, within_s=60.0)
    await cell.until(lambda: cell.ended("mine"), within_s=400.0)
    await cell.until(lambda: len(cell.running("borrower")) == 8, within_s=1200.0)
    assert Counter(cell.evicted) == {f"b-{n}": 1 for n in range(8)}


@told()
async def test_what_a_running_job_waits_for_is_said(cell: Scenario) -> None:
    """Half of the borrowers may not be preempted yet; the job says so, and gets the rest when their time is over."""
    cell.nodes(4, cpu=2000)
    await cell.queue("lender", preemption="ANY", guaranteed=amounts(cpu=8000))
    await cell.queue("borrower", weight=0)
    await cell.queue("patient", weight=0, min_runtime_ms=120_000)
    await cell.submit("b", 4, queue="borrower", cpu=1000)
    await cell.submit("p", 4, queue="patient", cpu=1000)
    await cell.until(lambda: len(cell.running("borrower") + cell.running("patient")) == 8)
    await cell.submit("mine", queue="lender", cpu=1000, **ELASTIC)
    await cell.until(lambda: cell.live("mine") == 4, within_s=60.0)
    await cell.rests()
    told = explain(cell.state, job_id("mine"))
    assert "; wants 4 more replicas: there is no room for one more now" in told.summary
    assert told.preemption == "not preempting: nobody who may be preempted would make enough room"
    await cell.until(lambda: cell.live("mine") == 8, within_s=120.0)
    assert sorted(cell.evicted) == [*(f"b-{n}" for n in range(4)), *(f"p-{n}" for n in range(4))]
    await cell.is_silent()
