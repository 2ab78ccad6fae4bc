"""P4: a job that nobody can reclaim from stays off what others are guaranteed, however idle they are."""

import pytest
from tests.unit.core.preempting import cpu, many, planned
from tests.unit.core.test_turns import entitle

from muster.core import commands as c
from muster.core import invariants, snapshot
from muster.core import transitions as tr
from muster.core.claims import Claims
from muster.core.errors import InvariantBroken
from muster.core.explain import explain
from muster.core.invariants_claims import Kept
from muster.core.limits import PREEMPTIONS_MAX
from muster.core.model import EVERY_INDEX, QueueSpec
from muster.core.preemption import Planner
from muster.core.whatif import forecast_job

SUCCEEDED = 3


@pytest.fixture
def lent(world):
    """8 cores, of which 4 are guaranteed to a queue that is idle; fair-share gives all to the borrower."""
    world.nodes(1, cpu=8000)
    world.queue("lender", guaranteed=cpu(4000), preemption="ANY")
    world.queue("borrower", preemption="ANY")
    entitle(world, borrower=8000)
    return world


def used(world, path):
    return world.state.queues.find(path).usage.get("cpu", 0)


def claimed(world, path):
    return world.state.queues.find(path).claimed.get("cpu", 0)


def tired(world, name, **more):
    """A job that was preempted as often as may be, and is on its way out for the last time."""
    world.submit(name, **more)
    for n in range(PREEMPTIONS_MAX):
        if n:
            world.pods(name, 5)
        job = world.job(name)
        world.cell.by_hand(tr.JobPreempted(job.id, job.epoch, "", 0))


# --- who starts -------------------------------------------------------------------------------------------------------


def test_protected_jobs_leave_what_a_lender_is_guaranteed(lent):
    many(lent, "fixed", 8, "borrower", preemptible=False)
    assert used(lent, "borrower") == 4000
    many(lent, "loan", 8, "borrower")
    assert used(lent, "borrower") == 8000


def test_a_job_that_was_preempted_too_often_leaves_it_as_well(lent):
    tired(lent, "often", queue="borrower", cpu=5000)
    lent.pods("often", 5)
    assert lent.job("often").state == "Queued"
    assert explain(lent.state, lent.id("often")).rule == "P4"
    tired(lent, "smaller", queue="borrower", cpu=4000)
    lent.pods("smaller", 5)
    assert lent.job("smaller").charged


def test_within_its_own_guarantee_it_starts_whatever_is_promised_to_others(lent):
    """Also when more is promised than there is, as after nodes were lost."""
    lent.queue("mine", guaranteed=cpu(6000))
    entitle(lent, mine=6000)
    many(lent, "fixed", 8, "borrower", preemptible=False)
    assert used(lent, "borrower") == 0
    many(lent, "own", 8, "mine", preemptible=False)
    assert used(lent, "mine") == 6000


def test_what_a_parent_is_guaranteed_beyond_its_children_is_for_all_of_them(world):
    world.nodes(1, cpu=10_000)
    world.queue("team", guaranteed=cpu(6000))
    world.queue("team/a", guaranteed=cpu(2000))
    world.queue("team/b")
    world.queue("other", guaranteed=cpu(3000))
    entitle(world, **{"team/a": 10_000, "team/b": 10_000, "other": 10_000})
    many(world, "b", 10, "team/b", preemptible=False)
    assert used(world, "team/b") == 5000  # of 10, without what a and other are guaranteed
    many(world, "a", 10, "team/a", preemptible=False)
    assert used(world, "team/a") == 2000
    many(world, "o", 10, "other", preemptible=False)
    assert used(world, "other") == 3000


def test_what_children_are_guaranteed_is_kept_below_the_limit_of_their_parent(world):
    world.nodes(1, cpu=20_000)
    world.queue("team", limit=cpu(6000))
    world.queue("team/a", guaranteed=cpu(4000))
    world.queue("team/b")
    entitle(world, **{"team/a": 6000, "team/b": 6000})
    many(world, "b", 10, "team/b", preemptible=False)
    assert used(world, "team/b") == 2000
    many(world, "a", 10, "team/a", preemptible=False)
    assert used(world, "team/a") == 4000


def test_only_what_the_job_asks_for_counts(world):
    world.nodes(1, cpu=4000, gpus=4)
    world.queue("lender", guaranteed=(("nvidia.com/gpu", 4000),))
    world.queue("borrower")
    entitle(world, borrower=4000)
    world.submit("fixed", queue="borrower", cpu=4000, preemptible=False)
    assert world.job("fixed").charged


def test_without_guarantees_nothing_is_kept(world):
    world.nodes(1, cpu=4000)
    world.queue("a")
    world.queue("b", weight=5)
    entitle(world, a=4000)
    many(world, "fixed", 4, "a", preemptible=False)
    assert used(world, "a") == 4000


# --- growing ----------------------------------------------------------------------------------------------------------


def test_an_elastic_job_grows_up_to_what_is_kept(lent):
    lent.submit("elastic", queue="borrower", replicas=8, least=2, preemptible=False)
    assert used(lent, "borrower") == 4000
    lent.queue("lender", guaranteed=cpu(1000), preemption="ANY")
    assert used(lent, "borrower") == 7000


def test_an_array_job_takes_its_own_places_again(lent):
    lent.submit("array", queue="borrower", replicas=8, least=1, completion=EVERY_INDEX, preemptible=False)
    assert used(lent, "borrower") == 4000
    lent.pods("array", SUCCEEDED, 0, 1)
    assert used(lent, "borrower") == 4000
    lent.pods("array", SUCCEEDED, 2, 3, 4, 5)
    assert used(lent, "borrower") == 2000


# --- who is looked at again -------------------------------------------------------------------------------------------


@pytest.fixture
def waits(lent):
    many(lent, "fixed", 4, "borrower", preemptible=False)
    lent.submit("next", queue="borrower", preemptible=False)
    assert not lent.job("next").charged
    return lent


def test_a_protected_job_that_ends_makes_room_for_the_next(waits):
    waits.pods("fixed-0", SUCCEEDED)
    assert waits.job("next").charged


def test_a_smaller_guarantee_makes_room(waits):
    waits.queue("lender", guaranteed=cpu(3000), preemption="ANY")
    assert waits.job("next").charged


def test_a_guarantee_that_goes_with_its_queue_makes_room(waits):
    waits.cell.send(c.DeleteQueue("lender"))
    assert waits.job("next").charged


def test_more_capacity_makes_room(waits):
    waits.nodes(1, cpu=9000)
    assert waits.job("next").charged


@pytest.fixture
def taken(lent):
    """2 cores are left for protected jobs, and there is room on the nodes; `often` in a third queue has them."""
    lent.nodes(1, cpu=20_000)
    lent.queue("lender", guaranteed=cpu(18_000), preemption="ANY")
    lent.queue("third", limit=cpu(2000))
    entitle(lent, third=2000)
    tired(lent, "often", queue="third", cpu=2000)
    lent.pods("often", 5)
    assert lent.job("often").charged
    return lent


def answer(world):
    """`high` gets its plan, and in the same message somebody sends another job, so that there is a cycle."""
    high = world.id("high")
    request = world.state.asks[high].request
    world.cell.send(planned(Planner(world.state), high, request), c.SubmitJob(world.spec("other", cpu=1)))
    assert world.job("often").victim
    assert not world.job("often").pods_over()


@pytest.mark.parametrize("least", [1, 2])
def test_a_victim_that_was_protected_makes_room_for_one_in_another_queue(taken, least):
    """Its claim ends with the plan, in the same transaction, long before its pods are gone."""
    taken.submit("blocked", queue="borrower", replicas=2, least=least, preemptible=False)
    assert used(taken, "borrower") == 0
    taken.submit("high", queue="third", cpu=2000, priority=5)
    answer(taken)
    assert used(taken, "borrower") == 2000


def test_also_for_one_that_grows(taken):
    taken.queue("lender", guaranteed=cpu(17_000), preemption="ANY")
    taken.submit("elastic", queue="borrower", replicas=8, least=1, preemptible=False)
    assert used(taken, "borrower") == 1000
    taken.submit("high", queue="third", cpu=2000, priority=5)
    answer(taken)
    assert used(taken, "borrower") == 3000


def test_but_not_if_who_takes_its_place_is_protected_too(taken, around):
    taken.submit("blocked", queue="borrower", preemptible=False)
    taken.submit("high", queue="third", cpu=2000, priority=5, preemptible=False)
    around.calm()
    assert around.evicted == [taken.id("often")]
    assert taken.job("high").charged
    assert not taken.job("blocked").charged


def test_also_when_the_cycle_comes_later(taken):
    taken.submit("blocked", queue="borrower", preemptible=False)
    victim = taken.job("often")
    taken.cell.by_hand(tr.JobPreempted(victim.id, victim.epoch, "", 1 << 41))
    taken.cell.settle()
    assert not victim.pods_over()
    assert taken.job("blocked").charged


def test_also_for_one_that_grows_when_the_cycle_comes_later(taken):
    taken.queue("lender", guaranteed=cpu(17_000), preemption="ANY")
    taken.submit("elastic", queue="borrower", replicas=8, least=1, preemptible=False)
    victim = taken.job("often")
    taken.cell.by_hand(tr.JobPreempted(victim.id, victim.epoch, "", 1 << 41))
    taken.cell.settle()
    assert not victim.pods_over()
    assert used(taken, "borrower") == 3000


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_protected_job_plans_nothing_that_would_sit_on_a_guarantee(lent, around):
    """It would be entitled to all of it, and jobs on loan are in its way."""
    lent.queue("loan", weight=0)
    many(lent, "loan", 8, "loan", cpu=1000)
    assert used(lent, "loan") == 8000
    around.entitle(borrower=cpu(8000), loan=())
    lent.submit("large", queue="borrower", cpu=5000, preemptible=False)
    around.calm()
    assert around.evicted == []
    assert around.dropped == ["it cannot be reclaimed from, and would use what others are guaranteed"]
    lent.submit("fits", queue="borrower", cpu=4000, preemptible=False)
    around.calm()
    assert lent.job("fits").charged
    assert len(around.evicted) == 4


def test_the_leader_does_not_take_such_a_plan_either(lent, around):
    """The guarantee has risen since the plan was made; both come in one message."""
    lent.queue("loan", weight=0)
    many(lent, "loan", 8, "loan", cpu=1000)
    around.entitle(borrower=cpu(8000), loan=())
    lent.submit("mine", queue="borrower", cpu=4000, preemptible=False)
    ask = lent.state.asks[lent.id("mine")]
    answer = planned(Planner(lent.state), lent.id("mine"), ask.request)
    assert len(answer.victims) == 4
    more = c.UpsertQueue("lender", QueueSpec("", "", "", guaranteed=cpu(5000), preemption="ANY"), -1)
    around.note(lent.cell.send(more, answer))
    assert around.evicted == []
    assert around.dropped == ["it cannot be reclaimed from, and would use what others are guaranteed"]


def test_two_plans_of_one_preemptor_share_what_is_left(lent, around):
    lent.queue("loan", weight=0)
    many(lent, "loan", 8, "loan", cpu=1000)
    around.entitle(borrower=cpu(8000), loan=())
    many(lent, "mine", 3, "borrower", cpu=2000, preemptible=False)
    planner = Planner(lent.state)
    assert [planner.plan(lent.id(f"mine-{n}")).plan is not None for n in range(3)] == [True, True, False]
    around.calm()
    assert used(lent, "borrower") == 4000
    assert len(around.evicted) == 4


def test_a_plan_counts_the_claims_that_an_earlier_one_ends(taken, around):
    """One preemptor answers both: first somebody takes the place of `often`, then its 2 cores may be claimed."""
    many(taken, "loan", 17, "research")
    around.entitle(third=cpu(2000), borrower=cpu(8000), research=())
    taken.submit("high", queue="third", cpu=2000, priority=5)
    taken.submit("mine", queue="borrower", cpu=2000, preemptible=False)
    before, planner = Planner(taken.state), Planner(taken.state)
    assert before.plan(taken.id("mine")).plan is None
    assert planner.plan(taken.id("high")).plan is not None
    assert planner.plan(taken.id("mine")).plan is not None


# --- numbers, questions -----------------------------------------------------------------------------------------------


def test_it_says_whose_guarantee_and_how_much_is_missing(lent):
    lent.submit("large", queue="borrower", cpu=5000, preemptible=False)
    told = explain(lent.state, lent.id("large"))
    (blocker,) = told.blockers
    assert (blocker.rule, blocker.kind, blocker.subject, blocker.resource) == ("P4", "guaranteed", "lender", "cpu")
    assert (blocker.needed, blocker.available, blocker.missing) == (5000, 4000, 1000)
    assert blocker.message == (
        "others are guaranteed too much of the 8 cpu of the cell for a job that cannot be reclaimed from: "
        "1 cpu too little (lender is guaranteed 4 cpu more)"
    )
    assert told.unblocked_by == ("1 cpu more guaranteed to borrower, less guaranteed to others, or preemptible jobs",)


def test_it_names_the_largest_and_counts_the_rest(lent):
    for n in range(4):
        lent.queue(f"small-{n}", guaranteed=cpu(1000))
    lent.submit("fixed", queue="borrower", cpu=1000, preemptible=False)
    (blocker,) = explain(lent.state, lent.id("fixed")).blockers
    assert blocker.subject == "lender"
    assert blocker.message.endswith(
        "(lender is guaranteed 4 cpu more, small-0 is guaranteed 1 cpu more, small-1 is guaranteed 1 cpu more, "
        "2 more queues)"
    )


def test_it_says_which_limit_leaves_too_little(world):
    world.nodes(1, cpu=20_000)
    world.queue("team", limit=cpu(6000))
    world.queue("team/a", guaranteed=cpu(4000))
    world.queue("team/b")
    entitle(world, **{"team/b": 6000})
    world.submit("large", queue="team/b", cpu=3000, preemptible=False)
    (blocker,) = explain(world.state, world.id("large")).blockers
    assert (blocker.subject, blocker.missing) == ("team/a", 1000)
    assert "too much of the 6 cpu of queue team for" in blocker.message


def test_what_if_says_the_same(lent):
    spec = lent.spec("large", queue="borrower", cpu=5000, preemptible=False)
    forecast = forecast_job(lent.state, spec, lent.cell.now_ms)
    assert not forecast.starts_now
    assert "lender is guaranteed 4 cpu more" in forecast.summary
    assert forecast_job(lent.state, lent.spec("loan", queue="borrower", cpu=5000), lent.cell.now_ms).starts_now


def test_claims_are_kept_along_the_path_and_made_again_from_a_snapshot(world):
    world.nodes(1, cpu=20_000)
    world.queue("team", guaranteed=cpu(6000))
    world.queue("team/a", guaranteed=cpu(2000))
    world.queue("team/b")
    entitle(world, **{"team/a": 9000, "team/b": 9000})
    many(world, "a", 3, "team/a", preemptible=False)
    many(world, "b", 2, "team/b", preemptible=False)
    many(world, "loan", 2, "team/b")
    assert [claimed(world, path) for path in ("team/a", "team/b", "team")] == [3000, 2000, 5000]
    assert world.state.queues.claimed == {"cpu": 6000}
    many(world, "more", 2, "team/b", preemptible=False)
    assert world.state.queues.claimed == {"cpu": 7000}
    again = snapshot.load(snapshot.dump(world.state))
    invariants.check(again)
    assert again.queues.claimed == {"cpu": 7000}
    world.queue("team/b", to="b")
    assert (claimed(world, "team"), world.state.queues.claimed) == (3000, {"cpu": 10_000})


def test_changes_that_are_tried_follow_the_tree_that_changes_under_them(world):
    world.queue("a", guaranteed=cpu(2000))
    tree = world.state.queues.copy()
    tried = Claims(tree)
    tried.count(tree.find("a").id, cpu(3000), 1)
    assert not any(tried.exceeded(tree.find("a").id, {"cpu": 1000}, {"cpu": 4000}))
    assert any(tried.exceeded(tree.find("a").id, {"cpu": 1001}, {"cpu": 4000}))
    world.queue("b", guaranteed=cpu(1000))
    tree.put(world.state.queues.find("b").spec)
    assert any(tried.exceeded(tree.find("a").id, {"cpu": 1000}, {"cpu": 4000}))
    assert not any(tried.exceeded(tree.find("b").id, {"cpu": 1000}, {"cpu": 4000}))


def test_the_naive_check_finds_a_start_that_leaves_too_little(lent):
    before = Kept(lent.state)
    many(lent, "fixed", 4, "borrower", preemptible=False)
    before.check(lent.state)
    before = Kept(lent.state)
    lent.cell.checked = False
    spec = lent.spec("one-too-many", queue="borrower", preemptible=False)
    lent.cell.send(c.SubmitJob(spec))
    placement = lent.job("fixed-0").placement
    lent.cell.by_hand(tr.JobPlaced(spec.id, 1, placement))
    with pytest.raises(InvariantBroken, match="P4"):
        before.check(lent.state)
