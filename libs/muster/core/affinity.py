"""Which nodes a pod may be on at all: node selector, required node affinity, taints (rule G4).

Nothing here looks at what is free. The answer changes only with the node's description, so `shapes` asks once per
distinct set of constraints and node, and again when that node is described anew. The meaning of each operator is
Kubernetes': NotIn and DoesNotExist hold for a node without the label, Gt and Lt compare integers and fail on anything
else, PreferNoSchedule is a wish and not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from muster.core.model import Pairs, Requirement, Taint, Toleration

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_REPELLING: Final = ("NoSchedule", "NoExecute")


class Exclusion(StrEnum):
    """Why a node is out, whatever is free on it."""

    NONE = ""
    SELECTOR = "selector"
    TAINT = "taint"


def exclusion(
    labels: Mapping[str, str],
    taints: Sequence[Taint],
    *,
    node_selector: Pairs = (),
    affinity: Sequence[Sequence[Requirement]] = (),
    tolerations: Sequence[Toleration] = (),
) -> Exclusion:
    """Whether constraints and node go together. `affinity` is an OR of ANDs; empty means no constraint."""
    for key, value in node_selector:
        if labels.get(key) != value:
            return Exclusion.SELECTOR
    if affinity and not any(term and all(meets(labels, r) for r in term) for term in affinity):
        return Exclusion.SELECTOR  # a term without expressions matches nothing, as in Kubernetes
    if any(t.effect in _REPELLING and not any(tolerates(tol, t) for tol in tolerations) for t in taints):
        return Exclusion.TAINT
    return Exclusion.NONE


def meets(labels: Mapping[str, str], requirement: Requirement) -> bool:
    """One expression of a term."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            have = _integer(value)
            want = _integer(requirement.values[0]) if len(requirement.values) == 1 else None
            if have is None or want is None:
                return False
            return have > want if requirement.operator == "Gt" else have < want
    return False  # an operator nobody knows selects nothing; admission refuses it


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and _INTEGER.fullmatch(text) else None


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return not toleration.key or toleration.key == taint.key
    return toleration.operator in ("Equal", "") and (toleration.key, toleration.value) == (taint.key, taint.value)
