"""Priority classes between the API and the core."""

from __future__ import annotations

from collections.abc import Iterable

from muster.api.v1 import admin_pb2
from muster.core.commands import UpsertPriorityClass
from muster.core.model import PriorityClass
from muster.wire import reserved
from muster.wire.jobs import labels_of
from muster.wire.status import duration


def to_command(of: admin_pb2.PriorityClass, request_id: str) -> UpsertPriorityClass:
    """Raises Rejected with the field in the class."""
    if of.HasField("max_wait"):
        raise reserved.refusal("max_wait")
    return UpsertPriorityClass(
        name=of.name,
        value=of.value,
        labels=labels_of(of.labels),
        request_id=request_id,
        min_runtime_ms=of.min_runtime.ToMilliseconds(),
    )


def to_proto(of: PriorityClass) -> admin_pb2.PriorityClass:
    return admin_pb2.PriorityClass(
        name=of.name, value=of.value, labels=dict(of.labels), min_runtime=duration(of.min_runtime_ms)
    )


def in_order(classes: Iterable[PriorityClass]) -> list[admin_pb2.PriorityClass]:
    """The highest value first, then by name."""
    return [to_proto(of) for of in sorted(classes, key=lambda of: (-of.value, of.name))]
