"""One run of the kill test: the workload is submitted while processes die by plan, then everything is looked at.

    start > queues > [submit || watch || kill, kill, pause, kill ...] > all ended > read streams > stop > audit

The plan is drawn from a seed: which process, in which order, after how long. A leader is killed or paused only while a
standby is ready, since what is measured then is how soon the standby leads; everything else dies at any moment, also
while others are just starting.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from tests.e2e import kill_cell, kill_jobs, kill_pause
from tests.e2e.kill_cell import NATS, KillCell, until
from tests.patience import PATIENCE_S, POLL_S

from muster.client import Event, Job, connect
from muster.client.requests import job_filter
from muster.runtime.exit_codes import ExitCode
from muster.runtime.ports import StoredMessage, StreamSpec
from muster.runtime.streams import events_spec, inbox_spec, ledger_spec
from muster.sim.cluster import audit

LEADER, STANDBY = "leader", "standby"
TARGETS = (
    *(LEADER, STANDBY, NATS, "binder-1", "binder-2", "admission-1", "admission-2"),
    *("fair-share-1", "preemptor-1", "topology-1"),
)
CALL_TIMEOUT_S = 2.0  # then the client sends it again
DEPOSED = f"exited with code {ExitCode.DEPOSED.value}:"
PAUSES_MAX = 6  # until one ended by a refused commit and not by a look at the lease


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of everything."""

    jobs: int
    span_s: float
    targets: Sequence[Sequence[str]]  # rounds; each is shuffled, and there is a pause after the first
    between_s: tuple[float, float]
    nodes: str = "uniform:16x32cpu128Gi+8gpu"
    urgent_until_s: float = 0.0
    pause: bool = True
    end_timeout_s: float = 240.0


@dataclass(frozen=True)
class Kill:
    """One process killed, or paused (`code`: how it ended then)."""

    target: str
    child: str
    at_s: float
    code: int | None = None
    refused_commit: bool = False


@dataclass
class Run:
    """What there is to judge."""

    seed: int
    began_s: float = 0.0
    wall_s: float = 0.0
    kills: list[Kill] = field(default_factory=list)
    pauses: list[Kill] = field(default_factory=list)
    submitted: int = 0
    acknowledged: dict[str, kill_jobs.Planned] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    answers: dict[str, Job] = field(default_factory=dict)  # what the cell says at the end
    watched: list[Event] = field(default_factory=list)
    inbox: list[StoredMessage] = field(default_factory=list)
    ledger: list[StoredMessage] = field(default_factory=list)
    public: list[StoredMessage] = field(default_factory=list)
    ledger_tail: list[StoredMessage] = field(default_factory=list)
    public_tail: list[StoredMessage] = field(default_factory=list)
    audit: list[audit.Record] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    deposed: dict[str, int] = field(default_factory=dict)  # how often each ended because another one led


async def play(scale: Scale, seed: int, run_dir: Path, patch: pytest.MonkeyPatch) -> Run:
    run = Run(seed)
    print(f"\n seed {seed}, run directory {run_dir}", flush=True)
    async with kill_cell.running(run_dir, scale.nodes, patch) as cell:
        await _live(cell, scale, run)
        run.restarts = {name: child.restarts for name, child in cell.supervisor.children.items()}
        run.deposed = Counter(event.child for _, event in cell.events if DEPOSED in event.text)
    run.audit = audit.read_file(run_dir / "audit" / f"{kill_cell.CLUSTER}.jsonl")
    return run


async def _live(cell: KillCell, scale: Scale, run: Run) -> None:
    rng = Random(run.seed)
    jobs = kill_jobs.workload(Random(rng.random()), scale.jobs, scale.span_s, scale.urgent_until_s)
    async with (
        connect(cell.grpc, timeout_s=CALL_TIMEOUT_S) as client,
        connect(cell.grpc, timeout_s=PATIENCE_S) as other,
    ):
        await _synced(other)
        await kill_jobs.make_queues(other)
        submitter = kill_jobs.Submitter(client, jobs, Random(rng.random()))
        watching = asyncio.create_task(kill_jobs.watch_all(other, run.watched))
        killing = asyncio.create_task(_kill_all(cell, scale, run, submitter, Random(rng.random())))
        submitting = asyncio.create_task(submitter.run())
        run.began_s = time.time()
        try:
            await _all_done(cell, [killing, submitting], watching)
            run.acknowledged = submitter.acknowledged
            run.submitted = len(jobs) + submitter.crowds * kill_jobs.CROWD_JOBS
            run.calls = {"batches": submitter.batches, "sent again": submitter.sent_again, **submitter.failed_calls}
            await _ended(cell, run, scale.end_timeout_s)
            run.wall_s = time.time() - run.began_s
            await _read_all(cell, run)
            await _caught_up(cell, run, watching)
            run.answers = {job.id: job async for job in other.list(job_filter(queue=kill_jobs.ROOT))}
        finally:
            for task in (killing, submitting, watching):
                task.cancel()
            await asyncio.gather(killing, submitting, watching, return_exceptions=True)


async def _synced(client) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not [c for c in (await client.cell()).clusters if c.synced]:
        assert time.monotonic() < deadline, "the cluster was not listed"
        await asyncio.sleep(POLL_S)


async def _all_done(cell: KillCell, tasks: Sequence[asyncio.Task[None]], watching: asyncio.Task[None]) -> None:
    while not all(task.done() for task in tasks):
        for task in (*tasks, watching):
            if task.done():
                task.result()
        cell.check()
        await asyncio.sleep(0.1)
    for task in tasks:
        task.result()


async def _ended(cell: KillCell, run: Run, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while open_jobs := [job for job in run.acknowledged if job not in cell.ledger.ended]:
        cell.check()
        names = [f"{run.acknowledged[job].name} ({job[:8]})" for job in open_jobs[:5]]
        assert time.monotonic() < deadline, f"{len(open_jobs)} jobs have not ended: {', '.join(names)}"
        await asyncio.sleep(0.1)


# --- what dies when -------------------------------------------------------------------------------------------------


async def _kill_all(cell: KillCell, scale: Scale, run: Run, submitter: kill_jobs.Submitter, rng: Random) -> None:
    for number, targets in enumerate(scale.targets):
        for target in rng.sample(list(targets), len(targets)):
            await asyncio.sleep(rng.uniform(*scale.between_s))
            await _kill(cell, run, target)
        while number == 0 and scale.pause and not any(pause.refused_commit for pause in run.pauses):
            assert len(run.pauses) < PAUSES_MAX, "no paused leader had a commit refused"
            await asyncio.sleep(rng.uniform(*scale.between_s))
            await _pause(cell, run, submitter, rng)


def _say(run: Run, text: str) -> None:
    print(f" {time.time() - run.began_s:6.1f} s  {text}", flush=True)


async def _kill(cell: KillCell, run: Run, target: str) -> None:
    name = target
    if target in (LEADER, STANDBY):
        leader, standby = await cell.leader_with_standby()
        name = leader if target == LEADER else standby
    at_s = await cell.kill(name)
    run.kills.append(Kill(target, name, at_s))
    _say(run, f"kill {len(run.kills)}: {target}{'' if name == target else f' ({name})'}")
    if target == LEADER:
        await until(lambda: cell.ledger.leader != name, PATIENCE_S, "another queue-manager leads")


async def _pause(cell: KillCell, run: Run, submitter: kill_jobs.Submitter, rng: Random) -> None:
    """Give the leader work, pause it in the middle, and see it come back as a standby."""
    leader, _ = await cell.leader_with_standby()
    process = cell.child(leader).process
    stopped = asyncio.Event()
    crowding = asyncio.create_task(submitter.crowd(stopped))
    at_s, code, refused = await kill_pause.pause(cell, leader, stopped, rng)
    run.pauses.append(Kill("paused leader", leader, at_s, code, refused))
    _say(run, f"paused {leader}: ended with {code}, {'its commit was refused' if refused else 'its lease was lost'}")
    child = cell.child(leader)
    await until(lambda: child.process is not process and child.ready, PATIENCE_S, f"{leader} is back")
    assert await cell.metric(leader, "muster_queue_manager_leading") == 0.0, f"{leader} came back as a leader"
    await crowding


# --- the end --------------------------------------------------------------------------------------------------------


async def _caught_up(cell: KillCell, run: Run, watching: asyncio.Task[None]) -> None:
    """The live readers have got what was stored when the streams were read."""

    def level() -> bool:
        cell.check()
        if watching.done():
            watching.result()
        done = {event.job for event in run.watched if event.last}
        behind = (
            len(tail.messages) < len(stored) for tail, stored in ((cell.ledger, run.ledger), (cell.public, run.public))
        )
        return not any(behind) and done.issuperset(run.acknowledged)

    await until(level, PATIENCE_S, "the readers of ledger, events and WatchJobs are level with what is stored")
    run.ledger_tail, run.public_tail = list(cell.ledger.messages), list(cell.public.messages)


async def _read_all(cell: KillCell, run: Run) -> None:
    """The streams as they are, by a fresh connection. Events are waited for: the relay may be behind the ledger."""
    bus = await cell.bus()

    async def read(spec: StreamSpec) -> list[StoredMessage]:
        stream = await bus.stream(spec)
        last_seq = (await stream.info()).last_seq
        found: list[StoredMessage] = []
        async for batch in stream.read(1):
            found += batch
            if found[-1].seq >= last_seq:
                break
        return [message for message in found if message.seq <= last_seq]

    try:
        async with asyncio.timeout(PATIENCE_S):
            run.ledger = await read(ledger_spec(kill_cell.CELL))
            run.inbox = await read(inbox_spec(kill_cell.CELL))
            ended_at = run.ledger[-1].seq
            while True:
                run.public = await read(events_spec())
                story = [
                    m
                    for m in run.public
                    if (m.headers or {})["ce-type"] in ("job.succeeded", "job.failed", "job.cancelled")
                ]
                if len({(m.headers or {})["ce-subject"] for m in story}) >= len(run.acknowledged):
                    break
                await asyncio.sleep(0.2)
            assert run.ledger[-1].seq == ended_at
    finally:
        await bus.close()
