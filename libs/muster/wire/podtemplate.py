"""What a pod template says about where its pods fit: requests, selector, required affinity, tolerations.

The template goes through Muster as bytes that only the binder opens; this module is the one place that reads it for
scheduling. The request of a pod is what Kubernetes itself counts: containers and sidecars together, or an init
container with the sidecars started before it if that is more, plus the overhead; limits stand in for missing requests,
and pod-level requests replace the sum. A constraint that Muster would silently not honour is refused by name, because
the pods are created already bound and no other scheduler looks at them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from muster.core import resources
from muster.core.errors import Code, Rejected
from muster.core.model import Amounts, Pairs, Requirement, Toleration
from muster.wire.errors import RESERVED

OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})

Affinity = tuple[tuple[Requirement, ...], ...]


class PodNeeds(msgspec.Struct, frozen=True):
    """The scheduling part of a template; empty where the template says nothing."""

    requests: Amounts = ()
    node_selector: Pairs = ()
    affinity: Affinity = ()
    tolerations: tuple[Toleration, ...] = ()


NOTHING: Final = PodNeeds()


def read(template: str, field: str) -> PodNeeds:
    """The needs of a pod template in JSON ("" has none). Raises Rejected naming the place under `field`."""
    if not template:
        return NOTHING
    try:
        document = msgspec.json.decode(template)
    except msgspec.MsgspecError as error:
        raise _bad(field, f"is not JSON: {error}") from None
    spec = _object(_object(document, field).get("spec", {}), f"{field}.spec")
    _refuse_unsupported(spec, f"{field}.spec")
    return PodNeeds(
        requests=pod_requests(spec, f"{field}.spec"),
        node_selector=_strings(spec.get("nodeSelector"), f"{field}.spec.nodeSelector"),
        affinity=_affinity(spec, f"{field}.spec.affinity.nodeAffinity"),
        tolerations=tuple(_tolerations(spec.get("tolerations"), f"{field}.spec.tolerations")),
    )


# --- requests -------------------------------------------------------------------------------------------------------


def pod_requests(spec: Mapping[str, Any], field: str) -> Amounts:
    """What the kubelet will count for a pod of this spec. Raises Rejected."""
    running: Amounts = ()
    for position, container in enumerate(_objects(spec.get("containers"), f"{field}.containers")):
        running = resources.add(running, _container(container, f"{field}.containers[{position}]"))
    sidecars: Amounts = ()
    starting: Amounts = ()
    for position, container in enumerate(_objects(spec.get("initContainers"), f"{field}.initContainers")):
        one = _container(container, f"{field}.initContainers[{position}]")
        if container.get("restartPolicy") == "Always":
            sidecars = resources.add(sidecars, one)
            starting = resources.maximum(starting, sidecars)
        else:
            starting = resources.maximum(starting, resources.add(sidecars, one))
    total = resources.maximum(resources.add(running, sidecars), starting)
    pod_level = dict(_container(spec, field))
    if pod_level:
        total = resources.amounts(dict(total) | pod_level)
    overhead = resources.parse_requests(_quantities(spec.get("overhead"), f"{field}.overhead"), f"{field}.overhead")
    total = resources.add(total, overhead)
    resources.check_devices(total, f"{field}.containers")
    return total


def _container(container: Mapping[str, Any], field: str) -> Amounts:
    """The requests of one container (or of the pod as a whole); a limit stands in for a missing request."""
    stated = _object(container.get("resources", {}), f"{field}.resources")
    limits = _quantities(stated.get("limits"), f"{field}.resources.limits")
    requests = _quantities(stated.get("requests"), f"{field}.resources.requests")
    return resources.parse_requests(limits | requests, f"{field}.resources.requests")


def _quantities(value: Any, field: str) -> dict[str, str]:
    """Quantities as text; YAML and JSON also allow plain numbers."""
    if value is None:
        return {}
    found: dict[str, str] = {}
    for resource, quantity in _object(value, field).items():
        if isinstance(quantity, bool) or not isinstance(quantity, (str, int, float)):
            raise _bad(f"{field}.{resource}", "must be a quantity such as 500m or 2")
        found[resource] = str(quantity)
    return found


# --- constraints ----------------------------------------------------------------------------------------------------


def _refuse_unsupported(spec: Mapping[str, Any], field: str) -> None:
    if spec.get("nodeName"):
        raise _bad(f"{field}.nodeName", "is set by Muster: leave it out")
    if spec.get("resourceClaims"):
        raise _unbuilt(f"{field}.resourceClaims", "dynamic resource allocation")
    affinity = _object(spec.get("affinity") or {}, f"{field}.affinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        stated = _object(affinity.get(kind) or {}, f"{field}.affinity.{kind}")
        if stated.get("requiredDuringSchedulingIgnoredDuringExecution"):
            raise _unbuilt(f"{field}.affinity.{kind}", "affinity between pods")
    spreads = _objects(spec.get("topologySpreadConstraints"), f"{field}.topologySpreadConstraints")
    for position, constraint in enumerate(spreads):
        if constraint.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule":
            raise _unbuilt(f"{field}.topologySpreadConstraints[{position}]", "spreading over a topology")


def _affinity(spec: Mapping[str, Any], field: str) -> Affinity:
    """Required node affinity as an OR of ANDs; preferences are not read."""
    affinity = _object(spec.get("affinity") or {}, field)
    node = _object(affinity.get("nodeAffinity") or {}, field)
    required = _object(node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}, field)
    terms: list[tuple[Requirement, ...]] = []
    where = f"{field}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    for position, term in enumerate(_objects(required.get("nodeSelectorTerms"), where)):
        place = f"{where}[{position}]"
        if term.get("matchFields"):
            raise _unbuilt(f"{place}.matchFields", "selecting nodes by their fields")
        expressions = _objects(term.get("matchExpressions"), f"{place}.matchExpressions")
        if not expressions:
            raise _bad(place, "selects nothing: give it matchExpressions")
        terms.append(
            tuple(
                requirement(e.get("key"), e.get("operator"), e.get("values") or (), f"{place}.matchExpressions[{i}]")
                for i, e in enumerate(expressions)
            )
        )
    return tuple(terms)


def requirement(key: Any, operator: Any, values: Iterable[Any], field: str) -> Requirement:
    """One expression on a node label, checked. Raises Rejected."""
    texts = tuple(str(value) for value in values)
    if not isinstance(key, str) or not key:
        raise _bad(f"{field}.key", "must name a node label")
    if operator not in OPERATORS:
        raise _bad(f"{field}.operator", f"must be one of {', '.join(sorted(OPERATORS))}, not {operator!r}")
    if operator in ("In", "NotIn") and not texts:
        raise _bad(f"{field}.values", f"{operator} needs at least one value")
    if operator in ("Exists", "DoesNotExist") and texts:
        raise _bad(f"{field}.values", f"{operator} takes no values")
    if operator in ("Gt", "Lt") and not (len(texts) == 1 and texts[0].lstrip("-").isdecimal()):
        raise _bad(f"{field}.values", f"{operator} takes one whole number")
    return Requirement(key=key, operator=str(operator), values=texts)


def _tolerations(value: Any, field: str) -> Iterable[Toleration]:
    for position, stated in enumerate(_objects(value, field)):
        parts = {key: str(stated.get(key) or "") for key in ("key", "operator", "value", "effect")}
        yield toleration(**parts, field=f"{field}[{position}]")


def toleration(*, key: str, operator: str, value: str, effect: str, field: str) -> Toleration:
    """One toleration, checked. Raises Rejected."""
    operator = operator or "Equal"
    if operator not in ("Equal", "Exists"):
        raise _bad(f"{field}.operator", f"must be Equal or Exists, not {operator!r}")
    if operator == "Exists" and value:
        raise _bad(f"{field}.value", "Exists takes no value")
    if not key and operator != "Exists":
        raise _bad(f"{field}.key", "may be empty only with operator Exists")
    if effect not in ("", "NoSchedule", "NoExecute", "PreferNoSchedule"):
        raise _bad(f"{field}.effect", f"must be NoSchedule, NoExecute or PreferNoSchedule, not {effect!r}")
    return Toleration(key=key, operator=operator, value=value, effect=effect)


# --- shapes of JSON -------------------------------------------------------------------------------------------------


def _object(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _bad(field, "must be an object")
    return value


def _objects(value: Any, field: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _bad(field, "must be a list")
    return [_object(item, f"{field}[{position}]") for position, item in enumerate(value)]


def _strings(value: Any, field: str) -> Pairs:
    if value is None:
        return ()
    return tuple(sorted((str(key), str(text)) for key, text in _object(value, field).items()))


def _bad(field: str, message: str) -> Rejected:
    return Rejected(Code.INVALID_ARGUMENT, field, message, "G4")


def _unbuilt(field: str, what: str) -> Rejected:
    return Rejected(Code.UNIMPLEMENTED, field, f"{what} is not built yet: leave it out", RESERVED)
