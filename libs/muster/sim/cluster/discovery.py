"""The documents by which a client finds out what this server serves."""

from __future__ import annotations

from typing import Any

from .kinds import PODS, Kind, Kinds
from .podstatus import KUBELET_VERSION

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCE_KINDS = {  # of pods: (group, version, kind, verbs)
    "binding": ("", "v1", "Binding", ["create"]),
    "eviction": ("policy", "v1", "Eviction", ["create"]),
    "log": ("", "v1", "Pod", ["get"]),
}
_MINOR = KUBELET_VERSION.removeprefix("v").split(".")[1]

VERSION: dict[str, Any] = {
    "major": "1",
    "minor": _MINOR,
    "gitVersion": f"{KUBELET_VERSION}-muster-sim",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}


def api_versions(host: str) -> dict[str, Any]:
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
    }


def _group(kinds: Kinds, group: str) -> dict[str, Any]:
    versions = [{"groupVersion": f"{group}/{v}", "version": v} for g, v in kinds.groups() if g == group]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def groups(kinds: Kinds) -> dict[str, Any]:
    names = dict.fromkeys(group for group, _ in kinds.groups())
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(kinds, name) for name in names]}


def group(kinds: Kinds, name: str) -> dict[str, Any] | None:
    if name not in {group_name for group_name, _ in kinds.groups()}:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, name)}


def resources(kinds: Kinds, group_name: str, version: str) -> dict[str, Any] | None:
    served = [kind for kind in kinds if (kind.group, kind.version) == (group_name, version)]
    if not served:
        return None
    listed: list[dict[str, Any]] = []
    for kind in served:
        listed.append(_resource(kind))
        listed += [_subresource(kind, name) for name in kind.subresources]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version,
        "resources": listed,
    }


def _resource(kind: Kind) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": kind.plural,
        "singularName": kind.name.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": _VERBS,
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    return entry


def _subresource(kind: Kind, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
    if kind is PODS and name in _SUBRESOURCE_KINDS:
        group_name, version, kind_name, verbs = _SUBRESOURCE_KINDS[name]
        if group_name:
            entry |= {"group": group_name, "version": version}
        return entry | {"kind": kind_name, "verbs": verbs}
    return entry | {"kind": kind.name, "verbs": ["get", "patch", "update"]}


def openapi_root(kinds: Kinds) -> dict[str, Any]:
    """The index of OpenAPI v3 documents; kubectl looks here before it creates or patches."""
    paths = {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}}
    for group_name, version in kinds.groups():
        path = f"apis/{group_name}/{version}"
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}"}
    return {"paths": paths}


def openapi(kinds: Kinds, group_name: str, version: str) -> dict[str, Any]:
    """Enough OpenAPI v3 for a client to learn that validation is done by the server."""
    base = f"/apis/{group_name}/{version}" if group_name else f"/api/{version}"
    paths: dict[str, Any] = {}
    for kind in kinds:
        if (kind.group, kind.version) != (group_name, version):
            continue
        scope = "/namespaces/{namespace}" if kind.namespaced else ""
        identity = {"group": kind.group, "version": kind.version, "kind": kind.name}
        parameters = [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in ("dryRun", "fieldManager", "fieldValidation")
        ]
        operation = {
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": identity,
            "parameters": parameters,
            "responses": {"200": {"description": "OK"}},
        }
        paths[f"{base}{scope}/{kind.plural}/{{name}}"] = {"patch": operation}
    info = {"title": "Simulated Kubernetes", "version": KUBELET_VERSION}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}
