"""Every mistake gets its own clear error from the command line down to the core, and the service stays up (rule Q2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.admission_cell import Processes, running_cell

from muster import client as mc
from muster.api.v1 import queue_pb2
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


def test_a_name_of_another_namespace_is_told_with_it(at: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = at / "job.yaml"
    file.write_text(job(name="n-2") + "namespace: ann\n")
    assert main.run(["submit", "-f", str(file)]) == 0
    assert main.run(["get", "n-2"]) == NOT_FOUND
    assert '(did you mean "ann/n-2"?)' in capfd.readouterr().err
    assert main.run(["cancel", "ann/n-2"]) == 0


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (job(cpu="9"), REFUSED, "can never run: group w: a pod asks for 9 cpu; the largest node it may use"),
        (job(cpu="9"), REFUSED, "has 8 [Q2]\n  field jobs[0].tasks[0].resources.cpu\n"),
        (job() + "trace_context: bogus\n", REFUSED, "trace_context: is not a W3C traceparent"),
        (
            job() + "annotations: {a: '" + "y" * (1 << 19) + "'}\n",
            REFUSED,
            "mount large data [LOG-8]\n  field jobs[0].annotations\n",
        ),
        (job() + f"priority: {1 << 30}\n", USAGE, "1073741824 is not between -1000000000 and 1000000000"),
        (job(queue="reserch/vision/a"), NOT_FOUND, 'queue "reserch/vision/a" does not exist (did you mean "research'),
        (job(queue="research"), REFUSED, "has queues below it: name a leaf"),
        (job(cpu="-1"), REFUSED, 'tasks[0].resources.cpu: "-1" is negative'),
        (
            job(more=", near: w"),
            REFUSED,
            "tasks[0].near: is part of the API but not built yet: leave it out [RESERVED]\n",
        ),
        (job(more=", replcas: 3"), USAGE, 'unknown key "replcas" in tasks[0] (did you mean "replicas"?)'),
        (job() + "template: {spec: {x: '" + "y" * (2 << 20) + "'}}\n", REFUSED, "at most 256 KiB are possible"),
        ("name: [", USAGE, "this is not YAML"),
    ],
    ids=[
        "never fits",
        "its field",
        "no trace",
        "annotations",
        "priority",
        "unknown queue",
        "not a leaf",
        "negative",
        "reserved",
        "unknown field",
        "2 MiB",
        "no YAML",
    ],
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
    capfd.readouterr()
    assert main.run(["queue", "move", "research/a", "nowhere/at/all"]) == NOT_FOUND
    shown = capfd.readouterr().err
    assert 'queue "nowhere/at" does not exist' in shown
    assert "did you mean" not in shown
    assert main.run(["queue", "move", "research/a", "research/vision/a"]) == 0
    assert "research/vision/a  moved from research/a   revision 3" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "field", "rule"),
    [
        (["update", "deep", "--limit", "gpu=8"], "queue.limit.nvidia.com/gpu", "Q1"),
        (["create", "deep/x/more", "--guaranteed", "gpu=9"], "queue.guaranteed.nvidia.com/gpu", "Q1"),
        (["create", "neg", "--limit", "cpu=-1"], "queue.limit.cpu", "Q1"),
        (["create", "Neg"], "queue.path", "string.pattern"),
        (["create", "neg", "--priority", "1000000001"], "queue.priority", "Q1"),
        (["create", "neg", "--per-user", "cpu=-1"], "queue.per_user.resources.cpu", "Q1"),
        (["create", "deep"], "queue.path", "Q1"),
        (["update", "deep", "--revision", "77", "--weight", "2"], "expected_revision", "Q4"),
    ],
)
def test_a_refusal_of_a_queue_names_its_field_and_rule(
    at: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], field: str, rule: str
) -> None:
    path = at / "tree.yaml"
    path.write_text("queues: {deep: {limit: {gpu: 17}, queues: {x: {queues: {y: {guaranteed: {gpu: 9}}}}}}}")
    assert main.run(["queue", "apply", "-f", str(path)]) == 0
    capfd.readouterr()
    assert main.run(["queue", *arguments]) == REFUSED
    shown = capfd.readouterr().err
    assert f"[{rule}]" in shown.splitlines()[0]
    assert field in shown or f"muster: {field.removeprefix('queue.')}: " in shown


def test_a_refusal_of_many_queues_names_the_one(at: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for tree, field in (
        ("{queues: {one: {}, two: {limit: {cpu: -1}}}}", "tree.yaml:1: two.limit.cpu"),
        ("{queues: {one: {limit: {cpu: 1}, queues: {two: {guaranteed: {cpu: 2}}}}}}", "tree.yaml:1: one.limit.cpu"),
        (
            "{queues: {one: {}, research/vision/a/b: {limit: {cpu: 1}, guaranteed: {cpu: 2}}}}",
            "tree.yaml:1: research/vision/a/b.guaranteed",
        ),
    ):
        (at / "tree.yaml").write_text(tree)
        for more in ([], ["--dry-run"]):
            assert main.run(["queue", "apply", "-f", str(at / "tree.yaml"), *more]) == REFUSED
            shown = capfd.readouterr().err
            assert "[Q1]" in shown
            assert field in shown


async def test_a_refusal_of_many_queues_names_the_one_by_its_place_in_the_request(cell: Processes) -> None:
    def wrong(**settings: Any) -> queue_pb2.ApplyQueuesRequest:
        return queue_pb2.ApplyQueuesRequest(
            queues=[queue_pb2.Queue(path="one"), queue_pb2.Queue(path="two", **settings)]
        )

    async with mc.connect(cell.ready("adm-1")) as muster:
        with pytest.raises(mc.Refused) as declared:
            await muster.what_if_queues(wrong(weight=1_000_001))
        with pytest.raises(mc.Refused) as decided:
            await muster.apply_queues(wrong(limit={"cpu": "-1"}))
    assert declared.value.violations[0].field == "queues.queues[1].weight"
    assert decided.value.violations[0].field == "queues[1].limit.cpu"


async def test_a_dry_run_answers_what_would_be_and_nothing_that_the_caller_made_up(cell: Processes) -> None:
    async with mc.connect(cell.ready("adm-1")) as muster:
        made_up = queue_pb2.Queue(path="dry", id="q99", revision=77, limit={"cpu": "0.5"})
        made_up.status.pending_jobs = 9
        request = queue_pb2.CreateQueueRequest(queue=made_up, dry_run=True)
        told = (await muster.queues.CreateQueue(request)).queue
        assert (told.id, told.revision, told.HasField("status")) == ("", 1, False)
        assert (dict(told.limit), told.weight) == ({"cpu": "0.5"}, 1)
        created = await muster.create_queue("dry", weight=3, limit={"cpu": "2"})
        changed = (await muster.update_queue("dry", dry_run=True, priority=4)).proto
        assert (changed.id, changed.revision) == (created.proto.id, created.revision + 1)
        assert (changed.weight, changed.priority, dict(changed.limit)) == (3, 4, {"cpu": "2"})
        moved = (await muster.move_queue("dry", "drier", dry_run=True)).proto
        assert (moved.path, moved.weight) == ("drier", 3)
        await muster.delete_queue("dry")


async def test_a_command_on_many_jobs_names_the_one(cell: Processes) -> None:
    async with mc.connect(cell.ready("adm-1")) as muster:
        for reference in ("no-such-job", "0" * 32):
            (outcome,) = (await muster.cancel("f" * 32, reference))[1:]
            assert outcome.error is not None
            assert (outcome.error.code, outcome.error.violations[0].field) == ("NOT_FOUND", "jobs[1]")


def test_an_update_of_some_limits_keeps_the_others(at: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["queue", "create", "some", "--limit", "cpu=10,memory=1Gi"]) == 0
    assert main.run(["queue", "update", "some", "--limit", "cpu=5"]) == 0
    assert main.run(["queue", "update", "some", "--limit", "gpu=4,memory=none"]) == 0
    capfd.readouterr()
    assert main.run(["queue", "describe", "some"]) == 0
    limits = {line.split()[0]: line.split()[-1] for line in capfd.readouterr().out.splitlines() if line.strip()}
    assert (limits["cpu"], limits["gpu"]) == ("5", "4")
    assert "memory" not in limits


def test_priority_classes_from_a_file_and_one_by_one(at: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = at / "classes.yaml"
    path.write_text("priority_classes: {urgent: {value: 1000}, patient: {value: -1, min_runtime: 30m}}")
    assert main.run(["priority-class", "apply", "-f", str(path), "--dry-run"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "urgent  created   value 1000",
        "patient  created   value -1   min runtime 30 m",
        "nothing was changed (dry run)",
    ]
    assert main.run(["priority-class", "apply", "-f", str(path)]) == 0
    assert main.run(["priority-class", "apply", "-f", str(path)]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "nothing to change"
    assert main.run(["priority-class", "export"]) == 0
    path.write_text(capfd.readouterr().out)
    assert main.run(["priority-class", "set", "extra", "--value", "-5", "--label", "a=b"]) == 0
    assert main.run(["priority-class", "list"]) == 0
    listed = [line.split()[:2] for line in capfd.readouterr().out.splitlines()[-3:]]
    assert listed == [["urgent", "1000"], ["patient", "-1"], ["extra", "-5"]]
    assert main.run(["priority-class", "apply", "-f", str(path), "--prune", "-o", "json"]) == 0
    changes = json.loads(capfd.readouterr().out)["changes"]
    assert [(change["kind"], change["priority_class"]["name"]) for change in changes] == [("deleted", "extra")]
    assert main.run(["priority-class", "delete", "urgent", "ptient"]) == NOT_FOUND
    assert '(did you mean "patient"?)' in capfd.readouterr().err
    assert main.run(["priority-class", "list", "-o", "yaml"]) == 0
    assert "urgent" in capfd.readouterr().out  # none is deleted when one of them does not exist
    assert main.run(["priority-class", "delete", "urgent", "patient"]) == 0


def test_a_mistake_in_a_file_of_classes_changes_nothing(at: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = at / "classes.yaml"
    path.write_text("priority_classes: {fine: {value: 1}, wrong: {value: 2000000000}}")
    assert main.run(["priority-class", "apply", "-f", str(path)]) == USAGE
    assert "2000000000 is not between -1000000000 and 1000000000" in capfd.readouterr().err
    path.write_text("priority_classes: {fine: {value: 1}, later: {max_wait: 1h}}")
    assert main.run(["priority-class", "apply", "-f", str(path)]) == REFUSED
    assert "max_wait: is part of the API but not built yet: leave it out [RESERVED]" in capfd.readouterr().err
    assert main.run(["priority-class", "list"]) == 0
    assert capfd.readouterr().out.startswith("no priority classes")


def test_a_job_of_a_class_that_does_not_exist(at: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["priority-class", "set", "urgent", "--value", "7"]) == 0
    path = at / "job.yaml"
    path.write_text(job() + "priority_class: urgnt\n")
    assert main.run(["submit", "-f", str(path)]) == NOT_FOUND
    assert 'priority class "urgnt" does not exist (did you mean "urgent"?) [P4]' in capfd.readouterr().err
    path.write_text(job() + "priority_class: urgent\npriority: 3\n")
    assert main.run(["submit", "-f", str(path)]) == REFUSED
    assert '"urgent" says what the priority is, and priority says 3' in capfd.readouterr().err
    path.write_text(job(name="classy") + "priority_class: urgent\nmax_preemptions: 2\n")
    assert main.run(["what-if", "submit", "-f", str(path)]) == 0
    assert main.run(["submit", "-f", str(path)]) == 0
    assert main.run(["priority-class", "delete", "urgent"]) == 0
    assert main.run(["get", "classy"]) == 0
    shown = capfd.readouterr().out
    assert " priority  7 (class urgent)" in shown
    assert " protected preempted 0 of 2 times" in shown
    assert main.run(["list", "-o", "json"]) == 0
    jobs = json.loads(capfd.readouterr().out)["jobs"]
    (listed,) = [each for each in jobs if each["spec"]["name"] == "classy"]
    assert (listed["spec"]["priority_class"], listed["spec"]["priority"]) == ("urgent", 7)
