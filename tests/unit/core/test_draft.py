"""Counting bytes: LOG-8."""

from __future__ import annotations

import msgspec
import pytest
from tests.contract.golden_samples import TRANSITIONS

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.limits import FINISHED_TTL_MS
from muster.core.model import Allowance, GroupPlacement, InboxPosition, PodChange, QueueSpec
from muster.core.sizes import size_of

LONG = "é" * 1000
AMOUNTS = tuple((f"example.com/{n:051}", 1 << 50) for n in range(32))
WORST = (
    *TRANSITIONS,
    tr.JobStopping(
        "f" * 32, 1 << 31, "Cancelled", "MaxRuntimeExceeded", LONG, 1 << 60, tuple(range(1 << 19, (1 << 19) + 64)), -1
    ),
    tr.JobFailed("f" * 32, "PlacementRejected", LONG, -1 << 31),
    tr.JobCancelled("f" * 32, "CancelledByUser", LONG),
    tr.CommandRefused(
        InboxPosition(1 << 60, 1 << 20),
        "SubmitJob",
        LONG,
        LONG,
        "RESOURCE_EXHAUSTED",
        LONG,
        LONG,
        "LOG-11",
        LONG,
        LONG,
        LONG,
    ),
    tr.JobPlaced(
        "f" * 32, 1 << 31, tuple(GroupPlacement(g, ((1 << 19, 40_000),) * 500, b"x" * 5000) for g in range(3))
    ),
    tr.QueueUpserted(
        QueueSpec(
            "q9999999",
            "n" * 63,
            "q9999998",
            1 << 62,
            *(1_000_000, -1_000_000, "PRIORITY", "LOWER_PRIORITY", "DRAINING"),
            guaranteed=AMOUNTS,
            limit=AMOUNTS,
            lending_limit=AMOUNTS,
            labels=tuple((f"{n}{LONG}", LONG) for n in range(64)),
            per_namespace=Allowance(1_000_000_000, 1_000_000_000, AMOUNTS),
            per_user=Allowance(1_000_000_000, 1_000_000_000, AMOUNTS),
            min_runtime_ms=1 << 40,
            half_life_ms=1 << 40,
            preemption_backoff_ms=1 << 32,
            preemption_backoff_max_ms=1 << 32,
        )
    ),
    tr.QueueUpserted(QueueSpec("q1", "a", "", weight=200, guaranteed=(("cpu", 40_000),), half_life_ms=1 << 17)),
    tr.HoldMade("f" * 32, (GroupPlacement(0, ((1 << 19, 3),)),), (("f" * 32, 1 << 31),) * 512, 1 << 60),
    tr.CyclePaused((-(1 << 50), 1 << 60, "f" * 32)),
    tr.PodsChanged("f" * 32, 1 << 31, tuple(PodChange(40_000, 5, 1, -1 << 31, "x" * 200) for _ in range(100))),
)


@pytest.mark.parametrize("transition", WORST, ids=lambda t: type(t).__name__)
def test_estimates_are_upper_bounds(transition):
    assert size_of(transition) >= len(msgspec.msgpack.encode(transition))


def test_a_transaction_closes_at_its_size(world, monkeypatch):
    """LOG-8: what an inbox message says may become several ledger messages, none larger than the limit and one step."""
    limit, each = 10_000, 2000
    for module in ("decide", "draft"):
        monkeypatch.setattr(f"muster.core.{module}.TRANSACTION_BYTES_MAX", limit)
    jobs = []
    for number in range(20):
        spec = world.spec(f"job-{number}")
        tasks = (msgspec.structs.replace(spec.tasks[0], template=bytes(each)),)
        jobs.append(c.SubmitJob(msgspec.structs.replace(spec, tasks=tasks)))
    world.cell.write(*jobs)
    sizes = []
    while done := world.cell.step():
        sizes.append(sum(size_of(transition) for transition in done))
    assert len(world.state.jobs) == 20
    assert len(sizes) >= 20 * each // limit
    assert max(sizes) < limit + each + 1000


def test_what_has_to_be_done_without_being_told_is_cut_as_well(world, monkeypatch):
    """LOG-8: finished jobs that all leave the state at one moment."""
    for number in range(50):
        world.submit(str(number))
        world.cell.send(c.CancelJob(world.id(str(number))))
    monkeypatch.setattr("muster.core.draft.TRANSACTION_BYTES_MAX", 500)
    before = world.state.ledger_seq
    gone = world.cell.wait(2 * FINISHED_TTL_MS)
    assert not world.state.jobs
    assert world.state.ledger_seq - before >= sum(size_of(transition) for transition in gone) // 1000


def test_texts_of_others_are_cut(world):
    world.nodes()
    world.submit("a")
    world.cell.send(c.CancelJob(world.id("a"), reason="x" * 100_000))
    assert len(world.job("a").message) == 1000
    refusal = world.reject(world.cell.send(c.DeleteQueue("q" * 100_000)))
    assert len(refusal.message) <= 1200
    assert len(refusal.subject) <= 1200


def test_a_mistyped_path_is_found_level_by_level(world):
    for path in ("research/vision", "research/vision/gan"):
        world.queue(path)
    refusal = world.reject(world.submit("a", queue="reserch/visoin/gan"))
    assert refusal.message == 'queue "reserch/visoin/gan" does not exist (did you mean "research/vision/gan"?)'
    assert "did you mean" not in world.reject(world.submit("b", queue="something/else")).message
