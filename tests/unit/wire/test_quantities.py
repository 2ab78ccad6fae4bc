"""Quantities of the API: exact, short, and readable again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core import resources
from muster.wire import quantities


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 1500, "1.5"),
        ("cpu", 4000, "4"),
        ("memory", 16 << 30, "16Gi"),
        ("memory", (1 << 30) + 1, "1073741825"),
        ("memory", 0, "0"),
        ("nvidia.com/gpu", 2000, "2"),
        ("nvidia.com/gpu", 460, "0.46"),
        ("pods", 110, "110"),
    ],
)
def test_the_shortest_exact_form(resource: str, amount: int, text: str) -> None:
    assert quantities.quantity(resource, amount) == text


@given(st.sampled_from(["cpu", "memory", "hugepages-2Mi", "pods"]), st.integers(0, 1 << 49))
def test_what_is_written_is_read_again(resource: str, amount: int) -> None:
    assert resources.parse_quantity(resource, quantities.quantity(resource, amount)) == amount


@given(st.integers(1, 999))
def test_a_share_is_written_as_it_is_asked_for(amount: int) -> None:
    assert resources.parse_requests(quantities.requests((("nvidia.com/gpu", amount),))) == (("nvidia.com/gpu", amount),)


def test_whole_devices_are_written_as_devices() -> None:
    assert quantities.requests((("cpu", 500), ("nvidia.com/gpu", 2000))) == {"cpu": "0.5", "nvidia.com/gpu": "2"}
