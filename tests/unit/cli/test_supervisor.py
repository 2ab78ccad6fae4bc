"""Supervision with real processes: restarts, giving up, order of stopping, and death with the parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S, until

from muster.cli import supervisor
from muster.cli.errors import CliError
from muster.cli.supervisor import ChildSpec, Supervisor

READY = "import os, json; open(os.environ['READY'], 'w').write(json.dumps({'pid': os.getpid()}))\n"
SLEEP = "import time\ntime.sleep(60)\n"


def spec(tmp_path, name, code, **fields):
    ready = tmp_path / f"{name}.json"
    return ChildSpec(
        name=name, argv=(sys.executable, "-c", code), env={"READY": str(ready)}, ready_file=ready, **fields
    )


@pytest.fixture
async def watched(tmp_path):
    events = []
    watcher = Supervisor(tmp_path / "run", events.append)
    yield watcher, events
    await watcher.stop()


async def test_a_child_that_exits_is_started_again(tmp_path, watched):
    watcher, events = watched
    child = await watcher.start(spec(tmp_path, "a", READY + SLEEP))
    first = (await watcher.wait_ready(child, PATIENCE_S))["pid"]
    os.kill(first, signal.SIGKILL)
    await until(lambda: child.restarts == 1)
    second = (await watcher.wait_ready(child, PATIENCE_S))["pid"]
    assert second != first
    assert [event.kind for event in events] == ["started", "exited", "started"]
    assert "killed by SIGKILL" in events[1].text


async def test_a_child_that_cannot_start_is_told_with_the_end_of_its_log(tmp_path, watched):
    watcher, events = watched
    child = await watcher.start(spec(tmp_path, "a", "import sys; print('no such setting'); sys.exit(78)"))
    with pytest.raises(CliError) as caught:
        await watcher.wait_ready(child, PATIENCE_S)
    assert "exited with code 78" in caught.value.message
    assert "no such setting" in caught.value.hint
    assert child.restarts == 0
    assert events[-1].kind == "gave-up"


async def test_a_program_that_does_not_exist(tmp_path, watched):
    watcher, _ = watched
    child = await watcher.start(ChildSpec(name="a", argv=("/no/such/program",), ready_file=tmp_path / "ready"))
    with pytest.raises(CliError) as caught:
        await watcher.wait_ready(child, PATIENCE_S)
    assert "cannot start /no/such/program: No such file" in caught.value.hint


async def test_memory_and_cpu_are_measured(tmp_path, watched):
    watcher, _ = watched
    child = await watcher.start(spec(tmp_path, "a", READY + SLEEP))
    await watcher.wait_ready(child, PATIENCE_S)
    child.sample()
    assert child.peak_rss_bytes > 1 << 20
    assert child.cpu_s >= 0
    assert supervisor.cpu_seconds(os.getpid()) > 0
    assert supervisor.cpu_seconds(0) == supervisor.peak_rss_bytes(0) == 0


async def test_stopped_rank_by_rank(tmp_path):
    events = []
    watcher = Supervisor(tmp_path / "run", events.append)
    for name, rank in (("store", 2), ("door", 0), ("worker", 1)):
        child = await watcher.start(spec(tmp_path, name, READY + SLEEP, stop_rank=rank))
        await watcher.wait_ready(child, PATIENCE_S)
    pids = [child.pid for child in watcher.children.values()]
    await watcher.stop()
    assert [event.child for event in events if event.kind == "stopped"] == ["door", "worker", "store"]
    assert not any(alive(pid) for pid in pids)


async def test_who_does_not_stop_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "STOP_GRACE_S", 0.1)
    events = []
    watcher = Supervisor(tmp_path / "run", events.append)
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + SLEEP
    child = await watcher.start(spec(tmp_path, "a", stubborn))
    await watcher.wait_ready(child, PATIENCE_S)
    pid = child.pid
    await watcher.stop()
    assert events[-1].kind == "killed"
    assert not alive(pid)


PARENT = """
import asyncio, sys
from pathlib import Path
from muster.cli.supervisor import ChildSpec, Supervisor

async def main():
    watcher = Supervisor(Path(sys.argv[1]), lambda event: None)
    child = await watcher.start(ChildSpec(name="a", argv=(sys.executable, "-c", "import time; time.sleep(60)")))
    print(child.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
async def test_children_die_with_their_parent(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        child = int(parent.stdout.readline())
        assert alive(child)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    await until(lambda: not alive(child))


def alive(pid):
    """Running; a zombie that waits for its parent is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
