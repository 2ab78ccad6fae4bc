"""Shapes: pods that ask for the same are asked about once.

A shape is what placement can see of a task group: requests, constraints and policy. Jobs of the same shape share its
eligibility (which nodes may it be on), its fit vectors (how many such pods each node takes, now and when empty) and the
sorted orders of `candidates`. All of it is derived from the node table, hangs on it and follows its change logs; losing
it costs time and never changes a decision, so it is simply thrown away when it grows over a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from muster.core.affinity import Exclusion, exclusion
from muster.core.candidates import Order
from muster.core.model import Pairs, Requirement, TaskGroup, Toleration
from muster.core.node_arrays import REBUILD_SHARE, Int32Array, Int64Array
from muster.core.nodes import NodeTable
from muster.core.placement import SPREAD, Ranking, dominant_column, key_range, rankings
from muster.core.resources import DEVICE_MILLIS
from muster.core.rows import PODS_COLUMN, Demand, NodeFacts, Row

SHAPES_MAX: Final = 4096
ORDERS_MAX: Final = 512
OWN_ORDERS_MAX: Final = 64  # shapes that have an order of their own, see `Shape.note_walk`

Constraints = tuple[Pairs, tuple[tuple[Requirement, ...], ...], tuple[Toleration, ...]]


class Eligibility:
    """Which nodes a set of constraints allows: `suits` whatever their state, `usable` those that are open as well.
    `tainted`: they would suit but for a taint."""

    __slots__ = ("_cursor", "constraints", "number", "suits", "tainted", "usable")

    def __init__(self, number: int, constraints: Constraints) -> None:
        self.number = number
        self.constraints = constraints
        self.suits = bytearray()
        self.usable = bytearray()
        self.tainted = bytearray()
        self._cursor = -1

    def exclusion(self, facts: NodeFacts) -> Exclusion:
        selector, affinity, tolerations = self.constraints
        if not (selector or affinity or facts.spec.taints):
            return Exclusion.NONE
        return exclusion(
            facts.labels,
            facts.spec.taints,
            node_selector=selector,
            affinity=affinity,
            tolerations=tolerations,
        )

    def synced(self, table: NodeTable) -> Eligibility:
        end = table.spec_changes.end
        if self._cursor != end:
            changed: Sequence[int] | None = table.spec_changes.since(self._cursor)
            for mask in (self.suits, self.usable, self.tainted):
                mask.extend(bytes(len(table) - len(mask)))
            if changed is None or len(changed) * REBUILD_SHARE > len(table):
                changed = self._start_afresh(table)
            for n in changed:
                facts = table.facts[n]
                why = self.exclusion(facts)
                suits = not facts.removed and why is Exclusion.NONE
                self.suits[n] = suits
                self.tainted[n] = why is Exclusion.TAINT
                self.usable[n] = suits and facts.open
            self._cursor = end
        return self

    def _start_afresh(self, table: NodeTable) -> Sequence[int]:
        """All masks, but for the nodes that have to be looked at one by one: they are returned."""
        selector, affinity, _ = self.constraints
        nodes = len(table)
        self.tainted[:] = bytes(nodes)
        if selector:  # most of them name few of the nodes
            self.suits[:] = self.usable[:] = bytes(nodes)
            key, value = selector[0]
            return [n for n, facts in enumerate(table.facts) if facts.labels.get(key) == value]
        if affinity:
            return range(nodes)
        described = table.described
        self.suits[:] = (~described.removed).tobytes()
        self.usable[:] = described.open.tobytes()
        return [int(n) for n in np.flatnonzero(described.has_taints)]


class FitVector:
    """How many pods of a shape each node takes: `counts` by node, `totals` by cluster. `empty`: if nothing ran there
    and every node were open."""

    __slots__ = ("_cursor", "_empty", "_shape", "counts", "totals")

    def __init__(self, shape: Shape, *, empty: bool) -> None:
        self._shape = shape
        self._empty = empty
        self._cursor = -1
        self.counts: Int64Array = np.zeros(0, np.int64)
        self.totals: list[int] = []

    def synced(self, table: NodeTable) -> FitVector:
        log = table.spec_changes if self._empty else table.changes
        if self._cursor != log.end:
            changed = log.since(self._cursor)
            if changed is None or len(self.counts) != len(table) or len(changed) * REBUILD_SHARE > len(table):
                self._rebuild(table)
            else:
                self._update(table, changed)
            self._cursor = log.end
        return self

    def _rebuild(self, table: NodeTable) -> None:
        eligibility = self._shape.eligibility.synced(table)
        if self._empty:
            mask, free, devices = eligibility.suits, table.allocatable, table.described.whole_devices
        else:
            mask, free, devices = eligibility.usable, table.free, table.device_free
        counts = fit_counts(self._shape.demand, free, devices)
        counts *= np.frombuffer(bytes(mask), np.uint8)
        if not self._empty:
            counts[table.overdrawn] = 0
        self.counts = counts
        sums = np.zeros(len(table.cluster_names), np.int64)
        np.add.at(sums, table.described.clusters, counts)
        self.totals = [int(total) for total in sums]

    def _update(self, table: NodeTable, changed: Sequence[int]) -> None:
        self._shape.eligibility.synced(table)
        for n in changed:
            facts = table.facts[n]
            count = self._shape.fit_empty(n, facts) if self._empty else self._shape.fit(n, table.rows[n])
            self.totals[facts.cluster] += count - int(self.counts[n])
            self.counts[n] = count


def fit_counts(demand: Demand, free: Int64Array, device_free: Int32Array) -> Int64Array:
    """Pods per row by resources and devices alone; what `Demand.fit` is for one row."""
    if demand.impossible or not len(free):
        return np.zeros(len(free), np.int64)
    counts = np.full(len(free), np.iinfo(np.int64).max, np.int64)
    for column, amount in demand.pairs:
        np.minimum(counts, free[:, column] // amount, out=counts)
    if demand.whole:
        np.minimum(counts, (device_free == DEVICE_MILLIS).sum(axis=1) // demand.whole, out=counts)
    elif demand.share:
        np.minimum(counts, (np.maximum(device_free, 0) // demand.share).sum(axis=1), out=counts)
    return np.maximum(counts, 0)


class Shape:
    """Everything remembered about one kind of pod. Made by `ShapeCache`."""

    __slots__ = (
        "_capacity_cursor",
        "_fit_empty",
        "_fit_now",
        "_orders",
        "constrained",
        "demand",
        "dominant",
        "eligibility",
        "high",
        "low",
        "number",
        "own_order",
        "policy",
        "spread",
        "walked",
    )

    def __init__(self, number: int, demand: Demand, eligibility: Eligibility, policy: str) -> None:
        self.number = number
        self.demand = demand
        self.eligibility = eligibility
        self.constrained = bool(eligibility.constraints[0] or eligibility.constraints[1])
        self.policy = policy
        self.spread = policy == SPREAD
        self.dominant = -1
        self.low = self.high = 0  # range of the keys it can use, see placement.key_range
        self.walked = 0  # candidates looked at in vain
        self.own_order = False
        self._capacity_cursor = -1
        self._orders: dict[int, tuple[Order, ...]] = {}  # by cluster
        self._fit_now = FitVector(self, empty=False)
        self._fit_empty = FitVector(self, empty=True)

    def fit(self, n: int, row: Row) -> int:
        """Pods of this shape that node `n` takes when `row` is what is free on it. Eligibility must be synced."""
        if self.demand.impossible or not self.eligibility.usable[n] or row.overdrawn():
            return 0
        return self.demand.fit(row)

    def fit_empty(self, n: int, facts: NodeFacts) -> int:
        """As `fit`, if nothing at all ran on the node."""
        if self.demand.impossible or not self.eligibility.suits[n]:
            return 0
        return self.demand.fit(Row(facts.allocatable, [DEVICE_MILLIS] * facts.devices, []))

    def fit_now(self, table: NodeTable) -> FitVector:
        return self._fit_now.synced(table)

    def fit_when_empty(self, table: NodeTable) -> FitVector:
        return self._fit_empty.synced(table)

    def orders(self, cluster: int, cache: ShapeCache) -> tuple[Order, ...]:
        """The orders to look for a node in, best tier first. Their keys are up to date."""
        table = cache.table
        if self._capacity_cursor != table.spec_changes.end:
            self._refresh_dominant(table)
        found = self._orders.get(cluster)
        if found is None:
            questions = rankings(self.policy, self.demand, self.dominant)
            found = tuple(cache.order(self, cluster, ranking) for ranking in questions)
            self._orders[cluster] = found
        return found

    def _refresh_dominant(self, table: NodeTable) -> None:
        totals = [sum(column) for column in zip(*table.cluster_totals, strict=True)]
        dominant = dominant_column(self.demand, totals, list(table.columns), PODS_COLUMN)
        if dominant != self.dominant:
            self.dominant = dominant
            self.low, self.high = key_range(rankings(self.policy, self.demand, dominant)[0], self.demand, dominant)
            self.forget_orders()
        self._capacity_cursor = table.spec_changes.end

    def forget_orders(self) -> None:
        self._orders.clear()

    def note_walk(self, steps: int, length: int, cache: ShapeCache) -> None:
        """Remember candidates that did not fit. When as many were looked at in vain as an order of the shape's own
        would cost to make, it gets one, which holds only nodes it fits on."""
        self.walked += steps
        if self.walked > length and not self.own_order:
            cache.give_own_order(self)


class ShapeCache:
    """All shapes and orders of a table."""

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self._shapes: dict[tuple[object, ...], Shape] = {}
        self._eligibilities: dict[Constraints, Eligibility] = {}
        self._orders: dict[tuple[object, ...], Order] = {}
        self._owners: dict[int, Shape] = {}  # shapes with an order of their own, oldest first
        self._clusters: list[int] = []
        self._made = 0  # numbers are never used again: what an old overlay still holds must not pass for something new

    def shape(self, group: TaskGroup) -> Shape:
        """The shape of the group's pods."""
        key = (group.requests, group.node_selector, group.affinity, group.tolerations, group.policy)
        found = self._shapes.get(key)
        if found is None:
            if len(self._shapes) >= SHAPES_MAX:
                self.forget()
            constraints = (group.node_selector, group.affinity, group.tolerations)
            eligibility = self._eligibilities.get(constraints)
            if eligibility is None:
                eligibility = self._eligibilities[constraints] = Eligibility(self._number(), constraints)
            demand = self.table.demand(group.requests)
            found = self._shapes[key] = Shape(self._number(), demand, eligibility, group.policy)
        return found

    def _number(self) -> int:
        self._made += 1
        return self._made

    def clusters(self) -> list[int]:
        """Numbers of the clusters, by name."""
        names = self.table.cluster_names
        if len(self._clusters) != len(names):
            self._clusters = sorted(range(len(names)), key=lambda number: names[number])
        return self._clusters

    def order(self, shape: Shape, cluster: int, ranking: Ranking) -> Order:
        """The shared order for the question, or the shape's own."""
        owner = shape if shape.own_order else None
        key = (shape.eligibility.number, cluster, ranking, -1 if owner is None else owner.number)
        found = self._orders.get(key)
        if found is None:
            if len(self._orders) >= ORDERS_MAX:
                self._forget_orders()
            found = self._orders[key] = Order(shape.eligibility, cluster, ranking, owner)
        return found

    def give_own_order(self, shape: Shape) -> None:
        if len(self._owners) >= OWN_ORDERS_MAX:
            oldest = self._owners.pop(next(iter(self._owners)))
            oldest.own_order = False
            oldest.walked = 0
            oldest.forget_orders()
            self._orders = {key: order for key, order in self._orders.items() if order.owner is not oldest}
        self._owners[shape.number] = shape
        shape.own_order = True
        shape.forget_orders()

    def _forget_orders(self) -> None:
        self._orders.clear()
        for shape in self._shapes.values():
            shape.forget_orders()

    def forget(self) -> None:
        """Start afresh; nothing but time is lost."""
        self._shapes.clear()
        self._eligibilities.clear()
        self._orders.clear()
        self._owners.clear()
        self._clusters = []


def cache_of(table: NodeTable) -> ShapeCache:
    """The table's shapes, made at first use."""
    if table.derived is None:
        table.derived = ShapeCache(table)
    return table.derived
