"""One kubelet's pod-resources socket: a consistent pair of answers, and errors by what to do about them.

List and GetAllocatableResources are not taken together by the kubelet, so allocatable is asked before and after the
list and the round repeated when they differ. All clients of the socket share one rate limit: being refused by it is
normal and waits, longer each time. A kubelet that restarts comes back under the same path with a new socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from muster import podresources as api
from muster_topology_updater.zones import parse_cpulist

CALL_TIMEOUT_S: Final = 10.0
ROUNDS_MAX: Final = 3
OPTIONS: Final = (
    ("grpc.max_receive_message_length", api.MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


@dataclass(frozen=True)
class Answers:
    allocatable: Any  # AllocatableResourcesResponse
    pods: Any  # repeated PodResources


class KubeletBusy(Exception):
    """Refused by the rate limit, or the node changed under every round: ask again later."""


class KubeletAway(Exception):
    """No answer; `code` is the gRPC status."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Kubelet:
    """A client of one socket."""

    def __init__(self, path: Path) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix://{path.absolute()}", options=OPTIONS)
        self._stub = api.ListerStub(self._channel)

    async def ask(self) -> Answers:
        """Raises KubeletBusy, KubeletAway."""
        try:
            before = await self._allocatable()
            for _ in range(ROUNDS_MAX):
                listed = await self._stub.List(api.ListPodResourcesRequest(), timeout=CALL_TIMEOUT_S)
                after = await self._allocatable()
                if after == before:
                    return Answers(after, listed.pod_resources)
                before = after
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise KubeletBusy(error.details() or "rate limited") from error
            raise KubeletAway(error.code().name, error.details() or "") from error
        raise KubeletBusy("what the node offers changes faster than it can be read")

    async def close(self) -> None:
        await self._channel.close()

    async def _allocatable(self) -> Any:
        return await self._stub.GetAllocatableResources(api.AllocatableResourcesRequest(), timeout=CALL_TIMEOUT_S)


def cpu_zones(sysfs: Path) -> Mapping[int, int]:
    """CPU -> NUMA node from a machine's sysfs; empty where there is none."""
    found: dict[int, int] = {}
    for folder in sorted((sysfs / "devices/system/node").glob("node[0-9]*")):
        try:
            cpus = parse_cpulist((folder / "cpulist").read_text())
        except (OSError, ValueError):
            continue
        found |= dict.fromkeys(cpus, int(folder.name.removeprefix("node")))
    return found
