"""LOG-1: the budget is in work units, and measured time tunes it."""

from __future__ import annotations

from muster.runtime.pace import TARGET_S, WORK_FIRST, WORK_MAX, WORK_MIN, Pace


def test_the_budget_settles_where_a_decision_takes_the_target_time() -> None:
    for unit_s in (1e-6, 5e-6):
        pace = Pace()
        for _ in range(100):
            pace.measured(pace.work_limit, pace.work_limit * unit_s)
        assert abs(pace.work_limit * unit_s - TARGET_S) < TARGET_S / 10


def test_the_budget_stays_within_its_bounds() -> None:
    pace = Pace()
    for _ in range(200):
        pace.measured(1000, 10.0)
    assert pace.work_limit == WORK_MIN
    for _ in range(200):
        pace.measured(10**9, 0.001)
    assert pace.work_limit == WORK_MAX


def test_small_and_unmeasurable_decisions_say_nothing() -> None:
    pace = Pace()
    pace.measured(10, 1.0)
    pace.measured(10_000, 0.0)  # virtual time stands still while deciding
    assert pace.work_limit == WORK_FIRST
