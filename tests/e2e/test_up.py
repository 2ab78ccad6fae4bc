"""`muster up` from the outside: everything small starts, a workload goes through, a user's commands work, all stops."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
MUSTER = [sys.executable, "-m", "muster.cli.main"]
JOBS = 60
START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 40

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


class Cell:
    """A running `muster up` and the commands of a user next to it."""

    def __init__(self, tmp_path, *arguments):
        self.run_dir = tmp_path / "run"
        self.env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        for name in ("MUSTER_ADDRESS", "MUSTER_NATS_URL"):
            self.env.pop(name, None)
        self.output = tmp_path / "up.out"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [*MUSTER, "up", "--dir", str(self.run_dir), "--nodes", "uniform:8x32cpu128Gi+8gpu", *arguments],
                env=self.env,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def said(self):
        return self.output.read_text()

    def wait_for(self, text, timeout_s=START_TIMEOUT_S):
        deadline = time.monotonic() + timeout_s
        while text not in self.said():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def facts(self):
        return json.loads((self.run_dir / "up.json").read_text())

    def muster(self, *arguments, code=0):
        done = subprocess.run([*MUSTER, *arguments], env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.process.wait(STOP_TIMEOUT_S)


@pytest.fixture
def start(short_path):
    cells = []

    def begin(*arguments):
        cells.append(Cell(short_path, *arguments))
        return cells[-1]

    yield begin
    for cell in cells:
        if cell.process.poll() is None:
            cell.process.kill()
            cell.process.wait()


def left(run_dir):
    """Processes that were started for this run directory and still run: it is in their arguments or environment."""
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            known = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(run_dir).encode() in known and state not in "ZX":
            found[int(process.name)] = known[:80]
    return found


def test_a_first_session(start):
    cell = start("--sockets", "2")
    cell.wait_for("Ctrl-C stops everything")
    assert len(left(cell.run_dir)) == 11  # NATS, a cluster, eight services, and `muster up` itself

    said = cell.muster("submit", "-f", str(EXAMPLES / "cpu.yaml"), "-f", str(EXAMPLES / "gang.yaml"))
    assert said.count("submitted as") == 3
    assert "bert-large  research/vision" in cell.muster("explain", "bert-large")
    assert "did you mean" in cell.muster("get", "bert-larg", code=4)
    said = cell.muster("submit", "-f", str(EXAMPLES / "cpu.yaml"), "--queue", "default", code=3)
    assert "exists already" in said  # the same name while the first one lives
    cell.muster("cancel", "bert-large", "--reason", "enough")
    cell.muster("queue", "create", "research/speech", "--limit", "gpu=2", "--weight", "3")
    assert "speech" in cell.muster("queue", "list")
    cell.muster("queue", "delete", "research/speech")
    said = cell.muster("queue", "describe", "reserch", code=4)
    assert "research" in said

    # The first job of the file runs for five seconds and then leaves its story behind.
    deadline = time.monotonic() + 40
    while json.loads(cell.muster("get", "preprocess", "-o", "json"))["status"]["state"] != "JOB_STATE_SUCCEEDED":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    told = [json.loads(line) for line in cell.muster("events", "--from", "1", "-t", "job", "-o", "json").splitlines()]
    steps = [event["data"]["type"] for event in told if event["data"].get("name") == "preprocess"]
    assert steps[0] == "job.queued"
    assert steps[-1] == "job.succeeded"
    assert "everything is well" in cell.muster("doctor")
    assert "leader qm-" in cell.muster("top", "--once")

    address = cell.facts()["grpc"]
    assert cell.stop() == 0
    assert left(cell.run_dir) == {}
    assert "stopping" in cell.said()
    assert cell.muster("list", "--address", address, code=5)


def test_a_workload_to_its_summary_with_a_service_killed_in_between(start):
    cell = start(
        "--replay",
        "sample",
        "--limit",
        str(JOBS),
        "--time-scale",
        "8",
        "--oneshot",
        "--sockets",
        "0",
        "--queue-managers",
        "1",
    )
    cell.wait_for("job names begin with")
    os.kill(cell.facts()["pids"]["binder-1"], signal.SIGKILL)
    cell.wait_for("binder-1 killed by SIGKILL: restarting")
    code = cell.process.wait(150)
    said = cell.said()
    assert code == 0, said
    assert f" {JOBS} jobs: " in said
    assert "0 lost, 0 run twice" in said
    assert "submit -> bound" in said
    assert [line.split()[-1] for line in said.splitlines() if line.strip().startswith("binder-1  ")] == ["1"]
    assert left(cell.run_dir) == {}


def test_nothing_is_left_when_it_is_killed(start):
    cell = start("--sockets", "0", "--queue-managers", "1", "--binders", "1")
    cell.wait_for("Ctrl-C stops everything")
    assert len(left(cell.run_dir)) == 9
    cell.process.kill()
    cell.process.wait()
    deadline = time.monotonic() + 10
    while left(cell.run_dir):
        assert time.monotonic() < deadline, left(cell.run_dir)
        time.sleep(0.05)
