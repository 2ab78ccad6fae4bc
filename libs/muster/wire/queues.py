"""Queues between the API and the core: specs in, specs with what they use and wait for out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from muster.api.v1 import queue_pb2
from muster.core import resources
from muster.core.errors import Code, Rejected
from muster.core.model import Allowance, Amounts, QueueSpec
from muster.core.queues import Queue
from muster.core.standing import Standing
from muster.core.state import CellState
from muster.wire import enums, quantities
from muster.wire.status import duration

NAMED: Final = re.compile(r'queues\["([^"]*)"\]')  # as `queue_rules.named` writes it
MASKABLE: Final = (
    "weight",
    "priority",
    "ordering",
    "preemption",
    "state",
    "guaranteed",
    "limit",
    "lending_limit",
    "labels",
    "per_namespace",
    "per_user",
    "fair_by",
    "min_runtime",
    "half_life",
    "preemption_backoff",
    "preemption_backoff_max",
)
STATE_VALUES: Final = {name: value for value, name in enums.QUEUE_STATES.items()}
ORDERING_VALUES: Final = {name: value for value, name in enums.ORDERINGS.items()}
PREEMPTION_VALUES: Final = {name: value for value, name in enums.PREEMPTIONS.items()}
FAIR_BY_VALUES: Final = {name: value for value, name in enums.FAIR_BY.items()}
CORE_FIELDS: Final = {
    "min_runtime": "min_runtime_ms",
    "half_life": "half_life_ms",
    "preemption_backoff": "preemption_backoff_ms",
    "preemption_backoff_max": "preemption_backoff_max_ms",
}  # where the core's name is another one


def to_core(queue: queue_pb2.Queue) -> QueueSpec:
    """A new queue's spec; what is not set has its default. Raises Rejected."""
    return changed(QueueSpec(id="", name=queue.path.rpartition("/")[2], parent=""), queue, MASKABLE)


def changed(spec: QueueSpec, queue: queue_pb2.Queue, paths: Iterable[str]) -> QueueSpec:
    """`spec` with the fields that `paths` name taken from `queue`. Raises Rejected naming the field."""
    fields = tuple(paths) or MASKABLE
    for field in fields:
        if field not in MASKABLE:
            message = f'"{field}" cannot be changed (possible: {", ".join(MASKABLE)})'
            raise Rejected(Code.INVALID_ARGUMENT, "update_mask", message, "Q4")
    stated = {
        "weight": queue.weight if queue.HasField("weight") else 1,
        "priority": queue.priority,
        "ordering": enums.ORDERINGS.get(queue.ordering, "PRIORITY"),
        "preemption": enums.PREEMPTIONS.get(queue.preemption, "LOWER_PRIORITY"),
        "state": enums.QUEUE_STATES.get(queue.state, "OPEN"),
        "guaranteed": _amounts(queue.guaranteed, "guaranteed"),
        "limit": _amounts(queue.limit, "limit", zeros=True),
        "lending_limit": _amounts(queue.lending_limit, "lending_limit", zeros=True),
        "labels": tuple(sorted(queue.labels.items())),
        "per_namespace": _allowance(queue.per_namespace, "per_namespace"),
        "per_user": _allowance(queue.per_user, "per_user"),
        "fair_by": enums.FAIR_BY.get(queue.fair_by, "NAMESPACE"),
        "min_runtime": queue.min_runtime.ToMilliseconds(),
        "half_life": queue.half_life.ToMilliseconds(),
        "preemption_backoff": queue.preemption_backoff.ToMilliseconds(),
        "preemption_backoff_max": queue.preemption_backoff_max.ToMilliseconds(),
    }
    return msgspec.structs.replace(spec, **{CORE_FIELDS.get(field, field): stated[field] for field in fields})


def request_field(field: str, paths: Sequence[str]) -> str:
    """The core's field of one of many queues, by its place in the request; `queues` for one that is not in it."""
    found = NAMED.match(field)
    if found is None:
        return field
    if found[1] not in paths:
        return "queues"
    return f"queues[{paths.index(found[1])}]{field[found.end() :]}"


def _allowance(allowance: queue_pb2.Allowance, field: str) -> Allowance:
    return Allowance(
        pending_jobs=allowance.pending_jobs if allowance.HasField("pending_jobs") else -1,
        running_jobs=allowance.running_jobs if allowance.HasField("running_jobs") else -1,
        resources=_amounts(allowance.resources, f"{field}.resources", zeros=True),
    )


def _allowance_to_proto(allowance: Allowance) -> queue_pb2.Allowance | None:
    """None when nothing is limited."""
    if allowance == Allowance():
        return None
    message = queue_pb2.Allowance(resources=quantities.quantities(allowance.resources))
    if allowance.pending_jobs >= 0:
        message.pending_jobs = allowance.pending_jobs
    if allowance.running_jobs >= 0:
        message.running_jobs = allowance.running_jobs
    return message


def _amounts(stated: Mapping[str, str], field: str, *, zeros: bool = False) -> Amounts:
    """A limit of 0 means something (nothing at all); a guarantee of 0 does not."""
    try:
        return resources.parse_totals(stated, field, zeros=zeros)
    except Rejected as why:
        raise Rejected(why.code, why.field, why.message, "Q1") from None


def spec_to_proto(path: str, spec: QueueSpec) -> queue_pb2.Queue:
    """What can be set of a queue, as it is set."""
    return queue_pb2.Queue(
        path=path,
        weight=spec.weight,
        priority=spec.priority,
        ordering=ORDERING_VALUES[spec.ordering],
        preemption=PREEMPTION_VALUES[spec.preemption],
        state=STATE_VALUES[spec.state],
        guaranteed=quantities.quantities(spec.guaranteed),
        limit=quantities.quantities(spec.limit),
        lending_limit=quantities.quantities(spec.lending_limit),
        labels=dict(spec.labels),
        per_namespace=_allowance_to_proto(spec.per_namespace),
        per_user=_allowance_to_proto(spec.per_user),
        fair_by=FAIR_BY_VALUES[spec.fair_by],
        min_runtime=duration(spec.min_runtime_ms),
        half_life=duration(spec.half_life_ms),
        preemption_backoff=duration(spec.preemption_backoff_ms),
        preemption_backoff_max=duration(spec.preemption_backoff_max_ms),
    )


def to_proto(state: CellState, queue: Queue, standing: Standing) -> queue_pb2.Queue:
    """A queue with its status."""
    message = spec_to_proto(queue.path, queue.spec)
    message.id = queue.id
    message.revision = queue.spec.revision
    message.status.CopyFrom(
        queue_pb2.QueueStatus(
            usage=quantities.quantities(sorted(queue.usage.items())),
            entitled=quantities.quantities(state.entitled.get(queue.id, ())),
            borrowed=quantities.quantities(standing.borrowed),
            pending=quantities.quantities(standing.pending),
            pending_jobs=standing.pending_jobs,
            running_jobs=standing.running_jobs,
            leaf=not queue.children,
        )
    )
    return message


def shares_to_proto(queue: Queue, standing: Standing, now_ms: int) -> queue_pb2.QueueShares:
    """A queue resource by resource. `now_ms`: the reader's time, up to which past usage has faded."""
    columns = {
        "guaranteed": dict(queue.spec.guaranteed),
        "entitled": dict(standing.entitled),
        "usage": queue.usage,
        "committed": queue.committed,
        "borrowed": dict(standing.borrowed),
        "lent": dict(standing.lent),
        "withheld": dict(standing.withheld),
        "pending": dict(standing.pending),
        "limit": dict(queue.spec.limit),
        "decayed": {} if queue.history is None else queue.history.units(queue.usage, now_ms),
    }
    named = sorted({resource for amounts in columns.values() for resource in amounts})
    return queue_pb2.QueueShares(
        path=queue.path,
        leaf=not queue.children,
        weight=queue.spec.weight,
        resources=[
            queue_pb2.ResourceShare(
                resource=resource,
                **{
                    column: quantities.quantity(resource, amounts[resource])
                    for column, amounts in columns.items()
                    if resource in amounts
                },
            )
            for resource in named
        ],
        pending_jobs=standing.pending_jobs,
        running_jobs=standing.running_jobs,
    )
