"""Trees, shares, what-if and usage from the command line to real processes and back."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.admission_cell import Muster, Processes, commands, running_cell
from tests.patience import PATIENCE_S, POLL_S

from muster import client as mc
from muster.api.v1 import job_pb2
from muster.cli.errors import Exit
from muster.core.commands import NodesReported, PodFact, PodsObserved
from muster.core.model import NodeSpec, PodPhase
from muster.runtime.clock import SystemClock
from muster.runtime.inbox import InboxWriter
from muster.runtime.nats_bus import connect as connect_nats
from muster.runtime.streams import inbox_spec

GIB = 1 << 30
TREE = """
queues:
  research:
    weight: 2
    half_life: 7d
    queues:
      vision: {preemption: ANY}
      nlp: {weight: 3}
  batch: {}
"""


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with running_cell(tmp_path_factory.mktemp("cell"), fs="muster_fair_share") as processes:
        nodes = tuple(
            NodeSpec("sim-a", f"n{i}", (("cpu", 1000), ("memory", 32 * GIB), ("pods", 110))) for i in range(12)
        )
        asyncio.run(_write(processes, NodesReported("sim-a", nodes, first=True, complete=True)))
        yield processes


async def _write(processes: Processes, *items: object) -> None:
    bus = await connect_nats(processes.nats.url)
    await InboxWriter(await bus.stream(inbox_spec("main")), clock=SystemClock()).write(list(items))  # type: ignore[arg-type]
    await bus.close()


@pytest.fixture
def muster(cell: Processes, capsys: pytest.CaptureFixture[str]) -> Muster:
    return commands(cell, capsys)


def until(muster: Muster, wanted: Callable[[str], bool], *arguments: str) -> str:
    """The output of a command once it says what is wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        _, out, err = muster(*arguments)
        if wanted(out):
            return out
        assert time.monotonic() < deadline, out + err
        time.sleep(POLL_S)


def submit(cell: Processes, queue: str, count: int) -> list[str]:
    """One-cpu jobs; returns their ids."""

    async def work() -> list[str]:
        task = job_pb2.TaskGroup(name="main", replicas=1, resources={"cpu": "1"})
        specs = [
            job_pb2.JobSpec(name=f"{queue.rpartition('/')[2]}-{n}", queue=queue, tasks=[task]) for n in range(count)
        ]
        async with mc.connect(cell.ready("adm-1")) as client:
            results = await client.submit_many(specs, wait="decided")
        return [result.id for result in results if isinstance(result, mc.Submitted)]

    return asyncio.run(work())


def metrics(cell: Processes) -> str:
    """What a scrape of admission shows."""
    address = json.loads((cell.folder / "adm-1.ready").read_text())["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text


def test_a_cell_is_planned_used_and_accounted_for(cell: Processes, muster: Muster, tmp_path: Path) -> None:
    tree = tmp_path / "tree.yaml"
    tree.write_text(TREE)
    code, out, _ = muster("queue", "apply", "-f", str(tree), "--dry-run")
    assert code == 0
    assert "research  created\n  weight: 1 -> 2\n  half_life: none -> 7d" in out
    assert "nothing was changed (dry run)" in out
    assert muster("queue", "list")[1].startswith("no queues")
    assert "research/nlp  created" in muster("queue", "apply", "-f", str(tree))[1]
    assert muster("queue", "apply", "-f", str(tree))[1] == "nothing to change\n"
    exported = muster("queue", "export")[1]
    tree.write_text(exported)
    assert muster("queue", "apply", "-f", str(tree), "--prune")[1] == "nothing to change\n"

    ran = submit(cell, "batch", 12)
    facts = tuple(PodFact(job, 1, 0, PodPhase.RUNNING, uid=job) for job in ran)
    asyncio.run(_write(cell, PodsObserved("sim-a", facts)))
    submit(cell, "research/vision", 12)
    until(muster, lambda out: " 4 " in out and "8" in out, "queue", "describe", "batch")
    described = until(muster, lambda out: json.loads(out)["shares"].get("running_jobs") == 12,
                      "queue", "describe", "batch", "-o", "json")  # fmt: skip
    shares = json.loads(described)["shares"]
    (cpu,) = [share for share in shares["resources"] if share["resource"] == "cpu"]
    assert (cpu["entitled"], cpu["usage"], cpu["borrowed"]) == ("4", "12", "8")

    code, out, _ = muster("what-if", "queue", "research", "--weight", "5")
    assert code == 0
    assert "entitled  batch 4 -> 2 cpu" in out
    assert "reclaimable  2 running jobs of batch" in out
    code, _, err = muster("what-if", "queue", "reserch", "--weight", "5")
    assert code == 4
    assert 'did you mean "research"' in err

    file = tmp_path / "job.yaml"
    file.write_text("name: more\nqueue: research/nlp\ntasks: [{name: m, replicas: 1, resources: {cpu: 1}}]\n")
    code, out, err = muster("what-if", "submit", "-f", str(file))
    assert code == 0, err
    assert out.startswith(("would wait: ", "would start on "))
    assert "more" not in muster("list")[1]  # nothing was submitted

    out = muster("usage", "--by", "queue,user")[1]
    assert out.splitlines()[0].split()[:3] == ["QUEUE", "USER", "CPU-H"]
    assert any(line.split()[:2] == ["batch", "anonymous@127.0.0.1"] for line in out.splitlines())
    rows = json.loads(muster("usage", "--since", "1h", "-o", "json")[1])
    assert {row["queue"]: row["submitted"] for row in rows["rows"]} == {"batch": "12", "research/vision": "12"}
    assert muster("usage", "--by", "moon")[0] == 2

    scraped = metrics(cell)
    assert 'muster_usage_jobs_started_total{by="queue",name="batch"} 12.0' in scraped
    assert 'muster_usage_resource_seconds_total{by="user",name="anonymous@127.0.0.1",resource="cpu"}' in scraped
    assert 'muster_usage_waits_total{by="queue",name="batch"}' in scraped
    assert 'muster_queue_used{queue="batch",resource="cpu"}' in scraped
    assert 'muster_queue_entitled{queue="batch",resource="cpu"}' in scraped
    assert "muster_queues_left_out 0.0" in scraped

    code, _, err = muster("queue", "update", "research/vision", "--half-life", "1h")
    assert code == 3
    assert "set it on the root queue only" in err
    assert muster("queue", "update", "batch", "--half-life", "1h")[0] == 0
    described = json.loads(muster("queue", "describe", "batch", "-o", "json")[1])
    (cpu,) = [share for share in described["shares"]["resources"] if share["resource"] == "cpu"]
    assert (described["half_life"], cpu["usage"], cpu["decayed"]) == ("3600s", "12", "12")
    assert "DECAYED" in muster("queue", "describe", "batch")[1]

    assert "night  moved" in muster("queue", "move", "batch", "night")[1]
    rows = json.loads(muster("usage", "-o", "json")[1])
    assert {row["queue"] for row in rows["rows"]} == {"night", "research/vision"}
    code, _, err = muster("queue", "move", "night", "research/vision/x")
    assert code == 3
    assert "has jobs" in err


def test_queues_that_are_gone_count_below_the_path_they_had(cell: Processes, muster: Muster) -> None:
    for path in ("tmp", "tmp/x", "tmp/y"):
        assert muster("queue", "create", path, "--state", "STOPPED")[0] == 0  # its jobs hold nothing
    (job,) = submit(cell, "tmp/x", 1)
    assert muster("cancel", job)[0] == 0
    until(muster, lambda out: "  Cancelled" in out, "get", job)
    assert muster("queue", "delete", "tmp/x")[0] == 0

    def counted(path: str) -> dict[str, str]:
        rows = json.loads(muster("usage", "-q", path, "-o", "json")[1])["rows"]
        return {row["queue"]: row["submitted"] for row in rows}

    assert counted("tmp") == counted("tmp/x") == {"tmp/x": "1"}
    assert muster("queue", "delete", "tmp/y")[0] == muster("queue", "delete", "tmp")[0] == 0
    assert counted("tmp") == {"tmp/x": "1"}
    assert muster("usage", "-q", "tmq")[0] == Exit.NOT_FOUND


def test_guarantees_beyond_what_there_is_are_told(muster: Muster) -> None:
    warning = "queues are guaranteed 13 cpu together, and there are 12 now"
    assert muster("queue", "create", "much", "--guaranteed", "cpu=12")[0] == 0
    assert "warning" not in muster("queue", "describe", "much")[1]
    assert f"warning  {warning}" in muster("what-if", "queue", "much", "--guaranteed", "cpu=13")[1]
    assert muster("queue", "update", "much", "--guaranteed", "cpu=13")[0] == 0
    assert f"warning: {warning}" in muster("queue", "describe", "much")[1]
    assert warning in muster("doctor")[1]
    assert muster("queue", "delete", "much")[0] == 0
