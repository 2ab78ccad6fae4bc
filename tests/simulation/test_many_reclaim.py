"""Many jobs that take back their own at once from one who borrows it all (P2a, P2c), through the services in virtual
time: nobody waits for a pause because another one's plan was made in the same moment."""

from __future__ import annotations

import pytest

from muster.core.model import EVERY_INDEX

from .scenario import Scenario, amounts, told

ELASTIC = {"least": 4}
ARRAY = {"least": 1, "completion": EVERY_INDEX}


@pytest.mark.parametrize("borrower", [ELASTIC, ARRAY], ids=["elastic", "array"])
@told()
async def test_one_borrower_gives_back_to_many_at_once(cell: Scenario, borrower: dict[str, object]) -> None:
    cell.nodes(6, cpu=4000)
    await cell.queue("lender", guaranteed=amounts(cpu=12_000), preemption="ANY")
    await cell.queue("other")
    await cell.submit("one", queue="other", cpu=1000, replicas=24, **borrower)
    await cell.until(lambda: cell.live("one") == 24, within_s=60.0)
    await cell.rests()
    await cell.submit("mine", 12, queue="lender", cpu=1000)
    await cell.until(lambda: sum(count for _, count in cell.record.shrunk) == 12, within_s=5.0)
    await cell.until(lambda: len(cell.running("lender")) == 12)
    assert (cell.evicted, cell.live("one")) == ([], 12)
    assert sum(count for _, count in cell.record.shrunk) == 12
    await cell.is_silent()


@told()
async def test_the_first_pods_stay(cell: Scenario) -> None:
    """Who leads a distributed job is its first pod; the last ones leave."""
    cell.nodes(6, cpu=4000)
    await cell.queue("lender", guaranteed=amounts(cpu=4000), preemption="ANY")
    await cell.queue("other")
    await cell.submit("one", queue="other", cpu=1000, replicas=24, least=4)
    await cell.until(lambda: cell.live("one") == 24, within_s=60.0)
    await cell.submit("mine", 4, queue="lender", cpu=1000)
    await cell.until(lambda: len(cell.running("lender")) == 4)
    assert list(cell.job("one").staying(0)) == list(range(20))
