"""Selectors, affinity, taints: Kubernetes' meaning (rule G4)."""

from __future__ import annotations

import pytest

from muster.core.affinity import Exclusion, exclusion, meets, tolerates
from muster.core.model import Requirement, Taint, Toleration

LABELS = {"pool": "a", "cores": "32", "odd": "x1"}


@pytest.mark.parametrize(
    ("key", "operator", "values", "holds"),
    [
        ("pool", "In", ("a", "b"), True),
        ("pool", "In", ("b",), False),
        ("none", "In", ("a",), False),
        ("pool", "NotIn", ("b",), True),
        ("pool", "NotIn", ("a",), False),
        ("none", "NotIn", ("a",), True),
        ("pool", "Exists", (), True),
        ("none", "Exists", (), False),
        ("none", "DoesNotExist", (), True),
        ("pool", "DoesNotExist", (), False),
        ("cores", "Gt", ("31",), True),
        ("cores", "Gt", ("32",), False),
        ("cores", "Lt", ("33",), True),
        ("cores", "Lt", ("-5",), False),
        ("odd", "Gt", ("1",), False),
        ("none", "Lt", ("1",), False),
        ("cores", "Gt", ("a",), False),
        ("cores", "Gt", ("--1",), False),
        ("cores", "Gt", (), False),
        ("cores", "Gt", ("1", "2"), False),
        ("pool", "Near", ("a",), False),
    ],
)
def test_expressions(key, operator, values, holds):
    assert meets(LABELS, Requirement(key, operator, values)) is holds


def test_selector_wants_all_pairs():
    assert exclusion(LABELS, (), node_selector=(("cores", "32"), ("pool", "a"))) is Exclusion.NONE
    assert exclusion(LABELS, (), node_selector=(("cores", "32"), ("pool", "b"))) is Exclusion.SELECTOR


def test_affinity_is_an_or_of_ands():
    a, b = Requirement("pool", "In", ("a",)), Requirement("pool", "In", ("b",))
    assert exclusion(LABELS, (), affinity=((a, b), (a,))) is Exclusion.NONE
    assert exclusion(LABELS, (), affinity=((a, b), (b,))) is Exclusion.SELECTOR
    assert exclusion(LABELS, (), affinity=((),)) is Exclusion.SELECTOR  # an empty term matches nothing
    assert exclusion(LABELS, (), affinity=()) is Exclusion.NONE


@pytest.mark.parametrize(
    ("toleration", "taint", "ok"),
    [
        (Toleration("k", "Equal", "v", "NoSchedule"), Taint("k", "v"), True),
        (Toleration("k", "Equal", "v"), Taint("k", "v", "NoExecute"), True),
        (Toleration("k", "Equal", "w"), Taint("k", "v"), False),
        (Toleration("k", "Exists"), Taint("k", "v"), True),
        (Toleration("j", "Exists"), Taint("k", "v"), False),
        (Toleration("", "Exists"), Taint("k", "v"), True),
        (Toleration("", "Equal"), Taint("k", ""), False),
        (Toleration("k", "Exists", "", "NoExecute"), Taint("k", "v"), False),
        (Toleration("k", "Sometimes", "v"), Taint("k", "v"), False),
    ],
)
def test_tolerations(toleration, taint, ok):
    assert tolerates(toleration, taint) is ok


@pytest.mark.parametrize(
    ("effect", "verdict"),
    [("NoSchedule", Exclusion.TAINT), ("NoExecute", Exclusion.TAINT), ("PreferNoSchedule", Exclusion.NONE)],
)
def test_only_hard_taints_repel(effect, verdict):
    taints = (Taint("k", "v", effect),)
    assert exclusion({}, taints) is verdict
    assert exclusion({}, taints, tolerations=(Toleration("k", "Exists"),)) is Exclusion.NONE


def test_every_taint_must_be_tolerated():
    taints = (Taint("a"), Taint("b"))
    assert exclusion({}, taints, tolerations=(Toleration("a", "Exists"),)) is Exclusion.TAINT
