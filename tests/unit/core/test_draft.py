"""Counting bytes: LOG-8."""

from __future__ import annotations

import msgspec
import pytest
from tests.contract.golden_samples import TRANSITIONS

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.model import GroupPlacement, InboxPosition, PodChange
from muster.core.sizes import size_of

LONG = "é" * 1000
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
    tr.HoldMade("f" * 32, (GroupPlacement(0, ((1 << 19, 3),)),), (("f" * 32, 1 << 31),) * 512, 1 << 60),
    tr.CyclePaused((-(1 << 50), 1 << 60, "f" * 32)),
    tr.PodsChanged("f" * 32, 1 << 31, tuple(PodChange(40_000, 5, 1, -1 << 31, "x" * 200) for _ in range(100))),
)


@pytest.mark.parametrize("transition", WORST, ids=lambda t: type(t).__name__)
def test_estimates_are_upper_bounds(transition):
    assert size_of(transition) >= len(msgspec.msgpack.encode(transition))


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
