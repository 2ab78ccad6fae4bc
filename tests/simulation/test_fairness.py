"""Usage stays at the entitlement, within one job or 2 %, over time (rules F2, F5, P2): small runs of `make fairness`.

Also: the published entitlements are what a water-filling says that knows one resource and nothing of this code.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from tests.simulation.fairness import SCENARIOS, SHORT_MS, WITHIN_MIN, random_tree, water_filled
from tests.simulation.sharing import ONE

from muster.core import invariants


def shown(name, **smaller):
    """As the scenario is, but smaller and with shorter lives."""
    run = replace(SCENARIOS[name], lifetime_ms=SHORT_MS).run(**smaller)
    run.run()
    invariants.check(run.sharing.state)
    return run


def is_published_exactly(run, levels):
    """Rounding moves an entitlement by less than one thousandth of a GPU on each level."""
    return run.report.farthest < levels


@pytest.mark.parametrize("name", ["weights", "tree"])
def test_usage_stays_at_the_entitlement_when_borrowers_end_by_themselves(name):
    run = shown(name, nodes=250, leaves=50, levels=5)
    assert run.report.samples >= 12 * len(run.leaves)
    assert run.report.share >= WITHIN_MIN
    assert is_published_exactly(run, 5)
    assert run.sharing.counts.evicted == 0
    assert sum(run.sharing.usage(leaf) for leaf in run.leaves) == run.setting.gpus * ONE


def test_usage_stays_at_the_entitlement_when_what_is_borrowed_is_reclaimed():
    run = shown("reclaim", nodes=50, leaves=12, levels=3)
    assert run.report.share >= WITHIN_MIN
    assert is_published_exactly(run, 3)
    assert run.sharing.counts.evicted > 0
    assert run.sharing.counts.evicted < run.sharing.counts.placed // 4


def test_usage_follows_entitlements_that_move():
    run = shown("changing", nodes=50, leaves=12, levels=3)
    assert run.sharing.counts.published > 12
    assert run.report.share >= SCENARIOS["changing"].within_min
    assert is_published_exactly(run, 3)


def test_the_water_filling():
    weights = {"a": 2, "b": 1, "a/x": 1, "a/y": 3}
    shares = water_filled(weights, {"a/x": 100, "a/y": 1, "b": 2}, 9)
    assert shares == {"": 9, "a": 7, "b": 2, "a/x": 6, "a/y": 1}
    assert water_filled(weights, dict.fromkeys(("a/x", "a/y", "b"), 100), 9) == {
        "": 9,
        "a": 6,
        "b": 3,
        "a/x": Fraction(3, 2),
        "a/y": Fraction(9, 2),
    }


def test_the_deep_tree_is_as_deep_and_as_wide_as_it_says():
    weights = random_tree(10, 1000, 1)
    parents = {path.rpartition("/")[0] for path in weights}
    leaves = [path for path in weights if path not in parents]
    assert len(leaves) == 1000
    assert {path.count("/") + 1 for path in leaves} == {10}
