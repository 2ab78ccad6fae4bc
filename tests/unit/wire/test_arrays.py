"""Array jobs and checkpoints as they are submitted: rules G1, P3."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.v1 import job_pb2
from muster.core.errors import Code, Rejected
from muster.core.model import EVERY_INDEX, JobSpec
from muster.wire.jobs import JobReader, Origin
from muster.wire.status import _spec

EVERY, PLACED = job_pb2.COMPLETION_EVERY_INDEX, job_pb2.COMPLETION_ALL_PLACED


def read(*replicas: int, least: int = 0, **more: Any) -> JobSpec:
    tasks = [{"name": f"g{n}", "replicas": count, "resources": {"cpu": "1"}} for n, count in enumerate(replicas)]
    spec = job_pb2.JobSpec(name="sweep", queue="q", tasks=tasks, **more)
    if least:
        spec.tasks[0].min_replicas = least
    return JobReader().to_core(spec, 0, Origin("main", "r1", "ann"))


def sizes(job: JobSpec) -> list[tuple[int, int]]:
    return [(task.min_replicas, task.replicas) for task in job.tasks]


def test_an_ordinary_job_has_neither() -> None:
    job = read(4)
    assert (job.completion, job.max_parallel, job.checkpoint_ms, sizes(job)) == ("", 0, 0, [(4, 4)])
    assert read(4, completion=PLACED).completion == ""


@pytest.mark.parametrize(("replicas", "least", "expected"), [(1, 0, 1), (100, 0, 1), (100, 5, 5)])
def test_a_size_is_short_for_as_many_replicas(replicas: int, least: int, expected: int) -> None:
    job = read(replicas, least=least, array={"size": 100, "max_parallel": 8})
    assert (job.completion, job.max_parallel, sizes(job)) == (EVERY_INDEX, 8, [(expected, 100)])


def test_completion_leaves_the_groups_as_they_are() -> None:
    job = read(4, 2, completion=EVERY, array={"max_parallel": 6})
    assert (job.completion, job.max_parallel, sizes(job)) == (EVERY_INDEX, 6, [(4, 4), (2, 2)])


@pytest.mark.parametrize(
    ("field", "replicas", "more"),
    [
        ("completion", (4,), {"completion": 7}),
        ("completion", (1,), {"completion": PLACED, "array": {"size": 4}}),
        ("array.size", (1, 1), {"array": {"size": 4}}),
        ("array.size", (1,), {"array": {"size": 40_001}}),
        ("tasks[0].replicas", (3,), {"array": {"size": 4}}),
        ("array.max_parallel", (4,), {"array": {"max_parallel": 2}}),
        ("array.max_parallel", (4,), {"completion": EVERY, "array": {"max_parallel": 2}}),
    ],
)
def test_what_does_not_go_together_is_refused(field: str, replicas: tuple[int, ...], more: dict[str, Any]) -> None:
    with pytest.raises(Rejected) as refused:
        read(*replicas, **more)
    assert (refused.value.code, refused.value.field) == (Code.INVALID_ARGUMENT, field)


def test_checkpoints_by_interval() -> None:
    assert read(1, checkpoint={"interval": {"seconds": 90}}).checkpoint_ms == 90_000


@pytest.mark.parametrize(
    ("checkpoint", "code", "field"),
    [
        ({"signal": "SIGUSR1", "interval": {"seconds": 9}}, Code.UNIMPLEMENTED, "checkpoint.signal"),
        ({}, Code.INVALID_ARGUMENT, "checkpoint.interval"),
        ({"interval": {"seconds": -1}}, Code.INVALID_ARGUMENT, "checkpoint.interval"),
    ],
)
def test_checkpoints_that_say_nothing(checkpoint: dict[str, Any], code: Code, field: str) -> None:
    with pytest.raises(Rejected) as refused:
        read(1, checkpoint=checkpoint)
    assert (refused.value.code, refused.value.field) == (code, field)


def test_a_job_shows_what_it_is() -> None:
    shown = _spec(
        read(1, array={"size": 9, "max_parallel": 3}, checkpoint={"interval": {"seconds": 9}}), templates=False
    )
    assert (shown.completion, shown.array.max_parallel, shown.tasks[0].replicas) == (EVERY, 3, 9)
    assert shown.checkpoint.interval.seconds == 9
