"""Seeds of whole-cell runs with faults: nothing unsafe ever, and everything ends (I1-I6, I8, I9, LOG-13, LOG-15).

These are the even seeds; `test_world_odd` has the others, so that two workers share them.
"""

from __future__ import annotations

import pytest

from muster.sim import loop

from . import seeds
from .sightings import ARRAYS, GUARDING, OPERATING, RARE, SHARING
from .world import World

SHOWN_BY = range(0, 200, 2)


@pytest.mark.parametrize("seed", seeds.share(0, 2))
def test_a_cell_under_faults_stays_safe_and_finishes(seed: int, record_property) -> None:
    outcome = seeds.run(seed)
    record_property("seen", outcome.seen)

    assert not outcome.problems, "\n".join([f"seed {seed}", *outcome.problems])


@pytest.mark.parametrize("what", [*SHARING, *GUARDING, *ARRAYS, *OPERATING])
def test_it_really_happens(what: str) -> None:
    """What no run exercises is tested by none: each of these happens in several of the seeds above."""
    showing = [seed for seed in SHOWN_BY if what in seeds.run(seed).seen]

    assert len(showing) >= (1 if what in RARE else 3), f"{what}: only seeds {showing}"


def test_the_same_seed_gives_the_same_ledger() -> None:
    """What fails can be looked at again."""
    first, second = (loop.run(World(3).run()) for _ in range(2))

    assert first.ledger == second.ledger
