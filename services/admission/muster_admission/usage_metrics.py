"""The cell's accounts as metrics: what each queue, namespace, user and priority has used, lost and waited for.

Read from the state when somebody scrapes, so the numbers are those of `muster usage` and survive every restart. Each
grouping shows at most `NAMES_MAX` names, the first ones by name; `muster_usage_names_left_out` says how many more there
are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from muster.core import resources
from muster.core.accounting import Tally
from muster.wire.usage import path_of
from muster_admission.cell import Cell

NAMES_MAX: Final = 1000  # of each grouping
MS_PER_S: Final = 1000
GROUPINGS: Final = ("queue", "namespace", "user", "priority")


class UsageCollector(Collector):
    """All accounts, grouped in each of the four ways."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def describe(self) -> Iterator[Metric]:
        """Nothing is read when the collector is registered."""
        yield from _families()

    def collect(self) -> Iterator[Metric]:
        used, lost, started, preempted, shrunk, waits, waited, left_out = families = _families()
        for by, groups in self._groups().items():
            left_out.add_metric([by], max(len(groups) - NAMES_MAX, 0))
            for name, tally in sorted(groups.items())[:NAMES_MAX]:
                for family, totals in ((used, tally.usage), (lost, tally.lost)):
                    for resource, total in sorted(totals.items()):
                        family.add_metric([by, name, resource], total / (MS_PER_S * resources.unit_scale(resource)))
                started.add_metric([by, name], tally.started)
                preempted.add_metric([by, name], tally.preempted)
                shrunk.add_metric([by, name], tally.shrunk_pods)
                waits.add_metric([by, name], tally.waits)
                waited.add_metric([by, name], tally.waited_ms / MS_PER_S)
        yield from families

    def _groups(self) -> dict[str, dict[str, Tally]]:
        state = self._cell.state
        groups: dict[str, dict[str, Tally]] = {by: {} for by in GROUPINGS}
        report = state.accounts.report(0, max(state.now_ms, self._cell.clock.now_ms()))
        for account, tally in report.tallies.items():
            names = (path_of(state, account[0]), account[1], account[2], str(account[3]))
            for by, name in zip(GROUPINGS, names, strict=True):
                groups[by].setdefault(name, Tally()).add(tally)
        return groups


def _families() -> tuple[CounterMetricFamily | GaugeMetricFamily, ...]:
    group = ["by", "name"]
    return (
        CounterMetricFamily(
            "muster_usage_resource_seconds",
            'Usage: "1" of the resource (core, byte, device) for a second.',
            labels=[*group, "resource"],
        ),
        CounterMetricFamily(
            "muster_usage_lost_resource_seconds", "Work lost to preemption.", labels=[*group, "resource"]
        ),
        CounterMetricFamily("muster_usage_jobs_started", "Placements.", labels=group),
        CounterMetricFamily("muster_usage_jobs_preempted", "Jobs preempted as a whole.", labels=group),
        CounterMetricFamily("muster_usage_pods_shrunk", "Elastic pods taken away for others.", labels=group),
        CounterMetricFamily("muster_usage_waits", "First placements.", labels=group),
        CounterMetricFamily("muster_usage_waited_seconds", "Time to first placements.", labels=group),
        GaugeMetricFamily("muster_usage_names_left_out", "Names beyond the most that are shown.", labels=["by"]),
    )
