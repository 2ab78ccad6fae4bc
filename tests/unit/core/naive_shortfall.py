"""`shortfall` of one cluster node by node, with nothing but the table's rows: what the fast one must agree with."""

from __future__ import annotations

from muster.core.affinity import Exclusion, exclusion
from muster.core.resources import DEVICE_MILLIS
from muster.core.rows import Row
from muster.core.shortfall import Cause


def causes(overlay, group, suspects=()):
    """Node -> why it takes no pod; None: it takes one."""
    table, demand = overlay.table, overlay.table.demand(group.requests)
    found = {}
    for n, facts in enumerate(table.facts):
        if facts.removed:
            continue
        why = exclusion(
            facts.labels,
            facts.spec.taints,
            node_selector=group.node_selector,
            affinity=group.affinity,
            tolerations=group.tolerations,
        )
        empty = Row(facts.allocatable, [DEVICE_MILLIS] * facts.devices, [])
        row = overlay.row(n)
        tests = (
            (Cause.TAINT, why is Exclusion.TAINT),
            (Cause.SELECTOR, why is not Exclusion.NONE),
            (Cause.TOO_SMALL, demand.impossible or not demand.fit(empty)),
            (Cause.NOT_READY, not facts.spec.ready),
            (Cause.CORDONED, facts.spec.cordoned),
            (Cause.SUSPECT, n in suspects),
            (Cause.OVERCOMMITTED, row.overdrawn()),
            (Cause.BUSY, not demand.fit(row)),
        )
        found[n] = next((cause for cause, holds in tests if holds), None)
    return found


def nearest(overlay, group, found):
    """(limiting resource, best node, what of it one more pod lacks there); ("", None, 0) if there is none."""
    table, demand = overlay.table, overlay.table.demand(group.requests)
    busy = [n for n, cause in found.items() if cause in (None, Cause.BUSY)]
    lacking = {}
    for n in busy or [n for n, cause in found.items() if cause is Cause.TOO_SMALL]:
        facts = table.facts[n]
        row = overlay.row(n) if busy else Row(facts.allocatable, [DEVICE_MILLIS] * facts.devices, [])
        taken = demand.fit(row) if found[n] is None else 0
        lacking[n] = lacks(table, demand, row, taken)
    if not lacking:
        return "", None, 0
    counts = {}
    for amounts in lacking.values():
        for resource in amounts:
            counts[resource] = counts.get(resource, 0) + 1
    limiting = min(counts, key=lambda resource: (-counts[resource], resource), default="")
    wanted = dict(group.requests)

    def distance(n):
        return len(lacking[n]), sum(amount * 1000 // wanted.get(name, 1) for name, amount in lacking[n].items()), n

    best = min(lacking, key=distance)
    return limiting, best, lacking[best].get(limiting, 0)


def lacks(table, demand, row, taken):
    names = list(table.columns)
    found = {name: amount for name, amount in demand.requests if name in demand.unknown}
    for column, amount in demand.pairs:
        short = amount * (taken + 1) - row.free[column]
        if column == demand.device_column and demand.whole:
            short = max(short, (demand.whole * (taken + 1) - row.devices.count(DEVICE_MILLIS)) * DEVICE_MILLIS)
        elif column == demand.device_column:
            room = [millis for millis in row.devices if millis > 0]
            if sum(millis // demand.share for millis in room) <= taken:
                short = max(short, demand.share - max((millis % demand.share for millis in room), default=0))
        if short > 0:
            found[names[column]] = short
    return found
