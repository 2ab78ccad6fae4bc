"""Where each queue stands, as metrics: what `muster queue describe` shows, for alerts and for looking back.

Worked out when somebody scrapes. At most `QUEUES_MAX` queues are shown, the first ones of the tree;
`muster_queues_left_out` says how many more there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from muster.core import resources
from muster.core.model import Amounts
from muster.core.resources import PODS
from muster.core.standing import standings
from muster_admission.cell import Cell

QUEUES_MAX: Final = 1000


class QueueCollector(Collector):
    """All queues of the tree, each with everything below it."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def describe(self) -> Iterator[Metric]:
        """Nothing is read when the collector is registered."""
        yield from _families()

    def collect(self) -> Iterator[Metric]:
        state = self._cell.state
        used, deserved, guaranteed, borrowed, lent, pending, pending_jobs, running_jobs, left_out = _families()
        standing = standings(state)
        queues = list(state.queues.subtree())
        for queue in queues[:QUEUES_MAX]:
            stands = standing[queue.id]
            for family, amounts in (
                (used, tuple(queue.usage.items())),
                (deserved, stands.entitled),
                (guaranteed, queue.spec.guaranteed),
                (borrowed, stands.borrowed),
                (lent, stands.lent),
                (pending, stands.pending),
            ):
                _add(family, queue.path, amounts)
            pending_jobs.add_metric([queue.path], stands.pending_jobs)
            running_jobs.add_metric([queue.path], stands.running_jobs)
        left_out.add_metric([], max(len(queues) - QUEUES_MAX, 0))
        yield from (used, deserved, guaranteed, borrowed, lent, pending, pending_jobs, running_jobs, left_out)


def _add(family: GaugeMetricFamily, path: str, amounts: Amounts) -> None:
    for resource, amount in amounts:
        if resource != PODS:
            family.add_metric([path, resource], amount / resources.unit_scale(resource))


def _families() -> tuple[GaugeMetricFamily, ...]:
    labels = ["queue", "resource"]
    return (
        GaugeMetricFamily("muster_queue_used", "What jobs of the queue hold (core, byte, device).", labels=labels),
        GaugeMetricFamily("muster_queue_entitled", "What it deserves now (rule F1).", labels=labels),
        GaugeMetricFamily("muster_queue_guaranteed", "What is its own.", labels=labels),
        GaugeMetricFamily("muster_queue_borrowed", "Use above its entitlement.", labels=labels),
        GaugeMetricFamily("muster_queue_lent", "Of its guarantee: others would have to give it back.", labels=labels),
        GaugeMetricFamily("muster_queue_pending", "What its pending jobs ask for.", labels=labels),
        GaugeMetricFamily("muster_queue_pending_jobs", "Jobs that wait.", labels=["queue"]),
        GaugeMetricFamily("muster_queue_running_jobs", "Jobs that are placed, running or stopping.", labels=["queue"]),
        GaugeMetricFamily("muster_queues_left_out", "Queues beyond the most that are shown.", labels=[]),
    )
