"""What queues have against what they deserve: no rounding, no floats (rules F5, P2a)."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from muster.core.shares import Share, above_entitlement, below_entitlement, dominant_share

amounts = st.integers(0, 1 << 60)


def fraction(numerator, denominator):
    """None is infinite."""
    return Fraction(numerator, denominator) if denominator else None if numerator else Fraction(0)


@given(amounts, amounts, amounts, amounts)
def test_shares_compare_as_fractions_and_infinity_is_above_all(a, b, c, d):
    x, y = fraction(a, b), fraction(c, d)
    assert (Share(a, b) == Share(c, d)) == (x == y)
    assert (Share(a, b) < Share(c, d)) == (x is not None and (y is None or x < y))


def test_an_entitlement_of_zero_counts_as_infinite():
    assert dominant_share({"cpu": 1}, (), {}) == Share(1, 0)
    assert dominant_share({"cpu": 10**18}, (), {"cpu": 1}) < dominant_share({"cpu": 1}, (), {"cpu": 0})
    assert dominant_share({}, (), {}) == Share(0, 1)


def test_the_job_counts_before_it_is_placed():
    usage, entitled = {"cpu": 2, "gpu": 1}, {"cpu": 10, "gpu": 4, "pods": 100}
    assert dominant_share(usage, (), entitled) == Share(1, 4)
    assert dominant_share(usage, (("cpu", 4), ("pods", 70)), entitled) == Share(7, 10)


def test_shares_that_floats_cannot_tell_apart():
    large = 1 << 60
    assert dominant_share({"memory": large}, (), {"memory": large + 1}) < Share(large + 1, large + 2)


def test_below_entitlement_names_only_what_the_job_asks_for():
    usage, entitled = {"cpu": 5, "gpu": 3}, {"cpu": 5, "gpu": 4, "memory": 1}
    assert below_entitlement(usage, entitled, (("cpu", 1), ("gpu", 1), ("memory", 1), ("pods", 1))) == ("gpu", "memory")
    assert below_entitlement(usage, entitled, (("cpu", 1),)) == ()


def test_above_entitlement_is_what_was_borrowed():
    assert above_entitlement({"cpu": 6, "gpu": 4, "pods": 1}, {"cpu": 5, "gpu": 4}) == ("cpu", "pods")
