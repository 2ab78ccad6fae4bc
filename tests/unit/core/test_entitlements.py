"""Weighted shares: rules F1, F2 as far as they are built."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.core.entitlements import Claim, divide, entitlements
from muster.core.model import QueueSpec
from muster.core.queues import QueueTree


def test_in_proportion_to_the_weights():
    assert divide(100, [Claim("a", 3, 1000), Claim("b", 1, 1000)]) == {"a": 75, "b": 25}


def test_nobody_gets_more_than_it_asks_for_and_the_rest_is_shared():
    assert divide(100, [Claim("a", 1, 10), Claim("b", 1, 1000), Claim("c", 2, 1000)]) == {"a": 10, "b": 30, "c": 60}
    assert divide(100, [Claim("a", 1, 10), Claim("b", 1, 20)]) == {"a": 10, "b": 20}


def test_what_does_not_divide_goes_to_the_largest_remainder_then_by_name():
    assert divide(10, [Claim("a", 1, 99), Claim("b", 1, 99), Claim("c", 1, 99)]) == {"a": 4, "b": 3, "c": 3}
    assert divide(10, [Claim("a", 1, 99), Claim("b", 2, 99)]) == {"a": 3, "b": 7}


def test_a_weight_of_nothing_gets_what_nobody_else_wants():
    assert divide(100, [Claim("a", 1, 1000), Claim("z", 0, 1000)]) == {"a": 100, "z": 0}
    assert divide(100, [Claim("a", 1, 40), Claim("y", 0, 1000), Claim("z", 0, 20)]) == {"a": 40, "y": 40, "z": 20}


claims = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1 << 45)), min_size=1, max_size=6).map(
    lambda many: [Claim(f"q{i}", weight, most) for i, (weight, most) in enumerate(many)]
)


@given(st.integers(0, 1 << 50), claims)
def test_divide_is_max_min_fair_and_wastes_nothing(total, many):
    shares = divide(total, many)
    assert sum(shares.values()) == min(total, sum(claim.most for claim in many))
    for one in many:
        assert 0 <= shares[one.name] <= one.most
        for other in many:
            if one.weight > 0 and other.weight > 0 and shares[one.name] < one.most:
                # who is not content has, per weight, at least what anybody else has (up to rounding)
                assert (shares[one.name] + 1) * other.weight > (shares[other.name] - 1) * one.weight


@given(claims, st.randoms(use_true_random=False))
def test_the_order_of_the_claims_does_not_matter(many, random):
    shuffled = list(many)
    random.shuffle(shuffled)
    assert divide(1000, shuffled) == divide(1000, many)


def test_a_tree_level_by_level_with_limits_and_demand():
    tree = QueueTree()
    for spec in (
        QueueSpec("q1", "research", "", weight=3),
        QueueSpec("q2", "batch", "", limit=(("cpu", 10),)),
        QueueSpec("q3", "vision", "q1"),
        QueueSpec("q4", "nlp", "q1"),
    ):
        tree.put(spec)
    demand = {"q2": (("cpu", 100),), "q3": (("cpu", 200),), "q4": (("cpu", 5), ("memory", 7))}
    shares = entitlements(tree, demand, (("cpu", 100), ("memory", 50)))
    assert shares == {
        "q1": (("cpu", 90), ("memory", 7)),
        "q2": (("cpu", 10),),
        "q3": (("cpu", 85),),
        "q4": (("cpu", 5), ("memory", 7)),
    }
    assert entitlements(tree, {}, (("cpu", 100),)) == dict.fromkeys(("q2", "q1", "q4", "q3"), ())
