"""The odd seeds; see `test_world`."""

from __future__ import annotations

import pytest

from . import seeds


@pytest.mark.parametrize("seed", seeds.share(1, 2))
def test_a_cell_under_faults_stays_safe_and_finishes(seed: int, record_property) -> None:
    outcome = seeds.run(seed)
    record_property("seen", outcome.seen)

    assert not outcome.problems, "\n".join([f"seed {seed}", *outcome.problems])
