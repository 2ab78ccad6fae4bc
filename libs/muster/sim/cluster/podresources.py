"""The kubelets' pod-resources sockets: who holds which CPUs and devices, per NUMA zone.

One gRPC server on one unix socket a node, at `<directory>/<node>/kubelet.sock` (a real kubelet's directory holds one
such file). What is answered follows the real one: only active pods are listed, terminating ones until their
containers are gone; `cpu_ids` are exclusive CPUs only; there is one devices entry per device and zone; `Get` of an
unknown pod is UNKNOWN, not NOT_FOUND; all methods share one rate limit. A node that is cut off has a closed socket.
The memory manager is off (policy None), so no memory is reported.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import grpc

from muster import podresources as api

from .allocation import ContainerGrant
from .kubelets import Agent, Kubelets, LocalPod, PodState
from .timers import Clock

RATE_PER_S = 100
BURST = 10
_MAX_SOCKET_PATH_BYTES = 107  # what a unix address can hold


def device_id(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


class _TokenBucket:
    def __init__(self, now_ms: Clock) -> None:
        self._now_ms = now_ms
        self._milli_tokens = BURST * 1000
        self._filled_at_ms = now_ms()

    def take(self) -> bool:
        now_ms = self._now_ms()
        self._milli_tokens = min(BURST * 1000, self._milli_tokens + (now_ms - self._filled_at_ms) * RATE_PER_S)
        self._filled_at_ms = now_ms
        if self._milli_tokens < 1000:
            return False
        self._milli_tokens -= 1000
        return True


class NodeLister:
    """The service of one node."""

    def __init__(self, kubelets: Kubelets, node: str, now_ms: Clock) -> None:
        self._kubelets = kubelets
        self._node = node
        self._bucket = _TokenBucket(now_ms)

    async def _agent(self, context: Any) -> Agent:
        agent = self._kubelets.agents.get(self._node)
        if agent is None or not agent.alive:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the kubelet is down")
        if not self._bucket.take():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        assert agent is not None
        return agent

    async def List(self, _request: Any, context: Any) -> Any:  # noqa: N802
        agent = await self._agent(context)
        return api.ListPodResourcesResponse(
            pod_resources=[_pod(agent, local) for local in agent.pods.values() if local.state is not PodState.DONE]
        )

    async def GetAllocatableResources(self, _request: Any, context: Any) -> Any:  # noqa: N802
        agent = await self._agent(context)
        allocation = agent.allocation
        devices = range(len(allocation.device_free_millis))
        return api.AllocatableResourcesResponse(
            cpu_ids=range(len(allocation.cpu_owner_free)), devices=[_device(agent, index) for index in devices]
        )

    async def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        agent = await self._agent(context)
        key = f"{request.pod_namespace}/{request.pod_name}"
        for local in agent.pods.values():
            if local.key == key and local.state is not PodState.DONE:
                return api.GetPodResourcesResponse(pod_resources=_pod(agent, local))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError("abort raises")


def _pod(agent: Agent, local: LocalPod) -> Any:
    metadata = local.obj["metadata"]
    grants = local.grant.containers if local.grant is not None else ()
    return api.PodResources(
        name=metadata["name"],
        namespace=metadata["namespace"],
        containers=[_container(agent, grant) for grant in grants],
    )


def _container(agent: Agent, grant: ContainerGrant) -> Any:
    return api.ContainerResources(
        name=grant.name, cpu_ids=grant.cpus, devices=[_device(agent, index) for index in grant.devices]
    )


def _device(agent: Agent, index: int) -> Any:
    return api.ContainerDevices(
        resource_name=agent.allocation.device_resource,
        device_ids=[device_id(agent.name, index)],
        topology=api.TopologyInfo(nodes=[api.NUMANode(ID=agent.allocation.device_zone(index))]),
    )


class PodResourcesSockets:
    """The sockets of some nodes of one cluster."""

    def __init__(self, kubelets: Kubelets, directory: Path, now_ms: Clock) -> None:
        self._kubelets = kubelets
        self._directory = directory
        self._now_ms = now_ms
        self._servers: list[Any] = []
        self._folders: list[Path] = []

    async def start(self, nodes: list[str]) -> list[Path]:
        """Open a socket for each node; the paths, in the nodes' order."""
        paths = []
        for node in nodes:
            folder = self._directory / node
            path = folder / "kubelet.sock"
            if len(str(path.absolute()).encode()) > _MAX_SOCKET_PATH_BYTES:
                raise ValueError(f"{path.absolute()} is too long for a unix socket ({_MAX_SOCKET_PATH_BYTES} bytes)")
            folder.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            server = grpc.aio.server(options=[("grpc.max_send_message_length", api.MAX_MESSAGE_BYTES)])
            server.add_generic_rpc_handlers((api.handler(NodeLister(self._kubelets, node, self._now_ms)),))
            server.add_insecure_port(f"unix://{path.absolute()}")
            await server.start()
            self._servers.append(server)
            self._folders.append(folder)
            paths.append(path)
        return paths

    async def stop(self) -> None:
        for server in self._servers:
            await server.stop(None)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._servers.clear()
        self._folders.clear()
