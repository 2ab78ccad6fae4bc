"""The potential of rule P1 as metrics, worked out when somebody asks for them.

`muster_potential_entitled_use_ratio{resource, min_priority}` is the part of the cell that jobs of at least this
priority use within the entitlements of their leaf queues: EU_p by resource, for the highest `PRIORITIES_MAX` priorities
that use anything and, with an empty `min_priority`, for all jobs. A plan with a victim in another queue must raise the
last; a preemption inside a queue raises those of its priorities. `muster_potential_placed_replicas` is what is left of
PSI. `muster_preemption_holds` and `muster_jobs_leaving` show plans that are being carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from muster.core.potential import capacity_of, entitled, entitled_use
from muster.core.resources import PODS
from muster.core.state import CellState

PRIORITIES_MAX: Final = 8


class PotentialMetrics(Collector):
    """`state` gives the state as it is when asked."""

    def __init__(self, state: Callable[[], CellState]) -> None:
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state = self._state()
        share = GaugeMetricFamily(
            "muster_potential_entitled_use_ratio",
            "Part of the cell that leaf queues use within their entitlements (rule P1).",
            labels=["resource", "min_priority"],
        )
        capacity = capacity_of(state.nodes.capacity())
        usage = state.potential.usage
        priorities = sorted({priority for of_leaf in usage.values() for priority in of_leaf}, reverse=True)
        for lowest in (None, *priorities[:PRIORITIES_MAX]):
            for resource, amount in sorted(_used(state, capacity, lowest).items()):
                label = "" if lowest is None else str(lowest)
                share.add_metric([resource, label], amount / capacity[resource])
        yield share
        yield GaugeMetricFamily(
            "muster_potential_placed_replicas", "Pods of placed jobs (rule P1).", value=_placed(state)
        )
        yield GaugeMetricFamily(
            "muster_preemption_holds", "Jobs for which room is held (rule P5).", value=len(state.holds)
        )
        yield GaugeMetricFamily(
            "muster_jobs_leaving", "Jobs with pods that were asked to leave.", value=len(state.potential.leaving)
        )


def _used(state: CellState, capacity: Mapping[str, int], lowest: int | None) -> dict[str, int]:
    """What jobs of at least this priority use within the entitlements of their queues, by resource."""
    usage, tree = state.potential.usage, state.queues
    if lowest is not None:
        usage = {leaf: {p: used for p, used in of_leaf.items() if p >= lowest} for leaf, of_leaf in usage.items()}
    return entitled_use(usage, lambda queue: entitled(tree.by_id[queue], state.entitled), capacity)


def _placed(state: CellState) -> int:
    """Every pod takes a slot, so slots in committed use are placed replicas."""
    return sum(used.get(PODS, 0) for of_leaf in state.potential.usage.values() for used in of_leaf.values())
