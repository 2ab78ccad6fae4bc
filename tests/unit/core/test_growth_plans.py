"""Entitled growth takes back what others borrow, within E, from other queues only: rules P1, P2a, P5, P6, F6."""

from __future__ import annotations

import pytest
from tests.unit.core.preempting import cpu, many

from muster.core import transitions as tr
from muster.core.model import EVERY_INDEX, JobState

BORROWED = 6


def lending(world, around, lender_policy="ANY", **elastic):
    """Eight cores; six of them are borrowed when a job of the lender comes that may have all of them."""
    world.nodes(4, cpu=2000)
    world.queue("lender", preemption=lender_policy, guaranteed=cpu(8000))
    world.queue("borrower", preemption="ANY")
    many(world, "b", 8, "borrower")
    for n in range(2):
        world.pods(f"b-{n}", 3)
    world.submit("e", queue="lender", **{"replicas": 8, "least": 2, **elastic})
    around.entitle(lender=cpu(8000), borrower=())


def live(world, name="e"):
    job = world.job(name)
    return sum(phase < 3 for phase in job.phases) - len(job.leaving)


@pytest.mark.parametrize(
    "elastic",
    [{}, {"replicas": 8, "least": 1, "completion": EVERY_INDEX}],
    ids=["elastic", "array"],
)
def test_a_lender_gets_all_that_it_is_entitled_to(world, around, elastic):
    lending(world, around, **elastic)
    around.calm()
    assert (live(world), around.used("lender"), around.used("borrower")) == (8, 8000, 0)
    assert around.plans == 1  # for all six at once
    assert len(around.evicted) == BORROWED
    around.wait(8 * 3600 * 1000, 400_000)
    assert (around.plans, len(around.evicted)) == (1, BORROWED)
    assert not world.state.holds
    assert not world.state.asks
