"""Whose turn it is: rule F5 level by level, F2 inside a fair leaf, exact shares, committed usage (Q3)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.model import Allowance, JobState
from muster.core.turns import INFINITE, share


def entitle(world, **paths):
    """As fair-share would: cpu in milli-cores by queue, dots for slashes."""
    found = {path.replace("_", "/"): amount for path, amount in paths.items()}
    sent = tuple(
        c.Entitlement(world.state.queues.find(path).id, amounts if isinstance(amounts, tuple) else (("cpu", amounts),))
        for path, amounts in found.items()
    )
    return world.cell.send(c.EntitlementsComputed(world.state.ledger_seq, sent))


def submit(world, queue, count, **more):
    """Jobs of one core each, "<queue>-<n>"; time passes between them."""
    for n in range(count):
        world.cell.now_ms += 1
        world.submit(f"{queue.replace('/', '-')}-{n}", queue=queue, **more)


def started(transitions, world):
    """Queue by queue, in the order in which jobs were placed."""
    return [world.state.jobs[t.job].spec.queue for t in transitions if isinstance(t, tr.JobPlaced)]


def test_queues_get_their_turns_by_share_of_their_entitlement(world):
    world.queue("a")
    world.queue("b")
    submit(world, "a", 6)
    submit(world, "b", 6)
    entitle(world, a=4000, b=2000)
    done = world.nodes(1, cpu=6000)
    # 1/4, then 1/2 of either: a is older; then 3/4, then 1 of either: a again
    assert started(done, world) == ["a", "a", "b", "a", "a", "b"]


def test_at_equal_shares_the_older_head_comes_first_then_the_name(world):
    for queue in ("b", "c", "a"):
        world.queue(queue)
    world.cell.send(*(c.SubmitJob(world.spec(f"{q}-1", queue=q)) for q in ("c", "a", "b")))
    entitle(world, a=1000, b=1000, c=1000)
    assert started(world.nodes(1, cpu=3000), world) == ["a", "b", "c"]


def test_a_queue_below_its_guarantee_comes_before_one_with_a_smaller_share(world):
    world.queue("a", guaranteed=(("cpu", 3000),))
    world.queue("b")
    submit(world, "b", 3)
    submit(world, "a", 3)
    entitle(world, a=3000, b=9000)
    assert started(world.nodes(1, cpu=4000), world) == ["a", "a", "a", "b"]


def test_a_queue_of_higher_priority_comes_first_whatever_its_share(world):
    world.queue("a")
    world.queue("b", priority=1)
    submit(world, "a", 2)
    submit(world, "b", 2)
    entitle(world, a=100_000, b=2000)
    assert started(world.nodes(1, cpu=3000), world) == ["b", "b", "a"]


def test_each_level_is_decided_by_itself(world):
    for path in ("x", "x/p", "x/q", "y"):
        world.queue(path)
    submit(world, "x/p", 4)
    submit(world, "x/q", 4)
    submit(world, "y", 4)
    entitle(world, x=4000, x_p=1000, x_q=3000, y=4000)
    done = world.nodes(1, cpu=8000)
    assert started(done, world)[:4].count("y") == 2
    assert [world.state.queues.find(path).usage["cpu"] for path in ("x/p", "x/q", "y")] == [1000, 3000, 4000]


def test_a_job_priority_matters_inside_its_leaf_only(world):
    world.queue("a")
    world.queue("b")
    submit(world, "a", 1)
    submit(world, "b", 2, priority=100)
    entitle(world, a=1000, b=1000)
    assert started(world.nodes(1, cpu=2000), world) == ["a", "b"]


def test_who_is_not_entitled_waits_for_who_is(world):
    """F6: b, which nothing was promised to, was there first; a starts what is its own before b borrows."""
    world.queue("a")
    world.queue("b")
    submit(world, "b", 4)
    submit(world, "a", 4)
    entitle(world, a=3000, b=())
    done = world.nodes(1, cpu=5000)
    assert started(done, world) == ["a", "a", "a", "a", "b"]  # of borrowers, one with E = 0 comes last


def test_a_leaf_that_used_up_one_resource_still_starts_what_needs_another(world):
    """F3, P2a: entitled is a matter of what the job asks for."""
    world.queue("a")
    entitle(world, a=(("cpu", 2000), ("nvidia.com/gpu", 1000)))
    gpu = (("nvidia.com/gpu", 1000),)
    for n in range(3):
        world.submit(f"gpu-{n}", queue="a", requests=gpu)
    world.cell.now_ms += 1
    for n in range(2):
        world.submit(f"cpu-{n}", queue="a")
    done = world.nodes(1, cpu=2000, gpus=4)
    order = [world.state.jobs[t.job].spec.name[:3] for t in done if isinstance(t, tr.JobPlaced)]
    assert order == ["gpu", "cpu", "cpu", "gpu", "gpu"]


def test_a_blocked_head_holds_up_nobody(world):
    world.queue("a")
    world.nodes(2, cpu=4000, gpus=1)
    world.submit("needs-gpus", queue="a", priority=9, requests=(("nvidia.com/gpu", 1000),), replicas=2)
    world.submit("more-gpus", queue="a", priority=9, requests=(("nvidia.com/gpu", 1000),))
    submit(world, "a", 3)
    assert world.job("more-gpus").state is JobState.QUEUED
    assert all(world.job(f"a-{n}").state is JobState.PLACED for n in range(3))


# --- inside a leaf --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["NAMESPACE", "USER"])
def test_a_fair_leaf_gives_turns_to_its_members(world, by):
    world.queue("a", ordering="FAIR", fair_by=by)
    for number, who in enumerate(("x", "x", "x", "x", "y", "y")):
        world.cell.now_ms += 1
        shared = {"namespace": who} if by == "NAMESPACE" else {"submitter": who}
        world.submit(f"{who}-{number}", queue="a", **shared)
    entitle(world, a=4000)
    done = world.nodes(1, cpu=4000)
    names = [world.state.jobs[t.job].spec.name for t in done if isinstance(t, tr.JobPlaced)]
    assert names == ["x-0", "y-4", "x-1", "y-5"]


@pytest.mark.parametrize("amounts", [None, (), (("memory", 1 << 30),)])
def test_a_fair_leaf_without_an_entitlement_is_still_fair(world, amounts):
    """E is not there yet, is 0, or names something else: what each has of the capacity decides."""
    world.queue("a", ordering="FAIR", fair_by="USER")
    world.queue("b")
    for number, who in enumerate(("x", "x", "x", "x", "x", "y", "y")):
        world.cell.now_ms += 1
        world.submit(f"{who}-{number}", queue="a", submitter=who, cpu=1000 if who == "x" else 2000)
    if amounts is not None:
        entitle(world, a=amounts)
    done = world.nodes(1, cpu=8000)
    names = [world.state.jobs[t.job].spec.name for t in done if isinstance(t, tr.JobPlaced)]
    assert names == ["x-0", "x-1", "y-5", "x-2", "x-3", "y-6"]


def test_who_asks_for_what_its_leaf_is_entitled_to_comes_before_who_does_not(world):
    world.queue("a", ordering="FAIR")
    world.submit("gpu", queue="a", namespace="x", requests=(("nvidia.com/gpu", 1000),))
    world.cell.now_ms += 1
    world.submit("cpu", queue="a", namespace="y")
    entitle(world, a=8000)
    done = world.nodes(1, cpu=8000, gpus=1)
    assert [world.state.jobs[t.job].spec.name for t in done if isinstance(t, tr.JobPlaced)] == ["cpu", "gpu"]


def test_a_fair_leaf_keeps_priorities_inside_each_member(world):
    world.queue("a", ordering="FAIR")
    world.submit("low", queue="a", namespace="x")
    world.cell.now_ms += 1
    world.submit("high", queue="a", namespace="x", priority=3)
    world.submit("other", queue="a", namespace="y")
    entitle(world, a=3000)
    done = world.nodes(1, cpu=2000)
    names = {world.state.jobs[t.job].spec.name for t in done if isinstance(t, tr.JobPlaced)}
    assert names == {"high", "other"}


def test_turning_fairness_on_sorts_in_what_waits_and_runs(world):
    world.nodes(1, cpu=2000)
    submit(world, "research", 4, namespace="x")
    world.cell.now_ms += 1
    world.submit("late", namespace="y")
    world.queue("research", ordering="FAIR")
    entitle(world, research=2000)
    world.pods("research-0", 3)
    assert world.job("late").state is JobState.PLACED
    world.queue("research")
    world.pods("late", 3)
    assert world.job("research-2").state is JobState.PLACED


# --- allowances -----------------------------------------------------------------------------------------------------


def test_running_jobs_of_a_namespace_are_limited_and_the_next_starts_when_one_ends(world):
    world.queue("research", per_namespace=Allowance(running_jobs=2))
    world.nodes(1, cpu=9000)
    submit(world, "research", 3, namespace="x")
    world.submit("other", namespace="y")
    assert [world.job(f"research-{n}").charged for n in range(3)] == [True, True, False]
    assert world.job("other").charged
    world.pods("research-0", 3)
    assert world.job("research-2").charged


def test_resources_of_a_user_are_limited_on_every_queue_of_the_path(world):
    world.queue("top", per_user=Allowance(resources=(("cpu", 3000),)))
    world.queue("top/one")
    world.queue("top/two")
    world.nodes(1, cpu=9000)
    submit(world, "top/one", 2, submitter="ann")
    submit(world, "top/two", 2, submitter="ann")
    world.submit("bob", queue="top/two", submitter="bob", cpu=3000)
    assert sum(world.job(f"top-{q}-{n}").charged for q in ("one", "two") for n in range(2)) == 3
    assert world.job("bob").charged
    refusal = world.reject(world.submit("never", queue="top/two", submitter="ann", cpu=4000))
    assert (refusal.code, refusal.rule) == ("FAILED_PRECONDITION", "Q2")


def test_waiting_jobs_of_a_namespace_are_limited(world):
    world.queue("research", per_namespace=Allowance(pending_jobs=2))
    submit(world, "research", 2, namespace="x")
    refusal = world.reject(world.submit("third", namespace="x"))
    assert (refusal.code, refusal.field) == ("RESOURCE_EXHAUSTED", "queue")
    assert "2 jobs waiting" in refusal.message
    world.submit("other", namespace="y")
    world.nodes(1, cpu=1000)
    world.submit("third", namespace="x")
    assert "third" in {job.spec.name for job in world.state.jobs.values()}


def test_one_batch_cannot_pass_the_limit_of_waiting_jobs(world):
    world.queue("research", per_user=Allowance(pending_jobs=3))
    specs = [world.spec(f"job-{n}", submitter="ann") for n in range(5)]
    done = world.cell.send(*map(c.SubmitJob, specs))
    assert sum(isinstance(t, tr.JobQueued) for t in done) == 3


# --- what may be borrowed -------------------------------------------------------------------------------------------


def test_what_lenders_withhold_is_not_borrowed(world):
    """fs-lending-limit: six are guaranteed to a lender that wants nothing and lends two."""
    world.nodes(1, cpu=10_000)
    world.queue("lender", guaranteed=(("cpu", 6000),), lending_limit=(("cpu", 2000),))
    world.queue("b", guaranteed=(("cpu", 4000),))
    submit(world, "b", 10)
    assert world.state.queues.find("b").usage["cpu"] == 6000
    submit(world, "lender", 6)
    assert world.state.queues.find("lender").usage["cpu"] == 4000  # b has to give back what it borrowed


def test_withheld_shrinks_as_the_lender_asks(world):
    world.nodes(1, cpu=10_000)
    world.queue("lender", guaranteed=(("cpu", 6000),), lending_limit=(("cpu", 0),))
    world.queue("b")
    submit(world, "lender", 3)
    submit(world, "b", 10)
    assert world.state.queues.find("b").usage["cpu"] == 4000
    for n in range(3):
        world.submit(f"more-{n}", queue="lender", cpu=500)
    usage = {path: world.state.queues.find(path).usage["cpu"] for path in ("lender", "b")}
    assert usage == {"lender": 4500, "b": 4000}  # 1500 are kept back still
    world.submit("last", queue="lender", cpu=500)
    world.pods("b-0", 3)
    assert world.state.queues.find("b").usage["cpu"] == 4000


def test_what_cannot_be_reclaimed_starts_only_within_the_entitlement(world):
    """P4: else a borrower becomes immune."""
    world.nodes(1, cpu=9000)
    world.queue("a")
    submit(world, "a", 3, preemptible=False)
    assert not world.state.queues.find("a").usage
    entitle(world, a=2500)
    assert world.state.queues.find("a").usage["cpu"] == 2000
    entitle(world, a=3000)
    assert world.state.queues.find("a").usage["cpu"] == 3000


def test_without_entitlements_the_guarantee_is_what_is_entitled(world):
    world.nodes(1, cpu=9000)
    world.queue("a", guaranteed=(("cpu", 2000),))
    submit(world, "a", 3, preemptible=False)
    assert world.state.queues.find("a").usage["cpu"] == 2000


# --- shares ---------------------------------------------------------------------------------------------------------

amount = st.one_of(st.integers(0, 20), st.integers(0, 1 << 62))


@given(st.lists(st.tuples(amount, amount, st.integers(1, 1 << 62)), min_size=1, max_size=4), st.data())
def test_shares_are_ordered_as_exact_fractions_are(amounts, data):
    names = [f"r{n}" for n in range(len(amounts))]
    other = data.draw(st.lists(st.tuples(amount, amount, st.integers(1, 1 << 62)), min_size=1, max_size=4))

    def both(values):
        used = {f"r{n}": value[0] for n, value in enumerate(values)}
        need = {f"r{n}": value[1] for n, value in enumerate(values)}
        most = {f"r{n}": value[2] for n, value in enumerate(values)}
        exact = max(Fraction(u + w, e) for u, w, e in values)
        return share(most, used, need), exact

    (first, first_exact), (second, second_exact) = both(amounts), both(other)
    assert (first < second) == (first_exact < second_exact)
    assert (first == second) == (first_exact == second_exact)
    assert share({}, {}, {names[0]: 1}) == INFINITE
