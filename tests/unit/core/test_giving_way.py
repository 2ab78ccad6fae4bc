"""Who gives way to whom among equals, and that it ends there: rules P2b and P3 in queues that are fair, and in batches
that were submitted at one moment."""

from __future__ import annotations

import pytest
from tests.unit.core.preempting import cpu, many

from muster.core import commands as c
from muster.core.preemption_rules import Ground, ground

MINUTES_30 = 30 * 60 * 1000


@pytest.fixture
def fair(world, around):
    """Four cpus in a queue that is fair between users: eve came first with four jobs, bob then with four."""
    world.nodes(1)
    world.queue("research", ordering="FAIR", fair_by="USER", preemption="ANY", state="STOPPED")
    many(world, "eve", 4, "research", submitter="eve", namespace="one")
    world.cell.now_ms += 1000
    many(world, "bob", 4, "research", submitter="bob", namespace="two")
    return around


def look_again(world):
    """Something changes that matters to nobody, so that the cycle looks at every job once more."""
    world.number = getattr(world, "number", 0) + 1
    world.cell.send(c.NodesReported("sim-a", (world.node("node-0", labels=(("a", str(world.number)),)),)))


def shares(around):
    who = [job.spec.submitter for job in around.running()]
    return who.count("eve"), who.count("bob")


@pytest.mark.parametrize("fair_by", ["USER", "NAMESPACE"])
def test_the_older_jobs_of_one_do_not_undo_what_is_fair(world, fair, fair_by):
    """Rule P2b between members of a queue with ordering FAIR: nobody is newer than the jobs of another."""
    world.queue("research", ordering="FAIR", fair_by=fair_by, preemption="ANY")
    fair.calm()
    assert shares(fair) == (2, 2)
    look_again(world)
    fair.wait(MINUTES_30, 60_000)
    assert (shares(fair), fair.evicted, world.state.requests) == ((2, 2), [], 0)


@pytest.mark.parametrize(("fair_by", "kept"), [("USER", ["bob-0", "eve-0"]), ("NAMESPACE", ["eve-0", "eve-1"])])
def test_within_one_member_the_newer_gives_way_as_before(world, around, fair_by, kept):
    """Both are in one namespace: between namespaces they are one member, and the older of them go first."""
    world.nodes(1, cpu=2000)
    world.queue("research", ordering="FAIR", fair_by=fair_by, preemption="ANY", state="STOPPED")
    for name in ("eve-0", "eve-1", "bob-0", "bob-1"):
        world.submit(name, submitter=name[:3], namespace="shared")
        world.cell.now_ms += 1000
    world.queue("research", ordering="FAIR", fair_by=fair_by, preemption="ANY")
    around.calm()
    assert sorted(job.spec.name for job in around.running()) == kept
    world.pods("eve-0", 5)  # lost: who waited gets the room, until it is back and they are newer
    newer = "eve-1" if fair_by == "USER" else "bob-0"
    assert world.job(newer).charged
    around.wait(MINUTES_30, 1000)
    assert sorted(job.spec.name for job in around.running()) == kept
    assert around.evicted == [world.id(newer)]


def test_a_higher_priority_counts_between_members_all_the_same(world, fair):
    world.queue("research", ordering="FAIR", fair_by="USER", preemption="ANY")
    fair.calm()
    world.submit("high", submitter="eve", namespace="one", priority=5)
    fair.calm()
    assert world.job("high").charged
    assert len(fair.evicted) == 1


def test_who_is_newest_is_worked_out_anew_when_the_queue_becomes_fair(world, fair):
    """`Queue.newest` is kept by member only where that matters."""
    world.queue("research", preemption="ANY")
    fair.calm()
    assert shares(fair) == (4, 0)
    world.pods("eve-0", 3)
    look_again(world)
    assert shares(fair) == (3, 1)
    world.submit("late", submitter="carl", namespace="three")
    assert world.state.requests  # bob is newer than eve, as long as nobody is fair between them
    world.queue("research", ordering="FAIR", fair_by="USER", preemption="ANY")
    asked = world.state.requests
    look_again(world)
    fair.wait(MINUTES_30, 60_000)
    assert (shares(fair), fair.evicted, world.state.requests) == ((3, 1), [], asked)


def test_classes_of_protected_jobs_are_counted_anew_when_the_queue_becomes_fair_and_no_longer_is(world):
    """What two members wait for is two classes in a fair queue and one in any other (rule P4)."""
    world.queue("research", state="STOPPED")
    for name in ("ann", "bob"):
        world.submit(name, submitter=name, preemptible=False)
    queue, protected = world.state.queues.find("research").id, world.state.pending.protected
    for ordering, count in (("FAIR", 2), ("FIFO", 1), ("FAIR", 2)):
        world.queue("research", ordering=ordering, state="STOPPED")
        assert protected == {queue: count}
    world.cell.send(*[c.CancelJob(world.id(name)) for name in ("ann", "bob")])
    assert protected == {}


@pytest.mark.parametrize("spaced_ms", [0, 10])
def test_one_reclaim_costs_one_eviction(world, around, spaced_ms):
    """Thirty jobs in one batch borrow everything; the order of victims is the reverse of the order of age (P3), so who
    left is the newest and nobody leaves for it in turn."""
    world.nodes(3, cpu=10_000)
    world.queue("owner", guaranteed=cpu(1000), preemption="ANY")
    world.queue("research", preemption="ANY")
    around.entitle(owner=cpu(1000), research=())
    if spaced_ms:
        for n in range(30):
            many(world, f"lent-{n}", 1, "research")
            world.cell.now_ms += spaced_ms
    else:
        many(world, "lent", 30, "research")
    around.calm()
    around.wait(3_600_000, 600_000)
    many(world, "mine", 1, "owner")
    around.wait(MINUTES_30, 30_000)
    assert len(around.running("owner")) == 1
    assert len(around.evicted) == 1
    ages = sorted((job.submit_ms, job.id) for job in world.state.jobs.values() if job.spec.queue == "research")
    assert around.evicted == [ages[-1][1]]


def test_a_gang_takes_the_newest_of_a_batch(world, around):
    """The same with several victims on several nodes, cheapest first."""
    world.nodes(2)
    world.queue("research", preemption="ANY")
    many(world, "lent", 8, "research")
    around.calm()
    world.submit("high", replicas=3, priority=5)
    around.wait(MINUTES_30, 30_000)
    ages = sorted(job.id for job in world.state.jobs.values() if job.spec.priority == 0)
    assert world.job("high").charged
    assert sorted(around.evicted) == ages[-3:]


def test_fair_queues_plan_nothing_across_members(world, fair):
    """The leader checks by the same rule what a preemptor proposes."""
    world.queue("research", ordering="FAIR", fair_by="USER", preemption="ANY")
    fair.calm()
    queue = world.state.queues.find("research")
    waiting = next(job for job in world.state.jobs.values() if not job.charged and job.spec.submitter == "eve")
    look_again(world)
    victims = {job.spec.submitter: job for job in fair.running()}
    assert ground(waiting, queue, victims["bob"]) is Ground.NONE
    plan = c.PreemptionPlanned(waiting.id, 1, ((victims["bob"].id, 1),), victims["bob"].placement)
    assert fair.note(world.cell.send(plan)) == []
