"""The potential of rule P1 as metrics, worked out when somebody asks for them.

`muster_potential_entitled_use_ratio{resource}` is the part of the cell that leaf queues use within their entitlements,
which is what every plan with a victim in another queue must raise; `muster_preemption_holds` and
`muster_jobs_leaving` show plans that are being carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from muster.core.potential import capacity_of, entitled, entitled_use
from muster.core.state import CellState


class PotentialMetrics(Collector):
    """`state` gives the state as it is when asked."""

    def __init__(self, state: Callable[[], CellState]) -> None:
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state = self._state()
        share = GaugeMetricFamily(
            "muster_potential_entitled_use_ratio",
            "Part of the cell that leaf queues use within their entitlements (rule P1).",
            labels=["resource"],
        )
        capacity = capacity_of(state.nodes.capacity())
        tree = state.queues
        used = entitled_use(state.potential.usage, lambda queue: entitled(tree.by_id[queue], state.entitled), capacity)
        for resource, amount in sorted(used.items()):
            share.add_metric([resource], amount / capacity[resource])
        yield share
        yield GaugeMetricFamily(
            "muster_preemption_holds", "Jobs for which room is held (rule P5).", value=len(state.holds)
        )
        yield GaugeMetricFamily(
            "muster_jobs_leaving", "Jobs with pods that were asked to leave.", value=len(state.potential.leaving)
        )
