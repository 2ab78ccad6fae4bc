"""Child processes of `muster up`: started, watched, restarted with backoff, and stopped in order.

A `ChildSpec` says what to run and how to know that it is ready; `Supervisor.start` runs it and keeps it running. Every
exit, restart and stop is told to a listener, so that supervision is visible. Each child writes to a log file of its
own and has the kernel kill it when this process dies (PR_SET_PDEATHSIG, Linux), so nothing is ever left running.
Children are in sessions of their own: a Ctrl-C in the terminal reaches only this process, which then stops them in
the right order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from muster.cli.errors import CliError, Exit

BACKOFF_FIRST_S: Final = 0.25
BACKOFF_MAX_S: Final = 10.0
STEADY_AFTER_S: Final = 30.0  # a child that lived this long starts again with the first backoff
STOP_GRACE_S: Final = 12.0
READY_POLL_S: Final = 0.05
START_TRIES: Final = 4  # a child that ended so often before it was ever ready will not be
SAMPLE_EVERY_S: Final = 1.0
LOG_TAIL_BYTES: Final = 4096
LOG_TAIL_LINES: Final = 12
HOPELESS_CODES: Final = frozenset({64, 73, 78, 127})  # usage, too old, configuration, no such program
LAUNCHER: Final = Path(__file__).with_name("launch.py")


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """What to run. `ready_file` is written by the child when it serves (JSON). `answers` asks the child itself; without
    both a child is ready as soon as it runs.

    Children with a higher `stop_rank` are stopped later; those of one rank together.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_file: Path | None = None
    answers: Callable[[], bool] | None = None
    stop_rank: int = 0
    stop_signal: signal.Signals = signal.SIGTERM


@dataclass(frozen=True)
class ChildEvent:
    """Something happened to a child; `text` is for people."""

    child: str
    kind: str  # started | exited | restarting | gave-up | stopped | killed
    text: str


class Child:
    """One supervised process and what is known of it."""

    def __init__(self, spec: ChildSpec, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.process: asyncio.subprocess.Process | None = None
        self.restarts = 0
        self.peak_rss_bytes = 0
        self.failed = ""  # why it will not be started again
        self._past_cpu_s = 0.0
        self._life_cpu_s = 0.0

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None and self.process.returncode is None else 0

    def facts(self) -> dict[str, Any]:
        """What the child wrote into its ready file; empty while it is not ready."""
        if self.spec.ready_file is None:
            return {}
        try:
            found = json.loads(self.spec.ready_file.read_text() or "{}")
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def ready(self) -> bool:
        if not self.pid or (self.spec.ready_file is not None and not self.facts()):
            return False
        return self.spec.answers is None or self.spec.answers()

    def log_tail(self) -> str:
        """The last lines it wrote."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        except OSError:
            return ""

    def sample(self) -> None:
        """Look at its memory and CPU time while it is there."""
        self.peak_rss_bytes = max(self.peak_rss_bytes, peak_rss_bytes(self.pid))
        self._life_cpu_s = max(self._life_cpu_s, cpu_seconds(self.pid))

    @property
    def cpu_s(self) -> float:
        """CPU time of all its lives, as far as it was sampled."""
        return self._past_cpu_s + self._life_cpu_s

    def begins_anew(self) -> None:
        self.restarts += 1
        self._past_cpu_s += self._life_cpu_s
        self._life_cpu_s = 0.0


class Supervisor:
    """Keeps children running until `stop`. Not to be used again after that."""

    def __init__(self, run_dir: Path, listener: Callable[[ChildEvent], None]) -> None:
        self.run_dir = run_dir
        self.children: dict[str, Child] = {}
        self._listener = listener
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False
        self._sampling = asyncio.get_running_loop().create_task(self._sample(), name="sample processes")
        (run_dir / "logs").mkdir(parents=True, exist_ok=True)

    async def start(self, spec: ChildSpec) -> Child:
        """Run `spec` from now on."""
        child = Child(spec, self.run_dir / "logs" / f"{spec.name}.log")
        self.children[spec.name] = child
        await self._spawn(child)
        self._tasks[spec.name] = asyncio.get_running_loop().create_task(self._keep(child), name=f"keep {spec.name}")
        return child

    async def wait_ready(self, child: Child, timeout_s: float) -> dict[str, Any]:
        """Wait until `child` serves; returns what it announced. Raises CliError with the end of its log."""
        deadline = time.monotonic() + timeout_s
        while not child.ready:
            hopeless = child.failed or (f"ended {START_TRIES} times" if child.restarts >= START_TRIES else "")
            if hopeless or time.monotonic() > deadline:
                why = hopeless or f"was not ready within {timeout_s:.0f} s"
                tail = child.log_tail()
                raise CliError(
                    f"{child.spec.name} {why}",
                    Exit.UNAVAILABLE,
                    f"its log is {child.log_path}" + (f", the end of it:\n{tail}" if tail else " (empty)"),
                )
            await asyncio.sleep(READY_POLL_S)
        return child.facts()

    async def stop(self) -> None:
        """Stop every child, rank by rank, with a grace each, then by force."""
        self._stopping = True
        self._sampling.cancel()
        ranks = sorted({child.spec.stop_rank for child in self.children.values()})
        for rank in ranks:
            group = [child for child in self.children.values() if child.spec.stop_rank == rank]
            await asyncio.gather(*(self._stop_one(child) for child in group))
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(self._sampling, *self._tasks.values(), return_exceptions=True)

    async def _spawn(self, child: Child) -> None:
        spec = child.spec
        if spec.ready_file is not None:
            spec.ready_file.unlink(missing_ok=True)
        launcher = (sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()))
        with child.log_path.open("ab") as log:
            child.process = await asyncio.create_subprocess_exec(
                *launcher,
                *spec.argv,
                env={**os.environ, **spec.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._tell(child, "started", f"{spec.name} started (pid {child.process.pid})")

    async def _keep(self, child: Child) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            process = child.process
            assert process is not None  # start() spawned it
            since = time.monotonic()
            code = await process.wait()
            if self._stopping:
                return
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            if code in HOPELESS_CODES:
                child.failed = how
                self._tell(child, "gave-up", f"{child.spec.name} {how}: not restarted, see {child.log_path}")
                return
            if time.monotonic() - since > STEADY_AFTER_S:
                backoff_s = BACKOFF_FIRST_S
            self._tell(child, "exited", f"{child.spec.name} {how}: restarting in {backoff_s:.2g} s")
            await asyncio.sleep(backoff_s)
            if self._stopping:
                return
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
            child.begins_anew()
            await self._spawn(child)

    async def _stop_one(self, child: Child) -> None:
        process = child.process
        child.sample()
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(child.spec.stop_signal)
        try:
            await asyncio.wait_for(process.wait(), STOP_GRACE_S)
            self._tell(child, "stopped", f"{child.spec.name} stopped")
        except TimeoutError:
            self._tell(child, "killed", f"{child.spec.name} did not stop within {STOP_GRACE_S:.0f} s: killed")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _sample(self) -> None:
        while True:
            for child in list(self.children.values()):
                child.sample()
            await asyncio.sleep(SAMPLE_EVERY_S)

    def _tell(self, child: Child, kind: str, text: str) -> None:
        self._listener(ChildEvent(child.spec.name, kind, text))


def peak_rss_bytes(pid: int) -> int:
    """The largest resident set that process `pid` ever had; 0 when it is gone or the system does not tell."""
    if not pid:
        return 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def cpu_seconds(pid: int) -> float:
    """User and system time of process `pid` so far; 0 when it is gone or the system does not tell."""
    if not pid:
        return 0.0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
