"""Who starts next: rules F5, F6, G1, and that a cycle costs what changed."""

from __future__ import annotations

import pytest

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.decide import decide, next_wake_ms
from muster.core.model import InboxPosition, JobState, TaskGroup


def placed(transitions):
    return [t.job for t in transitions if isinstance(t, tr.JobPlaced)]


def submit_all(world, *specs):
    return world.cell.send(*map(c.SubmitJob, specs))


def order_of(world, *specs):
    """Names in the order in which they are placed when there is room for one at a time."""
    names = {spec.id: spec.name for spec in specs}
    submit_all(world, *specs)
    started = [names[job] for job in placed(world.nodes(1, cpu=1000))]
    while len(started) < len(specs):
        started += [names[job] for job in placed(world.pods(started[-1], 3))]
    return started


def test_priority_then_submit_time_then_id(world):
    early, late = world.spec("early"), world.spec("late")
    high = [world.spec(name, priority=5) for name in ("high-a", "high-b")]
    by_id = [spec.name for spec in sorted(high, key=lambda spec: spec.id)]
    submit_all(world, early)
    world.cell.now_ms += 10
    assert order_of(world, early, *high, late) == [*by_id, "early", "late"]


def test_fifo_ignores_priority(world):
    world.queue("research", ordering="FIFO")
    world.submit("first")
    world.cell.now_ms += 10
    world.submit("second", priority=100)
    world.nodes(1, cpu=1000)
    assert world.job("first").state is JobState.PLACED
    assert world.job("second").state is JobState.QUEUED


def test_a_change_of_ordering_reorders_what_waits(world):
    world.submit("first")
    world.cell.now_ms += 10
    world.submit("second", priority=100)
    world.queue("research", ordering="FIFO")
    world.queue("research", ordering="PRIORITY")
    world.nodes(1, cpu=1000)
    assert world.job("second").state is JobState.PLACED


def test_queue_priorities_come_before_job_priorities_level_by_level(world):
    world.queue("top", priority=1)
    world.queue("top/low", priority=-5)
    world.queue("top/high", priority=5)
    specs = [
        world.spec("d", queue="research", priority=100),
        world.spec("c", queue="top/low", priority=50),
        world.spec("b", queue="top/high", priority=1),
        world.spec("a", queue="top/high", priority=2),
    ]
    assert order_of(world, *specs) == ["a", "b", "c", "d"]


def test_a_job_that_does_not_fit_blocks_nobody_else(world):
    world.nodes(1, cpu=2000)
    world.submit("small-1")
    world.submit("large", cpu=2000, priority=10)
    world.submit("small-2")
    assert world.job("large").state is JobState.QUEUED
    assert world.job("small-2").state is JobState.PLACED


def test_a_gang_is_placed_as_a_whole_or_not_at_all(world):
    world.nodes(3, cpu=1000)
    world.submit("four", replicas=4)
    assert world.id("four") not in world.state.jobs  # rule Q2: three pods at most
    world.nodes(4, cpu=1000)
    world.submit("one")
    world.submit("gang", replicas=4)
    assert world.job("gang").state is JobState.QUEUED
    world.pods("one", 3)
    assert world.job("gang").state is JobState.PLACED


def test_a_limit_that_only_the_minimum_respects(world):
    world.nodes(1, cpu=8000)
    world.queue("research", limit=(("cpu", 2000),))
    world.submit("elastic", replicas=4, least=2)
    assert world.job("elastic").placement[0].runs == ((0, 2),)
    assert list(world.job("elastic").phases) == [0, 0, 5, 5]


def test_a_job_waiting_for_its_backoff_does_not_block_its_class(world):
    world.nodes(1, cpu=1000)
    world.submit("a")
    world.submit("b")
    world.cell.send(c.PlacementRejected("sim-a", world.id("a"), 1, 0))
    world.pods("a", 5)
    assert world.job("b").state is JobState.PLACED
    world.pods("b", 3)
    assert world.job("a").state is JobState.QUEUED
    world.cell.wait(1000)
    assert world.job("a").state is JobState.PLACED


# --- cost -----------------------------------------------------------------------------------------------------------


def test_what_is_blocked_is_not_looked_at_until_something_is_loosened(world):
    world.nodes(1, cpu=1000)
    submit_all(world, *[world.spec(f"job-{n}") for n in range(50)])
    assert next_wake_ms(world.state) is not None
    decision = decide(world.state, [], world.cell.now_ms, 1000)
    assert (decision.transitions, decision.work_spent) == ((), 0)
    before = world.state.ledger_seq
    world.submit("one-more")
    assert world.state.ledger_seq == before + 1
    assert decide(world.state, [], world.cell.now_ms, 1000).work_spent == 0


def test_a_blocked_class_costs_one_unit_however_many_jobs_it_has(world):
    world.nodes(1, cpu=1000)
    world.submit("running")
    submit_all(world, *[world.spec(f"job-{n}", cpu=900) for n in range(200)])
    world.submit("tiny", cpu=100)  # does not fit either
    facts = c.PodsObserved("sim-a", (c.PodFact(world.id("running"), 1, 0, 3),))
    position = InboxPosition(world.state.position.seq, 0)
    decision = decide(world.state, [(position, facts)], world.cell.now_ms, 1000)
    assert len(placed(decision.transitions)) == 2
    assert decision.work_spent == 1 + 3  # the item; the first job, the next of its class, the tiny one


def test_a_pass_is_paused_and_goes_on_where_it_stopped(world):
    submit_all(world, *[world.spec(f"job-{n}", cpu=100 + n) for n in range(30)])
    world.cell.work_limit = 8
    done = world.nodes(1, cpu=100_000)
    pauses = [t.paused for t in done if isinstance(t, tr.CyclePaused)]
    assert pauses[:3] == [True] * 3
    assert pauses[-1] is False
    assert all(job.state is JobState.PLACED for job in world.state.jobs.values())
    assert len(placed(done)) == 30


def test_a_huge_queue_does_not_keep_the_others_waiting(world):
    """Blocked classes are passed once a pass, not once a transaction."""
    world.nodes(1, cpu=1000)
    submit_all(world, *[world.spec(f"big-{n}", cpu=600 + n % 20) for n in range(100)])
    world.queue("zz")
    world.cell.work_limit = 6
    world.cell.now_ms += 10
    running = next(job for job in world.state.jobs.values() if job.state is JobState.PLACED)
    world.cell.send(
        c.SubmitJob(world.spec("small", queue="zz", cpu=100)),
        c.PodsObserved("sim-a", (c.PodFact(running.id, 1, 0, 3),)),
    )
    assert world.job("small").state is JobState.PLACED


def test_a_flood_of_items_leaves_room_for_the_cycle(world):
    world.nodes(2, cpu=1_000_000)
    world.cell.work_limit = 20
    world.cell.write(*[c.SubmitJob(world.spec(f"job-{n}", cpu=10)) for n in range(200)])
    done = world.cell.step()
    assert sum(isinstance(t, tr.JobQueued) for t in done) == 15
    assert placed(done)
    assert world.state.position == InboxPosition(3, 15)  # one message, several transactions (LOG-1)
    world.cell.settle()
    assert sum(job.state is JobState.PLACED for job in world.state.jobs.values()) == 200


def test_changes_of_nodes_cannot_keep_the_cycle_from_running(world):
    """Nodes and the cycle need different transactions; they take turns."""
    world.submit("a")
    for n in range(6):
        world.cell.write(c.NodesReported("sim-a", (world.node(f"node-{n}"),), first=n == 0))
    first = world.cell.step()
    assert not placed(first)
    second = world.cell.step()
    assert placed(second) == [world.id("a")]
    world.cell.settle()


def test_transactions_close_before_their_bytes_are_full(world):
    world.nodes(1, cpu=100_000)
    template = b"x" * 50_000
    specs = [
        world.spec(f"job-{n}", tasks=(TaskGroup("main", 1, 1, (("cpu", 1),), template=template),)) for n in range(40)
    ]
    for spec in specs:
        world.cell.write(c.SubmitJob(spec))
    world.cell.settle()
    assert max(map(len, world.cell.log)) <= 768 * 1024
    assert len([data for data in world.cell.log if len(data) > 400 * 1024]) >= 3
    assert sum(job.state is JobState.PLACED for job in world.state.jobs.values()) == 40


def test_an_item_that_killed_leaders_is_put_aside(world):
    position = InboxPosition(world.state.position.seq, 1)
    items = [
        (InboxPosition(position.seq, 0), c.SubmitJob(world.spec("a"))),
        (position, c.SubmitJob(world.spec("b"))),
        (InboxPosition(position.seq, 2), c.SubmitJob(world.spec("c"))),
    ]
    decision = decide(world.state, items, world.cell.now_ms, 1000, quarantine=position)
    kinds = [type(t).__name__ for t in decision.transitions[:3]]
    assert kinds == ["JobQueued", "InboxItemQuarantined", "JobQueued"]
    assert decision.inbox_to == InboxPosition(position.seq + 1, 0)


def test_a_bug_in_an_item_is_not_a_refusal(world):
    broken = c.SubmitJob(world.spec("a", tasks=None))
    with pytest.raises(TypeError):
        decide(world.state, [(world.state.position, broken)], world.cell.now_ms, 1000)


def test_deciding_changes_nothing(world):
    from muster.core import snapshot

    world.nodes(2)
    world.submit("a")
    world.submit("b", cpu=9000 // 3)
    before = list(snapshot.dump(world.state))
    items = [
        c.PodsObserved("sim-a", (c.PodFact(world.id("a"), 1, 0, 4),)),
        c.SubmitJob(world.spec("c")),
        c.CancelJob(world.id("b")),
        c.UpsertQueue("x", world.state.queues.find("research").spec),
        c.NodesReported("sim-a", (world.node("n", cpu=1),), ("node-1",)),
    ]
    seq = world.state.position.seq
    first = decide(world.state, [(InboxPosition(seq, n), item) for n, item in enumerate(items)], 10**13, 1000)
    assert len(first.transitions) >= 6
    assert list(snapshot.dump(world.state)) == before
    again = decide(world.state, [(InboxPosition(seq, n), item) for n, item in enumerate(items)], 10**13, 1000)
    assert again == first


# --- equal jobs in a row --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["", "SPREAD"])
@pytest.mark.parametrize(
    "requests", [(("cpu", 700),), (("cpu", 300), ("nvidia.com/gpu", 300)), (("nvidia.com/gpu", 1000),)], ids=str
)
@pytest.mark.parametrize("limit", [(), (("cpu", 9_100), ("nvidia.com/gpu", 5_500))], ids=["no limit", "limit"])
def test_equal_jobs_go_together_exactly_as_one_by_one(world, monkeypatch, policy, requests, limit):
    world.queue("research", limit=limit)
    world.queue("other", priority=1)
    specs = [
        world.spec(f"job-{n}", priority=-(n // 9), tasks=(TaskGroup("main", 1, 1, requests, policy=policy),))
        for n in range(40)
    ]
    specs += [world.spec(f"odd-{n}", queue="other", cpu=900 + n, priority=-3) for n in range(3)]
    submit_all(world, *specs)
    nodes = tuple(world.node(f"node-{n}", gpus=n % 3) for n in range(7))
    fact = c.NodesReported("sim-a", nodes, first=True, complete=True)
    world.cell.write(fact)
    world.cell.step()
    together = decide(world.state, [], world.cell.now_ms, 35)
    monkeypatch.setattr("muster.core.cycle.RUN_MIN", 10**9)
    one_by_one = decide(world.state, [], world.cell.now_ms, 35)
    assert together == one_by_one
    assert len(placed(together.transitions)) >= 5
