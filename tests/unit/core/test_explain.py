"""Why a job is where it is: I5, rule B4."""

from __future__ import annotations

import pytest

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.errors import Rejected
from muster.core.explain import explain
from muster.core.model import Allowance
from muster.core.preemption import plan_preemption


def why(world, name):
    return explain(world.state, world.id(name))


def blockers(world, name):
    return [(b.kind, b.rule) for b in why(world, name).blockers]


def test_position_among_the_queued_jobs_of_its_queue(world):
    for n, priority in enumerate((0, 0, 5)):
        world.submit(f"job-{n}", cpu=1000 + n, priority=priority)
        world.cell.now_ms += 10
    told = why(world, "job-1")
    assert (told.position, told.pending) == (3, 3)
    assert told.ahead == (world.id("job-2"), world.id("job-0"))
    assert told.expected_start_unknown


def test_without_nodes(world):
    world.submit("a")
    told = why(world, "a")
    assert told.blockers[0].kind == "capacity"
    assert told.summary == "Queued for 0 s: there are no nodes it may use"


def test_missing_capacity_in_numbers(world):
    world.nodes(3)
    world.submit("filler", cpu=3000, replicas=3)
    world.submit("a", cpu=2000, replicas=3)
    (blocker,) = why(world, "a").blockers
    assert (blocker.rule, blocker.resource, blocker.missing, blocker.nodes) == ("G1", "cpu", 1000, 3)
    assert (blocker.needed, blocker.available) == (3, 0)
    assert any("1 more cpu" in line for line in why(world, "a").unblocked_by)


def test_nodes_that_are_out_are_counted_by_cause(world):
    world.nodes(2, cpu=8000)
    world.submit("a", cpu=5000, replicas=2)
    world.submit("b", cpu=5000, replicas=2)
    world.cell.send(c.NodesReported("sim-a", (world.node("node-1", cpu=8000, cordoned=True),)))
    assert ("cordoned", "G4") in blockers(world, "b")


def test_part_of_a_gang_fits(world):
    world.nodes(4)
    world.submit("filler", cpu=4000)
    world.submit("a", cpu=4000, replicas=4)
    assert any(line == "min_replicas of main 3" for line in why(world, "a").unblocked_by)


def test_a_limit_on_the_path_with_how_much_over(world):
    world.nodes(4)
    world.queue("research", limit=(("cpu", 4000),))
    world.queue("research/a")
    world.submit("one", queue="research/a", cpu=3000)
    world.submit("two", queue="research/a", cpu=3000)
    told = why(world, "two")
    (blocker,) = told.blockers
    assert (blocker.rule, blocker.kind, blocker.subject) == ("F6", "queue-limit", "research")
    assert (blocker.resource, blocker.needed, blocker.available, blocker.missing) == ("cpu", 3000, 1000, 2000)
    assert [share.queue for share in told.shares] == ["research/a", "research"]
    assert dict(told.shares[1].usage)["cpu"] == 3000
    assert dict(told.shares[1].with_job)["cpu"] == 6000
    assert told.shares[1].over == (("cpu", 2000),)
    assert told.summary.endswith("queue research uses 3 of 4 cpu, the job needs 3")


def test_a_stopped_queue(world):
    world.nodes()
    world.submit("a", cpu=4000)
    world.queue("research", state="STOPPED")
    world.submit("b")
    assert blockers(world, "b")[0] == ("queue-state", "Q1")


def test_a_backoff(world):
    world.nodes()
    world.submit("a")
    world.cell.send(c.PlacementRejected("sim-a", world.id("a"), 1, 0))
    world.pods("a", 5)
    told = why(world, "a")
    assert (told.blockers[0].kind, told.rule) == ("backoff", "G5")
    assert (told.position, told.pending) == (1, 1)


def test_times_are_the_reader_s_while_nothing_happens(world):
    world.submit("a")
    now_ms = world.state.now_ms + 90_000
    assert explain(world.state, world.id("a"), now_ms).summary == "Queued for 90 s: there are no nodes it may use"
    world.nodes()
    assert explain(world.state, world.id("a"), now_ms).summary.startswith("Placed for 90 s")


def test_why_it_preempts_nobody_is_not_among_what_would_help(world):
    world.nodes(1)
    world.submit("first", cpu=4000, priority=5)
    world.submit("second", cpu=4000, priority=5)
    told = why(world, "second")
    assert told.preemption == (
        "not preempting because queue research is not below its entitlement in anything that the job needs, "
        "and nobody in it runs at a priority below 5"
    )
    assert not [line for line in told.unblocked_by if "preempt" in line or "priority" in line]
    world.queue("research", preemption="NEVER")
    assert why(world, "second").preemption.endswith("the jobs of queue research preempt nobody")
    assert why(world, "first").preemption == ""


def test_what_is_held_for_another(world):
    world.nodes(1)
    world.submit("low", cpu=4000)
    world.submit("high", cpu=4000, priority=5)
    plan = plan_preemption(world.state, world.id("high"))
    world.cell.send(c.PreemptionPlanned(world.id("high"), 1, plan.victims, plan.placement))
    world.submit("late", cpu=1000)
    assert why(world, "high").preemption == "preempting 1 job: what they free is held for it"
    assert blockers(world, "late")[0][0] == "capacity"
    world.nodes(1, cpu=5000)
    world.submit("other", cpu=1500)
    assert blockers(world, "other")


def test_a_job_that_fits_but_was_not_looked_at_yet(world):
    world.nodes()
    world.cell.write(c.SubmitJob(world.spec("a")))
    world.cell.work_limit = 1
    world.cell.step()
    assert why(world, "a").blockers == ()
    assert "next cycle" in why(world, "a").summary


def test_every_state_has_a_story(world):
    world.nodes(2)
    world.submit("a", replicas=2)
    assert why(world, "a").summary == "Placed for 0 s: 2 pods on 1 node, epoch 1"
    world.pods("a", 1)
    assert why(world, "a").summary.startswith("Starting")
    world.pods("a", 2)
    world.cell.wait(65_000)
    world.cell.send(c.UpsertQueue("other", world.state.queues.find("research").spec))
    assert why(world, "a").summary.startswith("Running for 65 s")
    world.cell.send(c.CancelJob(world.id("a"), actor="ann"))
    told = why(world, "a")
    assert told.summary.startswith("Stopping, then Cancelled: CancelledByUser (cancelled by ann)")
    assert (told.position, told.pending, told.blockers) == (0, 0, ())
    world.pods("a", 5)
    assert why(world, "a").summary == "Cancelled 0 s ago: CancelledByUser (cancelled by ann)"
    world.cell.send(c.DeleteQueue("research"))
    assert why(world, "a").shares == ()
    with pytest.raises(Rejected):
        explain(world.state, "x")


def test_a_limit_of_the_namespace(world):
    world.nodes(4)
    world.queue("research", per_namespace=Allowance(running_jobs=1, resources=(("cpu", 2000),)))
    world.submit("a")
    world.submit("b")
    told = why(world, "b")
    (blocker,) = told.blockers
    assert (blocker.rule, blocker.kind, blocker.needed, blocker.available) == ("Q1", "namespace-limit", 1, 0)
    assert "namespace default has 1 running job in queue research, which allows 1" in told.summary


def test_what_cannot_be_reclaimed_from_does_not_borrow(world):
    world.nodes(4)
    queue = world.state.queues.find("research").id
    world.cell.send(c.EntitlementsComputed(1, (c.Entitlement(queue, (("cpu", 1000),)),)))
    world.submit("a", cpu=3000, preemptible=False)
    told = why(world, "a")
    assert told.rule == "P4"
    assert "starts only within the entitlement of research: 2 cpu too much" in told.summary


def test_what_lenders_keep_back(world):
    world.nodes(1)
    world.queue("lender", guaranteed=(("cpu", 3000),), lending_limit=(("cpu", 1000),))
    world.submit("a", cpu=3000)
    told = why(world, "a")
    (blocker,) = told.blockers
    assert (blocker.rule, blocker.kind, blocker.missing) == ("F6", "withheld", 1000)
    assert "lenders keep back 2 cpu of their guarantees" in blocker.message
    assert [dict(share.entitled) for share in told.shares] == [{}]


def test_a_pause_is_over_at_no_price_before_its_time(world):
    world.nodes(1)
    world.submit("a", cpu=2000)
    world.cell.send(c.PlacementRejected("sim-a", world.id("a"), 1, 0))
    world.pods("a", 5)
    world.submit("b", cpu=4000)
    told = why(world, "a")
    assert told.blockers[0].kind == "backoff"
    assert told.blockers[0].subject == ""
    assert told.unblocked_by == ()


def test_a_job_that_can_never_run_any_more_says_so(world):
    """Rule Q2: hardware has changed since it was taken."""
    world.nodes(2, cpu=8000)
    world.submit("filler", cpu=8000, replicas=2)
    world.submit("a", cpu=6000)
    assert "never" not in why(world, "a").summary
    world.nodes(2, cpu=4000)
    told = why(world, "a")
    assert (told.blockers[0].kind, told.rule) == ("never-fits", "Q2")
    assert "it can never run on the clusters as they are now" in told.summary
    assert told.summary.endswith("a pod asks for 6 cpu; the largest node it may use in sim-a has 4")


def test_in_a_fair_queue_the_position_is_among_the_jobs_of_the_member(world):
    world.nodes(1, cpu=2000)
    world.queue("research", ordering="FAIR", fair_by="USER")
    for n in range(5):
        world.submit(f"eve-{n}", submitter="eve")
        world.cell.now_ms += 10
    world.submit("bob-0", submitter="bob")
    world.submit("bob-1", submitter="bob")
    assert (why(world, "bob-0").position, why(world, "bob-1").position, why(world, "eve-4").position) == (1, 2, 3)
    assert why(world, "bob-1").ahead == (world.id("bob-0"),)
    world.pods("eve-0", 5)
    assert world.job("bob-0").placement, "it was the next, as the position says"


def test_who_only_loses_replicas_is_counted_as_well(world, around):
    world.nodes(1, cpu=4000)
    world.submit("elastic", replicas=4, least=2)
    around.calm()
    world.submit("high", cpu=2000, priority=5)
    around.answer()
    assert around.shrunk
    assert why(world, "high").preemption == "preempting 1 job: what they free is held for it"


def test_why_nobody_of_the_same_priority_leaves(world, around):
    """The default policy reclaims from lower priorities alone."""
    world.nodes(1, cpu=4000)
    world.queue("lender")
    world.submit("borrower", cpu=4000)
    around.entitle(lender=(("cpu", 4000),), research=())
    world.submit("mine", queue="lender", cpu=4000)
    around.answer()
    told = why(world, "mine")
    assert "LOWER_PRIORITY" in told.preemption
    assert "asked again in" in told.preemption


def test_what_helps_a_protected_job_is_something_that_can_be_done(world, around):
    world.nodes(1, cpu=4000)
    world.queue("poor")
    around.entitle(poor=(), research=(("cpu", 4000),))
    world.submit("fixed", queue="poor", cpu=1000, preemptible=False)
    (helps,) = [line for line in why(world, "fixed").unblocked_by if "preemptible" in line]
    assert helps == "1 cpu more that poor is entitled to, or preemptible jobs"


def test_why_a_limit_of_the_namespace_keeps_others_from_leaving(world, around):
    """Not because of the policy, although nobody of a lower priority runs."""
    world.nodes(1, cpu=4000)
    world.queue("lender", per_namespace=Allowance(resources=(("cpu", 2000),)))
    world.submit("borrower", cpu=2000)
    world.submit("first", queue="lender", cpu=2000)
    around.entitle(lender=(("cpu", 4000),), research=())
    world.submit("mine", queue="lender", cpu=1000)
    around.answer()
    told = why(world, "mine")
    assert "LOWER_PRIORITY" not in told.preemption
    assert "(what namespace default may have in queue lender is used up)" in told.preemption


def test_of_an_elastic_job_it_says_how_many_pods_stay(world):
    world.nodes(4, cpu=2000)
    world.submit("e", replicas=6, least=2)
    world.pods("e", 2)
    assert "6 pods on 3 nodes" in why(world, "e").summary
    job = world.job("e")
    world.cell.by_hand(tr.JobShrunk(job.id, job.epoch, (4, 5), not_before_ms=world.cell.now_ms + 60_000))
    assert "4 pods on 2 nodes (2 more leave)" in why(world, "e").summary
    world.pods("e", 5, 4, 5)
    assert "4 pods on 2 nodes, epoch 1; wants 2 more" in why(world, "e").summary


def test_the_cause_of_a_rejection_is_told_while_it_waits_and_after(world):
    world.nodes(1)
    world.submit("a", cpu=2000)
    world.cell.send(c.PlacementRejected("sim-a", world.id("a"), 1, 0, "NotFound", 'namespaces "ann" not found'))
    world.pods("a", 5)
    told = why(world, "a")
    assert told.blockers[0].message == ('waits 1 s more after PlacementRejected (NotFound: namespaces "ann" not found)')
    world.nodes(1, cpu=1000)
    assert 'namespaces "ann" not found' in explain(world.state, world.id("a"), world.cell.now_ms + 3600_000).summary


def test_what_it_ran_is_not_waiting(world):
    world.nodes(1)
    world.submit("a")
    world.pods("a", 2)
    world.cell.now_ms += 100_000
    world.cell.send(c.PlacementRejected("sim-a", world.id("a"), 1, 0))
    world.pods("a", 5)
    summary = explain(world.state, world.id("a"), world.cell.now_ms + 14_000).summary
    assert summary.startswith("Queued again for 14 s, submitted 114 s ago: ")
