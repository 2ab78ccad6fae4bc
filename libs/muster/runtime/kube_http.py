"""`KubeApi` over HTTP: raw JSON in both directions, every status checked.

The generated client of kubernetes-asyncio raises after a binding that succeeded and leaves the status of raw calls
unchecked, so only its configuration (kubeconfig, in-cluster, TLS, tokens; see `kube_config`) is used, and the requests
are made here. Requests other than watches pass one semaphore, so a burst of placements cannot take every connection
from the rest or flood the API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from muster.runtime import kube
from muster.runtime.kube_objects import (
    PODS,
    STATUS_DECODER,
    STATUS_EVENT_DECODER,
    ListPage,
    Pod,
    Resource,
    WatchEvent,
)

T = TypeVar("T")

IN_FLIGHT_MAX: Final = 64  # requests at once to one cluster, watches not counted
WATCHES_MAX: Final = 8
WRITE_TIMEOUT_S: Final = 5.0
LIST_TIMEOUT_S: Final = 60.0
CONNECT_TIMEOUT_S: Final = 3.0
READ_BUFFER_BYTES: Final = 2**21  # the largest object fits (etcd's request limit is 1.5 MiB)
WATCH_GRACE_S: Final = 30.0  # a server may end a watch a little later than asked

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"

Authorise = Callable[[MutableMapping[str, str]], Awaitable[None]]


async def _no_auth(_headers: MutableMapping[str, str]) -> None:
    return None


async def _no_renewal() -> None:
    return None


async def _no_close() -> None:
    return None


@dataclass(frozen=True)
class Connection:
    """An open session to one API server and how to prove who we are on it."""

    base_url: str
    session: aiohttp.ClientSession
    authorise: Authorise = _no_auth
    renew: Callable[[], Awaitable[None]] = _no_renewal  # after a 401
    close: Callable[[], Awaitable[None]] = _no_close
    options: Mapping[str, Any] = field(default_factory=dict)  # proxy, server_hostname


class HttpKubeApi:
    """One cluster's API server over HTTP. See `kube.KubeApi`."""

    def __init__(self, cluster: str, connection: Connection, *, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        self._cluster = cluster
        self._connection = connection
        self._base = connection.base_url.rstrip("/") + "/api/v1/"
        self._slots = asyncio.Semaphore(in_flight_max)
        self._write_timeout = aiohttp.ClientTimeout(total=WRITE_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        self._list_timeout = aiohttp.ClientTimeout(total=LIST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)

    @property
    def cluster(self) -> str:
        return self._cluster

    async def create_pod(self, namespace: str, body: bytes) -> Pod:
        return PODS.decoder.decode(await self._request("POST", _pods(namespace), body))

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return PODS.decoder.decode(await self._request("GET", _pod(namespace, name)))

    async def delete_pod(self, namespace: str, name: str, *, uid: str, finished: bool = False) -> None:
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        if finished:
            options["gracePeriodSeconds"] = 0
        await self._request("DELETE", _pod(namespace, name), msgspec.json.encode(options))

    async def patch_pod(self, namespace: str, name: str, body: bytes) -> Pod:
        answer = await self._request("PATCH", _pod(namespace, name), body, content_type=MERGE_PATCH)
        return PODS.decoder.decode(answer)

    async def bind_pod(self, namespace: str, name: str, node: str, *, uid: str) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._request("POST", _pod(namespace, name) + "/binding", msgspec.json.encode(binding))

    async def list_page(
        self,
        resource: Resource[T],
        selector: str = "",
        *,
        limit: int = kube.LIST_PAGE_OBJECTS_MAX,
        continue_token: str = "",
    ) -> ListPage[T]:
        params = {"limit": str(limit)}
        if selector:
            params["labelSelector"] = selector
        if continue_token:
            params["continue"] = continue_token
        return resource.page_decoder.decode(await self._request("GET", resource.plural, params=params))

    async def watch(
        self, resource: Resource[T], selector: str, resource_version: str, timeout_s: float
    ) -> AsyncGenerator[Sequence[WatchEvent[T]], None]:
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(timeout_s))),
        }
        if selector:
            params["labelSelector"] = selector
        timeout = aiohttp.ClientTimeout(total=timeout_s + WATCH_GRACE_S, sock_connect=CONNECT_TIMEOUT_S)
        url = URL(self._base + resource.plural).with_query(params)
        headers = await self._headers(JSON)
        try:
            async with self._connection.session.get(
                url, headers=headers, timeout=timeout, **self._connection.options
            ) as response:
                if response.status != 200:
                    raise await self._error(response, await response.read())
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    events = [_decode_event(resource, line) for line in lines if line]
                    if events:
                        yield events
        except (aiohttp.ClientError, TimeoutError, OSError) as lost:
            raise kube.Transient(f"watch of {resource.plural} in {self._cluster}: {lost!r}") from lost

    async def close(self) -> None:
        await self._connection.close()

    async def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"Accept": JSON, "Content-Type": content_type}
        await self._connection.authorise(headers)
        return headers

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> bytes:
        url = URL(self._base + path, encoded=True)
        timeout = self._write_timeout if params is None else self._list_timeout
        headers = await self._headers(content_type)
        async with self._slots:
            try:
                async with self._connection.session.request(
                    method, url, params=params, data=body, headers=headers, timeout=timeout, **self._connection.options
                ) as response:
                    answer = await response.read()
                    if response.status < 300:
                        return answer
                    raise await self._error(response, answer)
            except (aiohttp.ClientError, TimeoutError, OSError) as lost:
                raise kube.Transient(f"{method} {path} in {self._cluster}: {lost!r}") from lost

    async def _error(self, response: aiohttp.ClientResponse, body: bytes) -> kube.KubeError:
        if response.status == 401:
            await self._connection.renew()
        try:
            status = STATUS_DECODER.decode(body)
            reason, message = status.reason, status.message
        except msgspec.DecodeError:  # a proxy in between answers in its own words
            reason, message = response.reason or "", body[:200].decode("utf-8", "replace")
        return kube.error_for(response.status, reason, message, _retry_after_s(response.headers.get("Retry-After")))


def _pods(namespace: str) -> str:
    return f"namespaces/{quote(namespace, safe='')}/pods"  # a name never reaches another path


def _pod(namespace: str, name: str) -> str:
    return f"{_pods(namespace)}/{quote(name, safe='')}"


def _retry_after_s(header: str | None) -> float | None:
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:  # the HTTP-date form, which API servers do not use
        return None


def _decode_event(resource: Resource[T], line: bytes) -> WatchEvent[T]:
    """One line of a watch. An ERROR event carries a Status, whose shape is not the object's."""
    try:
        event = resource.event_decoder.decode(line)
    except msgspec.ValidationError:
        failure = STATUS_EVENT_DECODER.decode(line).object
        raise kube.error_for(failure.code or 500, failure.reason, failure.message) from None
    except msgspec.DecodeError as broken:
        raise kube.Transient(f"a line of a watch is not JSON: {broken}") from broken
    if event.type == "ERROR":
        failure = STATUS_EVENT_DECODER.decode(line).object
        raise kube.error_for(failure.code or 500, failure.reason, failure.message)
    return event
