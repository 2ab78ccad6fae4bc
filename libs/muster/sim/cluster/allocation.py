"""What one node has, what its pods hold, and whether another pod is admitted: the kubelet's bookkeeping.

Three layers, in the order a kubelet asks them: sums per resource (OutOf<resource>), required labels (NodeAffinity),
then the managers that hand out particular things (devices, exclusive CPUs), whose refusals are
UnexpectedAdmissionError or TopologyAffinityError. A share of a device (`muster.io/gpu-milli`) has no counterpart in a
real kubelet; here the device named by the annotation `muster.io/devices` is charged and never overfilled.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from . import pods, quantities
from .affinity import matches_node

DEVICE_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
SHARE_RESOURCE = "muster.io/gpu-milli"
DEVICES_ANNOTATION = "muster.io/devices"
WHOLE_DEVICE_MILLIS = 1000
DEFAULT_ZONES = 2
TOPOLOGY_POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


@dataclass(frozen=True)
class Rejection:
    """Why a kubelet does not take a pod: becomes phase Failed with this reason."""

    reason: str
    message: str


@dataclass(frozen=True)
class ContainerGrant:
    name: str
    devices: tuple[int, ...] = ()  # device indices
    device_millis: int = WHOLE_DEVICE_MILLIS  # of each of them
    cpus: tuple[int, ...] = ()  # exclusive CPU ids


@dataclass(frozen=True)
class Grant:
    requests: dict[str, int]
    containers: tuple[ContainerGrant, ...]


class _Refused(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.rejection = Rejection(reason, message)


@dataclass
class NodeAllocation:
    """One node's capacity and use. Only nodes with `static_cpus` keep CPU ids."""

    name: str
    rng: random.Random
    static_cpus: bool = False
    zones: int = DEFAULT_ZONES
    topology_policy: str = "none"
    capacity: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    device_resource: str = ""
    device_free_millis: list[int] = field(default_factory=list)
    cpu_owner_free: list[bool] = field(default_factory=list)  # by CPU id

    def set_node(self, node: dict[str, Any]) -> None:
        """Take over labels and allocatable from the Node object; what pods hold stays held."""
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        self.capacity = {resource: quantities.amount(resource, str(text)) for resource, text in allocatable.items()}
        self.labels = node["metadata"].get("labels") or {}
        self.device_resource = next(
            (name for name in DEVICE_RESOURCES if self.capacity.get(name)), self.device_resource
        )
        devices = self.capacity.get(self.device_resource, 0)
        self.device_free_millis += [WHOLE_DEVICE_MILLIS] * (devices - len(self.device_free_millis))
        if self.static_cpus:
            cpus = self.capacity.get("cpu", 0) // 1000
            self.cpu_owner_free += [True] * (cpus - len(self.cpu_owner_free))

    def device_zone(self, index: int) -> int:
        return index * self.zones // max(1, len(self.device_free_millis))

    def cpu_zone(self, cpu: int) -> int:
        return cpu * self.zones // max(1, len(self.cpu_owner_free))

    # -- admission -------------------------------------------------------------------------------------------------

    def admit(self, pod: dict[str, Any]) -> Grant | Rejection:
        """Charge the pod, or say why not. A rejection leaves nothing charged."""
        spec = pod["spec"]
        requests = pods.pod_requests(spec)
        requests["pods"] = 1
        for resource, requested in sorted(requests.items()):
            capacity = self.capacity.get(resource)
            if capacity is None or requested == 0:
                continue  # a kubelet ignores extended resources its node does not have
            used = self.used.get(resource, 0)
            if used + requested > capacity:
                text = f"{resource}, requested: {requested}, used: {used}, capacity: {capacity}"
                return Rejection(f"OutOf{resource}", f"Pod was rejected: Node didn't have enough resource: {text}")
        if not matches_node(spec, self.labels, self.name):
            return Rejection("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed")
        try:
            containers = self._grant_containers(pod)
        except _Refused as refusal:
            return refusal.rejection
        for resource, requested in requests.items():
            self.used[resource] = self.used.get(resource, 0) + requested
        return Grant(requests, containers)

    def release(self, grant: Grant) -> None:
        for resource, requested in grant.requests.items():
            self.used[resource] -= requested
        for container in grant.containers:
            self._give_back(container)

    def _give_back(self, container: ContainerGrant) -> None:
        for index in container.devices:
            self.device_free_millis[index] += container.device_millis
        for cpu in container.cpus:
            self.cpu_owner_free[cpu] = True

    def _grant_containers(self, pod: dict[str, Any]) -> tuple[ContainerGrant, ...]:
        spec = pod["spec"]
        named = _named_devices(pod)
        exclusive = self.static_cpus and pod["status"].get("qosClass") == "Guaranteed"
        granted: list[ContainerGrant] = []
        try:
            for container in spec["containers"]:
                requests = pods.container_requests(container)
                granted.append(self._grant(container["name"], requests, named, exclusive))
        except _Refused:
            for grant in granted:
                self._give_back(grant)
            raise
        return tuple(granted)

    def _grant(self, name: str, requests: dict[str, int], named: list[int] | None, exclusive: bool) -> ContainerGrant:
        wanted = requests.get(self.device_resource, 0) if self.device_resource else 0
        share_millis = requests.get(SHARE_RESOURCE, 0)
        cpu_millis = requests.get("cpu", 0)
        cpus_wanted = cpu_millis // 1000 if exclusive and cpu_millis % 1000 == 0 else 0
        if not (wanted or share_millis or cpus_wanted):
            return ContainerGrant(name)
        if wanted and share_millis:
            raise _Refused("UnexpectedAdmissionError", "a container asks for whole devices and for a share of one")
        if share_millis:
            devices, millis = self._take_share(share_millis, named), share_millis
        else:
            devices, millis = self._choose_devices(wanted, named, cpus_wanted), WHOLE_DEVICE_MILLIS
        cpus = self._choose_cpus(cpus_wanted, {self.device_zone(index) for index in devices})
        for index in devices:
            self.device_free_millis[index] -= millis
        for cpu in cpus:
            self.cpu_owner_free[cpu] = False
        return ContainerGrant(name, devices, millis, cpus)

    # -- devices ---------------------------------------------------------------------------------------------------

    def _take_share(self, share_millis: int, named: list[int] | None) -> tuple[int, ...]:
        if not named:
            raise _Refused(
                "UnexpectedAdmissionError",
                f"{SHARE_RESOURCE} needs the annotation {DEVICES_ANNOTATION} to name a device",
            )
        index = named.pop(0)
        if not 0 <= index < len(self.device_free_millis):
            raise _Refused("UnexpectedAdmissionError", f"there is no device {index}, which is unexpected")
        free_millis = self.device_free_millis[index]
        if share_millis > WHOLE_DEVICE_MILLIS or share_millis > free_millis:
            text = f"device {index}: requested {share_millis} milli, free {free_millis}"
            raise _Refused("UnexpectedAdmissionError", f"Allocate failed due to {text}, which is unexpected")
        return (index,)

    def _choose_devices(self, wanted: int, named: list[int] | None, cpus_wanted: int) -> tuple[int, ...]:
        if not wanted:
            return ()
        free = [index for index, millis in enumerate(self.device_free_millis) if millis == WHOLE_DEVICE_MILLIS]
        if named is not None:
            chosen = named[:wanted]
            del named[:wanted]
            if len(set(chosen)) < wanted or not set(chosen) <= set(free):
                text = f"devices {chosen} of which {sorted(set(chosen) & set(free))} are free, {wanted} requested"
                raise _Refused("UnexpectedAdmissionError", f"Allocate failed due to {text}, which is unexpected")
            return tuple(chosen)
        if len(free) < wanted:
            text = f"requested number of devices unavailable for {self.device_resource}"
            counts = f"Requested: {wanted}, Available: {len(free)}"
            raise _Refused("UnexpectedAdmissionError", f"Allocate failed due to {text}. {counts}, which is unexpected")
        by_zone: list[list[int]] = [[] for _ in range(self.zones)]
        for index in free:
            by_zone[self.device_zone(index)].append(index)
        fitting = [
            zone
            for zone, members in enumerate(by_zone)
            if len(members) >= wanted and len(self._free_cpus(zone)) >= cpus_wanted
        ]
        pool = by_zone[min(fitting, key=lambda zone: (len(by_zone[zone]), zone))] if fitting else free
        # Inside a zone a device plugin promises no order: draw, so that nobody comes to rely on one.
        return tuple(sorted(self.rng.sample(pool, wanted)))

    # -- CPUs ------------------------------------------------------------------------------------------------------

    def _free_cpus(self, zone: int) -> list[int]:
        return [cpu for cpu, free in enumerate(self.cpu_owner_free) if free and self.cpu_zone(cpu) == zone]

    def _choose_cpus(self, wanted: int, device_zones: set[int]) -> tuple[int, ...]:
        """Exclusive CPUs, packed into as few zones as possible and beside the devices when they fit there."""
        if self.topology_policy in ("restricted", "single-numa-node") and len(device_zones) > 1:
            raise _Refused("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
        if not wanted:
            return ()
        free = {zone: self._free_cpus(zone) for zone in range(self.zones)}
        if sum(map(len, free.values())) < wanted:
            text = f"not enough cpus available to satisfy request: requested={wanted}"
            raise _Refused("UnexpectedAdmissionError", f"Allocate failed due to {text}, which is unexpected")
        fitting = [zone for zone in free if len(free[zone]) >= wanted]
        if self.topology_policy != "none" and device_zones:
            aligned = [zone for zone in fitting if zone in device_zones]
            fitting = aligned if aligned or self.topology_policy == "single-numa-node" else fitting
        if fitting:
            best = min(fitting, key=lambda zone: (len(free[zone]), zone))
            return tuple(free[best][:wanted])
        if self.topology_policy == "single-numa-node":
            raise _Refused("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
        fullest_first = sorted(free, key=lambda zone: (-len(free[zone]), zone))
        return tuple([cpu for zone in fullest_first for cpu in free[zone]][:wanted])


def _named_devices(pod: dict[str, Any]) -> list[int] | None:
    """The device indices the scheduler chose, or None when it left the choice to the kubelet."""
    text = (pod["metadata"].get("annotations") or {}).get(DEVICES_ANNOTATION)
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        message = f"annotation {DEVICES_ANNOTATION}={text!r} is not a list of device indices"
        raise _Refused("UnexpectedAdmissionError", message) from error
