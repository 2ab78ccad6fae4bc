"""Does a node's labels satisfy what a pod requires of them: node selector and required node affinity."""

from __future__ import annotations

from typing import Any


def matches_node(spec: dict[str, Any], labels: dict[str, str], node_name: str) -> bool:
    selector = spec.get("nodeSelector")
    if selector and any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = spec.get("affinity")
    if not affinity:
        return True
    required = ((affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")) or None
    if required is None:
        return True
    terms = required.get("nodeSelectorTerms") or ()
    return any(_term_matches(term, labels, node_name) for term in terms)


def _term_matches(term: dict[str, Any], labels: dict[str, str], node_name: str) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term matches nothing
    names = {"metadata.name": node_name}
    return all(_matches(item, labels) for item in expressions) and all(_matches(item, names) for item in fields)


def _matches(requirement: dict[str, Any], labels: dict[str, str]) -> bool:
    value, operator = labels.get(requirement["key"]), requirement["operator"]
    values: list[str] = requirement.get("values") or []
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    try:
        number, bound = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if operator == "Gt" else number < bound
