"""Accounts: what is used, waited for and lost, against a naive sum over the jobs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.conftest import World

from muster.core import accounting, snapshot
from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.accounting import DAY_MS, HOUR_MS, REST, Accounts
from muster.core.preemption import plan_preemption
from muster.wire import codec

RUNNING, SUCCEEDED, GONE = 2, 3, 5


def usage(world, since_ms=0):
    report = world.state.accounts.report(since_ms, world.cell.now_ms)
    return {account[1:]: dict(tally.usage) for account, tally in report.tallies.items()}


def only(world):
    (tally,) = world.state.accounts.report(0, world.cell.now_ms).tallies.values()
    return tally


def test_usage_is_amount_times_time_until_each_pod_is_gone(world):
    world.nodes(2)
    world.submit("a", cpu=1000, replicas=2, submitter="ann", priority=3)
    world.cell.wait(1000)
    assert usage(world) == {("default", "ann", 3): {"cpu": 2_000_000, "pods": 2000}}  # also while it goes on
    world.pods("a", RUNNING)
    world.pods("a", SUCCEEDED, 0)
    world.cell.wait(500)
    world.pods("a", SUCCEEDED, 1)
    world.cell.wait(9000)
    assert usage(world)["default", "ann", 3] == {"cpu": 2_500_000, "pods": 2500}
    tally = only(world)
    assert (tally.submitted, tally.started, tally.succeeded, tally.failed) == (1, 1, 1, 0)


def test_waits_are_those_of_first_placements(world):
    world.submit("a")
    world.cell.wait(7000)
    world.nodes(1)
    world.cell.send(c.PlacementRejected("sim-a", world.id("a"), 1, 0))
    world.pods("a", GONE)
    world.cell.wait(5000)
    tally = only(world)
    assert (tally.started, tally.waits, tally.waited_ms, tally.waited_max_ms) == (2, 1, 7000, 7000)


def test_what_preemption_destroys_is_the_victims(world):
    world.nodes(1)
    world.submit("low", cpu=4000, submitter="ann")
    world.cell.wait(1000)
    world.pods("low", RUNNING)
    world.cell.wait(2000)
    world.submit("high", cpu=4000, priority=5, submitter="bob")
    plan = plan_preemption(world.state, world.id("high"))
    world.cell.send(c.PreemptionPlanned(world.id("high"), world.state.requests, plan.victims, plan.placement))
    tallies = {account[2]: t for account, t in world.state.accounts.report(0, world.cell.now_ms).tallies.items()}
    assert (tallies["ann"].preempted, tallies["ann"].lost) == (1, {"cpu": 4000 * 2000, "pods": 2000})
    assert (tallies["bob"].preempted, tallies["bob"].lost) == (0, {})


def test_hours_become_days_and_nothing_is_lost(world):
    world.nodes(1)
    world.submit("a", cpu=1000)
    for _ in range(12):
        world.cell.wait(6 * HOUR_MS + 1)
        world.cell.send(c.NodesReported("sim-a", (world.node("extra", cpu=world.cell.now_ms % 7 + 1),)))
    accounts = world.state.accounts
    passed_ms = world.cell.now_ms - world.job("a").placed_ms
    assert usage(world)["default", "", 0]["cpu"] == 1000 * passed_ms
    spans = {period.end_ms - period.start_ms for period in accounts.periods}
    assert HOUR_MS in spans
    assert max(spans) > HOUR_MS
    recent = accounts.report(world.cell.now_ms - HOUR_MS, world.cell.now_ms)
    (tally,) = recent.tallies.values()
    assert tally.usage["cpu"] == 1000 * (world.cell.now_ms - recent.from_ms)


def test_a_snapshot_keeps_them_to_the_last_millisecond(world):
    world.nodes(2)
    world.submit("a", requests=(("memory", 1 << 50),), submitter="ann")
    world.submit("b", cpu=100)
    world.cell.wait(123_456_789)
    world.pods("b", SUCCEEDED)
    world.queue("gone")
    parts = [codec.decode_snapshot_part(codec.encode_snapshot_part(part)) for part in snapshot.dump(world.state)]
    loaded = snapshot.load(parts)
    now_ms = world.cell.now_ms + 5_000
    assert loaded.accounts.report(0, now_ms) == world.state.accounts.report(0, now_ms)
    with pytest.raises(snapshot.IncompleteSnapshot, match="tallies"):
        snapshot.load(part for part in parts if type(part).__name__ != "AccountsPart")


def test_a_removed_queue_keeps_its_name_in_the_accounts(world):
    world.queue("old")
    world.submit("a", queue="old")
    world.cell.send(c.CancelJob(world.id("a")))
    world.cell.send(c.DeleteQueue("old"))
    world.queue("never-used")
    world.cell.send(c.DeleteQueue("never-used"))
    assert list(world.state.accounts.gone.values()) == ["old"]


def test_too_many_accounts_share_one(monkeypatch):
    monkeypatch.setattr(accounting, "ACCOUNTS_MAX", 2)
    world = World()
    for n in range(4):
        world.submit(f"j{n}", submitter=f"u{n}")
    tallies = world.state.accounts.periods[-1].tallies
    assert sorted(account[2] for account in tallies) == ["", "u0", "u1"]
    assert tallies[REST].submitted == 2


def test_a_snapshot_keeps_what_too_many_accounts_share(world, monkeypatch):
    monkeypatch.setattr(accounting, "ACCOUNTS_MAX", 3)
    world.nodes(1)
    for n in range(5):
        world.submit(f"job-{n}", cpu=500, submitter=f"user-{n}")
    world.cell.wait(60_000)
    loaded = snapshot.load(snapshot.dump(world.state))
    assert len(world.state.accounts.periods[-1].tallies) == 4
    assert loaded.accounts.report(0, world.state.now_ms) == world.state.accounts.report(0, world.state.now_ms)


def test_too_many_tallies_make_the_oldest_periods_one(monkeypatch):
    monkeypatch.setattr(accounting, "TALLIES_MAX", 3)
    accounts = Accounts()
    for day in range(1, 10):
        accounts.advance(day * DAY_MS)
        accounts.periods[-1].tally(("q1", "", "", 0)).submitted += 1
    assert len(accounts.periods) <= 4
    assert accounts.report(0, 10 * DAY_MS).tallies["q1", "", "", 0].submitted == 9
    accounts.advance(500 * DAY_MS)
    assert [period.start_ms for period in accounts.periods] == [DAY_MS, 500 * DAY_MS]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["submit", "run", "end", "wait", "cancel"]), st.integers(0, 5)), max_size=25))
def test_usage_equals_the_integral_over_the_log(steps):
    """Naive: after each transaction, amounts of the charged pods times the time to the next one."""
    world = World()
    world.nodes(2)
    for number, (what, n) in enumerate(steps):
        name = f"j{n}"
        known = world.state.jobs.get(world.id(name))
        if what == "submit" and known is None:
            world.submit(name, cpu=500 * (n + 1), replicas=1 + n % 3, submitter=f"u{n % 2}")
        elif what == "wait":
            world.cell.wait((n + 1) * 700_000)
        elif known is not None and known.charged:
            if what == "run":
                world.pods(name, RUNNING)
            elif what == "end":
                world.pods(name, SUCCEEDED if number % 2 else GONE, number % len(known.phases))
            elif what == "cancel":
                world.cell.send(c.CancelJob(world.id(name)))
                world.pods(name, GONE)
    want = integral([codec.decode_transaction(data) for data in world.cell.log], world.cell.now_ms)
    report = world.state.accounts.report(0, world.cell.now_ms)
    have: dict[str, int] = {}
    for account, tally in report.tallies.items():
        have[account[2]] = have.get(account[2], 0) + tally.usage.get("cpu", 0)
    assert {user: amount for user, amount in have.items() if amount} == want


def test_queues_that_are_gone_are_known_by_the_path_they_had(world):
    world.queue("tmp")
    for path in ("tmp/x", "tmp/y", "tmpx"):
        world.queue(path)
        world.submit(path.replace("/", "-"), queue=path)
        world.cell.send(c.CancelJob(world.id(path.replace("/", "-"))))
    world.queue("tmp/never-used")
    ids = {path: world.state.queues.find(path).id for path in ("tmp/x", "tmp/y", "tmpx")}
    for path in ("tmp/x", "tmpx", "tmp/never-used"):
        world.cell.send(c.DeleteQueue(path))
    accounts = world.state.accounts
    assert accounts.removed_below("tmp") == {ids["tmp/x"]}
    assert accounts.removed_below("tmp/x") == {ids["tmp/x"]}
    assert accounts.removed_below("tmpx") == {ids["tmpx"]}
    assert accounts.removed_below("t") == accounts.removed_below("tmp/y") == set()


def integral(log: list[tr.Transaction], until_ms: int) -> dict[str, int]:
    """CPU milliseconds by user, from the transitions alone."""
    specs, pods, sums = {}, {}, {}
    at_ms = log[0].header.now_ms
    for tx in [*log, None]:
        now_ms = until_ms if tx is None else tx.header.now_ms
        for (job, _), cpu in pods.items():
            user = specs[job].submitter
            sums[user] = sums.get(user, 0) + cpu * (now_ms - at_ms)
        at_ms = now_ms
        for t in () if tx is None else tx.transitions:
            if isinstance(t, tr.JobQueued):
                specs[t.spec.id] = t.spec
            elif isinstance(t, tr.JobPlaced):
                (task,) = specs[t.job].tasks
                pods |= {(t.job, n): dict(task.requests)["cpu"] for n in range(task.replicas)}
            elif isinstance(t, tr.PodsChanged):
                for change in t.pods:
                    if change.phase >= SUCCEEDED:
                        pods.pop((t.job, change.pod), None)
    return {user: amount for user, amount in sums.items() if amount}
