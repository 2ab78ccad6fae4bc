"""Server-side printing: the `Table` form of objects that `kubectl get` asks for.

Columns with priority 1 are shown by `-o wide` only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from .kinds import EVENTS, NAMESPACES, NODES, PODS, Kind
from .store import Render, Version
from .timers import parse_timestamp_ms

_encode = msgspec.json.Encoder().encode
_Cells = Callable[[dict[str, Any], int], list[Any]]


def _column(name: str, *, wide: bool = False, type_: str = "string") -> dict[str, Any]:
    format_ = "name" if name == "Name" else ""
    return {"name": name, "type": type_, "format": format_, "description": name, "priority": 1 if wide else 0}


def age(since: str | None, now_ms: int) -> str:
    """As kubectl shows durations: the largest unit, with the next one while that still matters."""
    if not since:
        return "<unknown>"
    seconds = max(0, (now_ms - parse_timestamp_ms(since)) // 1000)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    return f"{days}d"


def _pod_status_word(pod: dict[str, Any]) -> str:
    status = pod.get("status") or {}
    word = str(status.get("reason") or status.get("phase") or "Unknown")
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        detail = state.get("waiting") or state.get("terminated") or {}
        if detail.get("reason"):
            word = str(detail["reason"]) if not status.get("reason") else word
            break
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating" if status.get("reason") != "NodeLost" else "Unknown"
    return word


def _pod_cells(pod: dict[str, Any], now_ms: int) -> list[Any]:
    status, spec = pod.get("status") or {}, pod["spec"]
    containers = status.get("containerStatuses") or ()
    ready = sum(bool(container["ready"]) for container in containers)
    restarts = sum(container["restartCount"] for container in containers)
    return [
        pod["metadata"]["name"],
        f"{ready}/{len(spec['containers'])}",
        _pod_status_word(pod),
        str(restarts),
        age(pod["metadata"].get("creationTimestamp"), now_ms),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        "<none>",
    ]


def _node_cells(node: dict[str, Any], now_ms: int) -> list[Any]:
    status, metadata = node.get("status") or {}, node["metadata"]
    ready = next((c["status"] for c in status.get("conditions") or () if c["type"] == "Ready"), "Unknown")
    word = "Ready" if ready == "True" else "NotReady"
    if (node.get("spec") or {}).get("unschedulable"):
        word += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key[len(prefix) :] for key in metadata.get("labels") or () if key.startswith(prefix))
    info = status.get("nodeInfo") or {}
    addresses = {address["type"]: address["address"] for address in status.get("addresses") or ()}
    return [
        metadata["name"],
        word,
        ",".join(roles) or "<none>",
        age(metadata.get("creationTimestamp"), now_ms),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage", "<unknown>"),
        info.get("kernelVersion", "<unknown>"),
        info.get("containerRuntimeVersion", "<unknown>"),
    ]


def _event_cells(event: dict[str, Any], now_ms: int) -> list[Any]:
    involved = event.get("involvedObject") or {}
    seen = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    shown = f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"
    return [age(seen, now_ms), event.get("type", ""), event.get("reason", ""), shown, event.get("message", "")]


def _namespace_cells(namespace: dict[str, Any], now_ms: int) -> list[Any]:
    metadata = namespace["metadata"]
    return [metadata["name"], namespace["status"].get("phase", ""), age(metadata.get("creationTimestamp"), now_ms)]


def _plain_cells(obj: dict[str, Any], now_ms: int) -> list[Any]:
    return [obj["metadata"]["name"], age(obj["metadata"].get("creationTimestamp"), now_ms)]


_PRINTERS: dict[Kind, tuple[list[dict[str, Any]], _Cells]] = {
    PODS: (
        [
            *(_column(name) for name in ("Name", "Ready", "Status", "Restarts", "Age")),
            *(_column(name, wide=True) for name in ("IP", "Node", "Nominated Node", "Readiness Gates")),
        ],
        _pod_cells,
    ),
    NODES: (
        [
            *(_column(name) for name in ("Name", "Status", "Roles", "Age", "Version")),
            *(
                _column(name, wide=True)
                for name in ("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")
            ),
        ],
        _node_cells,
    ),
    EVENTS: ([_column(name) for name in ("Last Seen", "Type", "Reason", "Object", "Message")], _event_cells),
    NAMESPACES: ([_column(name) for name in ("Name", "Status", "Age")], _namespace_cells),
}
_PLAIN = ([_column("Name"), _column("Age")], _plain_cells)


def table(kind: Kind, versions: list[Version], now_ms: int, *, metadata: dict[str, Any], include: str) -> bytes:
    """`include` is the request's includeObject: Metadata (default), Object or None."""
    columns, cells = _PRINTERS.get(kind, _PLAIN)
    rows = []
    for version in versions:
        row: dict[str, Any] = {"cells": cells(version.obj, now_ms)}
        if include == "Object":
            row["object"] = version.obj
        elif include != "None":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": version.obj["metadata"],
            }
        rows.append(row)
    return _encode(
        {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "columnDefinitions": columns,
            "rows": rows,
        }
    )


def table_render(kind: Kind, now_ms: Callable[[], int], include: str) -> Render:
    """How a watch that asked for tables shows one object."""

    def render(_type: str, version: Version) -> bytes:
        metadata = {"resourceVersion": str(version.rv)}
        return table(kind, [version], now_ms(), metadata=metadata, include=include)

    return render
