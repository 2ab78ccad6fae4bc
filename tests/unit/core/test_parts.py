"""Parts of demands as digits, and amounts times parts: the same as Python's integers say."""

from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from muster.core.bounded_record import Level
from muster.core.exact import PRECISION_BITS, Exact
from muster.core.flows import flow_of, kind_of
from muster.core.parts import CLOSE_BITS, CLOSELY, EXACTLY, FEW, PART, PART_BITS, Parts, digits_of
from muster.core.rounding import CLOSE, FRACTION_BITS, multiplied

parts_st = st.one_of(st.integers(0, PART), st.sampled_from([0, 1, PART - 1, PART]))
amounts_st = st.one_of(st.integers(0, (1 << 62) - 1), st.sampled_from([0, 1, (1 << 31) - 1, 1 << 31, (1 << 62) - 1]))


def number(digits):
    return [sum(int(digit) << 31 * place for place, digit in enumerate(column)) for column in digits.T]


@given(st.lists(parts_st, min_size=1, max_size=20))
def test_digits_are_those_of_the_number(parts):
    assert number(digits_of(parts)) == parts


@example([[(1 << 62) - 1]], PART)
@example([[(1 << 31) - 1]], PART - 1)
@given(st.lists(st.lists(amounts_st, min_size=1, max_size=1), min_size=1, max_size=4), parts_st)
def test_amounts_times_parts(rows, part):
    asked = np.array(rows, dtype=np.int64)
    large = [r for r, (amount,) in enumerate(rows) if amount >> 31]
    whole, rest = multiplied(asked, large, digits_of([part]))
    for r, (amount,) in enumerate(rows):
        units = (int(whole[r, 0]) << FRACTION_BITS) + int(rest[r, 0])
        exact = Fraction(amount * part << FRACTION_BITS, PART)
        assert units <= exact < units + CLOSE
        assert 0 <= int(rest[r, 0]) < 1 << FRACTION_BITS
        if part in (0, PART):
            assert units == exact


def looked(parts):
    parts.look()
    return parts.digits()


class Stopped:
    """Flows that were stopped at levels."""

    def __init__(self, asked, capacity, weight, numerator, denominator):
        self.flow = flow_of(kind_of(1), [asked], [capacity])
        self.flow.weigh(weight)
        # The level is a part of the one at which the flow has all it asks for.
        self.exact = Fraction(asked, capacity) * numerator / (denominator * weight)
        middle = (self.exact.numerator << PRECISION_BITS) // self.exact.denominator
        self.flow.level = Level(None, None, 0, (middle, 1), None)
        self.part = Fraction(numerator, denominator)


stopped = st.builds(
    Stopped,
    st.integers(1, (1 << 62) - 1),
    st.integers(1, (1 << 62) - 1),
    st.integers(1, 1 << 20),
    st.integers(0, 1000),
    st.integers(1000, 1 << 40),
)


@given(st.lists(stopped, min_size=1, max_size=8))
def test_parts_of_flows_that_were_stopped_at_levels(all_stopped):
    flows = [one.flow for one in all_stopped]
    for place, flow in enumerate(flows):
        flow.place = place
    parts = Parts(flows)
    for _ in range(2):
        digits, how = looked(parts)
        for one, found, known in zip(all_stopped, number(digits), how.tolist(), strict=True):
            if known == CLOSELY:
                assert found <= one.part * PART < found + (1 << CLOSE_BITS)
        # All go half as far now, without being looked at.
        for one in all_stopped:
            one.part /= 2
            one.flow.level.move((one.flow.level.middle >> 1, 1), None)


def test_most_levels_are_known_closely():
    one = Stopped(3 << 40, 7 << 41, 5, 1, 3)
    digits, how = looked(Parts([one.flow]))
    assert how.tolist() == [CLOSELY]
    assert number(digits)[0] == PART // 3 or abs(number(digits)[0] - PART // 3) < 1 << 8


def test_flows_that_come_somewhere_else_are_looked_at():
    flow = flow_of(kind_of(1), [10], [100])
    parts = Parts([flow])
    assert number(looked(parts)[0]) == [0]
    flow.share = flow.full
    parts.see([flow])
    digits, how = looked(parts)
    assert (number(digits), how.tolist()) == ([PART], [EXACTLY])
    flow.share = Exact(1, 20)
    parts.see([flow])
    assert number(looked(parts)[0])[0] >> PART_BITS - 2 == 1  # a little less than a half


def any_stopped(rng):
    size = rng.choice([10, 1 << 30, 1 << 62])
    return Stopped(
        rng.randrange(1, size), rng.randrange(1, size), rng.randint(1, 1 << 20), rng.randint(1, 1000), 1 << 40
    )


@given(st.randoms(use_true_random=True))
def test_a_few_that_change_among_many(rng):
    """As long as no level moves, nothing but what was seen is looked at; when one does, that is everybody's."""
    all_stopped, others = [[any_stopped(rng) for _ in range(count)] for count in (FEW + 5, 3)]
    flows = [one.flow for one in all_stopped]
    for place, flow in enumerate(flows):
        flow.place = place
    parts = Parts(flows)
    assert parts.look() is None
    for place, other in enumerate(others):
        flows[place], all_stopped[place], other.flow.place = other.flow, other, place
    parts.see([other.flow for other in others])
    assert parts.look() == [0, 1, 2]
    check(parts, all_stopped)
    all_stopped[-1].part /= 2
    all_stopped[-1].flow.level.move((all_stopped[-1].flow.level.middle >> 1, 1), None)
    assert parts.look() is None
    check(parts, all_stopped)


def test_levels_at_which_nothing_stops_any_more_are_forgotten():
    flow = Stopped(3 << 40, 7 << 41, 5, 1, 3).flow
    parts = Parts([flow])
    for _ in range(10):
        flow.level = Level(None, None, 0, (flow.level.middle, 1), None)
        parts.see([flow])
        parts.look()
    assert len(parts._levels) == 1


def check(parts, all_stopped):
    digits, how = parts.digits()
    assert CLOSELY in how.tolist()
    for one, found, known in zip(all_stopped, number(digits), how.tolist(), strict=True):
        assert known != EXACTLY
        if known == CLOSELY:
            assert found <= one.part * PART < found + (1 << CLOSE_BITS)
