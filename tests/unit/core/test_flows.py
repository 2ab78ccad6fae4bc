"""Flows made all at once are those made one by one; what flows ask for in the same proportion."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster.core.columns import table
from muster.core.flows import flow_of, flows_of, kind_of
from muster.core.rounding import _proportion

LARGE = 1 << 52
amounts_st = st.one_of(st.integers(1, 20), st.integers(LARGE - 2, LARGE + 2), st.integers(1, 1 << 58))
asked_st = st.lists(st.dictionaries(st.integers(0, 3), amounts_st, min_size=1), min_size=1, max_size=6)
capacity_st = st.lists(st.one_of(amounts_st, st.integers(1, 1 << 90)), min_size=4, max_size=4)


def asked_of(amounts, resources):
    return kind_of(sum(1 << r for r in amounts)), [amounts.get(r, 0) for r in range(resources)]


@example([{0: LARGE, 1: LARGE + 1}, {0: LARGE + 1, 1: LARGE}], [LARGE, LARGE, 1, 1])  # as floats they are equal
@example([{0: 3, 1: 6, 2: 9}], [10, 20, 30, 1])
@example([{0: 1 << 62, 1: 1 << 63}], [1 << 70, 1 << 71, 1, 1])  # more than 64 bits
@given(asked_st, capacity_st)
def test_many_flows_are_what_each_is_by_itself(amounts, capacity):
    asked = [asked_of(one, 4) for one in amounts]
    rows = [r for one in amounts for r in one]
    values = [amount for one in amounts for amount in one.values()]
    written = table(rows, values, list(map(len, amounts)), 4)
    flows = flows_of([kind for kind, _ in asked], written.amounts, capacity)
    for flow, one, known in zip(flows, asked, amounts, strict=True):
        alone = flow_of(*one, capacity)
        assert {r: flow.amounts[r] for r in flow.resources} == known
        assert flow.amounts == alone.amounts
        assert (flow.main, flow.dominant, flow.needs) == (alone.main, alone.dominant, alone.needs)
        shares = {r: known[r] * (1 << 200) // capacity[r] for r in known}
        most, below = flow.main
        assert most * (1 << 200) // below == max(shares.values())


@pytest.mark.parametrize(
    ("flows", "expected"),
    [
        ([{0: 2, 1: 6}, {0: 1, 1: 3}], (6, 2)),
        ([{2: 5}, {0: 2, 1: 6}, {2: 1}], (6, 2)),  # the first needs neither
        ([{2: 5}, {0: 4}], (0, 4)),
        ([{1: 5}, {0: 2, 1: 6}], None),
        ([{0: 2, 1: 6}, {0: 1, 1: 4}], None),
        ([{2: 5}], None),
    ],
)
def test_how_much_of_another_resource_goes_with_one(flows, expected):
    assert _proportion([flow_of(*asked_of(flow, 3), [100, 100, 100]) for flow in flows], 0, 1) == expected
