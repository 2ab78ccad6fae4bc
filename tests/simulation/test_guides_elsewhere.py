"""What the guides of other systems promise of limits, guarantees and priorities, and what becomes of it here.

Told as in `test_failures_elsewhere`. Where a rule of ours leads to something else, the reason stands beside it.
"""

from __future__ import annotations

from typing import Any

from .scenario import Scenario, amounts, told

PAUSES_S = 200.0  # longer than the first two pauses of a victim together (rule P5)
LIMITS: dict[str, Any] = {"preemption": "ANY", "limit": amounts(cpu=10_000), "guaranteed": amounts(cpu=5000)}


@told()
async def test_a_queue_gets_back_what_it_is_guaranteed_and_half_of_the_rest(cell: Scenario) -> None:
    """Twelve for a parent, two queues that may have ten and are guaranteed five, the first one has its ten.

    The user guide of YuniKorn ends with 7 and 5, for there only what is guaranteed is taken back; here weights divide
    the rest as well, and whoever came first has no advantage.
    """
    cell.nodes(4, cpu=4000)
    await cell.queue("parent", limit=amounts(cpu=12_000))
    await cell.queue("parent/q1", **LIMITS)
    await cell.queue("parent/q2", **LIMITS)
    await cell.submit("q1", 10, queue="parent/q1", cpu=1000)
    await cell.until(lambda: len(cell.running("parent/q1")) == 10)
    await cell.submit("q2", 10, queue="parent/q2", cpu=1000)
    await cell.until(lambda: [len(cell.running(f"parent/q{n}")) for n in (1, 2)] == [6, 6])
    await cell.is_silent()
    assert len(cell.evicted) == 4
    assert cell.used("parent") == 12_000


@told()
async def test_the_less_important_takes_from_nobody_and_the_important_from_those_who_borrow(cell: Scenario) -> None:
    """Eighteen, three guaranteed six each; who came first has all of it, with jobs of medium importance.

    As in the user guide of YuniKorn: 6, 12 and nothing. Policy LOWER_PRIORITY is what asks for this here.
    """
    cell.nodes(6, cpu=3000)
    for name, priority in (("medium", 0), ("low", -100), ("high", 100)):
        await cell.queue(name, guaranteed=amounts(cpu=6000), preemption="LOWER_PRIORITY")
        await cell.submit(name, 6, queue=name, cpu=3000, priority=priority)
        await cell.rests()
    assert [cell.used(name) for name in ("high", "medium", "low")] == [6000, 12_000, 0]
    assert len(cell.evicted) == 2
    await cell.is_silent()


@told()
async def test_who_opted_out_of_leaving_keeps_what_it_has_and_no_queue_loses_more_for_it(cell: Scenario) -> None:
    """Sixteen, three that may have eight and are guaranteed three, one of them with jobs that are not preemptible.

    As in the user guide of YuniKorn: 5, 8 and 3. The first is not cut below what it is entitled to.
    """
    cell.nodes(4, cpu=4000)
    for name in ("q1", "q2", "q3"):
        await cell.queue(name, guaranteed=amounts(cpu=3000), limit=amounts(cpu=8000), preemption="ANY")
    await cell.submit("q2", 8, queue="q2", cpu=1000, preemptible=False)
    await cell.submit("q1", 8, queue="q1", cpu=1000)
    await cell.until(lambda: [len(cell.running(name)) for name in ("q1", "q2")] == [8, 8])
    await cell.submit("q3", 8, queue="q3", cpu=1000)
    await cell.until(lambda: len(cell.running("q3")) == 3)
    await cell.wait(PAUSES_S)
    assert [len(cell.running(name)) for name in ("q1", "q2", "q3")] == [5, 8, 3]
    assert sum(cell.entitled(name) for name in ("q1", "q2", "q3")) == 16_000
    await cell.is_silent()
    assert len(cell.evicted) == 3
