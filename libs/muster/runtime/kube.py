"""What Muster asks of a Kubernetes API server, as one small protocol, and the errors it can answer with.

The binder and the topology-updater are written against `KubeApi`. `kube_http` speaks it to a real server, the
simulation gives an in-memory one; both raise the errors below, which are split by what the caller has to do:

- `Conflict`: something else is there (409); look at it. `reason` tells AlreadyExists from a failed precondition.
- `NotFound`: the object (or the namespace it should go to) does not exist (404).
- `Gone`: the resource version is too old (410); list again.
- `Invalid`: the server will never accept this (400, 403, 405, 413, 415, 422); tell a person.
- `Throttled`: not done, come back after `retry_after_s` (429).
- `Transient`: 5xx, timeouts, lost connections. The outcome of a write is unknown: it may have happened.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, TypeVar

from muster.runtime.kube_objects import ListPage, Pod, Resource, WatchEvent

T = TypeVar("T")

LIST_PAGE_OBJECTS_MAX = 500


class KubeError(Exception):
    """Base of every answer that is not success."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason


class Conflict(KubeError): ...


class NotFound(KubeError): ...


class Gone(KubeError): ...


class Invalid(KubeError): ...


class Throttled(KubeError):
    def __init__(self, message: str, *, retry_after_s: float, status: int = 429, reason: str = "") -> None:
        super().__init__(message, status=status, reason=reason)
        self.retry_after_s = retry_after_s


class Transient(KubeError): ...


def error_for(status: int, reason: str, message: str, retry_after_s: float | None = None) -> KubeError:
    """The error that an HTTP status means."""
    if status == 429:
        wait_s = 1.0 if retry_after_s is None else retry_after_s
        return Throttled(message, retry_after_s=wait_s, status=status, reason=reason)
    kind: type[KubeError]
    if status == 404:
        kind = NotFound
    elif status == 409:
        kind = Conflict
    elif status == 410:
        kind = Gone
    elif status in (401, 408) or status >= 500:
        kind = Transient  # 401: a token ran out and is being renewed
    else:
        kind = Invalid
    return kind(message, status=status, reason=reason)


class KubeApi(Protocol):
    """One cluster's API server. Every method raises `KubeError`s only (and CancelledError)."""

    @property
    def cluster(self) -> str: ...

    async def create_pod(self, namespace: str, body: bytes) -> Pod:
        """Create from a JSON manifest."""

    async def get_pod(self, namespace: str, name: str) -> Pod: ...

    async def delete_pod(self, namespace: str, name: str, *, uid: str, finished: bool = False) -> None:
        """Ask for deletion with the pod's own grace period; a pod whose containers have `finished` needs none, and
        goes even when its node cannot be asked. Conflict if the name now belongs to another uid."""

    async def patch_pod(self, namespace: str, name: str, body: bytes) -> Pod:
        """Apply a JSON merge patch."""

    async def bind_pod(self, namespace: str, name: str, node: str, *, uid: str) -> None:
        """Bind an existing pod to a node. Conflict if it is bound already."""

    async def list_page(
        self, resource: Resource[T], selector: str = "", *, limit: int = LIST_PAGE_OBJECTS_MAX, continue_token: str = ""
    ) -> ListPage[T]:
        """A page of all namespaces' objects. Gone if the continue token has expired."""

    def watch(
        self, resource: Resource[T], selector: str, resource_version: str, timeout_s: float
    ) -> AsyncGenerator[Sequence[WatchEvent[T]], None]:
        """Changes after `resource_version` with bookmarks, in batches as they arrive; ends after about `timeout_s`.

        Raises Gone when the version is no longer known, also in the middle. Close it (`aclose`) to stop.
        """

    async def close(self) -> None: ...
