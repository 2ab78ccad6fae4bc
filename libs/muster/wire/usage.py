"""Accounts as the API's usage rows: grouped by what was asked for, names instead of ids."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from muster.api.v1 import query_pb2
from muster.core.accounting import Account, Report, Tally
from muster.core.state import CellState
from muster.wire.forecasts import hours
from muster.wire.status import timestamp

ROWS_MAX: Final = 10_000
QUEUE = query_pb2.USAGE_DIMENSION_QUEUE
NAMESPACE = query_pb2.USAGE_DIMENSION_NAMESPACE
USER = query_pb2.USAGE_DIMENSION_USER
PRIORITY = query_pb2.USAGE_DIMENSION_PRIORITY
_PARTS: Final[dict[int, Callable[[CellState, Account], Any]]] = {
    QUEUE: lambda state, account: path_of(state, account[0]),
    NAMESPACE: lambda _, account: account[1],
    USER: lambda _, account: account[2],
    PRIORITY: lambda _, account: account[3],
}
_FIELDS: Final[dict[int, str]] = {QUEUE: "queue", NAMESPACE: "namespace", USER: "user", PRIORITY: "priority"}


def path_of(state: CellState, queue: str) -> str:
    """Of a queue that may be gone; "" for accounts that were put together."""
    return state.queues.path(queue) if queue in state.queues else state.accounts.gone.get(queue, queue)


def usage_response(
    state: CellState,
    report: Report,
    *,
    group_by: Sequence[int],
    queues: Collection[str] | None = None,
    namespace: str = "",
    user: str = "",
) -> query_pb2.GetUsageResponse:
    """`queues`: ids; None: all of them."""
    dimensions = tuple(group_by) or (QUEUE,)
    groups: dict[tuple[Any, ...], Tally] = {}
    total = Tally()
    for account, tally in report.tallies.items():
        if queues is not None and account[0] not in queues:
            continue
        if (namespace and account[1] != namespace) or (user and account[2] != user):
            continue
        key = tuple(_PARTS[dimension](state, account) for dimension in dimensions)
        groups.setdefault(key, Tally()).add(tally)
        total.add(tally)
    rows = [
        _row(dict(zip((_FIELDS[d] for d in dimensions), key, strict=True)), groups[key])
        for key in sorted(groups)[:ROWS_MAX]
    ]
    response = query_pb2.GetUsageResponse(
        rows=rows, total=_row({}, total), ledger_sequence=state.ledger_seq, truncated=len(groups) > ROWS_MAX
    )
    for field, moment_ms in (("from", report.from_ms), ("to", report.to_ms)):
        moment = timestamp(moment_ms)
        if moment is not None:
            getattr(response, field).CopyFrom(moment)
    return response


def _row(names: dict[str, Any], tally: Tally) -> query_pb2.UsageRow:
    return query_pb2.UsageRow(
        **names,
        resource_hours=hours(sorted(tally.usage.items())),
        lost_hours=hours(sorted(tally.lost.items())),
        submitted=tally.submitted,
        started=tally.started,
        succeeded=tally.succeeded,
        failed=tally.failed,
        cancelled=tally.cancelled,
        preempted=tally.preempted,
        shrunk_replicas=tally.shrunk_pods,
        mean_wait_seconds=tally.waited_ms / tally.waits / 1000 if tally.waits else 0,
        max_wait_seconds=tally.waited_max_ms / 1000,
    )
