"""One node as integers: what it has (`NodeFacts`), what is free (`Row`), what a pod takes (`Demand`).

The node table owns the rows that are true; an overlay copies the few it tries something on. Both change a row through
`charge_row`, so a trial and the truth cannot differ. Columns are numbers given by the table's registry; nothing here
depends on their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from muster.core.errors import InvariantBroken
from muster.core.limits import DEVICES_PER_NODE_MAX
from muster.core.model import Amounts, NodeSpec, Zone
from muster.core.resources import DEVICE_MILLIS, DEVICE_RESOURCES, PODS, is_device

PODS_PER_NODE_DEFAULT: Final = 110  # what a kubelet allows when its node does not say
CPU_COLUMN: Final = 0  # these three every table has; the rest appear with the nodes that offer them
MEMORY_COLUMN: Final = 1
PODS_COLUMN: Final = 2
LOG_ROWS_MIN: Final = 4096  # a change log is cut when it is longer than this and than four entries a node


class Row:
    """What is free on a node: by column, and by device in thousandths. `taken` is what Muster holds of each device."""

    __slots__ = ("devices", "free", "taken")

    def __init__(self, free: list[int], devices: list[int], taken: list[int]) -> None:
        self.free = free
        self.devices = devices
        self.taken = taken

    def copy(self) -> Row:
        return Row(self.free.copy(), self.devices.copy(), self.taken.copy())

    def overdrawn(self) -> bool:
        """Whether something is below zero: then the node takes nothing more (I1)."""
        return min(self.free) < 0 or (bool(self.devices) and min(self.devices) < 0)


@dataclass(slots=True)
class NodeFacts:
    """A node's description, worked out. `capacity` is allocatable less what others use."""

    spec: NodeSpec
    zones: tuple[Zone, ...]
    cluster: int
    removed: bool
    open: bool  # ready, not cordoned, not removed
    allocatable: list[int]
    capacity: list[int]
    device_column: int  # -1: the node has no devices
    devices: int
    others_millis: int  # of devices, whole ones, held by pods that are not Muster's
    labels: dict[str, str]

    def free_devices(self, taken: list[int]) -> list[int]:
        """Free thousandths of each device, when Muster holds `taken`.

        Which devices others hold is not known: the highest that Muster has not touched are assumed. Where Muster holds
        something of a device that is gone, the record goes below zero, so that the devices always add up to the columns
        of device resources (also when a node comes back with devices of another kind).
        """
        free = [DEVICE_MILLIS] * self.devices + [0] * (len(taken) - self.devices)
        for device, millis in enumerate(taken):
            free[device] -= millis
        others = self.others_millis
        if others:
            descending = range(self.devices - 1, -1, -1)
            untouched = [d for d in descending if free[d] == DEVICE_MILLIS]
            for device in untouched + [d for d in descending if free[d] != DEVICE_MILLIS]:
                if others:
                    free[device] -= DEVICE_MILLIS
                    others -= DEVICE_MILLIS
            if self.devices:
                free[self.devices - 1] -= others  # more than there is
        return free


def describe(
    spec: NodeSpec, zones: tuple[Zone, ...], columns: Mapping[str, int], *, cluster: int, removed: bool
) -> NodeFacts:
    """Work out a node's numbers. A removed node has nothing, so only what is still held shows (below zero)."""
    has = dict(spec.allocatable)
    has.setdefault(PODS, PODS_PER_NODE_DEFAULT)
    others = dict(spec.used_by_others)
    resource, devices = _devices_of(spec, has)
    others_millis = 0
    if resource:
        # Devices the kubelet does not offer (unhealthy) are as unknown as those of others: both are taken off whole.
        whole = devices * DEVICE_MILLIS
        held = others.get(resource, 0) + max(whole - has.get(resource, whole), 0)
        others_millis = -(-held // DEVICE_MILLIS) * DEVICE_MILLIS
        has[resource], others[resource] = whole, others_millis
    if removed:
        has, others, devices, others_millis = {}, {}, 0, 0
    allocatable = [has.get(name, 0) for name in columns]
    return NodeFacts(
        spec=spec,
        zones=zones,
        cluster=cluster,
        removed=removed,
        open=spec.ready and not spec.cordoned and not removed,
        allocatable=allocatable,
        capacity=[amount - others.get(name, 0) for name, amount in zip(columns, allocatable, strict=True)],
        device_column=columns[resource] if devices else -1,
        devices=devices,
        others_millis=others_millis,
        labels=dict(spec.labels),
    )


def _devices_of(spec: NodeSpec, has: Mapping[str, int]) -> tuple[str, int]:
    """The device resource and the number of devices; read from allocatable where the report does not name them."""
    resource, devices = spec.device_resource, spec.devices
    if not resource or not devices:
        found = [name for name in DEVICE_RESOURCES if has.get(name)]
        if not found:
            return "", 0
        resource, devices = found[0], has[found[0]] // DEVICE_MILLIS
    return resource, min(devices, DEVICES_PER_NODE_MAX)


class Demand:
    """What one pod takes: `pairs` of (column, amount) with its pod slot; `whole` devices or a `share` of one."""

    __slots__ = ("device_column", "device_millis", "impossible", "pairs", "requests", "share", "unknown", "whole")

    def __init__(self, requests: Amounts, columns: Mapping[str, int]) -> None:
        self.requests = requests
        self.unknown = tuple(name for name, _ in requests if name not in columns)  # no node ever had it
        wanted = dict(requests)
        wanted[PODS] = wanted.get(PODS, 0) + 1
        self.pairs = tuple(sorted((columns[name], n) for name, n in wanted.items() if name in columns))
        devices = [(name, n) for name, n in requests if is_device(name)]
        self.whole = self.share = self.device_millis = 0
        self.device_column = -1
        self.impossible = bool(self.unknown) or len(devices) > 1  # of one kind at most (`resources.check_devices`)
        for name, millis in devices:
            self.device_column = columns.get(name, -1)
            self.device_millis = min(millis, DEVICE_MILLIS)
            if millis < DEVICE_MILLIS:
                self.share = millis
            else:
                self.whole = millis // DEVICE_MILLIS
                self.impossible = self.impossible or millis % DEVICE_MILLIS != 0

    def devices_per_pod(self) -> int:
        return self.whole or (1 if self.share else 0)

    @property
    def devices(self) -> int:
        """Thousandths of a device that one pod asks for."""
        return self.whole * DEVICE_MILLIS or self.share

    def takes(self, row: Row) -> bool:
        """Whether the row has room for one, resources and devices alone."""
        free = row.free
        for column, amount in self.pairs:
            if free[column] < amount:
                return False
        if self.whole:
            return row.devices.count(DEVICE_MILLIS) >= self.whole
        return not self.share or max(row.devices, default=0) >= self.share

    def fit(self, row: Row) -> int:
        """How many such pods the row takes, resources and devices alone."""
        count = self.fit_resources(row)
        if count and self.whole:
            return min(count, row.devices.count(DEVICE_MILLIS) // self.whole)
        if count and self.share:
            return min(count, sum(millis // self.share for millis in row.devices if millis > 0))
        return count

    def fit_best_device(self, row: Row) -> int:
        """As `fit`, but of shares only those that the device with the least sufficient room takes."""
        if not self.share:
            return self.fit(row)
        room = [millis for millis in row.devices if millis >= self.share]
        return min(self.fit_resources(row), min(room) // self.share) if room else 0

    def fit_resources(self, row: Row) -> int:
        """As `fit`, by the columns alone."""
        free = row.free
        return max(0, min(free[column] // amount for column, amount in self.pairs))


def charge_row(row: Row, facts: NodeFacts, demand: Demand, count: int, devices: bytes) -> None:
    """Take `count` pods off the row, or give them back when `count` is negative; `devices` are those of all of them."""
    free = row.free
    for column, amount in demand.pairs:
        free[column] -= amount * count
    if not demand.device_millis:
        return
    if len(devices) != demand.devices_per_pod() * abs(count):
        raise InvariantBroken(
            f"I1: {abs(count)} pods with {demand.requests} on node {facts.spec.name} hold {len(devices)} devices"
        )
    millis = demand.device_millis if count > 0 else -demand.device_millis
    taken = row.taken
    if facts.others_millis or len(taken) <= max(devices):
        taken += [0] * (max(devices) + 1 - len(taken))
        for device in devices:
            taken[device] += millis
        row.devices = facts.free_devices(taken)
        return
    for device in devices:
        taken[device] += millis
        row.devices[device] -= millis


class ChangeLog:
    """Row numbers in the order they changed; readers remember how far they have read. Old entries are cut off."""

    __slots__ = ("_first", "_rows", "end")

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._first = 0
        self.end = 0  # the cursor of a reader that has seen everything

    def append(self, row: int, nodes: int) -> None:
        rows = self._rows
        rows.append(row)
        self.end += 1
        if len(rows) > LOG_ROWS_MIN and len(rows) > 4 * nodes:
            cut = len(rows) // 2
            del rows[:cut]
            self._first += cut

    def since(self, cursor: int) -> list[int] | None:
        """Rows that changed since `cursor`, each once, in order of first change; None: read all rows afresh."""
        if cursor < self._first:
            return None
        if cursor == self.end:
            return []
        return list(dict.fromkeys(self._rows[cursor - self._first :]))
