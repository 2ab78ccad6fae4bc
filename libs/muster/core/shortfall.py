"""Why a gang does not fit, in numbers (I5), and whether it ever could (rule Q2).

`shortfall` looks with the same fit vectors that placement uses, so what it says is what the decision saw. Every node of
the cluster that comes closest is counted once: it is out for a cause that no departure changes, or it is busy, or it
takes a pod. For the busy ones it works out what one more pod lacks there; the node that lacks least tells what would
unblock the gang. `never_fits` asks the same of empty nodes, ready or not, and answers from cached sums.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from msgspec import Struct

from muster.core.affinity import Exclusion
from muster.core.errors import Rejected
from muster.core.model import TaskGroup
from muster.core.nodes import Int64Array, NodeTable
from muster.core.overlay import NOBODY, Overlay
from muster.core.resources import DEVICE_MILLIS, check_devices, format_amount, format_pair, short_name
from muster.core.rows import Demand, NodeFacts, Row
from muster.core.shapes import Shape, cache_of

_WHOLE_SHARE: Final = 1000  # what is missing is compared in thousandths of the request


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
    if not numbers or all(table.live(table.cluster_names[number]) == [] for number in numbers):
        return Shortfall("", "there are no nodes it may use", ())
    counts = [overlay.fit_counts(group) for group in groups]
    for fitting in counts:
        fitting[[n for n in sorted(suspects) if n < len(fitting)]] = 0
    clusters = np.fromiter((facts.cluster for facts in table.facts), np.int64, len(table))

    def covered(number: int) -> int:
        inside = clusters == number
        return sum(min(int(c[inside].sum()), g.min_replicas) for c, g in zip(counts, groups, strict=True))

    closest = max(numbers, key=covered)  # `numbers` is by name, so the first name wins a tie
    parts = tuple(
        _Group(overlay, group, index=g, counts=counts[g], cluster=closest, suspects=suspects).explain()
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
    """The working of one group's answer."""

    def __init__(
        self,
        overlay: Overlay,
        group: TaskGroup,
        *,
        index: int,
        counts: Int64Array,
        cluster: int,
        suspects: Collection[int],
    ) -> None:
        self.overlay = overlay
        self.group = group
        self.index = index
        self.counts = counts
        self.shape = overlay.cache.shape(group)
        self.shape.eligibility.synced(overlay.table)
        self.names = list(overlay.table.columns)
        nodes = [n for n, f in enumerate(overlay.table.facts) if f.cluster == cluster and not f.removed]
        self.causes = {n: self._cause(n, overlay.table.facts[n], suspects) for n in nodes}

    def _cause(self, n: int, facts: NodeFacts, suspects: Collection[int]) -> Cause | None:
        if not self.shape.eligibility.suits[n]:
            left_out_by_taint = self.shape.eligibility.exclusion(facts) is Exclusion.TAINT
            return Cause.TAINT if left_out_by_taint else Cause.SELECTOR
        if not self.shape.fit_empty(n, facts):
            return Cause.TOO_SMALL
        if not facts.spec.ready:
            return Cause.NOT_READY
        if facts.spec.cordoned:
            return Cause.CORDONED
        if n in suspects:
            return Cause.SUSPECT
        if self.overlay.row(n).overdrawn():
            return Cause.OVERCOMMITTED
        return None if self.counts[n] else Cause.BUSY

    def explain(self) -> GroupShortfall:
        fitting = [n for n, cause in self.causes.items() if cause is None]
        pods = sum(int(self.counts[n]) for n in fitting)
        missing = max(self.group.min_replicas - pods, 0)
        lacking = self._lacking(pods) if missing else []
        limiting, on_best, in_total, best_node = "", 0, 0, ""
        if lacking:
            limiting = self._limiting([amounts for _, amounts in lacking])
            best, amounts = min(lacking, key=lambda item: (self._distance(item[1]), item[0]))
            on_best, best_node = amounts.get(limiting, 0), self.overlay.table.spec(best).name
            in_total = self._missing_total(limiting)
        causes = [cause for cause in self.causes.values() if cause is not None]
        return GroupShortfall(
            group=self.index,
            name=self.group.name,
            needed_pods=self.group.min_replicas,
            fitting_pods=pods,
            fitting_nodes=len(fitting),
            suitable_nodes=sum(cause in (None, Cause.BUSY) for cause in self.causes.values()),
            excluded=tuple((str(cause), causes.count(cause)) for cause in Cause if cause in causes),
            limiting=limiting,
            missing_on_best=on_best,
            missing_total=in_total,
            best_node=best_node,
            unblock=self._unblock(missing, amounts if lacking else {}),
        )

    def _lacking(self, pods: int) -> list[tuple[int, dict[str, int]]]:
        """By node, what one more pod lacks there once all that fit are placed; of the nodes that are too small when
        only those are left."""
        busy = [n for n, cause in self.causes.items() if cause in (None, Cause.BUSY)]
        if busy or pods:
            return [(n, self._lacks(self.overlay.row(n), int(self.counts[n]))) for n in busy]
        facts = self.overlay.table.facts
        return [
            (n, self._lacks(Row(facts[n].allocatable, [DEVICE_MILLIS] * facts[n].devices, []), 0))
            for n, cause in self.causes.items()
            if cause is Cause.TOO_SMALL
        ]

    def _lacks(self, row: Row, taken: int) -> dict[str, int]:
        demand = self.shape.demand
        lacks = {name: amount for name, amount in demand.requests if name in demand.unknown}
        for column, amount in demand.pairs:
            short = amount * (taken + 1) - row.free[column]
            if column == demand.device_column:
                short = max(short, _devices_short(row, demand, taken))
            if short > 0:
                lacks[self.names[column]] = short
        return lacks

    def _limiting(self, lacking: Sequence[dict[str, int]]) -> str:
        nodes: dict[str, int] = {}
        for amounts in lacking:
            for resource in amounts:
                nodes[resource] = nodes.get(resource, 0) + 1
        return min(nodes, key=lambda resource: (-nodes[resource], resource), default="")

    def _distance(self, lacks: dict[str, int]) -> tuple[int, int]:
        """How far from taking a pod: resources that lack, then how much of the request in all."""
        wanted = dict(self.shape.demand.requests)
        return len(lacks), sum(amount * _WHOLE_SHARE // wanted.get(name, 1) for name, amount in lacks.items())

    def _missing_total(self, resource: str) -> int:
        column = self.overlay.table.columns.get(resource)
        wanted = dict(self.shape.demand.requests).get(resource, 1) * self.group.min_replicas
        if column is None:
            return wanted
        candidates = [n for n, cause in self.causes.items() if cause in (None, Cause.BUSY)]
        return max(wanted - sum(max(self.overlay.row(n).free[column], 0) for n in candidates), 0)

    def _unblock(self, missing: int, lacks: dict[str, int]) -> str:
        """The least that would help, as a person would ask for it."""
        if not missing:
            return ""
        if not lacks:
            waiting = [c for c in (Cause.NOT_READY, Cause.CORDONED, Cause.SUSPECT) if c in self.causes.values()]
            return f"nodes that suit are {' or '.join(waiting)}" if waiting else "no node suits its constraints"
        each = "" if missing == 1 else f"for each of {missing} more pods "
        more = " and ".join(f"{format_amount(name, lacks[name])} more {short_name(name)}" for name in sorted(lacks))
        rest = [format_pair(name, amount) for name, amount in self.shape.demand.requests if name not in lacks]
        beside = f" with {' and '.join(rest)} free" if rest else ""
        return f"{each}{more} on any node{beside}"


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


def never_fits(
    table: NodeTable, groups: Sequence[TaskGroup], *, cluster_mask: Container[str] | None = None
) -> str | None:
    """Why the gang could not run in any allowed cluster even if that were empty, or None when it could (rule Q2).

    Without a cluster that counts there is nothing to judge by: None.
    """
    cache = cache_of(table)
    names = table.cluster_names
    clusters = [c for c in cache.clusters() if cluster_mask is None or names[c] in cluster_mask]
    shapes = [cache.shape(group) for group in groups]
    reason: str | None = None
    for cluster in clusters:
        found = _never_in(table, cluster, groups, shapes)
        if found is None:
            return None
        reason = reason or found
    return reason


def _never_in(table: NodeTable, cluster: int, groups: Sequence[TaskGroup], shapes: Sequence[Shape]) -> str | None:
    for group, shape in zip(groups, shapes, strict=True):
        if group.min_replicas and shape.fit_when_empty(table).totals[cluster] < group.min_replicas:
            return f"group {group.name}: {_too_large(table, cluster, group, shape)}"
    if len(groups) > 1:
        for resource, column in sorted(table.columns.items()):
            wanted = sum(
                g.min_replicas * dict(s.demand.pairs).get(column, 0) for g, s in zip(groups, shapes, strict=True)
            )
            have = table.cluster_totals[cluster][column]
            if wanted > have:
                where = table.cluster_names[cluster]
                return (
                    f"needs {format_pair(resource, wanted)} in all; cluster {where} has {format_amount(resource, have)}"
                )
    return None


def _too_large(table: NodeTable, cluster: int, group: TaskGroup, shape: Shape) -> str:
    """In words, for a group of which the empty cluster does not take the minimum."""
    where = table.cluster_names[cluster]
    try:
        check_devices(group.requests)
    except Rejected as bad:
        return bad.message
    suits = shape.eligibility.synced(table).suits
    nodes = [n for n, facts in enumerate(table.facts) if facts.cluster == cluster and suits[n]]
    if not nodes:
        return f"no node of cluster {where} matches its node selector, affinity and tolerations"
    most = shape.fit_when_empty(table).totals[cluster]
    if most:
        return f"needs {group.min_replicas} pods at once; cluster {where} takes {most} when empty"
    for resource, amount in group.requests:
        column = table.columns.get(resource)
        largest = 0 if column is None else max(table.facts[n].allocatable[column] for n in nodes)
        if amount > largest:
            have = format_amount(resource, largest)
            return f"a pod asks for {format_pair(resource, amount)}; the largest node it may use in {where} has {have}"
    return f"no node of cluster {where} has all a pod asks for at once"
