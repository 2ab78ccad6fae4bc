"""What is said of a placed job that could use more replicas: I5, rules G1, F6, P2a."""

from __future__ import annotations

from tests.unit.core.preempting import cpu
from tests.unit.core.test_growth_plans import GONE, lending, planned_for

from muster.core.explain import explain


def told(world, now_ms=0):
    found = explain(world.state, world.id("e"), now_ms)
    return found.summary, found.preemption


def test_what_is_said_of_a_job_that_would_grow(world, around):
    lending(world, around)
    summary, preemption = told(world)
    assert summary.endswith("; wants 6 more replicas: there is no room for one more now")
    assert preemption == "a preemption plan has been asked for"
    planned_for(world)
    summary, preemption = told(world)
    assert summary.endswith("; wants 6 more replicas")
    assert preemption == "preempting 6 jobs: what they free is held for 6 of its replicas"
    around.calm()
    summary, preemption = told(world)
    assert "wants" not in summary
    assert preemption == ""


def test_why_others_do_not_leave_for_its_growth(world, around):
    lending(world, around, lender_policy="NEVER")
    assert told(world)[1] == "not preempting because the jobs of queue lender preempt nobody"
    around.entitle(lender=cpu(2000))
    assert told(world)[1] == (
        "not preempting because queue lender is not below its entitlement in anything that the job needs"
    )
    around.entitle(lender=cpu(8000), borrower=cpu(8000))
    world.queue("lender", preemption="ANY")
    around.calm()
    assert told(world)[1] == "not preempting: nobody who may be preempted would make enough room"
    world.queue("lender", preemption="ANY", limit=cpu(2000))
    assert told(world)[0].endswith("; wants 6 more replicas: one more would exceed the limit of queue lender")


def test_when_it_grows_again_after_a_loss(world):
    world.nodes(2, cpu=2000)
    world.submit("e", replicas=4, least=2)
    world.pods("e", 2)
    world.pods("e", GONE, 3)
    assert told(world)[0].endswith("; wants 1 more replica and grows again in 1 s")
