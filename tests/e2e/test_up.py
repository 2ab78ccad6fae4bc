"""`muster up` from the outside: everything small starts, a workload goes through, a user's commands work, all stops."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
MUSTER = [sys.executable, "-m", "muster.cli.main"]
JOBS = 60

pytestmark = pytest.mark.e2e


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

    def wait_for(self, text):
        def told():
            assert text in self.said() or self.process.poll() is None, self.said()
            return text in self.said()

        wait_until(told, self.said)

    def facts(self):
        return json.loads((self.run_dir / "up.json").read_text())

    def run(self, *arguments):
        done = subprocess.run([*MUSTER, *arguments], env=self.env, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    def muster(self, *arguments, code=0):
        returned, said = self.run(*arguments)
        assert returned == code, f"{arguments}: {returned}\n{said}"
        return said

    def comes_to_say(self, text, *arguments):
        """On a machine that is busy, a lease may be late or a leader may change without being asked to."""
        said = ""

        def told():
            nonlocal said
            said = self.run(*arguments)[1]
            return text in said

        wait_until(told, lambda: said)

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


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


def test_a_first_session(start, short_path):
    cell = start("--sockets", "2")
    cell.wait_for("Ctrl-C stops everything")
    wait_until(lambda: len(left(cell.run_dir)) == 11)  # NATS, a cluster, eight services, and `muster up` itself

    gang = short_path / "gang.yaml"  # it runs until it is cancelled, however long the commands before that take
    gang.write_text((EXAMPLES / "gang.yaml").read_text().replace("sim.muster.io/run-seconds", "for-ever"))
    said = cell.muster("submit", "-f", str(EXAMPLES / "cpu.yaml"), "-f", str(gang))
    assert said.count("submitted as") == 3
    assert "bert-large  research/vision" in cell.muster("explain", "bert-large")
    assert "did you mean" in cell.muster("get", "bert-larg", code=4)
    said = cell.muster("submit", "-f", str(gang), code=3)
    assert "exists already" in said  # the same name while the first one lives
    cell.muster("cancel", "bert-large", "--reason", "enough")
    cell.muster("queue", "create", "research/speech", "--limit", "gpu=2", "--weight", "3")
    assert "speech" in cell.muster("queue", "list")
    cell.muster("queue", "delete", "research/speech")
    said = cell.muster("queue", "describe", "reserch", code=4)
    assert "research" in said

    # The first job of the file runs for five seconds and then leaves its story behind.
    steps = []

    def ended():
        told = cell.muster("events", "--from", "1", "-t", "job", "-o", "json").splitlines()
        data = [json.loads(line)["data"] for line in told]
        steps[:] = [event["type"] for event in data if event.get("name") == "preprocess"]
        return steps[-1:] == ["job.succeeded"]

    wait_until(ended, lambda: str(steps))
    assert steps[0] == "job.queued"
    job = json.loads(cell.muster("get", "preprocess", "-o", "json"))
    assert job["status"]["state"] == "JOB_STATE_SUCCEEDED"
    cell.comes_to_say("everything is well", "doctor")
    cell.comes_to_say("leader qm-", "top", "--once")

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
    code = cell.process.wait(2 * PATIENCE_S)
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
    wait_until(lambda: len(left(cell.run_dir)) == 9)
    cell.process.kill()
    cell.process.wait()
    wait_until(lambda: not left(cell.run_dir), lambda: str(left(cell.run_dir)))
