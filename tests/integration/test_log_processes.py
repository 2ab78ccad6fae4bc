"""Queue-managers as processes: stopped, paused, killed, and what they say when they end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.log_cell import RealCell, real_cell, until
from tests.unit.runtime.cells import job, nodes, queue, transitions

from muster.core import transitions as tr
from muster.runtime.exit_codes import ExitCode
from muster.runtime.follower import Follower


class Process:
    """One queue-manager process."""

    def __init__(self, name: str, directory: Path, nats_url: str) -> None:
        self.name = name
        self._ready_file = directory / f"{name}.json"
        self._log = directory / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._env = os.environ | {
            "MUSTER_NATS_URL": nats_url,
            "MUSTER_REPLICA": name,
            "MUSTER_READY_FILE": str(self._ready_file),
            "MUSTER_SNAPSHOT_EVERY_TRANSACTIONS": "10",
        }

    async def start(self) -> None:
        self._ready_file.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "muster_queue_manager", env=self._env, stdout=log, stderr=log
            )
        await until(self._is_ready, 20)

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    def _is_ready(self) -> bool:
        assert self.process.returncode is None, self._log.read_text()
        return self._ready_file.exists()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def code(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 20)

    async def metric(self, name: str) -> float:
        address = json.loads(self._ready_file.read_text())["metrics"]

        def fetch() -> str:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as response:
                text: str = response.read().decode()
                return text

        lines = (await asyncio.to_thread(fetch)).splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    async def leads(self) -> bool:
        return await self.metric("muster_queue_manager_leading") == 1.0

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


async def wait_leading(process: Process, timeout_s: float = 10.0) -> float:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.timeout(timeout_s):
        while not await process.leads():
            await asyncio.sleep(0.05)
    return loop.time() - began_s


async def wait_snapshot(follower: Follower, timeout_s: float = 30.0) -> None:
    """The standby takes one as soon as it has seen enough transactions and looks again."""
    async with asyncio.timeout(timeout_s):
        while not await follower.snapshots.listed():
            await asyncio.sleep(0.05)


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[RealCell]:
    async with real_cell(tmp_path) as cell:
        yield cell


async def test_pause_kill_and_stop_each_hand_over_and_name_their_exit(cell: RealCell, tmp_path: Path) -> None:
    first, second = (Process(name, tmp_path, cell.server.url) for name in ("qm-1", "qm-2"))
    writer, follower = await cell.writer(), await cell.follower()
    try:
        await first.start()
        await wait_leading(first)
        await second.start()
        await writer.write([queue(), nodes(20)])

        async def submit() -> None:
            for i in range(600):
                (position,) = await writer.write([job(i)])
                await asyncio.sleep(0.02)
            await follower.wait_applied(position, 20)

        submitting = asyncio.create_task(submit())
        await wait_snapshot(follower)
        first.send(signal.SIGSTOP)
        assert await wait_leading(second) < 5.0
        await asyncio.sleep(1.5)
        first.send(signal.SIGCONT)
        assert await first.code() == ExitCode.DEPOSED, "its commit was refused or it saw the other's name"

        await first.start()
        second.send(signal.SIGKILL)
        assert await wait_leading(first) < 5.0
        await second.code()

        await second.start()
        first.send(signal.SIGTERM)
        assert await wait_leading(second) < 2.0, "a graceful stop releases the lease"
        assert await first.code() == ExitCode.OK
        await submitting

        ledger = await cell.ledger()
        queued = [t.spec.name for t in transitions(ledger, tr.JobQueued)]  # type: ignore[attr-defined]
        assert sorted(queued) == sorted(f"job-{i}" for i in range(600))
        assert len(transitions(ledger, tr.LeaderElected)) == 4
        late = await cell.follower("late")
        assert late.state.ledger_seq == len(ledger)
    finally:
        await first.kill()
        await second.kill()
