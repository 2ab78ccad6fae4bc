"""Nodes where a job failed to start: closed to it for a while, then last; all others are open to it soon (rule L3)."""

from __future__ import annotations

import pytest
from tests.unit.core.preempting import GONE
from tests.unit.core.refusing import SUCCEEDED, add, nodes_of, often_refused, refuse

from muster.core import commands as c
from muster.core import snapshot
from muster.core import transitions as tr
from muster.core.backoff import elsewhere_ms
from muster.core.explain import explain
from muster.core.limits import BACKOFF_MAX_MS, RETRY_FIRST_MS, START_TIMEOUT_MS, SUSPECTS_FEW, SUSPECTS_MAX
from muster.core.model import Allowance, InboxPosition, JobState, PodChange, Reason
from muster.core.replay import replay
from muster.core.state import CellState
from muster.sim.cell import items_from
from muster.wire import codec, explanations

HOUR_MS = 3_600_000


# --- the pauses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "before", "another", "expected"),
    [
        (Reason.PLACEMENT_REJECTED, 0, True, 1000),
        (Reason.PLACEMENT_REJECTED, SUSPECTS_FEW - 1, True, 1000),
        (Reason.PLACEMENT_REJECTED, SUSPECTS_FEW, True, 2000),
        (Reason.PLACEMENT_REJECTED, SUSPECTS_FEW + 3, True, 16_000),
        (Reason.PLACEMENT_REJECTED, SUSPECTS_MAX, True, HOUR_MS),
        (Reason.PLACEMENT_REJECTED, SUSPECTS_MAX, False, 1000),
        (Reason.START_TIMEOUT, 0, True, 1000),
        (Reason.START_TIMEOUT, 1, True, 120_000),
        (Reason.START_TIMEOUT, 2, False, 1000),
    ],
)
def test_how_long_it_waits_for_other_nodes(reason, before, another, expected):
    assert elsewhere_ms(reason, before, another=another, most_ms=BACKOFF_MAX_MS) == expected
    assert elsewhere_ms(reason, before, another=another, most_ms=500) == 500  # never longer than for its suspects


def test_what_the_api_server_refuses_is_no_node_s_fault(world):
    """It would not have the pod anywhere: no node is suspect, and the whole job waits longer each time."""
    world.nodes(3)
    world.submit("a")
    pauses = []
    for _ in range(4):
        job = world.job("a")
        attempt = job.attempt_of(0)
        fact = c.PlacementRejected("sim-a", job.id, job.epoch, 0, "Forbidden", "exceeded quota", attempt, by_node=False)
        world.cell.send(fact)
        world.cell.send(c.PodsObserved("sim-a", (c.PodFact(job.id, job.epoch, 0, GONE, attempt),)))
        job = world.job("a")
        assert (job.state, job.suspects) == (JobState.QUEUED, ())
        pauses.append(job.not_before_ms - world.cell.now_ms)
        world.cell.wait(pauses[-1])
        assert world.job("a").state is JobState.PLACED
    assert pauses == [1000, 2000, 4000, 8000]


def test_all_nodes_refuse_it_for_a_day(world):
    """More nodes than it remembers: the first hour has a few tries more than one node would, each other hour one."""
    world.nodes(SUSPECTS_MAX + 20)
    world.submit("a")
    tries, begin_ms = [], world.cell.now_ms
    while world.cell.now_ms < begin_ms + 24 * HOUR_MS:
        assert world.job("a").state is JobState.PLACED
        tries.append((world.cell.now_ms - begin_ms) // HOUR_MS)
        refuse(world, "a")
        world.cell.wait(world.job("a").not_before_ms - world.cell.now_ms)
    assert SUSPECTS_FEW < tries.count(0) <= SUSPECTS_FEW + 11
    assert max(map(tries.count, range(1, 24))) <= 2
    assert tries.count(23) == 1


def test_one_node_refuses_it_for_a_day(world):
    world.nodes(1)
    world.submit("a")
    placed = 1
    for _ in range(24):
        begin_ms = world.cell.now_ms
        while world.job("a").state is JobState.PLACED:
            refuse(world, "a")
            done = world.cell.wait(min(world.job("a").suspects_until_ms, begin_ms + HOUR_MS) - world.cell.now_ms)
            placed += sum(isinstance(t, tr.JobPlaced) for t in done)
        done = world.cell.wait(begin_ms + HOUR_MS - world.cell.now_ms)
        placed += sum(isinstance(t, tr.JobPlaced) for t in done)
    assert placed <= 13 + 24  # 1 s to half an hour, then once an hour


# --- where it goes, and when ----------------------------------------------------------------------------------------


def test_while_it_keeps_off_its_suspect_it_takes_what_becomes_free_elsewhere_in_its_old_order(world):
    world.nodes(1)
    world.submit("a", cpu=4000)
    add(world, "other")
    world.submit("filler", cpu=4000)
    often_refused(world)
    world.submit("later", cpu=4000)
    assert nodes_of(world, "later") == [0]  # to everybody else the node is as good as any
    world.submit("last", cpu=4000)
    assert world.job("a").state is JobState.QUEUED
    done = world.pods("filler", SUCCEEDED)
    assert [t.job for t in done if isinstance(t, tr.JobPlaced)] == [world.id("a")]
    assert nodes_of(world, "a") == [1]
    assert world.job("last").state is JobState.QUEUED


def test_the_suspect_is_the_last_resort_when_the_pause_is_over(world):
    world.nodes(1)
    world.submit("a")
    often_refused(world)
    until_ms = world.job("a").suspects_until_ms
    assert until_ms - world.cell.now_ms == 31_000
    assert not [t for t in world.cell.wait(30_999) if isinstance(t, tr.JobPlaced)]
    done = world.cell.wait(1)
    assert [t.job for t in done if isinstance(t, tr.JobPlaced)] == [world.id("a")]
    assert world.state.now_ms == until_ms


def test_a_preemption_does_not_open_its_suspects(world, around):
    world.nodes(1)
    world.submit("a", cpu=4000)
    often_refused(world, times=8)
    until_ms = world.job("a").suspects_until_ms
    add(world, "other")
    assert nodes_of(world, "a") == [1]
    world.queue("research", preemption="LOWER_PRIORITY")
    for name in ("filler", "preemptor"):
        world.submit(name, cpu=4000, priority=5)
        around.calm()
    assert (around.evicted, nodes_of(world, "filler")) == ([world.id("a")], [0])
    world.pods("filler", SUCCEEDED)
    job = world.job("a")
    assert (job.state, job.reason, job.suspects_until_ms) == (JobState.QUEUED, Reason.PREEMPTED, until_ms)
    done = world.cell.wait(until_ms - world.cell.now_ms)
    assert [t.job for t in done if isinstance(t, tr.JobPlaced)] == [world.id("a")]
    assert world.state.now_ms == until_ms


def test_a_gang_keeps_off_the_node_that_refused_one_member(world):
    world.nodes(2, cpu=1000)
    world.submit("a", replicas=2)
    for _ in range(4):
        refuse(world, "a", 1)
        world.cell.wait(world.job("a").suspects_until_ms - world.cell.now_ms)
    refuse(world, "a", 1)
    (suspect,) = world.job("a").suspects
    world.cell.wait(RETRY_FIRST_MS)
    assert world.job("a").state is JobState.QUEUED
    add(world, "third", cpu=1000)
    assert sorted(nodes_of(world, "a")) == sorted({0, 1, 2} - {suspect})


def test_a_start_timeout_on_a_second_node_is_taken_for_the_fault_of_the_job(world):
    world.nodes(3, cpu=1000)
    world.submit("a")
    waits = []
    for _ in range(3):
        world.cell.wait(START_TIMEOUT_MS)
        world.pods("a", GONE)
        job = world.job("a")
        waits.append((job.not_before_ms - world.cell.now_ms, job.suspects_until_ms - world.cell.now_ms))
        world.cell.wait(job.not_before_ms - world.cell.now_ms)
    assert waits == [(1000, 60_000), (120_000, 120_000), (240_000, 240_000)]


def test_jobs_that_keep_off_the_same_node_are_of_one_class_until_their_time_comes(world):
    world.nodes(1)
    for name, times in (("a", 8), ("b", 6)):
        world.submit(name, cpu=4000)
        often_refused(world, name, times)
    assert [len(found) for found in world.state.pending.classes.values()] == [2]
    world.submit("filler", cpu=4000)
    world.cell.wait(world.job("b").suspects_until_ms - world.cell.now_ms)
    assert [found.first()[2] for found in world.state.pending.classes.values()] == [world.id("a"), world.id("b")]
    world.cell.wait(world.job("a").suspects_until_ms - world.cell.now_ms)
    assert [len(found) for found in world.state.pending.classes.values()] == [2]


def test_in_which_order_nodes_refused_them_tells_no_classes_apart(world):
    world.nodes(2)
    for name, shut in (("a", "node-1"), ("b", "node-0")):
        add(world, shut, cordoned=True)
        world.submit(name, cpu=4000)
        refuse(world, name)
        add(world, shut)
        world.cell.wait(world.job(name).not_before_ms - world.cell.now_ms)
        refuse(world, name)
    assert (world.job("a").suspects, world.job("b").suspects) == ((0, 1), (1, 0))
    world.submit("filler", cpu=4000, replicas=2)
    world.cell.wait(2 * RETRY_FIRST_MS)
    assert [len(found) for found in world.state.pending.classes.values()] == [2]


def test_who_finds_no_other_place_leaves_its_suspect_to_others_in_the_same_pass(world):
    world.nodes(1)
    world.submit("a", cpu=4000)
    often_refused(world)
    world.submit("filler", cpu=4000)
    for n in range(4):
        world.submit(f"later-{n}", cpu=4000)
    done = world.pods("filler", SUCCEEDED)
    (placed,) = [t.job for t in done if isinstance(t, tr.JobPlaced)]
    assert placed in [world.id(f"later-{n}") for n in range(4)]


def test_a_time_that_comes_while_it_waits_for_another_reason_changes_nothing(world, around):
    world.nodes(1)
    world.submit("a", cpu=4000)
    often_refused(world)
    add(world, "other")
    world.queue("research", preemption="LOWER_PRIORITY")
    for name in ("filler", "preemptor"):
        world.submit(name, cpu=4000, priority=5)
        around.calm()
    job = world.job("a")
    assert job.suspects_until_ms < job.not_before_ms == world.cell.now_ms + 60_000
    world.cell.wait(10_000)  # an answered request may be spent by then
    assert world.cell.wait(job.not_before_ms - world.cell.now_ms - 1) == []


def test_jobs_for_which_it_is_closed_and_open_are_sorted_again_apart(world):
    world.nodes(1)
    for name, times in (("a", 8), ("b", 6)):
        world.submit(name, cpu=4000)
        often_refused(world, name, times)
    world.submit("filler", cpu=4000)
    world.cell.wait(world.job("b").suspects_until_ms - world.cell.now_ms)
    world.queue("research", ordering="FIFO")
    done = world.pods("filler", SUCCEEDED)
    assert [t.job for t in done if isinstance(t, tr.JobPlaced)] == [world.id("b")]


@pytest.mark.parametrize("how", [{"ordering": "FIFO"}, {"ordering": "FAIR"}, {"per_user": None}])
def test_a_queue_that_is_sorted_again_meanwhile(world, how):
    world.nodes(1)
    world.submit("a", cpu=4000)
    often_refused(world)
    world.submit("filler", cpu=4000)
    changed = {"per_user": Allowance(9, 9)} if "per_user" in how else how
    world.queue("research", **changed)
    world.pods("filler", SUCCEEDED)
    done = world.cell.wait(HOUR_MS)
    assert [t.job for t in done if isinstance(t, tr.JobPlaced)] == [world.id("a")]


@pytest.mark.parametrize("work_limit", [1, 2, 5])
def test_it_replays_to_its_own_bytes_and_goes_on_from_a_snapshot(world, work_limit):
    """Also when a pass of the cycle needs several transactions and times run out in between."""
    world.cell.work_limit = work_limit
    world.nodes(1)
    for n in range(4):
        world.submit(f"j{n}", cpu=4000)
    for _ in range(60):
        world.cell.wait(700)
        if {key[3][0] for key in world.state.pending.classes if key[3]} == {False, True}:
            break
        for n in range(4):
            if world.job(f"j{n}").state is JobState.PLACED:
                refuse(world, f"j{n}")
    parts = [codec.encode_snapshot_part(part) for part in snapshot.dump(world.state)]
    other = snapshot.load(map(codec.decode_snapshot_part, parts))
    assert other.timers.others == world.state.timers.others
    kinds = [
        {key[3:]: found.keys[found.head :] for key, found in s.pending.classes.items()} for s in (other, world.state)
    ]
    assert kinds[0] == kinds[1]
    ledger = [(seq, codec.decode_transaction(data)) for seq, data in enumerate(world.cell.log, 1)]
    replayed = list(replay(CellState("main"), ledger, items_from(world.cell.inbox, InboxPosition(1, 0))))
    assert all(step.difference() is None for step in replayed)


def test_a_ledger_from_before_there_were_two_pauses(world):
    """Its suspects come last from the first moment on, and it waits as long as it says."""
    world.nodes(1)
    world.submit("a")
    now_ms = world.cell.now_ms
    world.cell.by_hand(
        tr.JobStopping(world.id("a"), 1, "Queued", Reason.PLACEMENT_REJECTED, "no", now_ms + 16_000, (0,)),
        tr.PodsChanged(world.id("a"), 1, (PodChange(0, GONE),)),
        tr.JobRequeued(world.id("a"), Reason.PLACEMENT_REJECTED, now_ms + 16_000),
    )
    assert not [t for t in world.cell.wait(15_999) if isinstance(t, tr.JobPlaced)]
    assert [type(t) for t in world.cell.wait(1)][:1] == [tr.JobPlaced]


# --- what is said ---------------------------------------------------------------------------------------------------


def test_what_is_said_of_the_nodes_it_keeps_off(world):
    world.nodes(1)
    world.submit("a", cpu=4000)
    often_refused(world)
    told = explain(world.state, world.id("a"))
    (capacity, suspect) = told.blockers
    assert (capacity.kind, capacity.needed, capacity.available) == ("capacity", 1, 0)
    assert (suspect.rule, suspect.kind, suspect.subject) == ("L3", "suspect", "node-0")
    assert (suspect.missing, suspect.nodes) == (31_000, 1)
    assert suspect.message == "it failed to start on node-0 (no: ): tried there again in 31 s if there is no other room"
    assert explanations.to_proto(told).blockers[1].missing == "31s"
    later = explain(world.state, world.id("a"), world.job("a").suspects_until_ms)
    assert later.summary.endswith("placed in the next cycle; it did not start last time: PlacementRejected (no: )")
    assert later.blockers == ()


def test_of_many_nodes_it_keeps_off_a_few_are_named(world):
    world.nodes(5, cpu=1000)
    world.submit("a", replicas=5)
    facts = tuple(c.PodFact(world.id("a"), 1, n, 4, reason="OutOfcpu") for n in range(5))
    world.cell.send(c.PodsObserved("sim-a", facts))
    (pause, suspect) = explain(world.state, world.id("a")).blockers[::2]
    assert (pause.kind, pause.missing) == ("backoff", 1000)
    assert (suspect.subject, suspect.nodes) == ("node-0, node-1, node-2 and 2 more", 5)
    world.cell.send(c.NodesReported("sim-a", (world.node("new"),), first=True, complete=True))
    assert all(blocker.kind != "suspect" for blocker in explain(world.state, world.id("a")).blockers)
