"""The cell at a glance, for `muster top` and `muster doctor`: counted from the state, a few times a second at most."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

from muster.api.v1 import query_pb2
from muster.core import lifecycle
from muster.core import transitions as tr
from muster.core.promises import overpromised
from muster.core.state import CellState
from muster.wire import quantities
from muster.wire.status import position, timestamp
from muster_admission.cell import Cell

CACHE_S: Final = 0.25
WAITS_REMEMBERED_MAX: Final = 10_000


class Overview:
    """Answers GetCell, and watches the transactions for what no state holds: totals and waits."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._waits_ms: deque[int] = deque(maxlen=WAITS_REMEMBERED_MAX)
        self._placed = 0
        self._finished = 0
        self._transactions = 0
        self._cached: query_pb2.GetCellResponse | None = None
        self._cached_at = (0, 0.0)  # ledger sequence, monotonic time
        cell.follower.on_transaction(self._on_transaction)

    async def answer(self) -> query_pb2.GetCellResponse:
        ledger = await self._cell.follower.ledger.info()
        inbox = await self._cell.inbox.info()
        answer = query_pb2.GetCellResponse()
        answer.CopyFrom(self._from_state())
        answer.ledger_end = ledger.last_seq
        answer.inbox_end = inbox.last_seq
        return answer

    def _from_state(self) -> query_pb2.GetCellResponse:
        state, now_s = self._cell.state, self._cell.clock.monotonic()
        seq, at_s = self._cached_at
        if self._cached is None or (seq != state.ledger_seq and now_s - at_s > CACHE_S):
            self._cached = self._count(state)
            self._cached_at = (state.ledger_seq, now_s)
        return self._cached

    def _count(self, state: CellState) -> query_pb2.GetCellResponse:
        capacity = cluster_totals(state)
        return query_pb2.GetCellResponse(
            cell=self._cell.name,
            leader=state.leader,
            epoch=state.epoch,
            ledger_sequence=state.ledger_seq,
            inbox_committed=position(state.position),
            jobs_by_state=Counter(str(job.state) for job in state.jobs.values()),
            capacity=_quantities(_sum(capacity.values())),
            usage=_quantities(_sum(state.queues.get(root).usage for root in state.queues.roots.values())),
            clusters=_clusters(state, capacity),
            waits=self._waits(),
            now=timestamp(state.now_ms),
            replica=self._cell.settings.replica,
            queues=len(state.queues),
            placed_total=self._placed,
            finished_total=self._finished,
            transactions_total=self._transactions,
            warnings=overpromised(state.queues, state.nodes.capacity()) if state.clusters_synced else (),
        )

    def _waits(self) -> query_pb2.Waits:
        ordered = sorted(self._waits_ms)
        if not ordered:
            return query_pb2.Waits()

        def quantile(percent: int) -> float:
            return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] / 1000

        return query_pb2.Waits(
            count=len(ordered), p50_seconds=quantile(50), p90_seconds=quantile(90), p99_seconds=quantile(99)
        )

    def _on_transaction(self, tx: tr.Transaction, _ledger_seq: int) -> None:
        self._transactions += 1
        jobs = self._cell.state.jobs
        for transition in tx.transitions:
            if isinstance(transition, tr.JobPlaced):
                self._placed += 1
                job = jobs.get(transition.job)
                if job is not None and transition.epoch == 1:
                    self._waits_ms.append(max(0, tx.header.now_ms - job.submit_ms))
            elif isinstance(transition, (tr.JobSucceeded, tr.JobFailed, tr.JobCancelled)):
                self._finished += 1


def cluster_totals(state: CellState) -> dict[str, dict[str, int]]:
    """Allocatable of the nodes that are there, by cluster and resource."""
    nodes = state.nodes
    return {
        name: {resource: totals[column] for resource, column in nodes.columns.items() if totals[column]}
        for name, totals in zip(nodes.cluster_names, nodes.cluster_totals, strict=True)
    }


def _clusters(state: CellState, capacity: Mapping[str, Mapping[str, int]]) -> list[query_pb2.ClusterStatus]:
    nodes: Counter[str] = Counter()
    ready: Counter[str] = Counter()
    for facts in state.nodes.facts:
        if not facts.removed:
            nodes[facts.spec.cluster] += 1
            ready[facts.spec.cluster] += facts.spec.ready and not facts.spec.cordoned
    usage = _usage_by_cluster(state)
    return [
        query_pb2.ClusterStatus(
            name=name,
            nodes=nodes[name],
            ready_nodes=ready[name],
            synced=name in state.clusters and state.clusters[name].synced,
            capacity=_quantities(capacity.get(name, {})),
            usage=_quantities(usage.get(name, {})),
        )
        for name in sorted({*state.clusters, *nodes})
    ]


def _usage_by_cluster(state: CellState) -> dict[str, dict[str, int]]:
    """What Muster's own pods use, from the placements: one look at each run."""
    usage: dict[str, dict[str, int]] = {}
    for job in state.jobs.values():
        if job.state not in lifecycle.CHARGED:
            continue
        for group in job.placement:
            requests = job.spec.tasks[group.group].requests
            for node, count in group.runs:
                of_cluster = usage.setdefault(state.nodes.spec(node).cluster, {})
                of_cluster["pods"] = of_cluster.get("pods", 0) + count
                for resource, amount in requests:
                    of_cluster[resource] = of_cluster.get(resource, 0) + amount * count
    return usage


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for resource, amount in part.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    return quantities.quantities(sorted(amounts.items()))
