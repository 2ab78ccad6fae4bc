"""Kubernetes objects as small structs of only the fields that are used, decoded straight from the server's JSON.

A list of 3,000 pods costs two to five times more as generated model objects than as these. Unknown fields are skipped,
absent ones take their default, so any API server version fits. A `Resource` ties a URL path to the struct it is read
as; one path may be read in several ways (the binder needs a pod's status, the topology-updater its requests).
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, field

T = TypeVar("T")


class ObjectMeta(Struct, rename="camel", frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class ContainerTerminated(Struct, rename="camel", frozen=True, gc=False):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(Struct, frozen=True, gc=False):
    running: dict[str, Any] | None = None
    terminated: ContainerTerminated | None = None


class ContainerStatus(Struct, rename="camel", frozen=True, gc=False):
    name: str = ""
    state: ContainerState = ContainerState()


class PodStatus(Struct, rename="camel", frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    message: str = ""
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class PodSpec(Struct, rename="camel", frozen=True, gc=False):
    node_name: str = ""
    scheduler_name: str = ""


class Pod(Struct, frozen=True, gc=False):
    """A pod as the binder reads it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Requirements(Struct, frozen=True, gc=False):
    requests: dict[str, Any] | None = None  # quantities: strings, or bare numbers
    limits: dict[str, Any] | None = None


class Container(Struct, rename="camel", frozen=True, gc=False):
    resources: Requirements = Requirements()
    restart_policy: str = ""  # "Always" on an init container: a sidecar


class PodRequestsSpec(Struct, rename="camel", frozen=True, gc=False):
    node_name: str = ""
    containers: list[Container] = field(default_factory=list)
    init_containers: list[Container] | None = None
    overhead: dict[str, Any] | None = None
    resources: Requirements = Requirements()  # pod-level requests, where a cluster has them


class PodPhaseOnly(Struct, frozen=True, gc=False):
    phase: str = ""


class PodRequests(Struct, frozen=True, gc=False):
    """A pod as the topology-updater reads it: what it takes from its node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodRequestsSpec = PodRequestsSpec()
    status: PodPhaseOnly = PodPhaseOnly()


class NodeTaint(Struct, frozen=True, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeCondition(Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""


class KubeNodeSpec(Struct, frozen=True, gc=False):
    unschedulable: bool = False
    taints: list[NodeTaint] | None = None


class KubeNodeStatus(Struct, frozen=True, gc=False):
    allocatable: dict[str, Any] | None = None
    conditions: list[NodeCondition] | None = None


class Node(Struct, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()
    spec: KubeNodeSpec = KubeNodeSpec()
    status: KubeNodeStatus = KubeNodeStatus()


class Status(Struct, frozen=True, gc=False):
    """The body of an error answer."""

    reason: str = ""
    message: str = ""
    code: int = 0


class ListMeta(Struct, rename="camel", frozen=True, gc=False):
    resource_version: str = ""
    continue_: str = field(default="", name="continue")


class ListPage(Struct, Generic[T], frozen=True, gc=False):
    items: list[T]
    metadata: ListMeta = ListMeta()


class WatchEvent(Struct, Generic[T], frozen=True, gc=False):
    type: str  # ADDED | MODIFIED | DELETED | BOOKMARK
    object: T


class StatusEvent(Struct, frozen=True, gc=False):
    type: str
    object: Status


class Resource(Generic[T]):
    """A kind of object: where it is served and how it is read."""

    def __init__(self, plural: str, struct: type[T]) -> None:
        self.plural = plural
        self.decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(struct)
        self.page_decoder: msgspec.json.Decoder[ListPage[T]] = msgspec.json.Decoder(ListPage[struct])  # type: ignore[valid-type]
        self.event_decoder: msgspec.json.Decoder[WatchEvent[T]] = msgspec.json.Decoder(WatchEvent[struct])  # type: ignore[valid-type]

    def __repr__(self) -> str:
        return f"Resource({self.plural})"


PODS: Resource[Pod] = Resource("pods", Pod)
POD_REQUESTS: Resource[PodRequests] = Resource("pods", PodRequests)
NODES: Resource[Node] = Resource("nodes", Node)
STATUS_DECODER: msgspec.json.Decoder[Status] = msgspec.json.Decoder(Status)
STATUS_EVENT_DECODER: msgspec.json.Decoder[StatusEvent] = msgspec.json.Decoder(StatusEvent)
