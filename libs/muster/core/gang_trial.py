"""One gang, tried in one cluster, on rows of its own.

The trial reads the overlay's rows and orders and changes neither. Nodes it has put pods on have moved in every order;
they are few, so they are kept aside in a heap and the next best node is the lesser of the heap's top and the next node
of the order that the trial has not touched. A node of the order that does not fit is passed for good: within a trial
nothing becomes free. The rule it follows is stated in `overlay` and `placement`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from muster.core.candidates import OverlayOrder
from muster.core.model import GroupPlacement, TaskGroup
from muster.core.placement import INDEX_BITS, INDEX_MASK, choose_devices
from muster.core.rows import Row, charge_row
from muster.core.shapes import Shape

if TYPE_CHECKING:
    from muster.core.overlay import Overlay

Candidate = tuple[int, int, int]  # (pods of the group there when it spreads, key, how often the node was charged)


class _Group:
    """What one group has so far: pods and devices by node in order of first use."""

    __slots__ = ("devices", "own", "placed", "pods")

    def __init__(self) -> None:
        self.placed = 0
        self.pods: dict[int, int] = {}
        self.devices: dict[int, bytes] = {}

    def add(self, n: int, pods: int, devices: bytes) -> None:
        self.placed += pods
        self.pods[n] = self.pods.get(n, 0) + pods
        if devices:
            self.devices[n] = self.devices.get(n, b"") + devices


class Trial:
    """`rows` are the rows as the gang would leave them."""

    def __init__(self, overlay: Overlay, cluster: int, suspects: Collection[int]) -> None:
        self.rows: dict[int, Row] = {}
        self._overlay = overlay
        self._facts = overlay.table.facts
        self._cluster = cluster
        self._suspects = suspects
        self._groups: list[_Group] = []
        self._first: tuple[int, int] | None = None  # (tier, primary and secondary) of the first pod's node
        self._first_spreads = False

    def own(self, n: int) -> Row:
        """The trial's row for the node, which the caller may change."""
        row = self.rows.get(n)
        if row is None:
            row = self.rows[n] = self._overlay.row(n).copy()
        return row

    def place(self, groups: Sequence[TaskGroup], shapes: Sequence[Shape]) -> bool:
        """Whether every group got its minimum, and any pod is placed; also places the other replicas that fit."""
        self._groups = [_Group() for _ in groups]
        # rule G1: the groups that are hardest to place choose first: small pods would break up what large ones need
        turns = sorted(range(len(groups)), key=lambda g: (-shapes[g].demand.devices, not shapes[g].constrained, g))
        self._first_spreads = shapes[turns[0]].spread
        for g in turns:
            if not self._fill(shapes[g], groups[g].min_replicas, self._groups[g]):
                return False
        for g in turns:
            if groups[g].replicas > groups[g].min_replicas:
                self._fill(shapes[g], groups[g].replicas, self._groups[g])
        return any(group.placed for group in self._groups)

    def score(self) -> tuple[int, int, tuple[int, int], str]:
        """Which cluster is better: the lesser. See `overlay`."""
        placed = sum(group.placed for group in self._groups)
        nodes = -len(self.rows) if self._first_spreads else len(self.rows)
        return -placed, nodes, self._first or (0, 0), self._overlay.table.cluster_names[self._cluster]

    def placement(self) -> tuple[GroupPlacement, ...]:
        return tuple(
            GroupPlacement(g, tuple(group.pods.items()), b"".join(group.devices.values()))
            for g, group in enumerate(self._groups)
        )

    def _fill(self, shape: Shape, wanted: int, group: _Group) -> bool:
        """Bring the group to `wanted` pods, or to as many as fit."""
        if shape.demand.impossible:
            return wanted == 0
        for tier, base in enumerate(shape.orders(self._cluster, self._overlay.cache)):
            if group.placed >= wanted:
                break
            self._fill_tier(shape, wanted, group, self._overlay.order(base), tier)
        return group.placed >= wanted

    def _fill_tier(self, shape: Shape, wanted: int, group: _Group, order: OverlayOrder, tier: int) -> None:
        demand, spread = shape.demand, shape.spread
        keys = order.keys  # negated, best last
        at = bisect_right(keys, -shape.low) - 1
        end = bisect_right(keys, -shape.high) - 1
        touched: list[Candidate] = []
        charged: dict[int, int] = {}
        for n in self.rows:
            self._offer(touched, shape, order, n, (group.pods.get(n, 0), 0))
        passed = 0
        while group.placed < wanted:
            while at > end and not self._is_new(-keys[at] & INDEX_MASK, shape):
                at -= 1
                passed += 1
            while touched and not self._is_current(touched[0], charged, shape):
                heappop(touched)
            if at > end and (not touched or (0, -keys[at]) < touched[0][:2]):
                key = -keys[at]
                at -= 1
            elif touched:
                key = heappop(touched)[1]
            else:
                break
            n = key & INDEX_MASK
            row = self.own(n)
            pods = 1 if spread else min(wanted - group.placed, demand.fit_best_device(row))
            if self._first is None:
                self._first = (tier, key >> INDEX_BITS)
            devices = choose_devices(row, self._facts[n], demand, pods)
            charge_row(row, self._facts[n], demand, pods, devices)
            group.add(n, pods, devices)
            charged[n] = charged.get(n, 0) + 1
            if group.placed < wanted and (spread or demand.share):
                self._offer(touched, shape, order, n, (group.pods[n], charged[n]))
        if passed:
            shape.note_walk(passed, len(keys), self._overlay.cache)

    def _is_new(self, n: int, shape: Shape) -> bool:
        """Whether the trial has not touched the node and a pod fits on it."""
        return n not in self.rows and n not in self._suspects and shape.demand.takes(self._overlay.row(n))

    def _is_current(self, candidate: Candidate, charged: dict[int, int], shape: Shape) -> bool:
        n = candidate[1] & INDEX_MASK
        return candidate[2] == charged.get(n, 0) and shape.demand.takes(self.rows[n])

    def _offer(
        self, touched: list[Candidate], shape: Shape, order: OverlayOrder, n: int, stand: tuple[int, int]
    ) -> None:
        """Put the node's keys as they are now into the heap. `stand`: pods of the group there, times charged."""
        pods, times = stand
        for key in order.base.keys_of(n, self.rows[n]):
            if shape.low <= -key < shape.high:
                heappush(touched, (pods if shape.spread else 0, -key, times))
