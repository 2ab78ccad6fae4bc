"""How much work one decision gets (LOG-1: a budget in work units; time only tunes it).

The leader measures how long deciding took and aims at `TARGET_S` a transaction: long enough that a commit's fsync is
shared by much, short enough that nothing else in the process waits. What it hands to `decide` is a number of units,
which goes into the header, so a replay on any machine decides the same.
"""

from __future__ import annotations

from typing import Final

TARGET_S: Final = 0.03
WORK_FIRST: Final = 20_000
WORK_MIN: Final = 500
WORK_MAX: Final = 2_000_000
MEASURABLE_WORK: Final = 200  # less than this measures the overhead, not the unit
SMOOTHING: Final = 0.2
ITEMS_MAX: Final = 4_000  # handed to one decision, give or take a message


class Pace:
    """The budget of the next decision."""

    def __init__(self) -> None:
        self.work_limit = WORK_FIRST
        self._units_per_s = WORK_FIRST / TARGET_S

    def measured(self, work_spent: int, seconds: float) -> None:
        """A decision of `work_spent` units took `seconds`."""
        if work_spent < MEASURABLE_WORK or seconds <= 0.0:
            return
        self._units_per_s += SMOOTHING * (work_spent / seconds - self._units_per_s)
        self.work_limit = max(WORK_MIN, min(WORK_MAX, int(self._units_per_s * TARGET_S)))
