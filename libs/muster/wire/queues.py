"""Queues between the API and the core: specs in, specs with what they use and wait for out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from muster.api.v1 import queue_pb2
from muster.core import resources
from muster.core.errors import Code, Rejected
from muster.core.model import Amounts, JobState, QueueSpec
from muster.core.queues import Queue
from muster.core.state import CellState
from muster.wire import enums, quantities

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
)
STATE_VALUES: Final = {name: value for value, name in enums.QUEUE_STATES.items()}
ORDERING_VALUES: Final = {name: value for value, name in enums.ORDERINGS.items()}
PREEMPTION_VALUES: Final = {name: value for value, name in enums.PREEMPTIONS.items()}


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
        "guaranteed": _amounts(queue.guaranteed, "queue.guaranteed"),
        "limit": _amounts(queue.limit, "queue.limit", zeros=True),
        "lending_limit": _amounts(queue.lending_limit, "queue.lending_limit", zeros=True),
        "labels": tuple(sorted(queue.labels.items())),
    }
    return msgspec.structs.replace(spec, **{field: stated[field] for field in fields})


def _amounts(stated: Mapping[str, str], field: str, *, zeros: bool = False) -> Amounts:
    """A limit of 0 means something (nothing at all); a guarantee of 0 does not."""
    parsed = {
        resource: resources.parse_quantity(resource, text, f"{field}.{resource}") for resource, text in stated.items()
    }
    return tuple(sorted((resource, amount) for resource, amount in parsed.items() if amount or zeros))


def to_proto(state: CellState, queue: Queue, waiting: Mapping[str, Waiting]) -> queue_pb2.Queue:
    """A queue with its status. `waiting` is of `waiting_by_queue`."""
    spec = queue.spec
    entitled = dict(state.entitled.get(spec.id, ()))
    usage = sorted(queue.usage.items())
    borrowed = [(r, n - entitled[r]) for r, n in usage if r in entitled and n > entitled[r]]
    mine = waiting.get(spec.id) or Waiting()
    return queue_pb2.Queue(
        path=queue.path,
        id=spec.id,
        revision=spec.revision,
        weight=spec.weight,
        priority=spec.priority,
        ordering=ORDERING_VALUES[spec.ordering],
        preemption=PREEMPTION_VALUES[spec.preemption],
        state=STATE_VALUES[spec.state],
        guaranteed=quantities.quantities(spec.guaranteed),
        limit=quantities.quantities(spec.limit),
        lending_limit=quantities.quantities(spec.lending_limit),
        labels=dict(spec.labels),
        status=queue_pb2.QueueStatus(
            usage=quantities.quantities(usage),
            entitled=quantities.quantities(entitled.items()),
            borrowed=quantities.quantities(borrowed),
            pending=quantities.quantities(sorted(mine.amounts.items())),
            pending_jobs=mine.pending,
            running_jobs=mine.running,
            leaf=not queue.children,
        ),
    )


class Waiting:
    """What the jobs of a queue and below it wait for, and how many run."""

    __slots__ = ("amounts", "pending", "running")

    def __init__(self) -> None:
        self.amounts: dict[str, int] = {}
        self.pending = 0
        self.running = 0


def waiting_by_queue(state: CellState) -> dict[str, Waiting]:
    """By queue id, every queue with a live job below it. One walk over the jobs of the cell."""
    found: dict[str, Waiting] = {}
    for job in state.jobs.values():
        if not job.live or job.queue not in state.queues:
            continue
        for queue in state.queues.get(job.queue).chain:
            waiting = found.get(queue.id)
            if waiting is None:
                waiting = found[queue.id] = Waiting()
            if job.charged:
                waiting.running += 1
            elif job.state is not JobState.SUSPENDED:
                waiting.pending += 1
                for resource, amount in job.gang.full:
                    waiting.amounts[resource] = waiting.amounts.get(resource, 0) + amount
    return found
