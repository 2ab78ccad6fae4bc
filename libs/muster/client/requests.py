"""Requests from plain values: jobs cut into batches that a request takes, queues and filters from keywords.

A request has a largest number of jobs and of bytes. What is more goes in several requests; where they are cut follows
from the jobs alone, and so do their request ids from the first one, so that repeating the whole stays safe (LOG-11).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from muster.api.v1 import job_pb2, query_pb2, queue_pb2
from muster.client.bounds import INTEGERS, outside
from muster.client.durations import parse_duration_ms
from muster.client.errors import ClientError, Refused, Violation
from muster.client.views import state_value
from muster.core.limits import JOB_BYTES_MAX

BATCH_JOBS_MAX: Final = 1000
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024  # half of what gRPC takes; at least 32 jobs of the largest size
ITEM: Final = re.compile(r"^jobs\[(\d+)\]")

E = TypeVar("E", bound=ClientError)


class Batch(NamedTuple):
    """Jobs that go in one request; or one job that none takes, and why."""

    first: int  # which of all jobs its first one is
    jobs: Sequence[job_pb2.JobSpec]
    request_id: str
    refusal: Refused | None = None


def batches(specs: Sequence[job_pb2.JobSpec], request_id: str) -> Iterator[Batch]:
    """All jobs, in order."""
    cuts = list(_cuts(specs))
    number = 0
    for first, end, size in cuts:
        jobs = specs[first:end]
        if size > BATCH_BYTES_MAX:
            yield Batch(first, jobs, "", _too_large(first, size))
            continue
        yield Batch(first, jobs, f"{request_id}-{number}" if len(cuts) > 1 else request_id)
        number += 1
    if not cuts:
        yield Batch(0, specs, request_id)  # the server says what is wrong with it


def _cuts(specs: Sequence[job_pb2.JobSpec]) -> Iterator[tuple[int, int, int]]:
    """(first, end, bytes) of each batch; a job too large for any is one of its own."""
    first = size = 0
    for at, spec in enumerate(specs):
        own = spec.ByteSize()
        if at > first and (at - first == BATCH_JOBS_MAX or size + own > BATCH_BYTES_MAX):
            yield first, at, size
            first, size = at, 0
        size += own
    if specs:
        yield first, len(specs), size


def _too_large(at: int, size: int) -> Refused:
    message = f"the job has {size // 1024} KiB, at most {JOB_BYTES_MAX // 1024} KiB are possible: mount large data"
    return Refused("INVALID_ARGUMENT", message, [Violation(f"jobs[{at}]", message)], rule="LOG-8")


def moved(error: E, by: int) -> E:
    """The error of a job of a later batch, with fields that count from the first job of all."""
    if by:
        error.violations = tuple(v._replace(field=_counted(v.field, by)) for v in error.violations)
        error.message = _counted(error.message, by)
    return error


def _counted(text: str, by: int) -> str:
    return ITEM.sub(lambda found: f"jobs[{int(found[1]) + by}]", text)


def new_request_id() -> str:
    return uuid.uuid4().hex


def queue_message(path: str, fields: Mapping[str, Any]) -> queue_pb2.Queue:
    """A Queue message from plain values; enums by their short names. Raises ValueError that names the field."""
    message = queue_pb2.Queue(path=path)
    for name, value in fields.items():
        if name not in queue_pb2.Queue.DESCRIPTOR.fields_by_name or name in ("path", "id", "revision", "status"):
            raise ValueError(f"a queue has no field {name!r} that can be set")
        try:
            _set(message, name, value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return message


def _set(message: queue_pb2.Queue, name: str, value: Any) -> None:
    """Raises ValueError."""
    field = queue_pb2.Queue.DESCRIPTOR.fields_by_name[name]
    if field.enum_type is not None and isinstance(value, str):
        prefix = f"QUEUE_{name.upper()}_"
        if prefix + value.upper() not in field.enum_type.values_by_name:
            known = ", ".join(each.name.removeprefix(prefix) for each in field.enum_type.values[1:])
            raise ValueError(f"must be one of {known}, not {value!r}")
        setattr(message, name, field.enum_type.values_by_name[prefix + value.upper()].number)
    elif name in ("per_namespace", "per_user"):
        getattr(message, name).CopyFrom(queue_pb2.Allowance(**value))
    elif field.message_type is not None and field.message_type.full_name == "google.protobuf.Duration":
        getattr(message, name).FromMilliseconds(parse_duration_ms(value) if isinstance(value, str) else value)
    elif isinstance(value, Mapping):
        getattr(message, name).update({key: str(amount) for key, amount in value.items()})
    else:
        wrong = outside(field, value) if field.type in INTEGERS and isinstance(value, int) else ""
        if wrong:
            raise ValueError(wrong)
        setattr(message, name, value)


def job_filter(**fields: Any) -> query_pb2.JobFilter:
    """A filter from plain values: queue, states (names), namespace, labels, submitter, name_prefix, job_ids."""
    states = [state_value(state) for state in fields.pop("states", ())]
    return query_pb2.JobFilter(states=states, **fields)
