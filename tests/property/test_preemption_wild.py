"""Preemption on random cells whose owners change their minds: as calm as in `test_preemption_calm`, and short.

`INSTANCES=5000` runs more.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.test_preemption_calm import INSTANCES, LONG_MS
from tests.property.wild import Wild

CHAIN_MAX = 6  # evictions that one event may lead to, each for the one before


def live_through(seed: int) -> Wild:
    """Jobs come, end and are evicted, queues and nodes change; then nothing happens any more."""
    wild = Wild(seed)
    draw = wild.draw
    for _ in range(draw.randint(2, 6)):
        wild.slow = draw.random() < 0.5
        if draw.random() < 0.25:
            wild.flood()
            wild.calm()
            wild.wait_long(1_800_000)
        else:
            wild.submit()
        wild.calm()
        wild.change_some()
        wild.calm()
        if draw.random() < 0.5:
            wild.finish_some()
            wild.calm()
        if draw.random() < 0.5:
            wild.wait_long(draw.choice((30_000, 120_000, 600_000)))
    if draw.random() < 0.5:
        wild.open_all()
    wild.slow = False
    wild.wait_long(LONG_MS)
    return wild


ROUNDS_MAX = 4  # a pause that was still running may end one more time


# Each costs three of the others.
@settings(max_examples=max(INSTANCES // 3, 25), deadline=None)
@given(st.integers(0, 1 << 48))
def test_it_is_calm_whatever_the_owners_do(seed: int) -> None:
    wild = live_through(seed)
    for _ in range(ROUNDS_MAX):
        before = (len(wild.evicted), len(wild.shrunk), wild.plans)
        wild.wait_long(LONG_MS)
        if (len(wild.evicted), len(wild.shrunk), wild.plans) == before:
            break
    else:
        raise AssertionError("it goes on and on")
    assert not wild.state.holds
    assert wild.longest <= CHAIN_MAX, "each eviction leads to the next"
