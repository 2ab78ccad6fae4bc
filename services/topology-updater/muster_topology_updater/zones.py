"""What a kubelet's pod-resources answers say, as NUMA zones.

The rules are those of the kubelet: a device with several NUMA nodes comes as several entries with one id, so ids are
counted once and their zones united; a memory block names its nodes and one total size, and the kubelet fills nodes in
ascending order, so the split is worked out the same way; CPUs come without a node and need the machine's own map.
Pod-level resources overlap those of the containers and are not added. Devices get indices in the order of their ids
(numbers in them compared as numbers); a device that is not offered any more keeps its index, so nothing is renamed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from muster.core import resources
from muster.core.limits import DEVICES_PER_NODE_MAX
from muster.core.model import Zone

CpuZone = Callable[[int], int | None]

_DIGITS: Final = re.compile(r"(\d+)")


class DeviceIndex:
    """Numbers the devices of one node, once and for all."""

    def __init__(self) -> None:
        self._indices: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._indices)

    def learn(self, ids: Iterable[str]) -> None:
        for new in sorted({*ids} - self._indices.keys(), key=natural):
            self._indices[new] = len(self._indices)

    def of(self, device: str) -> int | None:
        return self._indices.get(device)


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key in which GPU-2 comes before GPU-10."""
    parts = _DIGITS.split(text)
    return tuple((0, int(part), "") if i % 2 else (1, 0, part) for i, part in enumerate(parts))


def zones_of(allocatable: Any, pods: Iterable[Any], devices: DeviceIndex, cpu_zone: CpuZone) -> tuple[Zone, ...]:
    """Zones from the answers of GetAllocatableResources and List, ascending by id."""
    book = _Book(cpu_zone)
    offered = _devices(allocatable.devices)
    devices.learn(device for resource, device in offered if resources.is_device(resource))
    book.offer(allocatable, offered)
    for pod in pods:
        for container in pod.containers:
            book.use(container)
    return book.zones(devices, offered)


def device_resource_of(allocatable: Any) -> str:
    """The kind of device the node offers (the first by name, should there be two)."""
    kinds = {entry.resource_name for entry in allocatable.devices if resources.is_device(entry.resource_name)}
    return min(kinds, default="")


class _Book:
    """Amounts by zone while they are being added up."""

    def __init__(self, cpu_zone: CpuZone) -> None:
        self._cpu_zone = cpu_zone
        self._allocatable: dict[int, dict[str, int]] = {}
        self._used: dict[int, dict[str, int]] = {}

    def offer(self, allocatable: Any, devices: dict[tuple[str, str], set[int]]) -> None:
        self._cpus(self._allocatable, allocatable.cpu_ids)
        for block in allocatable.memory:
            for node in block.topology.nodes:  # one node a block here
                _add(self._allocatable, node.ID, block.memory_type, block.size)
        self._count(self._allocatable, devices)

    def use(self, container: Any) -> None:
        self._cpus(self._used, container.cpu_ids)
        for block in container.memory:
            self._fill(block)
        self._count(self._used, _devices(container.devices))

    def zones(self, devices: DeviceIndex, offered: dict[tuple[str, str], set[int]]) -> tuple[Zone, ...]:
        inside: dict[int, set[int]] = {}
        for (_, device), nodes in offered.items():
            index = devices.of(device)
            if index is not None and index < DEVICES_PER_NODE_MAX:
                for node in nodes:
                    inside.setdefault(node, set()).add(index)
        return tuple(
            Zone(
                id=zone,
                allocatable=resources.amounts(self._allocatable.get(zone, {})),
                used=resources.amounts(self._used.get(zone, {})),
                devices=tuple(sorted(inside.get(zone, ()))),
            )
            for zone in sorted({*self._allocatable, *self._used, *inside})
        )

    def _cpus(self, book: dict[int, dict[str, int]], cpus: Iterable[int]) -> None:
        for cpu in cpus:
            zone = self._cpu_zone(cpu)
            if zone is not None:
                _add(book, zone, resources.CPU, 1000)

    def _count(self, book: dict[int, dict[str, int]], devices: dict[tuple[str, str], set[int]]) -> None:
        for (resource, _), nodes in devices.items():
            for node in nodes:
                _add(book, node, resource, resources.unit_scale(resource))

    def _fill(self, block: Any) -> None:
        """Split a block over its nodes as the kubelet does: ascending, each as full as it gets."""
        left = block.size
        nodes = sorted({node.ID for node in block.topology.nodes})
        for node in nodes:
            free = self._allocatable.get(node, {}).get(block.memory_type, 0) - self._used.get(node, {}).get(
                block.memory_type, 0
            )
            part = left if node == nodes[-1] else min(left, max(free, 0))
            if part:
                _add(self._used, node, block.memory_type, part)
                left -= part


def _devices(entries: Iterable[Any]) -> dict[tuple[str, str], set[int]]:
    """(resource, device id) -> its NUMA nodes; none for a device without topology."""
    found: dict[tuple[str, str], set[int]] = {}
    for entry in entries:
        nodes = {node.ID for node in entry.topology.nodes}
        for device in entry.device_ids:
            found.setdefault((entry.resource_name, device), set()).update(nodes)
    return found


def _add(book: dict[int, dict[str, int]], zone: int, resource: str, amount: int) -> None:
    amounts = book.setdefault(zone, {})
    amounts[resource] = amounts.get(resource, 0) + amount


def parse_cpulist(text: str) -> list[int]:
    """The kernel's list format: 0-3,8,10-11."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus
