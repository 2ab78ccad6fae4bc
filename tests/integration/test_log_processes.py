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

import msgspec
import pytest
from tests.integration.log_cell import CELL, RealCell, Traffic, real_cell
from tests.patience import PATIENCE_S, POLL_S, until
from tests.unit.runtime.cells import nodes, queue, transitions

from muster.core import transitions as tr
from muster.runtime.candidate import leader_lease_name
from muster.runtime.exit_codes import ExitCode
from muster.runtime.lease import LeaseRecord
from muster.runtime.ports import Stream
from muster.runtime.streams import lease_subject, leases_spec


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
        await until(self._is_ready, f"{self.name} is ready")

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
        return await asyncio.wait_for(self.process.wait(), PATIENCE_S)

    async def leads(self) -> bool:
        """By what it shows itself; a process that has just ended leads nothing."""

        def fetch() -> str:
            address = json.loads(self._ready_file.read_text())["metrics"]
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as response:
                text: str = response.read().decode()
                return text

        try:
            return "muster_queue_manager_leading 1.0" in (await asyncio.to_thread(fetch)).splitlines()
        except OSError:
            return False

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class Pair:
    """Two replicas. A leader that the machine lets starve for longer than its lease lives is deposed without anybody
    having asked for it: it says so and is started again, as whoever looks after processes does."""

    def __init__(self, cell: RealCell, directory: Path, leases: Stream) -> None:
        self.replicas = [Process(name, directory, cell.server.url) for name in ("qm-1", "qm-2")]
        self._leases = leases

    async def roles(self) -> tuple[Process, Process]:
        """(leader, standby), both running."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for replica in self.replicas:
                    if replica.process.returncode is not None:
                        assert replica.process.returncode == ExitCode.DEPOSED
                        await replica.start()
                standing = {await replica.leads(): replica for replica in self.replicas}
                if len(standing) == len(self.replicas):
                    return standing[True], standing[False]
                await asyncio.sleep(POLL_S)

    async def lease(self) -> LeaseRecord:
        last = await self._leases.last(lease_subject(leader_lease_name(CELL)))
        assert last is not None
        return msgspec.json.decode(last.data, type=LeaseRecord)

    async def roles_for_good(self) -> tuple[Process, Process]:
        """The same, with the standby stopped, so that nothing changes until it goes on."""
        while True:
            leader, standby = await self.roles()
            standby.send(signal.SIGSTOP)
            if (await self.lease()).owner == leader.name:
                return leader, standby
            standby.send(signal.SIGCONT)


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[RealCell]:
    async with real_cell(tmp_path) as cell:
        yield cell


@pytest.fixture
async def pair(cell: RealCell, tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(cell, tmp_path, await (await cell.bus("leases")).stream(leases_spec()))
    try:
        for replica in pair.replicas:
            await replica.start()
        yield pair
    finally:
        for replica in pair.replicas:
            await replica.kill()


async def test_pause_kill_and_stop_each_hand_over_and_name_their_exit(cell: RealCell, pair: Pair) -> None:
    follower = await cell.follower()
    writer = await cell.writer()
    await writer.write([queue(), nodes(20)])
    traffic = Traffic(writer, follower)

    await until(follower.snapshots.listed, "the standby takes a snapshot once it has seen enough transactions")
    leader, standby = await pair.roles()
    leader.send(signal.SIGSTOP)
    await until(standby.leads, "the other one leads in place of one that is paused")
    leader.send(signal.SIGCONT)
    assert await leader.code() == ExitCode.DEPOSED, "its commit was refused or it saw the other's name"
    await traffic.flows()

    await leader.start()
    leader, standby = await pair.roles()
    leader.send(signal.SIGKILL)
    await until(standby.leads, "the other one leads in place of one that is dead")
    assert await leader.code() == -signal.SIGKILL
    await traffic.flows()

    await leader.start()
    leader, standby = await pair.roles_for_good()
    leader.send(signal.SIGTERM)
    assert await leader.code() == ExitCode.OK

    async def released() -> bool:
        return (await pair.lease()).released

    await until(released, "a graceful stop releases the lease: nobody has to wait until it has run out")
    standby.send(signal.SIGCONT)
    await until(standby.leads, "the other one leads in place of one that was stopped")
    jobs = await traffic.end()

    ledger = await cell.ledger()
    queued = [t.spec.name for t in transitions(ledger, tr.JobQueued)]  # type: ignore[attr-defined]
    assert sorted(queued) == sorted(f"job-{i}" for i in range(jobs))
    assert len(transitions(ledger, tr.LeaderElected)) >= 4
    late = await cell.follower("late")
    assert late.state.ledger_seq == len(ledger)
