"""Folding the ledger: LOG-2, LOG-4, LOG-5, LOG-11, LOG-16, and the lifecycle table."""

from __future__ import annotations

import msgspec
import pytest

from muster.core import commands as c
from muster.core import invariants
from muster.core import transitions as tr
from muster.core.apply import apply, apply_transaction
from muster.core.decide import decide, leader_elected, next_wake_ms, transaction
from muster.core.errors import InvariantBroken
from muster.core.limits import FINISHED_TTL_MS
from muster.core.model import InboxPosition, JobState
from muster.core.state import CellState


def header(state, **changes):
    tx = transaction(state, decide(state, [], 0, 10), transaction_id="x", now_ms=state.now_ms, work_limit=10)
    return msgspec.structs.replace(tx.header, **changes)


def test_a_transaction_that_does_not_build_on_the_last_one_is_void(world):
    state = world.state
    stale = tr.Transaction(header(state, prev=state.ledger_seq - 1), (tr.ClusterSynced("sim-a"),))
    assert not apply_transaction(state, stale, state.ledger_seq + 1)
    assert not state.clusters
    assert state.ledger_seq == len(world.cell.log)


def test_a_transaction_of_an_older_term_is_void(world):
    state = world.state
    late = header(state)
    world.cell.start_term("other")
    assert (state.epoch, state.leader) == (2, "other")
    late = msgspec.structs.replace(late, prev=state.ledger_seq)
    assert not apply_transaction(state, tr.Transaction(late, ()), state.ledger_seq + 1)


def test_time_never_goes_back(world):
    now_ms = world.state.now_ms
    tx = tr.Transaction(header(world.state, now_ms=now_ms - 5), ())
    assert apply_transaction(world.state, tx, world.state.ledger_seq + 1)
    assert world.state.now_ms == now_ms
    assert (
        transaction(world.state, decide(world.state, [], 0, 1), transaction_id="", now_ms=0, work_limit=1).header.now_ms
        == now_ms
    )


def test_the_inbox_never_goes_back(world):
    back = header(world.state, inbox_to=InboxPosition(1, 0))
    with pytest.raises(InvariantBroken, match="LOG-3"):
        apply_transaction(world.state, tr.Transaction(back, ()), world.state.ledger_seq + 1)


def test_a_term_starts_with_one_more(world):
    tx = leader_elected(world.state, leader="qm-2", now_ms=5)
    assert tx.transitions == (tr.LeaderElected(2, "qm-2"),)
    assert (tx.header.epoch, tx.header.id, tx.header.inbox_from) == (2, "2-0", tx.header.inbox_to)


def test_a_transition_that_the_table_does_not_have_is_a_bug(world):
    world.submit("a")
    with pytest.raises(InvariantBroken, match="JobRunning is not possible in state Queued"):
        apply(world.state, tr.JobRunning(world.id("a"), 1))


def test_finished_jobs_are_forgotten_in_time(world):
    world.submit("a")
    world.cell.send(c.CancelJob(world.id("a")))
    assert next_wake_ms(world.state) == world.cell.now_ms + FINISHED_TTL_MS
    world.cell.wait(FINISHED_TTL_MS - 1)
    assert world.id("a") in world.state.jobs
    world.cell.wait(1)
    assert not world.state.jobs
    assert list(world.state.forgotten) == [world.id("a")]


def test_a_request_id_lives_seven_days_longer_than_its_job(world):
    """LOG-11: a client that repeats its request within that time does not get a second job."""
    world.submit("a")
    world.cell.send(c.CancelJob(world.id("a")))
    world.cell.wait(FINISHED_TTL_MS)
    assert not world.state.jobs
    world.cell.wait(7 * 24 * 3600 * 1000 - 1)
    assert list(world.state.forgotten) == [world.id("a")]
    world.submit("a")
    assert not world.state.jobs
    world.cell.wait(1)
    assert not world.state.forgotten
    world.submit("a")
    assert list(world.state.jobs) == [world.id("a")]


def test_too_many_finished_jobs_are_forgotten_early(world, monkeypatch):
    monkeypatch.setattr("muster.core.housekeeping.FINISHED_JOBS_MAX", 3)
    monkeypatch.setattr("muster.core.housekeeping.REQUEST_IDS_MAX", 1)
    for name in "abcdef":
        world.submit(name)
        world.cell.send(c.CancelJob(world.id(name)))
    assert list(world.state.jobs) == [world.id(name) for name in "def"]
    assert list(world.state.forgotten) == [world.id("c")]


def test_refusals_are_remembered_by_position(world):
    refusal = world.reject(world.submit("a", queue="nowhere"))
    assert world.state.refusals[refusal.position] == refusal


def test_jobs_of_one_template_share_their_task_groups(world):
    world.submit("a")
    world.submit("b")
    world.submit("other", cpu=2000)
    assert world.job("a").spec.tasks is world.job("b").spec.tasks
    assert world.job("a").gang is world.job("b").gang is not world.job("other").gang


def test_a_job_takes_about_a_kilobyte(world):
    import tracemalloc

    specs = [msgspec.msgpack.encode(c.SubmitJob(world.spec(f"job-{n}"))) for n in range(2000)]
    decoder = msgspec.msgpack.Decoder(c.SubmitJob)
    world.cell.checked = False
    tracemalloc.start()
    state = CellState("main")
    apply(state, tr.QueueUpserted(world.state.queues.find("research").spec))
    for n, data in enumerate(specs):
        apply(state, tr.JobQueued(decoder.decode(data).spec, "q1", InboxPosition(n, 0)))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / len(specs) < 1500


# --- the checker itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (lambda s: s.queues.find("research").usage.update(cpu=1), "I3"),
        (lambda s: s.nodes.charge(0, (("cpu", 1),), 1), "I1"),
        (lambda s: s.node_jobs.clear(), "I1"),
        (lambda s: s.by_name.clear(), "LOG-11"),
        (lambda s: s.pending.classes.clear(), "I7"),
        (lambda s: setattr(next(iter(s.jobs.values())), "placement", ()), "I2"),
        (lambda s: setattr(next(iter(s.jobs.values())), "state", JobState.FAILED), "I"),
        (lambda s: s.timers.starts.clear(), "L3"),
        (lambda s: s.queues.find("research").running.clear(), "I3"),
    ],
)
def test_the_invariants_notice_damage(world, damage, names):
    world.nodes(1, cpu=1000)
    world.submit("placed")
    world.submit("queued")
    invariants.check(world.state)
    damage(world.state)
    with pytest.raises(InvariantBroken, match=names):
        invariants.check(world.state)
