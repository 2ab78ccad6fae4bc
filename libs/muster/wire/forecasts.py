"""What-if answers and changes of the queue tree as the API's messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from muster.api.v1 import query_pb2, queue_pb2
from muster.core import resources
from muster.core.borrowing import Newly
from muster.core.limits import BACKOFF_FIRST_MS, BACKOFF_MAX_MS
from muster.core.model import Allowance, Amounts
from muster.core.queue_changes import Difference
from muster.core.queues import QueueTree
from muster.core.whatif import Displaced, JobForecast, TreeForecast
from muster.wire import explanations, quantities
from muster.wire.queues import CORE_FIELDS

HOUR_MS: Final = 3600 * 1000
DURATION_UNITS: Final = (("d", 24 * HOUR_MS), ("h", HOUR_MS), ("m", 60_000), ("s", 1000))
DECIMAL_BYTES: Final = (("G", 10**9), ("M", 10**6), ("k", 1000))
UNSET: Final = {  # rule P5: what a queue does not say it has from the queue above it
    "preemption_backoff_ms": f"inherited (at the root {BACKOFF_FIRST_MS // 1000}s)",
    "preemption_backoff_max_ms": f"inherited (at the root {BACKOFF_MAX_MS // HOUR_MS}h)",
}
CORE_NAMES: Final = {core: name for name, core in CORE_FIELDS.items()}


def hours(totals: Iterable[tuple[str, int]]) -> dict[str, float]:
    """Resource-milliseconds as resource-hours, "1" of the resource for an hour."""
    return {
        resource: total / (HOUR_MS * resources.unit_scale(resource))
        for resource, total in totals
        if resource != resources.PODS
    }


def job_to_proto(forecast: JobForecast) -> query_pb2.JobForecast:
    return query_pb2.JobForecast(
        summary=forecast.summary,
        starts_now=forecast.starts_now,
        placement=[
            query_pb2.PlacedOn(task=place.task, cluster=place.cluster, node=place.node, pods=place.pods)
            for place in forecast.placement
        ],
        displaces=[_displaced(victim) for victim in forecast.displaces],
        explanation=explanations.to_proto(forecast.explanation) if forecast.explanation else None,
    )


def _displaced(victim: Displaced) -> query_pb2.Displaced:
    return query_pb2.Displaced(
        job_id=victim.job,
        name=victim.name,
        queue=victim.queue,
        priority=victim.priority,
        replicas=victim.replicas,
        lost_hours=hours(victim.lost),
    )


def changes_to_proto(changes: Iterable[Difference]) -> list[queue_pb2.QueueChange]:
    return [
        queue_pb2.QueueChange(
            path=change.path,
            kind=change.kind,
            fields=[
                queue_pb2.FieldChange(
                    field=CORE_NAMES.get(name, name), before=_text(name, before), after=_text(name, after)
                )
                for name, before, after in change.fields
            ],
        )
        for change in changes
    ]


def tree_to_proto(forecast: TreeForecast, tree: QueueTree) -> queue_pb2.TreeForecast:
    return queue_pb2.TreeForecast(
        entitlements=[
            queue_pb2.EntitlementChange(queue=path, before=_quantities(before), after=_quantities(after))
            for path, before, after in forecast.entitlements
        ],
        reclaimable=[_reclaimable(found, tree) for found in forecast.reclaimable],
        leaving=[_reclaimable(found, tree) for found in forecast.leaving],
        warnings=forecast.warnings,
    )


def _reclaimable(found: Newly, tree: QueueTree) -> queue_pb2.Reclaimable:
    return queue_pb2.Reclaimable(
        queue=tree.path(found.leaf),
        jobs=found.jobs,
        job_ids=found.first,
        usage=_quantities(found.usage),
        work_hours=hours(found.work),
        shrunk_jobs=found.shrunk,
        replicas=found.replicas,
        shrunk_job_ids=found.first_shrunk,
    )


def _quantities(amounts: Iterable[tuple[str, int]]) -> dict[str, str]:
    return quantities.quantities((resource, amount) for resource, amount in amounts if resource != resources.PODS)


def _text(field: str, value: object) -> str:
    """Durations as queue files take them; one that is not set says what that means."""
    if field not in CORE_NAMES or not isinstance(value, int):
        return text(value)
    if not value:
        return UNSET.get(field, "none")
    for suffix, size_ms in DURATION_UNITS:
        if value % size_ms == 0:
            return f"{value // size_ms}{suffix}"
    return f"{value}ms"


def text(value: object) -> str:
    """A field of a queue as people write it."""
    if isinstance(value, Allowance):
        limits = {"pending_jobs": value.pending_jobs, "running_jobs": value.running_jobs}
        stated: Mapping[str, object] = {name: limit for name, limit in limits.items() if limit >= 0}
        parts = [f"{name} {limit}" for name, limit in stated.items()]
        return ", ".join([*parts, *_pairs(value.resources)]) or "none"
    if isinstance(value, tuple):
        return ", ".join(_pairs(value)) or "none"
    return str(value)


def _pairs(pairs: Amounts | tuple[tuple[str, str], ...]) -> list[str]:
    return [f"{k}={v}" if isinstance(v, str) else f"{_amount(k, v)} {resources.short_name(k)}" for k, v in pairs]


def _amount(resource: str, amount: int) -> str:
    """As for people, unless that would round it: two amounts that differ must not read the same."""
    told = resources.format_amount(resource, amount)
    if not resources.is_bytes(resource) or resources.parse_quantity(resource, told) == amount:
        return told
    whole = quantities.quantity(resource, amount)
    decimal = (f"{amount // size}{suffix}" for suffix, size in DECIMAL_BYTES if amount % size == 0)
    return next(decimal, whole) if whole.isdecimal() else whole
