"""A real nats-server, a queue-manager and an admission as processes, for the tests of the API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S, POLL_S

from muster.cli.errors import Exit
from muster.cli.main import run
from muster.runtime.nats_server import NatsServer

Muster = Callable[..., tuple[int, str, str]]  # a command line -> exit code, stdout, stderr


class Processes:
    """Starts services against one server and ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nats = NatsServer(folder / "nats")
        self.nats.start()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, module: str, name: str, **environment: str) -> None:
        """Start a service; `ready` waits for it."""
        ready, log = self._files(name)
        ready.unlink(missing_ok=True)
        own = {
            "MUSTER_NATS_URL": self.nats.url,
            "MUSTER_REPLICA": name,
            "MUSTER_READY_FILE": str(ready),
            "MUSTER_LOG_FORMAT": "console",
        }
        with log.open("ab") as out:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", module], env=os.environ | own | environment, stdout=out, stderr=out
            )

    def ready(self, name: str) -> str:
        """The gRPC address, once the service announced it."""
        ready, log = self._files(name)
        deadline = time.monotonic() + PATIENCE_S
        while not ready.exists():
            if self._running[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start:\n{log.read_text()[-4000:]}")
            time.sleep(POLL_S)
        address: str = json.loads(ready.read_text())["grpc"]
        return address

    def logs(self) -> str:
        """The last of what each service has said, for a failure."""
        names = sorted(path.stem for path in self.folder.glob("*.log"))
        return "\n".join(f"--- {name}\n{self._files(name)[1].read_text()[-4000:]}" for name in names)

    def stop(self, name: str) -> int:
        process = self._running.pop(name)
        process.terminate()
        return process.wait(PATIENCE_S)

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait(PATIENCE_S)

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)
        self.nats.stop()

    def _files(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"{name}.ready", self.folder / f"{name}.log"


@contextmanager
def running_cell(folder: Path, **more: str) -> Iterator[Processes]:
    """A queue-manager "qm-1", ready, and an admission "adm-1"; `more` services by name."""
    processes = Processes(folder)
    try:
        processes.start("muster_queue_manager", "qm-1")
        processes.start("muster_admission", "adm-1")
        for name, module in more.items():
            processes.start(module, name)
        processes.ready("qm-1")
        yield processes
    finally:
        processes.close()


def commands(cell: Processes, capsys: pytest.CaptureFixture[str]) -> Muster:
    """The `muster` command, to the cell's admission. Whatever else is wanted, no command may end with a bug."""
    address = cell.ready("adm-1")

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run([*arguments, "--address", address])
        told = capsys.readouterr()
        assert code != Exit.BUG, f"{' '.join(arguments)}: {told.err}\n{cell.logs()}"
        return code, told.out, told.err

    return command
