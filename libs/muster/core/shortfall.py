"""Why a gang does not fit, in numbers (I5), and whether it ever could (rule Q2).

`shortfall` looks with the same fit vectors that placement uses, so what it says is what the decision saw. Every node of
the cluster that comes closest is counted once: it is out for a cause that no departure changes, or it is busy, or it
takes a pod. For the busy ones it works out what one more pod lacks there; the node that lacks least tells what would
unblock the gang. `never_fits` asks the same of empty nodes, ready or not, and answers from cached sums.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from muster.core.errors import Rejected
from muster.core.model import TaskGroup
from muster.core.node_arrays import Int32Array, Int64Array
from muster.core.nodes import NodeTable
from muster.core.overlay import NOBODY, Overlay
from muster.core.resources import DEVICE_MILLIS, check_devices, format_amount, format_pair, short_name
from muster.core.rows import Demand, Row
from muster.core.shapes import Shape, cache_of

_WHOLE_SHARE: Final = 1000  # what is missing is compared in thousandths of the request
_PART_MAX: Final = 1 << 52  # keeps sums of such parts below 2**63


class Cause(StrEnum):
    """Why a node takes no pod of a group."""

    SELECTOR = "selector"
    TAINT = "taint"
    TOO_SMALL = "too small"  # even when empty
    NOT_READY = "not ready"
    CORDONED = "cordoned"
    SUSPECT = "suspect"  # a gang of this job did not start there (rule L3)
    OVERCOMMITTED = "overcommitted"  # holds more than it has
    BUSY = "busy"


CAUSES: Final = tuple(Cause)
FITS: Final = -1  # no cause

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class GroupShortfall(Struct, frozen=True):
    """One group, looked at alone, in the cluster that comes closest. Amounts are in canonical units."""

    group: int
    name: str
    needed_pods: int  # the minimum
    fitting_pods: int
    fitting_nodes: int
    suitable_nodes: int  # nodes that would take a pod if nothing ran there
    excluded: tuple[tuple[str, int], ...]  # (cause, nodes), by cause
    limiting: str  # the resource that is short on most nodes; "" when none is
    missing_on_best: int  # of `limiting`, for one more pod, on the node that lacks least
    missing_total: int  # of `limiting`, for the minimum; 0 when there is enough but scattered
    best_node: str  # "" when there is none
    unblock: str


class Shortfall(Struct, frozen=True):
    """Why a gang does not fit now."""

    cluster: str
    message: str
    groups: tuple[GroupShortfall, ...]


def shortfall(
    view: NodeTable | Overlay,
    groups: Sequence[TaskGroup],
    *,
    cluster_mask: Container[str] | None = None,
    suspects: Collection[int] = NOBODY,
) -> Shortfall:
    """What keeps the gang from being placed now. Also answers for a gang that fits (nothing is missing then)."""
    overlay = view if isinstance(view, Overlay) else Overlay(view)
    table = overlay.table
    numbers = overlay.allowed(cluster_mask)
    described = table.described
    if not np.isin(described.clusters[~described.removed], numbers).any():
        return Shortfall("", "there are no nodes it may use", ())
    counts = [overlay.fit_counts(group) for group in groups]
    for fitting in counts:
        fitting[[n for n in sorted(suspects) if n < len(fitting)]] = 0
    sight = _Sight(overlay)
    clusters = sight.clusters

    def covered(number: int) -> int:
        inside = clusters == number
        return sum(min(int(c[inside].sum()), g.min_replicas) for c, g in zip(counts, groups, strict=True))

    closest = max(numbers, key=covered)  # `numbers` is by name, so the first name wins a tie
    parts = tuple(
        _Group(sight, group, index=g, counts=counts[g], cluster=closest, suspects=suspects).explain()
        for g, group in enumerate(groups)
    )
    return Shortfall(table.cluster_names[closest], _summary(parts), parts)


def _summary(parts: Sequence[GroupShortfall]) -> str:
    short = [part for part in parts if part.fitting_pods < part.needed_pods]
    if not short:
        return "every group fits alone, but not all together" if len(parts) > 1 else "fits now"
    return "; ".join(
        f"{part.fitting_pods} of {part.needed_pods} {part.name} fit" + (f" ({part.unblock})" if part.unblock else "")
        for part in short
    )


class _Group:
    """The working of one group's answer: one value a node of the cluster in each array."""

    def __init__(
        self,
        sight: _Sight,
        group: TaskGroup,
        *,
        index: int,
        counts: Int64Array,
        cluster: int,
        suspects: Collection[int],
    ) -> None:
        self.sight = sight
        self.group = group
        self.index = index
        self.shape = sight.overlay.cache.shape(group)
        self.names = list(sight.table.columns)
        self.nodes = np.flatnonzero((sight.clusters == cluster) & ~sight.removed)
        self.counts = counts[self.nodes]
        self.causes = self._causes(suspects)

    def _causes(self, suspects: Collection[int]) -> Int64Array:
        """The first cause that holds, as its place in `CAUSES`."""
        table, nodes = self.sight.table, self.nodes
        eligibility = self.shape.eligibility.synced(table)
        suits = _mask(eligibility.suits)[nodes]
        usable = _mask(eligibility.usable)[nodes]
        tainted = _mask(eligibility.tainted)[nodes]
        shut = nodes[suits & ~usable].tolist()
        not_ready = np.zeros(len(table), bool)
        not_ready[[n for n in shut if not table.facts[n].spec.ready]] = True
        suspect = np.zeros(len(table), bool)
        suspect[[n for n in sorted(suspects) if n < len(table)]] = True
        tests: dict[Cause, BoolArray] = {
            Cause.TAINT: tainted,
            Cause.SELECTOR: ~suits,
            Cause.TOO_SMALL: np.equal(self.shape.fit_when_empty(table).counts[nodes], 0),
            Cause.NOT_READY: not_ready[nodes],
            Cause.CORDONED: ~usable,
            Cause.SUSPECT: suspect[nodes],
            Cause.OVERCOMMITTED: self.sight.overdrawn[nodes],
            Cause.BUSY: np.equal(self.counts, 0),
        }
        return np.select(list(tests.values()), [CAUSES.index(cause) for cause in tests], default=FITS)

    def _are(self, *causes: Cause | None) -> BoolArray:
        numbers = [FITS if cause is None else CAUSES.index(cause) for cause in causes]
        return np.isin(self.causes, numbers)

    def explain(self) -> GroupShortfall:
        fitting = self._are(None)
        pods = int(self.counts[fitting].sum())
        missing = max(self.group.min_replicas - pods, 0)
        limiting, on_best, in_total, best_node = "", 0, 0, ""
        lacks: dict[str, int] = {}
        if missing:
            limiting, best = self._nearest(pods)
            if best is not None:
                lacks = self._lacks(*best[1:])
                on_best, best_node = lacks.get(limiting, 0), self.sight.table.spec(best[0]).name
                in_total = self._missing_total(limiting)
        totals = {cause: int(self._are(cause).sum()) for cause in CAUSES}
        return GroupShortfall(
            group=self.index,
            name=self.group.name,
            needed_pods=self.group.min_replicas,
            fitting_pods=pods,
            fitting_nodes=int(fitting.sum()),
            suitable_nodes=int(fitting.sum()) + totals[Cause.BUSY],
            excluded=tuple((str(cause), count) for cause, count in totals.items() if count),
            limiting=limiting,
            missing_on_best=on_best,
            missing_total=in_total,
            best_node=best_node,
            unblock=self._unblock(missing, lacks),
        )

    def _nearest(self, pods: int) -> tuple[str, tuple[int, Row, int] | None]:
        """The resource that is short on most nodes, and the node (with what is free there and how many pods it takes
        already) that lacks least for one more pod: fewest resources, then the least part of the request. Of the nodes
        that are too small when only those are left."""
        busy = self._are(None, Cause.BUSY)
        empty = not busy.any() and not pods
        chosen = self._are(Cause.TOO_SMALL) if empty else busy
        nodes = self.nodes[chosen]
        if not len(nodes):
            return "", None
        taken = np.zeros(len(nodes), np.int64) if empty else self.counts[chosen]
        short = self._short(nodes, taken, empty=empty)
        wanted = dict(self.shape.demand.requests)
        lacking = np.zeros(len(nodes), np.int64)
        distance = np.zeros(len(nodes), np.int64)
        on_nodes = dict.fromkeys(self.shape.demand.unknown, len(nodes))
        for name, amount in short.items():
            lacking += amount > 0
            part = np.minimum(amount, _PART_MAX) * _WHOLE_SHARE // wanted.get(name, 1)
            distance += np.minimum(part, _PART_MAX)
            on_nodes[name] = on_nodes.get(name, 0) + int((amount > 0).sum())
        limiting = min((name for name, many in on_nodes.items() if many), key=lambda r: (-on_nodes[r], r), default="")
        first = int(np.lexsort((nodes, distance, lacking))[0])
        n, facts = int(nodes[first]), self.sight.table.facts[int(nodes[first])]
        row = Row(facts.allocatable, [DEVICE_MILLIS] * facts.devices, []) if empty else self.sight.overlay.row(n)
        return limiting, (n, row, int(taken[first]))

    def _short(self, nodes: Int64Array, taken: Int64Array, *, empty: bool) -> dict[str, Int64Array]:
        """By resource, what one more pod lacks on each of the nodes, once `taken` of them are placed."""
        demand, table = self.shape.demand, self.sight.table
        free = table.allocatable if empty else self.sight.free
        devices = table.described.whole_devices if empty else self.sight.devices
        short: dict[str, Int64Array] = {}
        for column, amount in demand.pairs:
            lacks = amount * (taken + 1) - free[nodes, column]
            if column == demand.device_column:
                lacks = np.maximum(lacks, _devices_short_of(devices[nodes], demand, taken))
            short[self.names[column]] = np.maximum(lacks, 0)
        return short

    def _lacks(self, row: Row, taken: int) -> dict[str, int]:
        """What one more pod lacks on a node with this free."""
        demand = self.shape.demand
        lacks = {name: amount for name, amount in demand.requests if name in demand.unknown}
        for column, amount in demand.pairs:
            short = amount * (taken + 1) - row.free[column]
            if column == demand.device_column:
                short = max(short, _devices_short(row, demand, taken))
            if short > 0:
                lacks[self.names[column]] = short
        return lacks

    def _missing_total(self, resource: str) -> int:
        column = self.sight.table.columns.get(resource)
        wanted = dict(self.shape.demand.requests).get(resource, 1) * self.group.min_replicas
        if column is None:
            return wanted
        candidates = self.nodes[self._are(None, Cause.BUSY)]
        return max(wanted - int(np.maximum(self.sight.free[candidates, column], 0).sum()), 0)

    def _unblock(self, missing: int, lacks: dict[str, int]) -> str:
        """The least that would help, as a person would ask for it."""
        if not missing:
            return ""
        if not lacks:
            waiting = [c for c in (Cause.NOT_READY, Cause.CORDONED, Cause.SUSPECT) if self._are(c).any()]
            return f"nodes that suit are {' or '.join(waiting)}" if waiting else "no node suits its constraints"
        each = "" if missing == 1 else f"for each of {missing} more pods "
        more = " and ".join(f"{format_amount(name, lacks[name])} more {short_name(name)}" for name in sorted(lacks))
        rest = [format_pair(name, amount) for name, amount in self.shape.demand.requests if name not in lacks]
        beside = f" with {' and '.join(rest)} free" if rest else ""
        return f"{each}{more} on any node{beside}"


class _Sight:
    """The nodes as the overlay has them, as arrays: what an explanation of all groups looks at."""

    def __init__(self, overlay: Overlay) -> None:
        table = self.table = overlay.table
        self.overlay = overlay
        self.clusters, self.removed = table.described.clusters, table.described.removed
        self.free, self.devices = table.free, table.device_free
        touched = overlay.touched()
        if touched:
            self.free, self.devices = self.free.copy(), self.devices.copy()
            for n in touched:
                row = overlay.row(n)
                self.free[n] = row.free
                self.devices[n, : len(row.devices)] = row.devices[: self.devices.shape[1]]
        self.overdrawn: BoolArray = np.any(self.free < 0, axis=1) | np.any(self.devices < 0, axis=1)


def _mask(flags: bytearray) -> BoolArray:
    return np.frombuffer(bytes(flags), np.bool_)


def _devices_short_of(devices: Int32Array, demand: Demand, taken: Int64Array) -> Int64Array:
    """`_devices_short` of many nodes."""
    if demand.whole:
        untouched = (devices == DEVICE_MILLIS).sum(axis=1)
        return np.asarray((demand.whole * (taken + 1) - untouched) * DEVICE_MILLIS, np.int64)
    room = np.maximum(devices, 0)
    enough = (room // demand.share).sum(axis=1) > taken
    lacks = demand.share - (room % demand.share).max(axis=1, initial=0)
    return np.where(enough, 0, lacks).astype(np.int64)


def _devices_short(row: Row, demand: Demand, taken: int) -> int:
    """Thousandths missing on the devices, which a sum does not show."""
    if demand.whole:
        untouched = row.devices.count(DEVICE_MILLIS)
        return (demand.whole * (taken + 1) - untouched) * DEVICE_MILLIS
    shares = [millis for millis in row.devices if millis > 0]
    if sum(millis // demand.share for millis in shares) > taken:
        return 0
    return demand.share - max((millis % demand.share for millis in shares), default=0)


# --- rule Q2 --------------------------------------------------------------------------------------------------------


class Never(NamedTuple):
    """Why a gang could never run, and which field of the job says so."""

    field: str
    message: str


def never_fits(
    table: NodeTable, groups: Sequence[TaskGroup], *, cluster_mask: Container[str] | None = None
) -> Never | None:
    """Why the gang could not run in any allowed cluster even if that were empty, or None when it could (rule Q2).

    Without a cluster that counts there is nothing to judge by: None.
    """
    cache = cache_of(table)
    names = table.cluster_names
    clusters = [c for c in cache.clusters() if cluster_mask is None or names[c] in cluster_mask]
    shapes = [cache.shape(group) for group in groups]
    reason: Never | None = None
    for cluster in clusters:
        found = _never_in(table, cluster, groups, shapes)
        if found is None:
            return None
        reason = reason or found
    return reason


def _never_in(table: NodeTable, cluster: int, groups: Sequence[TaskGroup], shapes: Sequence[Shape]) -> Never | None:
    for at, (group, shape) in enumerate(zip(groups, shapes, strict=True)):
        if group.min_replicas and shape.fit_when_empty(table).totals[cluster] < group.min_replicas:
            field, message = _too_large(table, cluster, group, shape)
            return Never(f"tasks[{at}].{field}", f"group {group.name}: {message}")
    if len(groups) > 1:
        for resource, column in sorted(table.columns.items()):
            wanted = sum(
                g.min_replicas * dict(s.demand.pairs).get(column, 0) for g, s in zip(groups, shapes, strict=True)
            )
            have = table.cluster_totals[cluster][column]
            if wanted > have:
                where = f"cluster {table.cluster_names[cluster]} has {format_amount(resource, have)}"
                asked = f"needs {format_pair(resource, wanted)} in all"
                return Never(asking_most(groups, resource), f"{asked}; {where}")
    return None


def asking_most(groups: Sequence[TaskGroup], resource: str) -> str:
    """The field of a job that says how much of a resource it needs, of the group that needs most of it."""
    asked = [group.min_replicas * dict(group.requests).get(resource, 0) for group in groups]
    return f"tasks[{asked.index(max(asked))}].resources.{resource}" if any(asked) else "tasks"


def _too_large(table: NodeTable, cluster: int, group: TaskGroup, shape: Shape) -> Never:
    """In words, for a group of which the empty cluster does not take the minimum. The field is within the group."""
    where = table.cluster_names[cluster]
    try:
        check_devices(group.requests)
    except Rejected as bad:
        return Never("resources", bad.message)
    suits = shape.eligibility.synced(table).suits
    nodes = [n for n, facts in enumerate(table.facts) if facts.cluster == cluster and suits[n]]
    if not nodes:
        return Never("node_selector", f"no node of cluster {where} matches its node selector, affinity and tolerations")
    most = shape.fit_when_empty(table).totals[cluster]
    if most:
        have = f"needs {group.min_replicas} pods at once; cluster {where} takes {most} when empty"
        return Never("min_replicas" if group.min_replicas < group.replicas else "replicas", have)
    for resource, amount in group.requests:
        column = table.columns.get(resource)
        largest = 0 if column is None else max(table.facts[n].allocatable[column] for n in nodes)
        if amount > largest:
            have = format_amount(resource, largest)
            asked = f"a pod asks for {format_pair(resource, amount)}"
            return Never(f"resources.{resource}", f"{asked}; the largest node it may use in {where} has {have}")
    return Never("resources", f"no node of cluster {where} has all a pod asks for at once")
