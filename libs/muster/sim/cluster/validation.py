"""What the API server refuses with 422: names, labels and pod specs.

Only rules that a client of this project can break are here. A problem is (field path, reason, message), as in the
`causes` of a Status.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from . import quantities
from .kinds import NAMESPACES, NODES, PODS, Kind
from .status import bad_request

Problem = tuple[str, str, str]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_MAX_LABEL, _MAX_SUBDOMAIN = 63, 253
MAX_GENERATE_PREFIX = 58  # characters of generateName that are kept, so that name labels stay valid
_MAX_ANNOTATIONS_BYTES = 256 * 1024
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_NATIVE_RESOURCES = ("cpu", "memory", "ephemeral-storage")

_Map = dict[str, Any]


class _ResourcesShape(msgspec.Struct):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class _ContainerShape(msgspec.Struct):
    name: str | None = None
    image: str | None = None
    resources: _ResourcesShape | None = None


class _SpecShape(msgspec.Struct):
    containers: list[_ContainerShape] | None = None
    initContainers: list[_ContainerShape] | None = None  # noqa: N815 - the wire's name
    nodeSelector: dict[str, str] | None = None  # noqa: N815 - the wire's name
    tolerations: list[_Map] | None = None
    overhead: dict[str, str | int | float] | None = None


class _PodShape(msgspec.Struct):
    spec: _SpecShape | None = None


def check_pod_shape(pod: dict[str, Any]) -> None:
    """400 when a field that is read later is of the wrong type, as a typed server's decoder would say."""
    try:
        msgspec.convert(pod, _PodShape)
    except msgspec.ValidationError as error:
        raise bad_request(f'Pod in version "v1" cannot be handled as a Pod: {error}') from error


@lru_cache(maxsize=16_384)
def is_subdomain(name: str) -> bool:
    return len(name) <= _MAX_SUBDOMAIN and _SUBDOMAIN.fullmatch(name) is not None


@lru_cache(maxsize=16_384)
def is_label(name: str) -> bool:
    return len(name) <= _MAX_LABEL and _LABEL.fullmatch(name) is not None


@lru_cache(maxsize=16_384)
def is_label_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not is_subdomain(prefix):
        return False
    return len(name) <= _MAX_LABEL and _QUALIFIED.fullmatch(name) is not None


@lru_cache(maxsize=16_384)
def is_label_value(value: str) -> bool:
    return value == "" or (len(value) <= _MAX_LABEL and _QUALIFIED.fullmatch(value) is not None)


def metadata_problems(kind: Kind, metadata: dict[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    name = metadata.get("name", "")
    if not name:
        problems.append(("metadata.name", "FieldValueRequired", "Required value: name or generateName is required"))
    elif not isinstance(name, str) or not (is_label(name) if kind is NAMESPACES else is_subdomain(name)):
        rule = "an RFC 1123 label" if kind is NAMESPACES else "a lowercase RFC 1123 subdomain"
        problems.append(("metadata.name", "FieldValueInvalid", f"Invalid value: {name!r}: a name must be {rule}"))
    for key, value in (metadata.get("labels") or {}).items():
        if not is_label_key(key):
            problems.append(("metadata.labels", "FieldValueInvalid", f"Invalid value: {key!r}: not a label key"))
        if not isinstance(value, str) or not is_label_value(value):
            problems.append(("metadata.labels", "FieldValueInvalid", f"Invalid value: {value!r}: not a label value"))
    size_bytes = 0
    for key, value in (metadata.get("annotations") or {}).items():
        if not is_label_key(key.lower()) or not isinstance(value, str):
            problems.append(("metadata.annotations", "FieldValueInvalid", f"Invalid value: {key!r}: not an annotation"))
        else:
            size_bytes += len(key) + len(value)
    if size_bytes > _MAX_ANNOTATIONS_BYTES:
        problems.append(("metadata.annotations", "FieldValueTooLong", "Too long: may not be more than 262144 bytes"))
    return problems


def pod_problems(pod: dict[str, Any]) -> list[Problem]:
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return [("spec", "FieldValueRequired", "Required value")]
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        return [("spec.containers", "FieldValueRequired", "Required value")]
    problems: list[Problem] = []
    names: set[str] = set()
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            _container_problems(f"spec.{field}[{index}]", container, names, problems)
    if spec["restartPolicy"] not in _RESTART_POLICIES:
        problems.append(_unsupported("spec.restartPolicy", spec["restartPolicy"], _RESTART_POLICIES))
    node = spec.get("nodeName", "")
    if node and not (isinstance(node, str) and is_subdomain(node)):
        problems.append(("spec.nodeName", "FieldValueInvalid", f"Invalid value: {node!r}: not a node name"))
    grace_s = spec["terminationGracePeriodSeconds"]
    if not isinstance(grace_s, int) or grace_s < 0:
        problems.append(_not_negative("spec.terminationGracePeriodSeconds", grace_s))
    deadline_s = spec.get("activeDeadlineSeconds")
    if deadline_s is not None and (not isinstance(deadline_s, int) or deadline_s < 1):
        problems.append(("spec.activeDeadlineSeconds", "FieldValueInvalid", f"Invalid value: {deadline_s!r}"))
    return problems


def _container_problems(path: str, container: dict[str, Any], names: set[str], problems: list[Problem]) -> None:
    name = container.get("name", "")
    if not name:
        problems.append((f"{path}.name", "FieldValueRequired", "Required value"))
    elif not is_label(name):
        problems.append((f"{path}.name", "FieldValueInvalid", f"Invalid value: {name!r}: not an RFC 1123 label"))
    elif name in names:
        problems.append((f"{path}.name", "FieldValueDuplicate", f'Duplicate value: "{name}"'))
    names.add(name)
    if not container.get("image"):
        problems.append((f"{path}.image", "FieldValueRequired", "Required value"))
    resources = container.get("resources")
    if resources:
        _resource_problems(f"{path}.resources", resources, problems)


def _resource_problems(path: str, resources: dict[str, Any], problems: list[Problem]) -> None:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    amounts: dict[tuple[str, str], int] = {}
    for field, values in (("requests", requests), ("limits", limits)):
        for resource, text in values.items():
            try:
                value = quantities.amount(resource, str(text))
            except ValueError:
                problems.append((f"{path}.{field}[{resource}]", "FieldValueInvalid", f"Invalid value: {text!r}"))
                continue
            amounts[field, resource] = value
            if value < 0:
                problems.append(_not_negative(f"{path}.{field}[{resource}]", text))
    for (field, resource), value in amounts.items():
        if field != "requests":
            continue
        limit = amounts.get(("limits", resource))
        if is_extended(resource) and limit is None:
            problems.append(
                (
                    f"{path}.limits[{resource}]",
                    "FieldValueRequired",
                    "Limit must be set for non overcommitable resources",
                )
            )
        elif limit is not None and is_extended(resource) and value != limit:
            problems.append(
                (f"{path}.requests", "FieldValueInvalid", f"Invalid value: must be equal to {resource} limit")
            )
        elif limit is not None and value > limit:
            problems.append(
                (
                    f"{path}.requests",
                    "FieldValueInvalid",
                    f"Invalid value: must be less than or equal to {resource} limit",
                )
            )


def is_extended(resource: str) -> bool:
    """Devices and the like: requested in whole units, never overcommitted."""
    return resource not in _NATIVE_RESOURCES and "/" in resource


def pod_update_problems(old: dict[str, Any], new: dict[str, Any]) -> list[Problem]:
    """A pod's spec is fixed but for images, the deadline and added tolerations."""
    if _fixed_part(old["spec"]) == _fixed_part(new.get("spec") or {}):
        return []
    message = "Forbidden: pod updates may not change fields other than images, activeDeadlineSeconds and tolerations"
    return [("spec", "FieldValueForbidden", message)]


def _fixed_part(spec: dict[str, Any]) -> dict[str, Any]:
    fixed = {key: value for key, value in spec.items() if key not in ("activeDeadlineSeconds", "tolerations")}
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [{k: v for k, v in item.items() if k != "image"} for item in fixed[field]]
    return fixed


def _unsupported(field: str, value: object, supported: tuple[str, ...]) -> Problem:
    shown = ", ".join(f'"{item}"' for item in supported)
    return field, "FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {shown}'


def _not_negative(field: str, value: object) -> Problem:
    return field, "FieldValueInvalid", f"Invalid value: {value!r}: must be greater than or equal to 0"


def object_problems(kind: Kind, obj: dict[str, Any]) -> list[Problem]:
    problems = metadata_problems(kind, obj["metadata"])
    if kind is PODS:
        problems += pod_problems(obj)
    elif kind is NODES:
        for taint in (obj.get("spec") or {}).get("taints") or ():
            if taint.get("effect") not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
                problems.append(
                    ("spec.taints", "FieldValueNotSupported", f"Unsupported value: {taint.get('effect')!r}")
                )
    return problems
