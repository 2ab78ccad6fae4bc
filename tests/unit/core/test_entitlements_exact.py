"""Numbers that are worked out only when somebody asks closely."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.exact import PRECISION_BITS, UNIT, ZERO, Exact, greatest, order

ratios = st.builds(Fraction, st.integers(0, 10**9), st.integers(1, 10**9))
CLOSE = Fraction(1, 1 << (PRECISION_BITS + 10))  # closer than the bounds can tell


def not_asked():
    raise AssertionError("nobody should have needed to know")


def bounded(value, source=not_asked, mark=None):
    return Exact.bounded((value.numerator << PRECISION_BITS) // value.denominator, 1, source, mark)


def symbol(value, depth, name, source=not_asked):
    bounds = ((value.numerator << PRECISION_BITS) // value.denominator, 1)
    return Exact.symbol(bounds, (source, source), depth, name)


@given(st.lists(st.tuples(st.sampled_from("+-*/"), ratios), max_size=30), ratios)
def test_arithmetic_is_that_of_fractions_and_bounds_hold(steps, start):
    number, expected = Exact.of(start), start
    for operation, value in steps:
        other = Exact.of(value)
        match operation:
            case "+":
                number, expected = number + other, expected + value
            case "-":
                number, expected = number - other, expected - value
            case "*":
                number, expected = number * other, expected * value
            case "/" if value:
                number, expected = number / other, expected / value
    assert abs(Fraction(number.middle, UNIT) - expected) <= Fraction(number.error, UNIT)
    assert number.floor() == expected.numerator // expected.denominator
    assert number.value() == expected


@given(ratios, ratios)
def test_comparisons_are_those_of_fractions(a, b):
    for x, y in ((a, b), (a, a), (a, a + CLOSE), (a + CLOSE, a)):
        assert Exact.of(x).compare(Exact.of(y)) == (x > y) - (x < y)
        assert (Exact.of(x) < Exact.of(y)) == (x < y)
        assert (Exact.of(x) <= Exact.of(y)) == (x <= y)
        assert (Exact.of(x) == Exact.of(y)) == (x == y)


def test_numbers_that_are_far_apart_are_compared_without_being_found_out():
    a, b = bounded(Fraction(1, 3)), bounded(Fraction(2, 3))
    assert a < b
    assert a + a < b + b
    assert (b * Exact(10)).floor() == 6


def test_numbers_that_are_close_are_found_out_once():
    asked = []
    a = bounded(Fraction(1, 3), lambda: asked.append(1) or Exact(1, 3))
    assert a == Exact(1, 3)
    assert a <= Exact(1, 3)
    assert (a * Exact(3)).floor() == 1
    assert asked == [1]


def test_equal_marks_are_equal_numbers_and_so_is_what_is_made_of_them():
    a, b = bounded(Fraction(1, 3), mark="x"), bounded(Fraction(1, 3), mark="x")
    assert a == b
    assert a * Exact(2) == b * Exact(2)


def test_numbers_with_other_marks_are_found_out():
    a = bounded(Fraction(1, 3), lambda: Exact(1, 3), mark="x")
    b = bounded(Fraction(1, 3), lambda: Exact.of(Fraction(1, 3) + CLOSE), mark="y")
    assert a < b
    assert (a - Exact(1, 7)).compare(b - Exact(1, 7)) == -1


def test_levels_that_cancel_out_are_not_found_out():
    level = symbol(Fraction(1, 7), 0, "level")
    a = Exact(3) * level + Exact(1, 2)
    b = Exact(3) * (level + Exact(1, 6))
    assert a == b
    assert b < a + Exact.of(CLOSE)


def test_levels_below_are_found_out_before_those_above():
    above = symbol(Fraction(1, 7), 1, "above")
    below = symbol(Fraction(2, 7), 2, "below", lambda: Exact(2) * above)
    assert order(below, Exact(2) * above, 1) == 0
    assert order(below + Exact.of(CLOSE), Exact(2) * above, 1) == 1


def test_a_level_is_found_out_when_nothing_else_decides():
    level = symbol(Fraction(1, 7), 0, "level", lambda: Exact(1, 7))
    assert order(level, Exact(1, 7), 0) == 0
    assert (level * Exact(7)).floor() == 1


@given(st.lists(ratios, min_size=1, max_size=5))
def test_the_greatest_of_some(values):
    values += [values[0] + CLOSE, values[-1]]
    assert greatest(map(Exact.of, values)).value() == max(values)


def test_division_by_what_may_be_zero_is_exact():
    tiny = Fraction(1, 1 << (2 * PRECISION_BITS))
    assert (Exact.of(tiny) / Exact.of(tiny * 3)).value() == Fraction(1, 3)
    with pytest.raises(ZeroDivisionError):
        Exact(1) / ZERO
