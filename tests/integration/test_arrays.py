"""Array jobs and checkpoints from the client and the command line to real processes and back: rules G1, P3."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.integration.admission_cell import Processes, running_cell

from muster import client as mc
from muster.api.v1 import job_pb2
from muster.cli.main import run
from muster.core.commands import NodesReported, PodFact, PodsObserved
from muster.core.model import NodeSpec, PodPhase
from muster.runtime.clock import SystemClock
from muster.runtime.inbox import InboxWriter
from muster.runtime.nats_bus import connect as connect_nats
from muster.runtime.streams import inbox_spec

SWEEP = """
name: {name}
queue: research
array: {{size: 5, max_parallel: 2}}
checkpoint: {{interval: 10m}}
tasks: [{{name: run, resources: {{cpu: 1, memory: 1Gi}}}}]
"""


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with running_cell(tmp_path_factory.mktemp("cell")) as processes:
        asyncio.run(_prepare(processes))
        yield processes


async def _prepare(processes: Processes) -> None:
    node = NodeSpec("sim-a", "n0", (("cpu", 8000), ("memory", 32 << 30), ("pods", 110)))
    await _write(processes, NodesReported("sim-a", (node,), first=True, complete=True))
    async with mc.connect(processes.ready("adm-1")) as m:
        await m.create_queue("research")


async def _write(processes: Processes, *items: object) -> None:
    """As topology-updater and binder do."""
    bus = await connect_nats(processes.nats.url)
    await InboxWriter(await bus.stream(inbox_spec("main")), clock=SystemClock()).write(list(items))  # type: ignore[arg-type]
    await bus.close()


@pytest.fixture
async def muster(cell: Processes) -> AsyncIterator[mc.Client]:
    async with mc.connect(cell.ready("adm-1")) as client:
        yield client


async def submit(muster: mc.Client, name: str) -> str:
    (spec,) = mc.parse(SWEEP.format(name=name))
    return (await muster.submit(spec, wait="decided")).id


async def pods(cell: Processes, job: str, phase: PodPhase, *positions: int) -> None:
    facts = tuple(PodFact(job, 1, position, phase, uid=f"uid-{position}") for position in positions)
    await _write(cell, PodsObserved("sim-a", facts))


async def story(muster: mc.Client, job: str, until: str) -> list[str]:
    kinds = []
    async for event in muster.watch(job):
        kinds.append(event.proto.type)
        if event.proto.type == until:
            break
    return kinds


async def test_an_array_runs_index_by_index_until_all_have_succeeded(cell: Processes, muster: mc.Client) -> None:
    job = await submit(muster, "sweep")
    found = (await muster.get("sweep")).proto
    assert (found.spec.completion, found.spec.array.max_parallel) == (job_pb2.COMPLETION_EVERY_INDEX, 2)
    assert (found.status.pods.placed, found.status.pods.wanted) == (2, 5)
    assert "0 of 5 indices have succeeded" in (await muster.explain("sweep")).summary
    for position in range(5):
        await pods(cell, job, PodPhase.SUCCEEDED, position)
        while (await muster.get(job)).proto.status.pods.succeeded <= position:  # else two are decided on together
            await asyncio.sleep(0.01)
    kinds = await story(muster, job, "job.succeeded")
    assert kinds[:4] == ["job.queued", "job.placed", "job.grown", "job.starting"]
    assert kinds.count("job.grown") == 4  # the second index at once, then one for each that succeeded
    found = (await muster.get(job)).proto
    assert (found.status.pods.succeeded, found.status.epoch) == (5, 1)


async def test_a_checkpoint_is_reported_and_shown(muster: mc.Client) -> None:
    job = await submit(muster, "saves")
    assert await muster.checkpoint("saves", dry_run=True) == job
    assert not (await muster.get(job)).proto.status.HasField("checkpoint_time")
    assert await muster.checkpoint("saves") == job
    found = (await muster.get(job)).proto
    assert found.status.checkpoint_time.seconds > 0
    assert found.spec.checkpoint.interval.seconds == 600
    with pytest.raises(mc.ClientError) as refused:
        await muster.checkpoint("saves", epoch=9)
    assert (refused.value.code, refused.value.violations[0].field) == ("FAILED_PRECONDITION", "epoch")
    await muster.checkpoint("saves", at=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))  # nothing new
    assert (await muster.get(job)).proto.status.checkpoint_time == found.status.checkpoint_time
    assert (await story(muster, job, "job.checkpointed"))[-1] == "job.checkpointed"
    await muster.cancel(job)


def test_from_the_command_line(cell: Processes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = ("--address", cell.ready("adm-1"))
    file = tmp_path / "sweep.yaml"
    file.write_text(SWEEP.format(name="typed"))
    assert run(["submit", "-f", str(file), *address]) == 0
    assert run(["checkpoint", "typed", *address]) == 0
    assert "typed  its work is safe up to now" in capsys.readouterr().out
    assert run(["get", "typed", *address]) == 0
    told = capsys.readouterr().out
    assert "0/5 done" in told
    assert "array, 2 at once   checkpoint every 10 m" in told
    assert " saved " in told
    assert run(["checkpoint", "typed", "--at", "yesterday", *address]) == 2
    assert run(["checkpoint", "nobody", *address]) == 4
    assert run(["cancel", "typed", *address]) == 0
