"""Priority classes and `max_preemptions` over real processes: calls, jobs of a class, and mistakes by their field."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.integration.admission_cell import Processes, running_cell

from muster import client as mc
from muster.api.v1 import admin_pb2, job_pb2
from muster.client.requests import job_filter


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with running_cell(tmp_path_factory.mktemp("cell")) as processes:
        asyncio.run(_prepare(processes))
        yield processes


async def _prepare(processes: Processes) -> None:
    async with mc.connect(processes.ready("adm-1")) as m:
        await m.create_queue("stopped", state="stopped")


@pytest.fixture
async def muster(cell: Processes) -> AsyncIterator[mc.Client]:
    async with mc.connect(cell.ready("adm-1")) as client:
        yield client


def job(name: str, queue: str = "stopped", **fields: object) -> job_pb2.JobSpec:
    tasks = [job_pb2.TaskGroup(name="main", replicas=1, resources={"cpu": "1"})]
    return job_pb2.JobSpec(**({"name": name, "queue": queue, "tasks": tasks} | fields))  # type: ignore[arg-type]


async def refusal(work: object) -> mc.ClientError:
    with pytest.raises(mc.ClientError) as caught:
        await work  # type: ignore[misc]
    return caught.value


async def test_priority_classes_are_made_changed_listed_and_forgotten(muster: mc.Client) -> None:
    await muster.set_priority_class("urgent", 1000, labels={"team": "ops"})
    await muster.set_priority_class("patient", -10, min_runtime="30m")
    await muster.set_priority_class("urgent", 900)
    found = {of.name: of for of in await muster.list_priority_classes()}
    assert list(found) == ["urgent", "patient"]  # the highest first
    assert found["urgent"] == admin_pb2.PriorityClass(name="urgent", value=900)
    assert found["patient"].min_runtime.ToSeconds() == 1800
    await muster.set_priority_class("tried", 5, dry_run=True)
    await muster.delete_priority_class("patient", dry_run=True)
    assert [of.name for of in await muster.list_priority_classes()] == ["urgent", "patient"]
    await muster.delete_priority_class("patient")
    assert [of.name for of in await muster.list_priority_classes()] == ["urgent"]


async def test_a_job_takes_what_its_class_says_and_keeps_it(muster: mc.Client) -> None:
    await muster.create_queue("classy", state="stopped", min_runtime="1m")
    await muster.set_priority_class("early", 7, min_runtime="10m")
    accepted = await muster.submit(job("of-class", "classy", priority_class="early", max_preemptions=0))
    plain = await muster.submit(job("of-none", "classy"), wait="decided")
    await muster.set_priority_class("early", 8)
    await muster.delete_priority_class("early")
    found = (await muster.get(accepted.id)).proto
    assert (found.spec.priority, found.spec.priority_class) == (7, "early")
    assert found.spec.HasField("max_preemptions")
    assert (found.spec.max_preemptions, found.status.preemptions) == (0, 0)
    assert found.status.min_runtime.ToSeconds() == 600  # the larger of the two
    other = (await muster.get(plain.id)).proto
    assert (other.spec.priority_class, other.spec.HasField("max_preemptions")) == ("", False)
    assert other.status.min_runtime.ToSeconds() == 60
    listed = [each.proto.spec.priority_class async for each in muster.list(job_filter(queue="classy"))]
    assert listed == ["early", ""]
    late = await refusal(muster.submit(job("late", "classy", priority_class="early"), wait="accepted"))
    assert (late.code, late.rule, late.violations[0].field) == ("NOT_FOUND", "P4", "jobs[0].priority_class")


async def test_mistakes_with_priority_classes(muster: mc.Client) -> None:
    await muster.set_priority_class("known")

    async def wrong(**fields: object) -> tuple[str, str]:
        error = await refusal(muster.put_priority_class(admin_pb2.PriorityClass(**fields)))  # type: ignore[arg-type]
        return error.code, error.violations[0].field

    assert await wrong(name="Bad!") == ("INVALID_ARGUMENT", "priority_class.name")
    assert await wrong(name="x", value=2_000_000_000) == ("INVALID_ARGUMENT", "priority_class.value")
    assert await wrong(name="x", min_runtime={"seconds": -1}) == ("INVALID_ARGUMENT", "priority_class.min_runtime")
    assert await wrong(name="x", min_runtime={"seconds": 1 << 33}) == ("INVALID_ARGUMENT", "priority_class.min_runtime")
    assert await wrong(name="x", labels={"-": ""}) == ("INVALID_ARGUMENT", "priority_class.labels.-")
    assert await wrong(name="x", max_wait={"seconds": 1}) == ("UNIMPLEMENTED", "priority_class.max_wait")
    for dry_run in (False, True):
        gone = await refusal(muster.delete_priority_class("knwon", dry_run=dry_run))
        assert (gone.code, gone.rule, gone.violations[0].field) == ("NOT_FOUND", "P4", "name")
        assert gone.message == 'priority class "knwon" does not exist (did you mean "known"?)'
    both = await refusal(muster.submit(job("both", priority_class="known", priority=1)))
    assert (both.code, both.violations[0].field) == ("INVALID_ARGUMENT", "jobs[0].priority_class")
    assert "priority says 1" in both.message
    often = await refusal(muster.submit(job("often", max_preemptions=1001)))
    assert (often.code, often.violations[0].field) == ("INVALID_ARGUMENT", "jobs[0].max_preemptions")
