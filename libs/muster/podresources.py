"""The kubelet's pod-resources API (v1) as protobuf messages and gRPC method names.

The topology-updater asks it, the simulated kubelets answer it; both need the same messages, and neither may import
the other's package, so they stand here, beside the layers. The wire wants proto package `v1` and service
`v1.PodResourcesLister`, which does not fit the rules of this project's own protos (one package `muster.api.v1`), so
the messages are described here in Python, from the field numbers of the published API, in a descriptor pool of their
own: nothing else in the process that knows a package called `v1` can collide with them. Unknown fields (newer
kubelets send some) are kept and ignored, as protobuf does.

Messages are made at run time, so for a type checker they are `Any`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "v1.PodResourcesLister"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # what clients of this API commonly accept

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string": _Field.TYPE_STRING, "int64": _Field.TYPE_INT64, "uint64": _Field.TYPE_UINT64}

# message -> (number, name, type, repeated)
_MESSAGES: dict[str, tuple[tuple[int, str, str, bool], ...]] = {
    "ListPodResourcesRequest": (),
    "AllocatableResourcesRequest": (),
    "GetPodResourcesRequest": ((1, "pod_name", "string", False), (2, "pod_namespace", "string", False)),
    "ListPodResourcesResponse": ((1, "pod_resources", "PodResources", True),),
    "GetPodResourcesResponse": ((1, "pod_resources", "PodResources", False),),
    "AllocatableResourcesResponse": (
        (1, "devices", "ContainerDevices", True),
        (2, "cpu_ids", "int64", True),
        (3, "memory", "ContainerMemory", True),
    ),
    "PodResources": (
        (1, "name", "string", False),
        (2, "namespace", "string", False),
        (3, "containers", "ContainerResources", True),
        (4, "cpu_ids", "int64", True),
        (5, "memory", "ContainerMemory", True),
    ),
    "ContainerResources": (
        (1, "name", "string", False),
        (2, "devices", "ContainerDevices", True),
        (3, "cpu_ids", "int64", True),
        (4, "memory", "ContainerMemory", True),
        (5, "dynamic_resources", "DynamicResource", True),
    ),
    "ContainerMemory": (
        (1, "memory_type", "string", False),
        (2, "size", "uint64", False),
        (3, "topology", "TopologyInfo", False),
    ),
    "ContainerDevices": (
        (1, "resource_name", "string", False),
        (2, "device_ids", "string", True),
        (3, "topology", "TopologyInfo", False),
    ),
    "TopologyInfo": ((1, "nodes", "NUMANode", True),),
    "NUMANode": ((1, "ID", "int64", False),),
    "DynamicResource": (
        (2, "claim_name", "string", False),
        (3, "claim_namespace", "string", False),
        (4, "claim_resources", "ClaimResource", True),
    ),
    "ClaimResource": (
        (1, "cdi_devices", "CDIDevice", True),
        (2, "driver_name", "string", False),
        (3, "pool_name", "string", False),
        (4, "device_name", "string", False),
        (5, "share_id", "string", False),
    ),
    "CDIDevice": ((1, "name", "string", False),),
}
_OPTIONAL = {("ClaimResource", "share_id")}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="kubelet/podresources/v1.proto", package="v1", syntax="proto3")
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, name, type_, repeated in fields:
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            field = message.field.add(name=name, number=number, label=label)
            if type_ in _SCALARS:
                field.type = _SCALARS[type_]
            else:
                field.type = _Field.TYPE_MESSAGE
                field.type_name = f".v1.{type_}"
            if (message_name, name) in _OPTIONAL:
                message.oneof_decl.add(name=f"_{name}")
                field.oneof_index, field.proto3_optional = 0, True
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
_classes: dict[str, Any] = {
    name: message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"v1.{name}")) for name in _MESSAGES
}

ListPodResourcesRequest: Any = _classes["ListPodResourcesRequest"]
ListPodResourcesResponse: Any = _classes["ListPodResourcesResponse"]
AllocatableResourcesRequest: Any = _classes["AllocatableResourcesRequest"]
AllocatableResourcesResponse: Any = _classes["AllocatableResourcesResponse"]
GetPodResourcesRequest: Any = _classes["GetPodResourcesRequest"]
GetPodResourcesResponse: Any = _classes["GetPodResourcesResponse"]
PodResources: Any = _classes["PodResources"]
ContainerResources: Any = _classes["ContainerResources"]
ContainerMemory: Any = _classes["ContainerMemory"]
ContainerDevices: Any = _classes["ContainerDevices"]
TopologyInfo: Any = _classes["TopologyInfo"]
NUMANode: Any = _classes["NUMANode"]

_METHODS: dict[str, tuple[Any, Any]] = {
    "List": (ListPodResourcesRequest, ListPodResourcesResponse),
    "GetAllocatableResources": (AllocatableResourcesRequest, AllocatableResourcesResponse),
    "Get": (GetPodResourcesRequest, GetPodResourcesResponse),
}


class Lister(Protocol):
    """The service, as somebody implements it. The names are the wire's."""

    async def List(self, request: Any, context: Any, /) -> Any: ...  # noqa: N802
    async def GetAllocatableResources(self, request: Any, context: Any, /) -> Any: ...  # noqa: N802
    async def Get(self, request: Any, context: Any, /) -> Any: ...  # noqa: N802


def handler(lister: Lister) -> grpc.GenericRpcHandler:
    """What to add to a grpc.aio server so that it serves `lister`."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(lister, name), request_deserializer=request.FromString, response_serializer=_serialise
        )
        for name, (request, _) in _METHODS.items()
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _serialise(message: Any) -> bytes:
    return bytes(message.SerializeToString())


class ListerStub:
    """A client of the service on a grpc.aio channel, e.g. to `unix:///var/lib/kubelet/pod-resources/kubelet.sock`.

    Call as `await stub.List(ListPodResourcesRequest(), timeout=10)`.
    """

    def __init__(self, channel: Any) -> None:
        self.List: Callable[..., Awaitable[Any]] = _method(channel, "List")
        self.GetAllocatableResources: Callable[..., Awaitable[Any]] = _method(channel, "GetAllocatableResources")
        self.Get: Callable[..., Awaitable[Any]] = _method(channel, "Get")


def _method(channel: Any, name: str) -> Any:
    _, response = _METHODS[name]
    return channel.unary_unary(
        f"/{SERVICE}/{name}", request_serializer=_serialise, response_deserializer=response.FromString
    )
