"""Every mistake gets its own clear error from the command line down to the core, and the service stays up (rule Q2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.admission_cell import Processes, running_cell

from muster import client as mc
from muster.cli import main
from muster.core.commands import NodesReported
from muster.core.model import NodeSpec
from muster.runtime.clock import SystemClock
from muster.runtime.inbox import InboxWriter
from muster.runtime.nats_bus import connect as connect_nats
from muster.runtime.streams import inbox_spec

REFUSED, NOT_FOUND, USAGE, BUSY = 3, 4, 2, 6
JOB = """
name: {name}
queue: {queue}
tasks: [{{name: w, replicas: 2, resources: {{cpu: {cpu}}}{more}}}]
"""


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with running_cell(tmp_path_factory.mktemp("cell")) as processes:
        asyncio.run(_prepare(processes))
        yield processes


async def _prepare(processes: Processes) -> None:
    bus = await connect_nats(processes.nats.url)
    writer = InboxWriter(await bus.stream(inbox_spec("main")), clock=SystemClock())
    node = NodeSpec(cluster="sim-a", name="n0", allocatable=(("cpu", 8000), ("pods", 110)))
    await writer.write([NodesReported("sim-a", (node,), first=True, complete=True)])
    await bus.close()
    async with mc.connect(processes.ready("adm-1")) as m:
        for path in ("research", "research/vision", "research/vision/a"):
            await m.create_queue(path)


@pytest.fixture
def at(cell: Processes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder for job files; afterwards the same process still takes a good job."""
    monkeypatch.setenv("MUSTER_ADDRESS", cell.ready("adm-1"))
    yield tmp_path
    good = tmp_path / "good.yaml"
    good.write_text(job(name="good"))
    assert main.run(["submit", "-f", str(good), "--dry-run"]) == 0


def job(*, name: str = "a", queue: str = "research/vision/a", cpu: str = "1", more: str = "") -> str:
    return JOB.format(name=name, queue=queue, cpu=cpu, more=more)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (job(cpu="9"), REFUSED, "can never run: group w: a pod asks for 9 cpu; the largest node it may use"),
        (job(queue="reserch/vision/a"), NOT_FOUND, 'queue "reserch/vision/a" does not exist (did you mean "research'),
        (job(queue="research"), REFUSED, "has queues below it: name a leaf"),
        (job(cpu="-1"), REFUSED, 'tasks[0].resources.cpu: "-1" is negative'),
        (job(more=", near: w"), REFUSED, "tasks[0].near is part of the API but not built yet"),
        (job(more=", replcas: 3"), USAGE, 'unknown key "replcas" in tasks[0] (did you mean "replicas"?)'),
        (job() + "template: {spec: {x: '" + "y" * (2 << 20) + "'}}\n", REFUSED, "at most 256 KiB are possible"),
        ("name: [", USAGE, "this is not YAML"),
    ],
    ids=["never fits", "unknown queue", "not a leaf", "negative", "reserved", "unknown field", "2 MiB", "no YAML"],
)
def test_a_wrong_job(at: Path, capfd: pytest.CaptureFixture[str], text: str, code: int, said: str) -> None:
    path = at / "job.yaml"
    path.write_text(text)
    assert main.run(["submit", "-f", str(path)]) == code
    shown = capfd.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


def test_a_request_id_with_another_body(at: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = at / "job.yaml"
    for text, code in ((job(name="once"), 0), (job(name="once"), 0), (job(name="once", cpu="2"), REFUSED)):
        path.write_text(text)
        assert main.run(["submit", "-f", str(path), "--request-id", "exp-17"]) == code
    assert "request id exp-17 was used for another job (id " in capfd.readouterr().err


def test_a_cycle_in_the_queue_tree(at: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["queue", "move", "research", "research/vision/a/research"]) == REFUSED
    assert 'queue "research" cannot move below itself' in capfd.readouterr().err
    assert main.run(["queue", "move", "research/vision/a", "research/a"]) == 0
    assert main.run(["queue", "move", "research/nowhere", "x"]) == NOT_FOUND
    assert main.run(["queue", "move", "research/a", "research/vision/a"]) == 0
    assert "research/vision/a  moved from research/a   revision 3" in capfd.readouterr().out


def test_an_update_of_some_limits_keeps_the_others(at: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["queue", "create", "some", "--limit", "cpu=10,memory=1Gi"]) == 0
    assert main.run(["queue", "update", "some", "--limit", "cpu=5"]) == 0
    assert main.run(["queue", "update", "some", "--limit", "gpu=4,memory=none"]) == 0
    capfd.readouterr()
    assert main.run(["queue", "describe", "some"]) == 0
    limits = {line.split()[0]: line.split()[-1] for line in capfd.readouterr().out.splitlines() if line.strip()}
    assert (limits["cpu"], limits["gpu"]) == ("5", "4")
    assert "memory" not in limits
