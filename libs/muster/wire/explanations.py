"""The core's explanation of a job as the API's message."""

from __future__ import annotations

from typing import Final

from muster.api.v1 import query_pb2
from muster.core.blockers import Blocker
from muster.core.explain import Explanation, QueueShare
from muster.wire.quantities import quantities, quantity, requests
from muster.wire.status import timestamp

COUNTED_IN_PODS: Final = frozenset({"capacity", "device"})  # what such blockers need and have available


def to_proto(why: Explanation) -> query_pb2.Explanation:
    return query_pb2.Explanation(
        summary=why.summary,
        position=why.position,
        pending=why.pending,
        expected_start=timestamp(why.expected_start_ms),
        expected_start_unknown=why.expected_start_unknown,
        needs=[
            query_pb2.Need(
                task=need.task,
                replicas=need.replicas,
                min_replicas=need.min_replicas,
                resources=requests(need.requests),
            )
            for need in why.needs
        ],
        shares=[_share(share) for share in why.shares],
        blockers=[_blocker(blocker) for blocker in why.blockers],
        unblocked_by=why.unblocked_by,
        ahead=why.ahead,
        rule=why.rule,
        preemption=why.preemption,
    )


def _share(share: QueueShare) -> query_pb2.QueueShare:
    return query_pb2.QueueShare(
        queue=share.queue,
        usage=quantities(share.usage),
        limit=quantities(share.limit),
        entitled=quantities(share.entitled),
        with_job=quantities(share.with_job),
        over=quantities(share.over),
    )


def _blocker(blocker: Blocker) -> query_pb2.Blocker:
    message = query_pb2.Blocker(
        rule=blocker.rule,
        kind=blocker.kind,
        subject=blocker.subject,
        resource=blocker.resource,
        nodes=blocker.nodes,
        message=blocker.message,
    )
    if blocker.kind in ("backoff", "suspect"):
        message.missing = f"{blocker.missing / 1000:g}s"
    elif blocker.kind in COUNTED_IN_PODS:
        message.needed, message.available = str(blocker.needed), str(blocker.available)
        message.missing = _amount(blocker.resource, blocker.missing)
    else:
        message.needed = _amount(blocker.resource, blocker.needed)
        message.available = quantity(blocker.resource, blocker.available) if message.needed else ""
        message.missing = _amount(blocker.resource, blocker.missing)
    return message


def _amount(resource: str, amount: int) -> str:
    return quantity(resource, amount) if resource and amount else ""
