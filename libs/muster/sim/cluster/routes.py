"""From a request line to what is asked for: verb, kind, namespace, name and subresource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .kinds import NAMESPACES, Kind, Kinds
from .status import StatusError, no_such_path

WRITES = frozenset(("create", "update", "patch", "delete", "deletecollection"))
_VERB_ON_ONE = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_VERB_ON_MANY = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_TRUE = frozenset(("1", "t", "T", "true", "TRUE", "True"))  # as Go reads a boolean; Python clients send "True"
_CREATED_SUBRESOURCES = ("binding", "eviction")


class Request(NamedTuple):
    """One API request, free of any HTTP library."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: bytes = b""
    content_type: str = ""
    accept: str = ""
    user_agent: str = ""

    def flag(self, name: str) -> bool:
        return self.query.get(name, "") in _TRUE

    @property
    def dry_run(self) -> bool:
        return self.query.get("dryRun", "") == "All"


class Route(NamedTuple):
    verb: str
    kind: Kind
    namespace: str
    name: str
    subresource: str

    @property
    def resource(self) -> str:
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


def find_route(kinds: Kinds, request: Request) -> Route:
    """404 for a path that names nothing served, 405 for a method that does not apply to it."""
    parts = request.path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_such_path()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in NAMESPACES.subresources:
        namespace, rest = rest[1], rest[2:]
    if namespace and rest[0] == "bindings" and not group and request.method == "POST":
        rest = ["pods", "", "binding"]  # the old form: the pod's name is in the body
    kind = kinds.find(group, version, rest[0])
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        raise no_such_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in kind.subresources:
        raise no_such_path()
    if kind.namespaced and not namespace and (name or request.method == "POST"):
        raise no_such_path()
    return Route(_verb(request, name, subresource), kind, namespace, name, subresource)


def _verb(request: Request, name: str, subresource: str) -> str:
    if subresource in _CREATED_SUBRESOURCES:
        verb = "create" if request.method == "POST" else None
    elif name:
        verb = _VERB_ON_ONE.get(request.method)
    else:
        verb = _VERB_ON_MANY.get(request.method)
    if verb is None or (subresource and verb == "delete"):
        raise StatusError(405, "the server does not allow this method on the requested resource")
    if verb == "list" and request.flag("watch"):
        return "watch"
    return verb
