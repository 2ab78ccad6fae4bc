"""Reported and declared checkpoints: what an eviction would lose (rule P3)."""

from __future__ import annotations

import pytest
from tests.unit.core.preempting import Around

from muster.core import commands as c
from muster.core import snapshot
from muster.core import transitions as tr
from muster.core.explain import explain
from muster.core.lost_work import lost
from muster.core.model import EVERY_INDEX, JobState
from muster.core.preemption import plan_preemption
from muster.core.whatif import forecast_job
from muster.wire import codec

MINUTE_MS = 60_000


def report(world, name, at_ms=0, *, epoch=0):
    return world.cell.send(c.ReportCheckpoint(world.id(name), epoch, at_ms))


def told(transitions):
    return [t.at_ms for t in transitions if isinstance(t, tr.CheckpointReported)]


def lost_cpu(world, name):
    job = world.job(name)
    return dict(lost(job, range(len(job.phases)), world.cell.now_ms)).get("cpu", 0)


def runs(world, name, **more):
    world.submit(name, **more)
    world.pods(name, 2)


@pytest.fixture
def job(world):
    """Job `a` of one core has run for ten minutes."""
    world.nodes(1)
    runs(world, "a")
    world.cell.wait(10 * MINUTE_MS)
    return world


def test_without_checkpoints_everything_since_the_start_would_be_lost(job):
    assert lost_cpu(job, "a") == 1000 * 10 * MINUTE_MS


def test_a_reported_checkpoint_makes_the_work_before_it_safe(job):
    now_ms = job.cell.now_ms
    assert told(report(job, "a", now_ms - MINUTE_MS)) == [now_ms - MINUTE_MS]
    assert lost_cpu(job, "a") == 1000 * MINUTE_MS
    assert told(report(job, "a")) == [now_ms]
    assert lost_cpu(job, "a") == 0


def test_it_never_goes_back_and_never_lies_in_the_future(job):
    now_ms = job.cell.now_ms
    report(job, "a", now_ms - MINUTE_MS)
    assert told(report(job, "a", now_ms - MINUTE_MS)) == []
    assert told(report(job, "a", now_ms - 2 * MINUTE_MS)) == []
    assert told(report(job, "a", now_ms + MINUTE_MS)) == [now_ms]


def test_a_report_from_before_the_placement_says_nothing(job):
    assert told(report(job, "a", job.job("a").placed_ms - 1)) == []


def test_a_declared_interval_makes_every_multiple_safe(world):
    world.nodes(1)
    runs(world, "a", checkpoint_ms=4 * MINUTE_MS)
    world.cell.wait(10 * MINUTE_MS)
    assert lost_cpu(world, "a") == 1000 * 2 * MINUTE_MS
    report(world, "a", world.cell.now_ms - MINUTE_MS)
    assert lost_cpu(world, "a") == 1000 * MINUTE_MS


@pytest.mark.parametrize(
    ("command", "code", "field"),
    [
        (c.ReportCheckpoint("x"), "NOT_FOUND", "job"),
        (c.ReportCheckpoint("waits"), "FAILED_PRECONDITION", "job"),
        (c.ReportCheckpoint("a", 7), "FAILED_PRECONDITION", "epoch"),
        (c.ReportCheckpoint("a", -1), "INVALID_ARGUMENT", "epoch"),
        (c.ReportCheckpoint("a", 1, -5), "INVALID_ARGUMENT", "at"),
    ],
)
def test_what_makes_no_sense_is_refused(job, command, code, field):
    job.submit("waits", cpu=4000)
    found = job.id(command.job) if command.job != "x" else "x"
    refusal = job.reject(job.cell.send(c.ReportCheckpoint(found, command.epoch, command.at_ms)))
    assert (refusal.code, refusal.field, refusal.command) == (code, field, "ReportCheckpoint")


def test_the_next_epoch_has_saved_nothing(job):
    report(job, "a")
    job.pods("a", 5)
    job.cell.wait(MINUTE_MS)
    assert (job.job("a").epoch, job.job("a").saved_ms) == (2, 0)
    assert job.reject(report(job, "a", epoch=1)).field == "epoch"


def test_the_job_that_has_saved_its_work_leaves_first(world):
    """P3: less lost work before newer; both orders."""
    world.nodes(1, cpu=2000)
    for name in ("old", "new"):
        runs(world, name)
        world.cell.wait(MINUTE_MS)
    world.submit("high", priority=5)
    assert plan_preemption(world.state, world.id("high")).victims == ((world.id("new"), 1),)
    report(world, "old")
    assert plan_preemption(world.state, world.id("high")).victims == ((world.id("old"), 1),)


def test_declared_intervals_count_in_the_order_of_victims(world):
    world.nodes(1, cpu=2000)
    runs(world, "old", checkpoint_ms=10 * MINUTE_MS)
    world.cell.wait(5 * MINUTE_MS)
    runs(world, "new")
    world.submit("high", priority=5)
    expected = {3: "new", 4: "new", 5: "old", 9: "old"}  # minutes later: `old` has saved its work at 5
    minutes = 0
    for after, leaves in expected.items():
        world.cell.wait((after - minutes) * MINUTE_MS)
        minutes = after
        world.queue("research")  # the ledger's own time moves on
        assert plan_preemption(world.state, world.id("high")).victims == ((world.id(leaves), 1),), after


def test_accounts_and_what_if_count_only_what_is_not_safe(job):
    report(job, "a", job.cell.now_ms - MINUTE_MS)
    forecast = forecast_job(job.state, job.spec("high", cpu=4000, priority=5), job.cell.now_ms)
    (victim,) = forecast.displaces
    assert dict(victim.lost)["cpu"] == 1000 * MINUTE_MS
    around = Around(job.cell)
    around.note(job.submit("high", cpu=4000, priority=5))
    around.calm()
    (tally,) = [t for t in job.state.accounts.report(0, job.cell.now_ms).tallies.values() if t.preempted]
    assert tally.lost["cpu"] == 1000 * MINUTE_MS


def test_an_index_of_an_array_job_loses_only_its_own_work(world):
    """Each began when its own pod did, not when the job did."""
    world.nodes(1, cpu=2000)
    world.submit("a", replicas=4, least=1, completion=EVERY_INDEX)
    world.pods("a", 2, 0, 1)
    world.cell.wait(60 * MINUTE_MS)
    world.pods("a", 3, 0)
    world.pods("a", 2, 2)
    world.cell.wait(MINUTE_MS)
    assert world.job("a").state is JobState.RUNNING
    assert lost_cpu(world, "a") == 1000 * (61 + 1) * MINUTE_MS
    report(world, "a", world.cell.now_ms - 2 * MINUTE_MS)
    assert lost_cpu(world, "a") == 1000 * (2 + 1) * MINUTE_MS


def test_explain_says_how_much_is_not_safe(job):
    report(job, "a", job.cell.now_ms - MINUTE_MS)
    assert explain(job.state, job.id("a"), job.cell.now_ms).summary.endswith("its work is safe but for the last 60 s")


def test_a_snapshot_keeps_it(job):
    report(job, "a")
    parts = [codec.encode_snapshot_part(part) for part in snapshot.dump(job.state)]
    loaded = snapshot.load(map(codec.decode_snapshot_part, parts))
    assert loaded.jobs[job.id("a")].saved_ms == job.job("a").saved_ms > 0
