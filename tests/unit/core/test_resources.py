"""Quantities: Kubernetes' notation read exactly, refused with a reason, and written for people (rule G4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core import resources
from muster.core.errors import Code, Rejected
from muster.core.limits import AMOUNT_MAX

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("resource", "text", "amount"),
    [
        ("cpu", "1500m", 1500),
        ("cpu", "2", 2000),
        ("cpu", "0.1", 100),
        ("cpu", ".5", 500),
        ("cpu", "1.", 1000),
        ("cpu", "0.0001", 1),  # rounded up, as Kubernetes does
        ("cpu", "100u", 1),
        ("cpu", "1e3", 1_000_000),
        ("cpu", "5E-1", 500),
        ("cpu", "0", 0),
        ("cpu", "-0", 0),
        ("cpu", "+1", 1000),
        ("memory", "16Gi", 16 << 30),
        ("memory", "1.5Gi", 3 << 29),
        ("memory", "128974848", 128974848),
        ("memory", "129M", 129_000_000),
        ("memory", "1k", 1000),
        ("memory", "1500m", 2),
        ("ephemeral-storage", "1Ki", 1024),
        ("hugepages-2Mi", "4Mi", 4 << 20),
        (GPU, "2", 2000),
        ("amd.com/gpu", "1", 1000),
        (GPU, "2000m", 2000),
        (resources.GPU_MILLI, "460", 460),
        ("example.com/fpga", "3", 3),
        ("pods", "110", 110),
    ],
)
def test_quantities_are_read_exactly(resource, text, amount):
    assert resources.parse_quantity(resource, text) == amount


@pytest.mark.parametrize(
    ("resource", "text", "says"),
    [
        ("cpu", "", "not a quantity"),
        ("cpu", ".", "not a quantity"),
        ("cpu", "two", "not a quantity"),
        ("cpu", "1 ", "not a quantity"),
        ("cpu", "1e", "suffix"),
        ("cpu", "1__0", "not a quantity"),
        ("cpu", "١", "not a quantity"),
        ("cpu", "9" * 100, "not a quantity"),
        ("memory", "16GB", 'unknown suffix "GB"'),
        ("memory", "16gi", 'unknown suffix "gi"'),
        ("cpu", "-1", "negative"),
        ("memory", "8Ei", "more than"),
        ("memory", "1E", "more than"),
        ("memory", "1e999", "more than"),
        (GPU, "0.5", "muster.io/gpu-milli"),
        (GPU, "1500m", "whole number of devices"),
        (resources.GPU_MILLI, "0", "1 to 999"),
        (resources.GPU_MILLI, "1000", "1 to 999"),
        (resources.GPU_MILLI, "0.5", "1 to 999"),
    ],
)
def test_a_bad_quantity_is_refused_naming_field_and_rule(resource, text, says):
    with pytest.raises(Rejected) as refused:
        resources.parse_quantity(resource, text, "tasks[0].resources.x")
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert refused.value.field == "tasks[0].resources.x"
    assert refused.value.rule == "G4"
    assert says in refused.value.message


@given(st.integers(0, AMOUNT_MAX // 1000))
def test_milli_notation_is_the_canonical_unit_of_cpu(amount):
    assert resources.parse_quantity("cpu", f"{amount}m") == amount


def test_requests_map_shares_and_drop_zeros():
    found = resources.parse_requests({"memory": "1Gi", "cpu": "1", resources.GPU_MILLI: "250", "example.com/x": "0"})
    assert found == (("cpu", 1000), ("memory", 1 << 30), (GPU, 250))


def test_devices_and_a_share_together_are_refused():
    with pytest.raises(Rejected, match="not for both"):
        resources.parse_requests({GPU: "1", resources.GPU_MILLI: "250"})


def test_totals_count_shares_as_parts_of_devices():
    assert resources.parse_totals({resources.GPU_MILLI: "1500", "cpu": "0"}, "limit") == ((GPU, 1500),)
    assert resources.parse_totals({GPU: "0.25", "cpu": "0"}, "limit", zeros=True) == (("cpu", 0), (GPU, 250))


def test_totals_name_a_resource_once():
    with pytest.raises(Rejected, match="there twice"):
        resources.parse_totals({GPU: "1", resources.GPU_MILLI: "250"}, "limit")


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "memory",
        "pods",
        "ephemeral-storage",
        "hugepages-2Mi",
        GPU,
        "example.com/fpga",
        "rdma/hca_shared.1",
        "a/B",
    ],
)
def test_names_a_cluster_may_have(name):
    assert resources.misnamed(name) == ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("", "known: cpu"),
        ("foo bar", "known: cpu"),
        ("x/y/z", "known: "),
        ("/gpu", "known: "),
        ("nvidia.com/", 'did you mean "nvidia.com/gpu"?'),
        ("nvidia.com/gpu\n", 'did you mean "nvidia.com/gpu"?'),
        ("hugepages-", "known: "),
        ("gpu", 'did you mean "nvidia.com/gpu"?'),
        ("memroy", 'did you mean "memory"?'),
        ("a" * 254 + "/b", "known: "),
        ("a/" + "b" * 64, "known: "),
    ],
)
def test_a_name_no_cluster_has_is_told_with_the_nearest(name, hint):
    assert hint in resources.misnamed(name)


def test_what_else_may_be_meant_is_looked_at_as_well():
    assert 'did you mean "running_jobs"?' in resources.misnamed("runing_jobs", ("pending_jobs", "running_jobs"))


def test_check_devices():
    resources.check_devices((("cpu", 5), (GPU, 2000)))
    resources.check_devices(((GPU, 999),))
    with pytest.raises(Rejected, match=r"1\.5 devices"):
        resources.check_devices(((GPU, 1500),))
    with pytest.raises(Rejected, match="one kind"):
        resources.check_devices((("amd.com/gpu", 1000), (GPU, 1000)))


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 1500, "1.5"),
        ("cpu", 12_000, "12"),
        ("cpu", 250, "0.25"),
        ("cpu", 5, "0.005"),
        ("memory", 96 << 30, "96Gi"),
        ("memory", 3 << 29, "1.5Gi"),
        ("memory", 1000, "1000"),
        ("memory", 0, "0"),
        (GPU, 2000, "2"),
        (GPU, 460, "0.46"),
        ("pods", 110, "110"),
        ("cpu", -1500, "-1.5"),
        ("memory", -(2 << 20), "-2Mi"),
    ],
)
def test_amounts_for_people(resource, amount, text):
    assert resources.format_amount(resource, amount) == text


def test_lists_of_amounts_for_people():
    assert (
        resources.format_amounts((("cpu", 12_000), ("memory", 96 << 30), (GPU, 1000))) == "12 cpu, 96Gi memory, 1 gpu"
    )
    assert resources.format_amounts(()) == "nothing"


def test_arithmetic():
    a, b = (("cpu", 1000), ("memory", 5)), (("cpu", 1000), ("x", 2))
    assert resources.add(a, b) == (("cpu", 2000), ("memory", 5), ("x", 2))
    assert resources.sub(a, b) == (("memory", 5), ("x", -2))
    assert resources.sub(resources.add(a, b), b) == a
    assert resources.scale(a, 3) == (("cpu", 3000), ("memory", 15))
    assert resources.scale(a, 0) == ()
    assert resources.maximum(a, b) == (("cpu", 1000), ("memory", 5), ("x", 2))
    assert resources.total([a, a, b]) == (("cpu", 3000), ("memory", 10), ("x", 2))
    assert resources.within(a, (("cpu", 1000),))
    assert not resources.within(a, (("memory", 4),))
