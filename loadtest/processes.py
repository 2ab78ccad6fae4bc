"""Real processes for benches: a nats-server, services, a simulated cluster; and the CPU time each has used.

Everything listens on 127.0.0.1, keeps its files in a temporary directory and ends with the `Cell`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from muster.runtime.nats_server import NatsServer

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.01
CELL: Final = "main"


class Settings:
    """Of all benches in this process."""

    profile = False


class Process:
    """One process that a bench started."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.name = name
        self.folder = folder
        self._process = process
        self._psutil = psutil.Process(process.pid)

    @property
    def ready_file(self) -> Path:
        return self.folder / f"{self.name}.ready"

    @property
    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def facts(self) -> dict[str, str]:
        """What it announced, once it is ready."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self.ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{self.name} did not start:\n{self.log[-2000:]}")
            time.sleep(POLL_S)
        facts: dict[str, str] = json.loads(self.ready_file.read_text())
        return facts

    def cpu_s(self) -> float:
        times = self._psutil.cpu_times()
        return float(times.user + times.system)

    def memory_mib(self) -> float:
        return float(self._psutil.memory_info().rss) / 2**20

    def metric(self, name: str) -> float:
        """One value of /metrics."""
        url = f"http://{self.facts()['metrics']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", answer.read().decode(), re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def stalls(self) -> tuple[float, str]:
        """The longest stall of its event loop by its own CPU time, in ms; a note with the one by the clock."""
        own_ms = self.metric("muster_event_loop_stall_own_max_seconds") * 1e3
        wall_ms = self.metric("muster_event_loop_stall_max_seconds") * 1e3
        return own_ms, f"its CPU time; by the clock {wall_ms:.0f} ms"

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        report = self.folder / f"{self.name}.profile"
        if report.exists():
            print(f"\n{self.name}: {report.read_text()}")


class Cell:
    """A nats-server and whatever is started beside it. A context manager."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="muster-bench-")
        self.folder = Path(self._temporary.name)
        self._nats = NatsServer(self.folder / "nats")
        self._processes: list[Process] = []

    def __enter__(self) -> Cell:
        self._nats.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.stop()
        self._nats.stop()
        self._temporary.cleanup()

    @property
    def url(self) -> str:
        return self._nats.url

    def service(self, module: str, name: str, environment: Mapping[str, str] | None = None) -> Process:
        """Start `python -m module` as a service; it is ready when `facts` returns."""
        values = {
            "MUSTER_NATS_URL": self.url,
            "MUSTER_CELL": CELL,
            "MUSTER_REPLICA": name,
            "MUSTER_READY_FILE": str(self.folder / f"{name}.ready"),
        }
        return self.start(name, module, (), values | dict(environment or {}))

    def start(self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Process:
        program = ["-m", module]
        if Settings.profile:
            program = ["-m", "loadtest.profiling", str(self.folder / f"{name}.profile"), module]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *program, *arguments],
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"} | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        started = Process(name, process, self.folder)
        self._processes.append(started)
        return started

    def stop(self, process: Process) -> None:
        self._processes.remove(process)
        process.stop()
        process.ready_file.unlink(missing_ok=True)

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far of every process, of nats-server, and of this one."""
        nats = psutil.Process(self._nats.pid).cpu_times()
        used = {process.name: process.cpu_s() for process in self._processes}
        return used | {"nats": float(nats.user + nats.system), "bench": time.process_time()}


class CpuClock:
    """CPU time by process since it was made, for each of `things`."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._before = cell.cpu_s()

    def us_each(self, things: int) -> dict[str, float]:
        now = self._cell.cpu_s()
        return {name: (now[name] - before) / things * 1e6 for name, before in self._before.items()}


async def until(check: Callable[[], Any], timeout_s: float = 120.0, poll_s: float = 0.01) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the bench has not come to its end")
        await asyncio.sleep(poll_s)
