"""A node that refuses, or never starts, what it gets (rule L3): whoever failed there is ready for every other node at
once, in the old order, and comes back to that one after ever longer pauses.

Told in virtual time through the production services, as in `scenario`.
"""

from __future__ import annotations

import asyncio

import pytest

from muster.core.limits import START_TIMEOUT_MS, SUSPECTS_FEW
from muster.core.model import JobState, Reason

from .scenario import Scenario, told

JOBS, SLOTS = 24, 4
RUN_S = 60.0
ROUNDS_S = RUN_S * JOBS / SLOTS


async def all_end(cell: Scenario, within_s: float) -> float:
    """How long two dozen jobs take on four good devices and whatever else there is."""
    await cell.queue("research")
    await cell.wait(5.0)
    began_s = asyncio.get_running_loop().time()
    await cell.submit("job", JOBS, queue="research", gpu=1000, run_s=RUN_S)
    await cell.until(lambda: all(cell.ended(f"job-{n}") for n in range(JOBS)), within_s)
    assert [cell.job(f"job-{n}").state for n in range(JOBS)] == [JobState.SUCCEEDED] * JOBS
    assert cell.evicted == []
    return asyncio.get_running_loop().time() - began_s


@pytest.mark.parametrize("bad", [1, 4, 12])
@told()
async def test_nodes_refuse_everything_and_the_others_are_full(cell: Scenario, bad: int) -> None:
    """Six rounds of four jobs take six minutes, and hardly more beside nodes that take whoever waits and refuse it."""
    names = tuple(f"bad-{n}" for n in range(bad))
    cell.node("good", gpu=SLOTS)
    for name in names:
        cell.node(name, gpu=1)
    cell.kubes["sim-a"].faults.refusing = names
    took_s = await all_end(cell, 7 * RUN_S)
    assert took_s >= ROUNDS_S
    refusals = sum(cell.job(f"job-{n}").requeues for n in range(JOBS))
    doublings = 9  # from 1 s to the end of the story
    assert JOBS - SLOTS <= refusals <= JOBS * (doublings + min(bad - 1, SUSPECTS_FEW))
    in_order = sorted((cell.job(f"job-{n}") for n in range(JOBS)), key=cell.state.order_key)
    ended_ms = [job.finished_ms for job in in_order]
    assert max(ended_ms[: 2 * SLOTS]) < min(ended_ms[-2 * SLOTS :])


@told()
async def test_a_node_never_starts_anything_and_the_others_are_full(cell: Scenario) -> None:
    """One job at a time loses ten minutes there. Then it has the next place that becomes free, before all others."""
    cell.node("good", gpu=SLOTS)
    cell.node("bad", gpu=1)
    cell.kubes["sim-a"].faults.hanging = ("bad",)
    timeout_s = START_TIMEOUT_MS / 1000
    await all_end(cell, timeout_s + 2 * RUN_S)
    late = [name for name in (f"job-{n}" for n in range(JOBS)) if cell.job(name).requeues]
    (name,) = late
    first, second = cell.job(name).attempts
    assert (first.reason, second.reason) == (Reason.START_TIMEOUT, Reason.ALL_SUCCEEDED)
    assert second.placed_ms - first.ended_ms <= 2000


@told()
async def test_a_gang_of_which_a_node_refuses_one_member(cell: Scenario) -> None:
    """There is room for all but one member elsewhere. When the last place becomes free the gang has it, before those
    who came later, although it still keeps off the node that refused."""
    for name in ("good-1", "good-2", "bad"):
        cell.node(name, cpu=2000)
    cell.kubes["sim-a"].faults.refusing = ("bad",)
    await cell.queue("research")
    await cell.submit("other", queue="research", cpu=2000, run_s=200.0)
    await cell.until(lambda: cell.runs("other"))
    await cell.submit("gang", queue="research", replicas=2, cpu=2000)
    await cell.wait(170.0)
    await cell.submit("later", queue="research", replicas=2, cpu=2000)
    await cell.until(lambda: cell.ended("other"), within_s=60.0)
    gang = cell.job("gang")
    assert gang.suspects_until_ms > cell.state.now_ms
    await cell.until(lambda: cell.runs("gang"))
    assert {cell.state.nodes.spec(node).name for node, _ in cell.job("gang").placement[0].runs} == {"good-1", "good-2"}
    assert gang.suspects_until_ms > cell.state.now_ms
    assert cell.waits("later")


@told()
async def test_a_job_that_every_node_refuses(cell: Scenario) -> None:
    """Forty nodes are tried one after the other: the first few soon, then at intervals that double."""
    cell.nodes(40, cpu=1000)
    cell.kubes["sim-a"].faults.admission_refused_chance = 1.0
    await cell.queue("research")
    await cell.submit("cursed", queue="research", cpu=1000)
    await cell.wait(3600.0)
    tries = len(cell.record.placed)
    doublings = 11  # from 2 s to beyond half an hour
    assert SUSPECTS_FEW < tries <= SUSPECTS_FEW + doublings
    cursed = cell.job("cursed")
    assert len(cursed.suspects) == cursed.requeues == tries
    assert cursed.not_before_ms > cell.state.now_ms
