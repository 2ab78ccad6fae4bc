"""Label and field selectors: text in, predicate out.

A selector that cannot be parsed is the caller's mistake (400), as is a field this kind cannot be selected by.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .kinds import EVENTS, NAMESPACES, NODES, PODS, Kind
from .status import bad_request

Predicate = Callable[[dict[str, Any]], bool]

_SET = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)")
_EQUALITY = re.compile(r"(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s,()!=]*)")
_EXISTS = re.compile(r"(?P<not>!?)\s*(?P<key>[^\s!=,()]+)")

_FIELDS: dict[Kind, dict[str, str]] = {  # field -> what an absent value reads as
    PODS: {
        "spec.nodeName": "",
        "spec.restartPolicy": "",
        "spec.schedulerName": "",
        "spec.serviceAccountName": "",
        "spec.hostNetwork": "false",
        "status.phase": "",
        "status.podIP": "",
        "status.nominatedNodeName": "",
    },
    NODES: {"spec.unschedulable": "false"},
    NAMESPACES: {"status.phase": ""},
    EVENTS: dict.fromkeys(
        (
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "type",
        ),
        "",
    ),
}


def _label_requirement(key: str, op: str, values: frozenset[str]) -> Callable[[dict[str, str]], bool]:
    if op == "in":
        return lambda labels: labels.get(key) in values
    if op == "notin":
        return lambda labels: labels.get(key) not in values
    if op == "exists":
        return lambda labels: key in labels
    return lambda labels: key not in labels


def parse_labels(text: str) -> list[tuple[str, str, frozenset[str]]]:
    """`a=b,c!=d,e in (x,y),f notin (z),g,!h` as (key, in|notin|exists|missing, values)."""
    requirements = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _SET.match(text, position)
        if match:
            values = frozenset(value.strip() for value in match["values"].split(","))
            requirements.append((match["key"], match["op"], values))
        elif match := _EQUALITY.match(text, position):
            requirements.append((match["key"], "notin" if match["op"] == "!=" else "in", frozenset((match["value"],))))
        elif match := _EXISTS.match(text, position):
            requirements.append((match["key"], "missing" if match["not"] else "exists", frozenset()))
        else:
            raise bad_request(f"unable to parse requirement: {text[position:]!r}")
        position = match.end()
        rest = text[position:].lstrip()
        if rest and not rest.startswith(","):
            raise bad_request(f"unable to parse requirement: found {rest!r}, expected: ',' or end of string")
        position = len(text) - len(rest[1:].lstrip()) if rest else len(text)
    return requirements


def labels_predicate(text: str) -> Predicate:
    checks = [_label_requirement(*requirement) for requirement in parse_labels(text)]

    def matches(obj: dict[str, Any]) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(check(labels) for check in checks)

    return matches


def label_selector_predicate(selector: dict[str, Any]) -> Predicate:
    """A LabelSelector object (matchLabels, matchExpressions), as disruption budgets have it."""
    checks = [_label_requirement(k, "in", frozenset((v,))) for k, v in (selector.get("matchLabels") or {}).items()]
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "missing"}
    for expression in selector.get("matchExpressions") or ():
        values = frozenset(expression.get("values") or ())
        checks.append(_label_requirement(expression["key"], operators[expression["operator"]], values))

    def matches(obj: dict[str, Any]) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(check(labels) for check in checks)

    return matches


def _field_value(obj: dict[str, Any], path: tuple[str, ...], absent: str) -> str:
    value: Any = obj
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return absent
    return str(value).lower() if isinstance(value, bool) else str(value)


def fields_predicate(kind: Kind, text: str) -> Predicate:
    """`spec.nodeName=n1,status.phase!=Failed`; only =, == and != exist for fields."""
    supported = _FIELDS.get(kind, {})
    checks: list[tuple[tuple[str, ...], str, str, bool]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"([^!=]+?)(==|=|!=)(.*)", part)
        if match is None:
            raise bad_request(f"invalid selector: {part!r}; can't understand {part!r}")
        name, op, wanted = match.groups()
        if name not in supported and name not in ("metadata.name", "metadata.namespace"):
            raise bad_request(f'field label not supported: "{name}"')
        checks.append((tuple(name.split(".")), supported.get(name, ""), wanted, op != "!="))

    def matches(obj: dict[str, Any]) -> bool:
        return all((_field_value(obj, path, absent) == wanted) is equal for path, absent, wanted, equal in checks)

    return matches


def combine(kind: Kind, label_text: str, field_text: str) -> Predicate | None:
    """The predicate of a list or watch; None when everything matches."""
    labels = labels_predicate(label_text) if label_text else None
    fields = fields_predicate(kind, field_text) if field_text else None
    if labels is None or fields is None:
        return labels or fields
    return lambda obj: labels(obj) and fields(obj)
