"""The command line as a whole: quick help, exit codes, and a sentence instead of a stack trace."""

import json
import os
import subprocess
import sys

import pytest

from muster.cli import doctor, main, ports, rundir
from muster.cli.errors import CliError, Exit, nearest

SLOW = ("grpc", "numpy", "yaml", "nats", "rich.live", "muster.client", "google.protobuf", "aiohttp")


def test_help_loads_nothing_slow():
    code = (
        "import sys\nfrom muster.cli.main import run\ncode = run(['--help'])\n"
        f"print('LOADED', [name for name in {SLOW!r} if name in sys.modules], code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED [] 0"
    for command in ("up", "submit", "explain", "queue", "events", "doctor", "Exit codes"):
        assert command in done.stdout


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No `muster up` to be found, and an address where nothing listens."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_ADDRESS", f"127.0.0.1:{ports.PortPicker().pick(40_000)}")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["lst"], Exit.USAGE, "list"),
        (["list"], Exit.UNAVAILABLE, "nothing answers at"),
        (["get", "x"], Exit.UNAVAILABLE, "muster up"),
        (["submit", "-f", "/no/such/file.yaml"], Exit.USAGE, "cannot read /no/such/file.yaml: No such file"),
        (["list", "--state", "Runing"], Exit.USAGE, "not a job state"),
        (["list", "--label", "x"], Exit.USAGE, "not key=value"),
        (["replay", "/no/such/trace"], Exit.USAGE, "does not exist"),
        (["up", "--oneshot"], Exit.USAGE, "--oneshot needs --replay"),
        (["up", "--replay", "/no/such/trace"], Exit.USAGE, "does not exist"),
        (["events", "--type", "a.b.c"], Exit.USAGE, "not an event type"),
        (["queue", "update", "a"], Exit.USAGE, "nothing to change"),
        (["list", "--address", "nonsense"], Exit.USAGE, "is not an address"),
    ],
)
def test_a_mistake_is_one_sentence_and_a_code(nowhere, capfd, arguments, code, said):
    assert main.run(arguments) == code
    captured = capfd.readouterr()
    assert said in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("arguments", [["import", "kueue"], ["queue", "apply", "-f"], ["submit", "-f"]])
def test_a_file_that_is_no_text_is_a_mistake(nowhere, capfd, arguments):
    (nowhere / "binary").write_bytes(b"\xff\xfe\x00")
    assert main.run([*arguments, str(nowhere / "binary")]) == Exit.USAGE
    assert "cannot" in capfd.readouterr().err


def test_a_place_that_cannot_be_written_is_a_mistake(nowhere, capfd):
    (nowhere / "q.yaml").write_text(QUEUES % 1)
    assert main.run(["import", "volcano", str(nowhere / "q.yaml"), "-w", str(nowhere / "no" / "such")]) == Exit.USAGE
    assert "cannot be written" in capfd.readouterr().err


def test_a_wrong_key_in_a_job_file_is_named_with_its_line(nowhere, capfd):
    path = nowhere / "job.yaml"
    path.write_text("name: a\nqueue: q\ntasks:\n  - name: main\n    replcas: 2\n")
    assert main.run(["submit", "-f", str(path)]) == Exit.USAGE
    assert f'{path}:5: unknown key "replcas"' in capfd.readouterr().err


def test_doctor_says_what_is_wrong_and_what_to_do(nowhere, capfd, monkeypatch):
    monkeypatch.setenv("MUSTER_NATS_URL", f"nats://{os.environ['MUSTER_ADDRESS']}")
    assert main.run(["doctor", "-o", "json"]) == Exit.UNHEALTHY
    found = json.loads(capfd.readouterr().out)["findings"]
    assert [(f["part"], f["ok"]) for f in found] == [("nats", False), ("admission", False)]
    assert all(f["advice"] for f in found)


def test_there_is_nothing_to_do_about_what_is_well():
    well, wrong = (doctor.Finding("inbox", ok, "0 wait", "see its log") for ok in (True, False))
    assert (doctor.plain(well)["advice"], doctor.plain(wrong)["advice"]) == ("", "see its log")


def test_what_is_odd_is_told_and_is_no_fault():
    found = [doctor.Finding("queues", True, "too much", "guarantee less", odd=True), doctor.Finding("nats", True, "is")]
    lines = doctor.report(found)
    assert lines[0].split() == ["odd", "queues", "too", "much"]
    assert lines[1].strip() == "-> guarantee less"
    assert lines[-1].strip() == "everything is well"
    assert doctor.plain(found[0])["advice"] == "guarantee less"


def test_bugs_are_told_as_such(nowhere, capfd, monkeypatch):
    def broken(_option):
        raise RuntimeError("oh no")

    monkeypatch.setattr(rundir, "address_of", broken)
    assert main.run(["list"]) == Exit.BUG
    assert "a bug: RuntimeError: oh no" in capfd.readouterr().err
    monkeypatch.setenv("MUSTER_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main.run(["list"])


QUEUES = "kind: Queue\napiVersion: scheduling.volcano.sh/v1beta1\nmetadata: {name: q%d}\n---\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],  # little: told to nobody when the buffer is emptied
        ["import", "volcano", "-"],  # more than a buffer holds
        ["list", "--bogus"],
    ],
)
def test_a_reader_that_has_gone_is_no_failure(arguments):
    reads, writes = os.pipe()
    os.close(reads)
    text = "".join(QUEUES % n for n in range(2000))
    done = subprocess.run(
        [sys.executable, "-m", "muster.cli.main", *arguments],
        input=text, stdout=writes, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writes)
    assert done.returncode == (Exit.USAGE if "--bogus" in arguments else Exit.OK)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_nearest_names():
    assert nearest("reserch", ["research", "batch"]) == ' (did you mean "research"?)'
    assert nearest("zzz", ["research"]) == ""


def test_the_last_up_is_found_and_a_dead_one_is_not(nowhere, monkeypatch):
    monkeypatch.delenv("MUSTER_ADDRESS")
    assert rundir.address_of("") == rundir.DEFAULT_ADDRESS
    rundir.write(nowhere, {"grpc": "127.0.0.1:7171", "nats_url": "nats://127.0.0.1:4333"}, {"MUSTER_ADDRESS": "x"})
    assert rundir.address_of("") == "127.0.0.1:7171"
    assert rundir.nats_url_of("") == "nats://127.0.0.1:4333"
    assert rundir.address_of("other:1") == "other:1"
    assert (nowhere / "env").read_text() == "export MUSTER_ADDRESS='x'\n"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    state = json.loads(rundir.state_path().read_text())
    rundir.state_path().write_text(json.dumps(state | {"pid": gone.pid}))
    assert rundir.address_of("") == rundir.DEFAULT_ADDRESS
    rundir.clear()  # not ours any more: it stays
    assert rundir.state_path().exists()


def test_a_taken_port_is_passed_over():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert ports.accepts(port)
        assert not ports.answers_nats(0)
        picker = ports.PortPicker()
        first = picker.pick(port)
        assert first != port
        assert picker.pick(first) != first


def test_errors_have_codes():
    error = CliError("x", Exit.REFUSED, "do y")
    assert (error.message, error.code, error.hint) == ("x", 3, "do y")
