"""Try placements on a copy that is thrown away (style rule 5).

`decide`, `explain` and the preemptor make an `Overlay` over the node table, charge what they intend, release what they
would evict, and read the result off its return values; the table itself never changes. Rows are copied when first
touched and orders when first used, so an overlay costs what it touches. A gang is tried on a second level (`Trial`)
whose rows become the overlay's only when the whole gang fits: nothing has to be undone.

The rule for a gang, exactly (G1). Its groups are taken in this order: groups that ask for devices, then groups with a
selector or affinity, then the others; by position within. Each gets its minimum, pod by pod, every pod on the best
node of `placement` (SPREAD first looks at the nodes with the fewest pods of the group); if one cannot, the gang does
not fit. Then, in the same order, each gets as many of its further replicas as fit; a gang of which no pod at all is
placed does not fit either. A gang lies in one cluster. Of the
clusters where it fits the best is the one with the most pods placed, then the fewest nodes used (the most, when the
first group taken spreads), then the least (tier, primary, secondary) of the first pod's node, then the first name. For
a gang of one pod that is the best node of all clusters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Container, Iterable, Sequence
from typing import Final

from muster.core import layout
from muster.core.candidates import Order, OverlayOrder
from muster.core.errors import InvariantBroken
from muster.core.gang_trial import Trial
from muster.core.model import GroupPlacement, TaskGroup
from muster.core.node_arrays import Int64Array
from muster.core.nodes import NodeTable
from muster.core.placement import INDEX_BITS, INDEX_MASK, choose_devices, sound_devices
from muster.core.rows import Row, charge_row
from muster.core.shapes import Shape, cache_of

NOBODY: Final[frozenset[int]] = frozenset()
Spot = tuple[int, int, int]  # (tier, primary and secondary part of the key, node)


class Overlay:
    """What the cell would look like; see the module's text. The table must not change while the overlay lives."""

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self.cache = cache_of(table)
        self._built_on = table.changes.end
        self._rows: dict[int, Row] = {}
        self._log: list[int] = []  # rows in the order they were touched
        self._orders: dict[Order, OverlayOrder] = {}
        self._clusters = self.cache.clusters()
        self._unfit: dict[int, int] = {}  # shape -> fewest pods known not to fit; charging cannot make room
        self._unfit_gangs: dict[tuple[tuple[int, int], ...], bool] = {}

    # --- rows -------------------------------------------------------------------------------------------------------

    def row(self, n: int) -> Row:
        """What is free on node `n` here. Not to be changed."""
        return self._rows.get(n) or self.table.rows[n]

    def touched(self) -> list[int]:
        """Nodes whose rows may differ from the table's, in order of first touch."""
        return list(self._rows)

    def _own(self, n: int) -> Row:
        row = self._rows.get(n)
        if row is None:
            row = self._rows[n] = self.table.rows[n].copy()
        self._log.append(n)
        return row

    def charge(self, groups: Sequence[TaskGroup], placement: Sequence[GroupPlacement]) -> None:
        """As if the placement were made (whether it fits or not: see `fits`)."""
        for group, n, count, devices in layout.runs_of(placement):
            self._change(groups[group], n, count, devices)

    def release(
        self,
        groups: Sequence[TaskGroup],
        placement: Sequence[GroupPlacement],
        pods: Iterable[int] | None = None,
    ) -> None:
        """As if the pods at these positions (None: all of the placement) were gone."""
        runs = layout.runs_of(placement) if pods is None else layout.select(groups, placement, sorted(pods))
        for group, n, count, devices in runs:
            self._change(groups[group], n, -count, devices)
        self._unfit.clear()
        self._unfit_gangs.clear()

    def _change(self, group: TaskGroup, n: int, count: int, devices: bytes) -> None:
        charge_row(self._own(n), self.table.facts[n], self.table.demand(group.requests), count, devices)

    # --- candidates -------------------------------------------------------------------------------------------------

    def _copy(self, base: Order) -> OverlayOrder:
        if self.table.changes.end != self._built_on:
            raise InvariantBroken("the node table changed under an overlay")
        order = self._orders[base] = OverlayOrder(base.synced(self.table))
        order.follow(self._rows, self._rows)
        order.cursor = len(self._log)
        return order

    def order(self, base: Order) -> OverlayOrder:
        """The order with everything charged here in it."""
        order = self._orders.get(base)
        log = self._log
        if order is None:
            order = self._copy(base)
        elif order.cursor != len(log):
            touched = log[order.cursor :]
            order.follow(touched if len(touched) == 1 else dict.fromkeys(touched), self._rows)
            order.cursor = len(log)
        return order

    def best(self, shape: Shape, clusters: Sequence[int], suspects: Collection[int]) -> Spot | None:
        """The node for one more pod of the shape."""
        found: Spot | None = None
        for cluster in clusters:
            for tier, base in enumerate(shape.orders(cluster, self.cache)):
                key = self._first_fit(self.order(base), shape, suspects)
                if key >= 0:
                    rank = key >> INDEX_BITS
                    if found is None or (tier, rank) < found[:2]:
                        found = (tier, rank, key & INDEX_MASK)
                    break
        return found

    def _first_fit(self, order: OverlayOrder, shape: Shape, suspects: Collection[int]) -> int:
        keys, high = order.keys, shape.high
        takes, rows, base = shape.demand.takes, self._rows, self.table.rows
        i = start = bisect_right(keys, -shape.low) - 1
        found = -1
        while i >= 0:
            key = -keys[i]
            if key >= high:
                break
            n = key & INDEX_MASK
            if takes(rows.get(n) or base[n]) and n not in suspects:
                found = key
                break
            i -= 1
        if i != start:
            shape.note_walk(start - i, len(keys), self.cache)
        return found

    # --- placing ----------------------------------------------------------------------------------------------------

    def place_gang(
        self,
        groups: Sequence[TaskGroup],
        *,
        cluster_mask: Container[str] | None = None,
        suspects: Collection[int] = NOBODY,
    ) -> tuple[GroupPlacement, ...] | None:
        """Place all groups, each with at least its minimum, and charge the result; None: nothing has changed.

        `cluster_mask` holds the names of the clusters that may be used (None: all), `suspects` nodes that may not.
        """
        clusters = self.allowed(cluster_mask)
        everywhere = cluster_mask is None and not suspects
        if len(groups) == 1 and groups[0].replicas == groups[0].min_replicas == 1:
            shape = self.cache.shape(groups[0])
            if shape.demand.impossible or self._unfit.get(shape.number, 2) <= 1:
                return None
            spot = self.best(shape, clusters, suspects)
            if spot is not None:
                return (GroupPlacement(0, ((spot[2], 1),), self._take(shape, spot[2], 1)),)
            if everywhere:
                self._unfit[shape.number] = 1
            return None
        return self._place_gang(groups, clusters, suspects, everywhere=everywhere)

    def _place_gang(
        self,
        groups: Sequence[TaskGroup],
        clusters: Sequence[int],
        suspects: Collection[int],
        *,
        everywhere: bool,
    ) -> tuple[GroupPlacement, ...] | None:
        shapes = [self.cache.shape(group) for group in groups]
        for shape, group in zip(shapes, groups, strict=True):
            least = group.min_replicas
            if least and (shape.demand.impossible or self._unfit.get(shape.number, least + 1) <= least):
                return None
        gang = tuple((shape.number, group.min_replicas) for shape, group in zip(shapes, groups, strict=True))
        if gang in self._unfit_gangs:
            return None
        placed = self._place_trial(groups, shapes, clusters, suspects)
        if placed is None and everywhere:
            self._unfit_gangs[gang] = True
            if len(groups) == 1:
                self._unfit[shapes[0].number] = groups[0].min_replicas
        return placed

    def allowed(self, cluster_mask: Container[str] | None) -> list[int]:
        """Numbers of the clusters in the mask, by name."""
        if cluster_mask is None:
            return self._clusters
        names = self.table.cluster_names
        return [c for c in self._clusters if names[c] in cluster_mask]

    def _take(self, shape: Shape, n: int, count: int) -> bytes:
        """Charge `count` pods to the node; their devices."""
        row, facts, demand = self._own(n), self.table.facts[n], shape.demand
        devices = choose_devices(row, facts, demand, count) if demand.device_millis else b""
        charge_row(row, facts, demand, count, devices)
        return devices

    def _place_trial(
        self,
        groups: Sequence[TaskGroup],
        shapes: Sequence[Shape],
        clusters: Sequence[int],
        suspects: Collection[int],
    ) -> tuple[GroupPlacement, ...] | None:
        best: Trial | None = None
        for cluster in clusters:
            trial = Trial(self, cluster, suspects)
            if trial.place(groups, shapes) and (best is None or trial.score() < best.score()):
                best = trial
        if best is None:
            return None
        self._rows.update(best.rows)
        self._log += best.rows
        return best.placement()

    def place_many(
        self,
        group: TaskGroup,
        count: int,
        *,
        cluster_mask: Container[str] | None = None,
        suspects: Collection[int] = NOBODY,
    ) -> list[tuple[int, int, bytes]]:
        """Place up to `count` one-pod jobs of the group's shape one after the other and charge them.

        Runs of (node, pods, devices of all of them), the jobs in order along the runs; exactly what `place_gang` for
        each job in turn would give. Fewer pods than `count` when no more fit.
        """
        shape = self.cache.shape(group)
        clusters = self.allowed(cluster_mask)
        runs: list[tuple[int, int, bytes]] = []
        while count > 0 and not shape.demand.impossible:
            spot = self.best(shape, clusters, suspects)
            if spot is None:
                break
            n = spot[2]
            # A node that was the best and got a pod is still the best under PACK: its key became less.
            pods = 1 if shape.spread else min(count, shape.demand.fit_best_device(self.row(n)))
            devices = self._take(shape, n, pods)
            runs.append((n, pods, devices))
            count -= pods
        return runs

    # --- asking -----------------------------------------------------------------------------------------------------

    def fits(
        self,
        groups: Sequence[TaskGroup],
        placement: Sequence[GroupPlacement],
    ) -> bool:
        """Whether exactly this placement could be made now: eligible nodes of one cluster, resources, devices (P6)."""
        trial = Trial(self, -1, NOBODY)
        seen: list[int] = []
        for index, n, count, devices in layout.runs_of(placement):
            if not 0 <= n < len(self.table) or not 0 <= index < len(groups) or count < 1:
                return False
            shape = self.cache.shape(groups[index])
            seen.append(self.table.facts[n].cluster)
            row = trial.own(n)
            shape.eligibility.synced(self.table)
            if shape.fit(n, row) < count or not sound_devices(row, shape.demand, count, devices):
                return False
            charge_row(row, self.table.facts[n], shape.demand, count, devices)
        return all(cluster == seen[0] for cluster in seen)

    def fit_counts(self, group: TaskGroup) -> Int64Array:
        """By node: pods of this group that would fit there now."""
        shape = self.cache.shape(group)
        counts = shape.fit_now(self.table).counts.copy()
        for n, row in self._rows.items():
            counts[n] = shape.fit(n, row)
        return counts

    def can_fit_count(
        self,
        group: TaskGroup,
        *,
        cluster_mask: Container[str] | None = None,
        suspects: Collection[int] = NOBODY,
    ) -> int:
        """Pods of this group that would fit now, in the cluster that takes the most."""
        shape = self.cache.shape(group)
        now = shape.fit_now(self.table)
        totals, facts = list(now.totals), self.table.facts
        for n, row in self._rows.items():
            totals[facts[n].cluster] += shape.fit(n, row) - int(now.counts[n])
        for n in sorted(suspects):
            if n < len(facts):
                totals[facts[n].cluster] -= shape.fit(n, self.row(n))
        return max((totals[c] for c in self.allowed(cluster_mask)), default=0)
