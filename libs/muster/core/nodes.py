"""The node table: what every node has, and what of it is free now.

`apply` is the only writer (`upsert`, `remove`, `set_zones`, `charge_placement`, `release_pods`); everything that places
or explains reads. A row is kept as plain integers, because one decision touches one or two rows and Python reads its
own lists ten times faster than an array's cells; the NumPy views (`free`, `allocatable`, `device_free`) are brought up
to date from the change log when somebody asks for them. Every derived structure works that way: it remembers how far it
has read in the log and visits only the rows named since (rule: cost follows what changed).

A row is a function of the node's description and of what is charged to it, never of the order in which either arrived,
so a table loaded from a snapshot decides as the one that was dumped. Free may become negative when a node shrinks or
others fill it: that is recorded as it is, and such a node takes nothing more (I1). The index of (cluster, name) is for
ever: pods of a lost node still refer to it, and when the node comes back what they hold is still charged (LOG-15).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from muster.core import layout
from muster.core.errors import InvariantBroken
from muster.core.limits import NODES_MAX
from muster.core.model import Amounts, GroupPlacement, NodeSpec, TaskGroup, Zone
from muster.core.node_arrays import BoolArray, Described, Int32Array, Int64Array, NodeArrays
from muster.core.resources import CPU, MEMORY, PODS
from muster.core.rows import (
    CPU_COLUMN,
    MEMORY_COLUMN,
    PODS_COLUMN,
    ChangeLog,
    Demand,
    NodeFacts,
    Row,
    charge_row,
    describe,
)

if TYPE_CHECKING:
    from muster.core.shapes import ShapeCache

DEMANDS_MAX: Final = 4096  # remembered; then they are worked out again


class NodeTable:
    """Nodes by index; see the module's text. `facts` and `rows` are read by the placement modules only."""

    def __init__(self) -> None:
        self.columns: dict[str, int] = {CPU: CPU_COLUMN, MEMORY: MEMORY_COLUMN, PODS: PODS_COLUMN}
        self.facts: list[NodeFacts] = []
        self.rows: list[Row] = []
        self.changes = ChangeLog()  # rows whose free amounts or description changed
        self.spec_changes = ChangeLog()  # rows whose description changed
        self.cluster_names: list[str] = []
        self.cluster_totals: list[list[int]] = []  # cluster x column, allocatable of nodes that are not removed
        self.cluster_usable: list[list[int]] = []  # cluster x column, of open nodes, less what others use
        self.derived: ShapeCache | None = None  # made by `shapes.cache_of`, never stored
        self._indices: dict[tuple[str, str], int] = {}
        self._demands: dict[Amounts, Demand] = {}
        self._arrays = NodeArrays()
        self._described = Described()

    # --- nodes ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many indices were ever given, removed nodes included."""
        return len(self.rows)

    @property
    def next_index(self) -> int:
        return len(self.rows)

    def index_of(self, cluster: str, name: str) -> int | None:
        """The index of the node, also when it is removed; None when it was never seen."""
        return self._indices.get((cluster, name))

    def spec(self, index: int) -> NodeSpec:
        return self.facts[index].spec

    def zones(self, index: int) -> tuple[Zone, ...]:
        return self.facts[index].zones

    def is_removed(self, index: int) -> bool:
        return self.facts[index].removed

    def live(self, cluster: str) -> list[int]:
        """Indices of the cluster's nodes that are not removed, ascending."""
        return [n for n, facts in enumerate(self.facts) if facts.spec.cluster == cluster and not facts.removed]

    def upsert(self, index: int, spec: NodeSpec) -> None:
        """Add the node at `next_index`, or replace the description of the one at its index."""
        known = self._indices.get((spec.cluster, spec.name))
        if known is None and index == len(self.rows) and index < NODES_MAX:
            self._indices[spec.cluster, spec.name] = index
            self._register(spec)
            self.facts.append(describe(spec, (), self.columns, cluster=self._cluster(spec.cluster), removed=True))
            self.rows.append(Row([0] * len(self.columns), [], []))
        elif known != index:
            raise InvariantBroken(f"node {spec.cluster}/{spec.name} has index {known}, not {index}")
        self._register(spec)
        old = self.facts[index]
        self._describe(index, describe(spec, old.zones, self.columns, cluster=old.cluster, removed=False))

    def remove(self, index: int) -> None:
        """The node is gone from its cluster; what is charged to it stays charged until its pods are gone."""
        old = self.facts[index]
        self._describe(index, describe(old.spec, old.zones, self.columns, cluster=old.cluster, removed=True))

    def set_zones(self, index: int, zones: tuple[Zone, ...]) -> None:
        old = self.facts[index]
        new = describe(old.spec, zones, self.columns, cluster=old.cluster, removed=old.removed)
        self._describe(index, new)

    def _describe(self, index: int, new: NodeFacts) -> None:
        """Put `new` in place of the old description: what is used stays, what is free follows."""
        old, row = self.facts[index], self.rows[index]
        totals, usable = self.cluster_totals[new.cluster], self.cluster_usable[new.cluster]
        for facts, sign in ((old, -1), (new, 1)):
            if not facts.removed:
                for column, amount in enumerate(facts.allocatable):
                    totals[column] += sign * amount
            if facts.open:
                for column, amount in enumerate(facts.capacity):
                    usable[column] += sign * max(amount, 0)
        row.free = [free + b - a for free, a, b in zip(row.free, old.capacity, new.capacity, strict=True)]
        row.devices = new.free_devices(row.taken)
        row.taken += [0] * (len(row.devices) - len(row.taken))
        self.facts[index] = new
        self.changes.append(index, len(self.rows))
        self.spec_changes.append(index, len(self.rows))

    def _cluster(self, name: str) -> int:
        if name not in self.cluster_names:
            self.cluster_names.append(name)
            self.cluster_totals.append([0] * len(self.columns))
            self.cluster_usable.append([0] * len(self.columns))
        return self.cluster_names.index(name)

    def _register(self, spec: NodeSpec) -> None:
        for resource, _ in spec.allocatable + spec.used_by_others:
            if resource not in self.columns:
                self._add_column(resource)
        if spec.device_resource and spec.device_resource not in self.columns:
            self._add_column(spec.device_resource)

    def _add_column(self, resource: str) -> None:
        self.columns[resource] = len(self.columns)
        for row in self.rows:
            row.free.append(0)
        for facts in self.facts:
            facts.allocatable.append(0)
            facts.capacity.append(0)
        for totals in self.cluster_totals + self.cluster_usable:
            totals.append(0)
        self._demands.clear()
        self._arrays, self._described = NodeArrays(), Described()
        if self.derived is not None:
            self.derived.forget()

    # --- what is used -----------------------------------------------------------------------------------------------

    def demand(self, requests: Amounts) -> Demand:
        """What a pod with `requests` takes from a row; remembered."""
        found = self._demands.get(requests)
        if found is None:
            if len(self._demands) >= DEMANDS_MAX:
                self._demands.clear()
            found = self._demands[requests] = Demand(requests, self.columns)
        return found

    def charge(self, index: int, requests: Amounts, count: int, devices: bytes = b"") -> None:
        """`count` pods with `requests` each are placed on the node, on these devices."""
        self._change(index, requests, count, devices)

    def release(self, index: int, requests: Amounts, count: int, devices: bytes = b"") -> None:
        """The opposite of `charge`."""
        self._change(index, requests, -count, devices)

    def charge_placement(self, tasks: Sequence[TaskGroup], placement: Sequence[GroupPlacement]) -> None:
        for group in placement:
            requests = tasks[group.group].requests
            width, at = layout.devices_per_pod(group), 0
            for node, count in group.runs:
                self._change(node, requests, count, group.devices[at : at + width * count])
                at += width * count

    def release_pods(
        self,
        tasks: Sequence[TaskGroup],
        placement: Sequence[GroupPlacement],
        positions: Iterable[int] | None = None,
    ) -> None:
        """The pods at `positions` are gone (None: all of the placement). Positions that are not placed are skipped."""
        runs = layout.runs_of(placement) if positions is None else layout.select(tasks, placement, sorted(positions))
        for group, node, count, devices in runs:
            self._change(node, tasks[group].requests, -count, devices)

    def _change(self, index: int, requests: Amounts, count: int, devices: bytes) -> None:
        demand = self.demand(requests)
        if demand.unknown:  # what runs is recorded, also when no node offers it any more
            for resource in demand.unknown:
                self._add_column(resource)
            demand = self.demand(requests)
        charge_row(self.rows[index], self.facts[index], demand, count, devices)
        self.changes.append(index, len(self.rows))

    # --- reading ----------------------------------------------------------------------------------------------------

    def capacity(self, cluster: str | None = None) -> Amounts:
        """What there is to share out, of one cluster or of all: of nodes that are ready and not cordoned, less what
        pods that are not Muster's use. Shares of anything else would be promises that nobody can keep (rule F1).
        """
        wanted = [t for name, t in zip(self.cluster_names, self.cluster_usable, strict=True) if cluster in (None, name)]
        return self._amounts([sum(column) for column in zip(*wanted, strict=True)]) if wanted else ()

    def free_amounts(self, index: int) -> Amounts:
        """What is free on the node; may be negative."""
        return self._amounts(self.rows[index].free)

    def _amounts(self, values: Sequence[int]) -> Amounts:
        return tuple(sorted((name, values[column]) for name, column in self.columns.items() if values[column]))

    @property
    def allocatable(self) -> Int64Array:
        """[node, column]: what an empty node has; what others use is not taken off."""
        return self._arrays.synced(self).allocatable

    @property
    def free(self) -> Int64Array:
        """[node, column]: what is free now; may be negative."""
        return self._arrays.synced(self).free

    @property
    def device_free(self) -> Int32Array:
        """[node, device]: free thousandths of each device, 0 where there is none."""
        return self._arrays.synced(self).device_free

    @property
    def overdrawn(self) -> BoolArray:
        """By node, whether something is below zero: then the node takes nothing more (I1)."""
        return self._arrays.synced(self).overdrawn()

    @property
    def described(self) -> Described:
        """What the descriptions say, as arrays."""
        return self._described.synced(self)
