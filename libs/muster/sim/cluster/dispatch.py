"""From a request to an answer: reads, writes with their audit record, and watches.

The one entry is `Dispatcher.handle`. It is synchronous and knows no sockets, so a simulation on virtual time uses it
directly; `server` wraps it in HTTP.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from . import bindings, discovery, patch, tables
from .api import Api, DeleteOptions
from .faults import FaultInjector
from .kinds import PODS
from .routes import WRITES, Request, Route, find_route
from .selectors import combine
from .status import StatusError, bad_request, expired, no_such_path, success
from .store import Watch, event_line

JSON = "application/json"
MAX_BODY_BYTES = 3 * 1024 * 1024  # as etcd's request limit makes real servers refuse


class Reply(NamedTuple):
    code: int
    body: bytes
    content_type: str = JSON


class WatchReply(NamedTuple):
    watch: Watch
    bookmarks: bool
    timeout_s: int  # 0: as long as the server likes


def _reply(code: int, body: dict[str, Any]) -> Reply:
    return Reply(code, msgspec.json.encode(body))


class Dispatcher:
    def __init__(self, api: Api, faults: FaultInjector) -> None:
        self._api = api
        self._store = api.store
        self._faults = faults

    def handle(self, request: Request) -> Reply | WatchReply:
        """The answer; StatusError for any refusal (the caller sends its body)."""
        route = self.route(request)
        if route is None:
            return self._discover(request)
        if route.verb in WRITES:
            return self._write(request, route)
        if route.verb == "watch":
            return self._watch(request, route)
        if route.verb == "list":
            return self._list(request, route)
        return self._get(request, route)

    def route(self, request: Request) -> Route | None:
        """None for a discovery or health path."""
        path = request.path
        if path.startswith("/api/v1/") or (path.startswith("/apis/") and path.rstrip("/").count("/") >= 4):
            return find_route(self._api.kinds, request)
        return None

    # -- reads -------------------------------------------------------------------------------------------------------

    def _get(self, request: Request, route: Route) -> Reply:
        version = self._api.require(route.kind, route.namespace, route.name)
        if route.subresource == "log":
            return Reply(200, b"(simulated container: no output)\n", "text/plain")
        if "as=Table" in request.accept:
            metadata = {"resourceVersion": str(version.rv)}
            include = request.query.get("includeObject", "")
            now_ms = self._api.timers.now_ms()
            return Reply(200, tables.table(route.kind, [version], now_ms, metadata=metadata, include=include))
        return Reply(200, version.raw)

    def _list(self, request: Request, route: Route) -> Reply:
        query = request.query
        rv = _integer(query, "resourceVersion")
        self._store.check_not_ahead(rv)
        if query.get("resourceVersionMatch") == "Exact" and rv != self._store.rv:
            raise expired(f"The resourceVersion for the provided list is too old: {rv}")
        matches = combine(route.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        page = self._store.list_page(
            route.kind,
            route.namespace,
            matches,
            limit=_integer(query, "limit"),
            continue_token=query.get("continue", ""),
        )
        metadata: dict[str, Any] = {"resourceVersion": str(page.rv)}
        if page.continue_token:
            metadata["continue"] = page.continue_token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
        if "as=Table" in request.accept:
            include = query.get("includeObject", "")
            now_ms = self._api.timers.now_ms()
            return Reply(200, tables.table(route.kind, page.versions, now_ms, metadata=metadata, include=include))
        head = f'{{"kind":"{route.kind.name}List","apiVersion":"{route.kind.api_version}","metadata":'.encode()
        items = b",".join([version.raw for version in page.versions])
        return Reply(200, head + msgspec.json.encode(metadata) + b',"items":[' + items + b"]}")

    def _watch(self, request: Request, route: Route) -> WatchReply:
        query = request.query
        if request.flag("sendInitialEvents"):
            raise StatusError(422, "sendInitialEvents: Forbidden: sendInitialEvents is not served", details={})
        matches = combine(route.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        render = None
        if "as=Table" in request.accept:
            include = query.get("includeObject", "")
            render = tables.table_render(route.kind, self._api.timers.now_ms, include)
        since_rv = _integer(query, "resourceVersion")
        timeout_s = _integer(query, "timeoutSeconds")
        bookmarks = request.flag("allowWatchBookmarks")
        try:
            watch = self._store.watch(route.kind, route.namespace, matches, since_rv=since_rv, render=render)
        except StatusError as error:
            if error.code != 410 or self._faults.faults.gone_as == "http":
                raise
            watch = Watch(route.kind, route.namespace, None, None)
            watch.push(event_line("ERROR", error.encode()))
            watch.close()
        return WatchReply(watch, bookmarks, timeout_s)

    def bookmark(self, watch: Watch) -> bytes:
        """The line that tells a quiet watch how far the server is."""
        watch.last_rv = self._store.rv
        obj = {
            "kind": watch.kind.name,
            "apiVersion": watch.kind.api_version,
            "metadata": {"resourceVersion": str(watch.last_rv), "creationTimestamp": None},
        }
        return event_line("BOOKMARK", msgspec.json.encode(obj))

    # -- writes ------------------------------------------------------------------------------------------------------

    def _write(self, request: Request, route: Route) -> Reply:
        audit, now_ms = self._api.audit, self._api.timers.now_ms()
        try:
            reply, obj = self._carry_out(request, route)
        except StatusError as error:
            asked = {"metadata": {"namespace": route.namespace, "name": route.name}}
            audit.add(now_ms, route.verb, route.resource, asked, user_agent=request.user_agent, code=error.code)
            raise
        if not request.dry_run:
            audit.add(now_ms, route.verb, route.resource, obj, user_agent=request.user_agent, code=reply.code)
        return reply

    def _carry_out(self, request: Request, route: Route) -> tuple[Reply, dict[str, Any]]:
        """The answer, and the object that was written for the audit log."""
        api, kind, namespace, name = self._api, route.kind, route.namespace, route.name
        dry_run = request.dry_run
        if route.verb in ("delete", "deletecollection"):
            return self._delete(request, route)
        if route.verb == "patch":
            old = api.require(kind, namespace, name)
            patched = patch.apply(request.content_type, old.obj, request.body)
            if patched["metadata"] is old.obj["metadata"] or patched is old.obj:
                patched = {**patched, "metadata": dict(patched["metadata"])}
            version = api.update(kind, namespace, name, patched, subresource=route.subresource, dry_run=dry_run)
            return Reply(200, version.raw), version.obj
        body = _object(request)
        if route.subresource == "binding":
            target = name or str((body.get("metadata") or {}).get("name", ""))
            version = bindings.bind(api, namespace, target, body, dry_run=dry_run)
            return Reply(201, success(201)), version.obj
        if route.subresource == "eviction":
            actor = request.user_agent
            version = bindings.evict(api, namespace, name, body, actor=actor, dry_run=dry_run)
            return Reply(201, success(201)), version.obj
        if route.verb == "create":
            version = api.create(kind, namespace, body, dry_run=dry_run)
            return Reply(201, version.raw), version.obj
        version = api.update(kind, namespace, name, body, subresource=route.subresource, dry_run=dry_run)
        return Reply(200, version.raw), version.obj

    def _delete(self, request: Request, route: Route) -> tuple[Reply, dict[str, Any]]:
        kind, query = route.kind, request.query
        options = _delete_options(request)
        if route.verb == "delete":
            version = self._api.delete(
                kind, route.namespace, route.name, options, actor=request.user_agent, dry_run=request.dry_run
            )
            if kind is PODS or "deletionTimestamp" in version.obj["metadata"]:
                return Reply(200, version.raw), version.obj
            metadata = version.obj["metadata"]
            details = {"name": metadata["name"], "kind": kind.plural, "uid": metadata["uid"]}
            return Reply(200, success(200, details)), version.obj
        matches = combine(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        doomed = self._store.list_page(kind, route.namespace, matches).versions
        for version in doomed:
            metadata = version.obj["metadata"]
            self._api.delete(
                kind,
                metadata.get("namespace", ""),
                metadata["name"],
                options,
                actor=request.user_agent,
                dry_run=request.dry_run,
            )
        return Reply(200, success(200)), {"metadata": {"namespace": route.namespace}}

    # -- discovery ---------------------------------------------------------------------------------------------------

    def _discover(self, request: Request) -> Reply:
        parts = request.path.strip("/").split("/")
        kinds = self._api.kinds
        found: dict[str, Any] | None = None
        if request.path in ("/healthz", "/livez", "/readyz"):
            return Reply(200, b"ok", "text/plain")
        if parts == ["version"]:
            found = discovery.VERSION
        elif parts == ["api"]:
            found = discovery.api_versions("127.0.0.1")
        elif parts == ["apis"]:
            found = discovery.groups(kinds)
        elif parts[0] == "api" and len(parts) == 2:
            found = discovery.resources(kinds, "", parts[1])
        elif parts[0] == "apis" and len(parts) == 2:
            found = discovery.group(kinds, parts[1])
        elif parts[0] == "apis" and len(parts) == 3:
            found = discovery.resources(kinds, parts[1], parts[2])
        elif parts == ["openapi", "v3"]:
            found = discovery.openapi_root(kinds)
        elif parts[:2] == ["openapi", "v3"] and len(parts) in (4, 5):
            found = discovery.openapi(kinds, parts[3] if len(parts) == 5 else "", parts[-1])
        if found is None:
            raise no_such_path()
        return _reply(200, found)


def _integer(query: Any, name: str) -> int:
    text = query.get(name, "")
    if not text:
        return 0
    if not text.isdigit():
        raise bad_request(f"Invalid value for {name}: {text!r}")
    return int(text)


def _check_size(request: Request) -> None:
    if len(request.body) > MAX_BODY_BYTES:
        raise StatusError(413, f"Request entity too large: limit is {MAX_BODY_BYTES}", reason="RequestEntityTooLarge")


def _object(request: Request) -> dict[str, Any]:
    _check_size(request)
    if request.content_type not in ("", JSON):
        raise StatusError(415, f"the body of the request was in an unknown format - accepted media types: {JSON}")
    try:
        return msgspec.json.decode(request.body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise bad_request(f"error decoding the body: {error}") from error


def _delete_options(request: Request) -> DeleteOptions:
    try:
        options = msgspec.json.decode(request.body, type=DeleteOptions) if request.body else DeleteOptions()
    except msgspec.DecodeError as error:
        raise bad_request(f"error decoding the delete options: {error}") from error
    if "gracePeriodSeconds" in request.query:
        options.gracePeriodSeconds = _integer(request.query, "gracePeriodSeconds")
    return options
