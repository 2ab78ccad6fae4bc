"""How long what victims free is held for who preempted them, and when it is given back at once (rule P5)."""

from __future__ import annotations

import json

import pytest
from tests.unit.core.preempting import cpu, planned

from muster.core import commands as c
from muster.core import snapshot
from muster.core import transitions as tr
from muster.core.explain import explain
from muster.core.graces import grace_ms
from muster.core.hold_ends import HOLD_LATE_MAX_MS
from muster.core.holds import age, freed_for
from muster.core.limits import GRACE_MAX_MS, HOLD_MARGIN_MS, HOLD_TTL_MS, PREEMPTION_RETRY_MAX_MS
from muster.core.model import Allowance, TaskGroup
from muster.core.preemption import Planner
from muster.core.state import Hold
from muster.wire import codec

MINUTE_MS = 60_000


def with_grace(seconds, cpus=2000):
    template = json.dumps({"metadata": {}, "spec": {"terminationGracePeriodSeconds": seconds, "containers": []}})
    return (TaskGroup("main", 1, 1, cpu(cpus), template=template.encode()),)


def plan(world, *names):
    """As a preemptor does; the victims do not obey."""
    planner = Planner(world.state)
    asked = [(world.id(name), world.state.asks[world.id(name)].request) for name in names]
    done = world.cell.send(*[planned(planner, job, request) for job, request in asked])
    return [t for t in done if not isinstance(t, tr.CyclePaused)]


def entitle(world, **of):
    """Everything else is entitled to nothing."""
    found = {world.state.queues.find(path).id: amounts for path, amounts in of.items()}
    sent = [c.Entitlement(q.id, found.get(q.id, ())) for q in world.state.queues.subtree() if not q.children]
    world.cell.send(c.EntitlementsComputed(world.state.ledger_seq, tuple(sent)))


def released(transitions):
    return [(t.job, t.reason) for t in transitions if isinstance(t, tr.HoldReleased)]


@pytest.fixture
def planned_for(world):
    """Four cpus, full of two jobs of low priority, and one of high priority that waits for both to leave."""

    def make(**low):
        world.nodes(1)
        for name in ("low-0", "low-1"):
            world.submit(name, **{"cpu": 2000, **low})
            world.pods(name, 2)
        world.submit("high", cpu=4000, priority=5)
        assert [type(t) for t in plan(world, "high")] == [tr.JobPreempted, tr.JobPreempted, tr.HoldMade]
        return world

    return make


@pytest.mark.parametrize("grace_s", [None, 30, 420, 3 * 3600])
def test_a_hold_lasts_as_long_as_its_victims_may_take(planned_for, grace_s):
    world = planned_for(**({} if grace_s is None else {"tasks": with_grace(grace_s)}))
    (hold,) = world.state.holds.values()
    wanted = max(HOLD_TTL_MS, (grace_s or 0) * 1000 + HOLD_MARGIN_MS)
    assert (hold.made_ms, hold.expires_ms) == (world.cell.now_ms, world.cell.now_ms + wanted)
    world.cell.wait(wanted - 1000)
    world.pods("low-0", 5)
    world.submit("thief", cpu=1000)
    assert not world.job("thief").charged
    world.pods("low-1", 5)
    assert world.job("high").charged


def test_a_hold_does_not_end_while_pods_of_its_victims_are_there(planned_for):
    """They take seven minutes although nobody gave them so long."""
    world = planned_for()
    world.pods("low-0", 5)
    world.submit("thief", cpu=2000)
    done = world.cell.wait(7 * MINUTE_MS)
    assert not released(done)
    assert [t for t in done if isinstance(t, tr.HoldExtended)] == [
        tr.HoldExtended(world.id("high"), world.cell.now_ms - 7 * MINUTE_MS + 2 * HOLD_TTL_MS)
    ]
    assert not world.job("thief").charged
    world.pods("low-1", 5)
    assert world.job("high").charged
    assert not world.state.holds


def test_a_hold_waits_for_replicas_that_leave_as_well(world):
    world.nodes(1)
    world.submit("elastic", replicas=4, least=2)
    world.pods("elastic", 2)
    world.submit("high", cpu=2000, priority=5)
    plan(world, "high")
    assert world.job("elastic").leaving == (2, 3)
    assert not released(world.cell.wait(HOLD_TTL_MS + MINUTE_MS))
    world.pods("elastic", 5, 2, 3)
    assert world.job("high").charged


@pytest.mark.parametrize("grace_s", [0, 3600])
def test_it_does_not_wait_for_ever(planned_for, grace_s):
    """A victim that never goes, because its node or a finalizer keeps it, idles what others freed for so long only."""
    world = planned_for(tasks=with_grace(grace_s))
    world.pods("low-0", 5)
    world.submit("next", cpu=2000)
    last_ms = max(HOLD_TTL_MS, grace_s * 1000 + HOLD_MARGIN_MS) + HOLD_LATE_MAX_MS
    assert not released(world.cell.wait(last_ms - 1))
    assert not world.job("next").charged
    assert released(world.cell.wait(1)) == [(world.id("high"), "the victims were not gone in time")]
    assert not world.state.holds
    assert world.state.queues.find("research").usage["cpu"] == 4000  # what the first victim freed is used again


def test_who_does_not_fit_although_its_victims_are_gone_holds_no_longer_than_before(planned_for):
    world = planned_for()
    world.cell.send(c.NodesReported("sim-a", (world.node("node-0", cpu=3000),)))
    world.pods("low-0", 5)
    world.pods("low-1", 5)
    done = world.cell.wait(HOLD_TTL_MS)
    assert released(done) == [(world.id("high"), "the victims are gone and the job does not fit all the same")]


@pytest.mark.parametrize(
    ("template", "milliseconds"),
    [
        (b"", 0),
        (b"{}", 0),
        (b"not json", 0),
        (b'{"spec": null}', 0),
        (b'{"spec": {"terminationGracePeriodSeconds": null}}', 0),
        (b'{"spec": {"terminationGracePeriodSeconds": "9"}}', 0),
        (b'{"spec": {"terminationGracePeriodSeconds": -5}}', 0),
        (b'{"spec": {"containers": [{"name": "x"}], "terminationGracePeriodSeconds": 90}, "x": 1}', 90_000),
        (b'{"spec": {"terminationGracePeriodSeconds": 99999999999}}', GRACE_MAX_MS),
        (b'{"spec": {"terminationGracePeriodSeconds": 99999999999999999999999}}', GRACE_MAX_MS),
    ],
)
def test_the_grace_period_of_a_template(template, milliseconds):
    assert grace_ms(template) == milliseconds


@pytest.mark.parametrize("state", ["STOPPED", "DRAINING"])
@pytest.mark.parametrize("where", ["own", "own/leaf"])
def test_what_is_held_for_a_queue_that_starts_nothing_is_free_at_once(world, state, where):
    world.nodes(1)
    world.queue("own", guaranteed=cpu(4000))
    world.queue("own/leaf", guaranteed=cpu(4000), preemption="ANY")
    entitle(world, **{"own/leaf": cpu(4000)})
    for name in ("low-0", "low-1"):
        world.submit(name, cpu=2000)
    world.submit("mine", cpu=4000, queue="own/leaf")
    plan(world, "mine")
    world.pods("low-0", 5)
    world.submit("next", cpu=2000)
    assert not world.job("next").charged
    leaf = where == "own/leaf"
    done = world.queue(where, guaranteed=cpu(4000), state=state, **({"preemption": "ANY"} if leaf else {}))
    assert released(done) == [(world.id("mine"), f'the job may not start now: "{where}" is {state.lower()}')]
    assert world.job("next").charged
    assert world.state.queues.find("own").committed == {}
    world.pods("low-1", 5)
    world.cell.wait(2 * PREEMPTION_RETRY_MAX_MS)
    assert world.state.requests == 1  # nobody asks for a queue that starts nothing
    done = world.queue(where, guaranteed=cpu(4000), **({"preemption": "ANY"} if leaf else {}))
    done += world.cell.wait(PREEMPTION_RETRY_MAX_MS)
    asked = [t for t in done if isinstance(t, tr.PreemptionRequested)]
    assert asked == [tr.PreemptionRequested(world.id("mine"), 2)]
    assert tr.HoldMade in [type(t) for t in plan(world, "mine")]


@pytest.fixture
def two_holders(world):
    """Two jobs of 2 cpus in team/leaf hold 4 cpus, whose users are on their way out."""
    world.nodes(1)
    world.queue("team")
    world.queue("team/leaf", guaranteed=cpu(4000), preemption="ANY")
    entitle(world, **{"team/leaf": cpu(4000)})
    for name in ("low-0", "low-1"):
        world.submit(name, cpu=2000)
    for name, priority in (("one", 0), ("two", 1)):
        world.submit(name, cpu=2000, queue="team/leaf", submitter="ann", priority=priority)
    plan(world, "two", "one")
    assert sorted(world.state.holds) == sorted([world.id("one"), world.id("two")])
    return world


def move(world):
    world.queue("small", limit=cpu(2000))
    return world.queue("team/leaf", to="small/leaf", preemption="ANY")


def one_job_a_user(world):
    return world.queue("team/leaf", preemption="ANY", per_user=Allowance(running_jobs=1))


def two_cpus_a_user(world):
    return world.queue("team", per_user=Allowance(resources=cpu(2000)))


@pytest.mark.parametrize("change", [move, one_job_a_user, two_cpus_a_user])
def test_when_a_limit_leaves_room_for_one_holder_the_other_gives_back(two_holders, change):
    """Each would wait for the other until both holds end; the less important gives way."""
    world = two_holders
    ((job, reason),) = released(change(world))
    assert job == world.id("one")
    assert reason.startswith("the job may not start now: ")
    assert list(world.state.holds) == [world.id("two")]
    for name in ("low-0", "low-1"):
        world.pods(name, 5)
    assert world.job("two").charged
    assert not world.job("one").charged
    assert "not preempting: the job may not start now" in explain(world.state, world.id("one")).preemption


def test_when_a_limit_leaves_room_for_none_both_give_back(two_holders):
    world = two_holders
    done = world.queue("team/leaf", limit=cpu(1999), preemption="ANY")
    assert [job for job, _ in released(done)] == [world.id("two"), world.id("one")]
    assert not world.state.holds


def test_who_cannot_be_reclaimed_from_gives_back_when_its_queue_is_entitled_to_less(world):
    """It may start within E alone (rule P4); without this what its victims free idles until the hold ends."""
    world.nodes(1)
    world.queue("own", preemption="ANY")
    entitle(world, own=cpu(4000))
    for name in ("low-0", "low-1"):
        world.submit(name, cpu=2000)
    world.submit("mine", cpu=4000, queue="own", preemptible=False)
    plan(world, "mine")
    assert list(world.state.holds) == [world.id("mine")]
    before = world.cell.log[:]
    entitle(world, own=cpu(3000))
    done = [t for data in world.cell.log[len(before) :] for t in codec.decode_transaction(data).transitions]
    ((job, reason),) = released(done)
    assert job == world.id("mine")
    assert reason == (
        "the job may not start now: it cannot be reclaimed from, and queue own is not entitled to so much more"
    )
    assert not world.state.holds


def test_who_came_to_the_queue_later_does_not_keep_it_from_what_is_held_for_it(world):
    """The newcomer takes it past E but can be reclaimed from, so nobody left in vain (rules P4, P5)."""
    world.nodes(1)
    world.queue("own", preemption="ANY")
    entitle(world, own=cpu(4000))
    for name in ("low-0", "low-1"):
        world.submit(name, cpu=2000)
    world.submit("mine", cpu=4000, queue="own", preemptible=False)
    plan(world, "mine")
    world.nodes(1, cluster="sim-b", cpu=2000)
    world.submit("later", cpu=2000, queue="own")
    assert world.job("later").charged, "on loan, on the other cluster"
    world.queue("other")
    assert list(world.state.holds) == [world.id("mine")], "neither a change of the tree takes it from it"
    for name in ("low-0", "low-1"):
        world.pods(name, 5)
    assert world.job("mine").charged
    world.pods("mine", 2)
    world.submit("next", cpu=1000, queue="own", preemptible=False)
    assert not world.job("next").charged, "nothing is held for it, so everybody counts"


def test_who_cannot_be_reclaimed_from_gives_back_when_more_is_guaranteed_to_others(world):
    """What is guaranteed to others is not for it (rule P4), so it could not start on it."""
    world.nodes(1)
    world.queue("own", preemption="ANY")
    entitle(world, own=cpu(4000))
    for name in ("low-0", "low-1"):
        world.submit(name, cpu=2000)
    world.submit("mine", cpu=4000, queue="own", preemptible=False)
    plan(world, "mine")
    done = world.queue("other", guaranteed=cpu(1000))
    assert released(done) == [
        (
            world.id("mine"),
            "the job may not start now: it cannot be reclaimed from, and would use what others are guaranteed",
        )
    ]


def test_a_change_of_the_tree_that_leaves_room_takes_nothing_away(two_holders):
    world = two_holders
    world.queue("wide", limit=cpu(4000), per_user=Allowance(running_jobs=2, resources=cpu(4000)))
    assert not released(world.queue("team/leaf", to="wide/leaf", preemption="ANY"))
    assert len(world.state.holds) == 2


def test_victims_of_the_same_user_do_not_count_against_who_takes_their_place(world):
    """What is on its way out counts as gone (rule Q3), for allowances too."""
    world.nodes(1)
    allowance = Allowance(running_jobs=1, resources=cpu(4000))
    world.queue("research", per_user=allowance)
    world.submit("low", cpu=4000, submitter="ann")
    world.submit("high", cpu=4000, submitter="ann", priority=5)
    plan(world, "high")
    assert not released(world.queue("research", per_user=allowance, limit=cpu(4000)))
    world.pods("low", 5)
    assert world.job("high").charged


@pytest.mark.parametrize("allowance", [Allowance(running_jobs=1), Allowance(resources=cpu(3000))])
def test_other_jobs_of_a_user_do_not_take_the_allowance_that_the_holder_needs(world, allowance):
    """Else who left for it would have left for nothing."""
    world.nodes(1)
    world.queue("research", per_user=allowance)
    world.submit("low", cpu=3000, submitter="bob")
    world.submit("high", cpu=3000, submitter="ann", priority=5)
    plan(world, "high")
    world.submit("other", cpu=1000, submitter="ann", priority=6)
    assert not world.job("other").charged
    world.submit("free", cpu=1000, submitter="bob", priority=-1)
    world.pods("low", 5)
    assert world.job("high").charged
    assert not world.job("other").charged


def test_an_allowance_is_free_again_once_its_holder_is_placed_or_cancelled(world):
    world.nodes(1)
    world.queue("research", per_user=Allowance(running_jobs=1))
    world.submit("low", cpu=3000, submitter="bob")
    world.submit("high", cpu=3000, submitter="ann", priority=5)
    plan(world, "high")
    world.submit("other", cpu=1000, submitter="ann")
    assert not world.job("other").charged
    world.cell.send(c.CancelJob(world.id("high")))
    assert world.job("other").charged


def test_who_made_room_for_whom_does_not_depend_on_when_holds_end():
    """The later hold of two that the same replica left for is the later made, though the first was extended since."""
    first = Hold("a" * 32, (), (), 900, (("c" * 32, 1, (3,)),), made_ms=100)
    second = Hold("b" * 32, (), (), 600, (("c" * 32, 1, (3,)),), made_ms=300)
    assert freed_for({h.job: h for h in (first, second)}) == {("c" * 32, 1, 3): age(second)}


def test_holds_are_the_same_after_a_snapshot(planned_for):
    world = planned_for()
    world.cell.wait(HOLD_TTL_MS + 1)  # extended once
    (hold,) = world.state.holds.values()
    assert hold.expires_ms > hold.made_ms + HOLD_TTL_MS
    parts = [codec.encode_snapshot_part(part) for part in snapshot.dump(world.state)]
    loaded = snapshot.load(map(codec.decode_snapshot_part, parts))
    assert loaded.holds == world.state.holds
    assert [codec.encode_snapshot_part(part) for part in snapshot.dump(loaded)] == parts


def test_who_waits_for_what_is_held_for_it_is_no_borrower_because_of_that(world):
    """Its queue is below E before the job, as when the plan was made, so what lenders withhold does not stop it."""
    world.nodes(1)
    world.queue("lender", guaranteed=cpu(1000), lending_limit=cpu(0))
    world.queue("own", preemption="ANY")
    entitle(world, own=cpu(3000))
    world.submit("small", cpu=1000)
    world.submit("low", cpu=2000)
    world.submit("mine", cpu=3000, queue="own")
    assert [type(t) for t in plan(world, "mine")] == [tr.JobPreempted, tr.HoldMade]
    world.pods("low", 5)
    assert world.job("small").charged
    assert world.job("mine").charged


@pytest.mark.parametrize("change", [{"ready": False}, {"cordoned": True}, {}])
def test_a_gang_that_lost_a_node_of_its_place_does_not_keep_the_others(world, change):
    """Its other nodes would idle until the hold ends; they are for whoever is next, and the gang asks again later."""
    world.nodes(2)
    for name in ("low-0", "low-1"):
        world.submit(name, cpu=4000)
    world.submit("gang", cpu=4000, replicas=2, priority=5)
    on_other = next(name for name in ("low-0", "low-1") if world.job(name).placement[0].runs[0][0] == 1)
    plan(world, "gang")
    left = {"nodes": (world.node("node-0", **change),)} if change else {"removed": ("node-0",)}
    ((job, reason),) = released(world.cell.send(c.NodesReported("sim-a", **left)))
    assert (job, reason) == (
        world.id("gang"),
        "the job may not start now: node node-0 of its place takes no pods any more",
    )
    world.submit("next", cpu=4000)
    assert not world.job("next").charged
    world.pods(on_other, 5)
    assert world.job("next").charged
    assert not world.job("gang").charged
