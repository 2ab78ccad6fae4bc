"""The workload of the kill tests and the client that submits it, stubbornly.

Every job says how it must end. The client is `muster.client` with short patience: when a call fails it sends the same
batch under the same request id until it is acknowledged, and some batches again after that. What was acknowledged is
written down at once; that is what must not be lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from muster.api.v1 import job_pb2
from muster.cli import queues
from muster.cli.replayer import GPU, job_spec
from muster.cli.traces import GIB, TraceJob, TraceTask
from muster.client import Client, ClientError, Event, Submitted, Unavailable

ROOT = "kills"
QUEUES = {
    "train": {GPU: "56"},
    "serve": {GPU: "40"},
    "batch": {"cpu": "200"},
    "urgent": {GPU: "4"},
    "crowd": {},
}
SUCCEEDED, FAILED, CANCELLED = "Succeeded", "Failed", "Cancelled"
FOR_EVER_S = 3_600.0  # runs until it is cancelled
BATCH_MAX = 12
CROWD_JOBS = 300
CROWD_PODS = 16  # one on each node
AGAIN_SHARE = 0.15  # of the acknowledged batches are sent once more
AGAIN_AFTER_S = (0.5, 20.0)
RETRY_S = 0.2
TICK_S = 0.05


@dataclass(frozen=True)
class Planned:
    """A job and how it must end."""

    spec: job_pb2.JobSpec
    arrival_s: float
    pods: int
    expected: str
    exit_code: int = 0
    cancel_after_s: float = 0.0

    @property
    def name(self) -> str:
        return self.spec.name


def workload(rng: Random, count: int, span_s: float, urgent_until_s: float) -> list[Planned]:
    """Single pods, gangs of 2 to 8, shares of a GPU; some fail by design, some are cancelled. Until
    `urgent_until_s` some are preempted; they wait a minute before they are considered again."""
    arrivals = sorted(rng.uniform(0, span_s) for _ in range(count))
    return [_job(rng, number, at, at < urgent_until_s) for number, at in enumerate(arrivals)]


def _job(rng: Random, number: int, at: float, urgent: bool) -> Planned:
    dice = rng.random()
    priority = 0
    runtime_s = rng.uniform(1, 20)
    if urgent and dice < 0.06:
        leaf, (replicas, priority) = "urgent", rng.choice(((1, 0), (1, 0), (4, 90)))
        task = TraceTask("worker", replicas, 1_000, 2 * GIB, 1_000)
    elif dice < 0.40:
        leaf, task = "train", TraceTask("worker", rng.randint(2, 8), 2_000, 4 * GIB, 1_000)
    elif dice < 0.70:
        leaf, task = "serve", TraceTask("main", 1, 2_000, 4 * GIB, rng.choice((150, 250, 300, 500, 800)))
    elif dice < 0.80:
        leaf, task = "serve", TraceTask("main", 1, 4_000, 8 * GIB, rng.choice((1_000, 1_000, 2_000)))
    else:
        leaf, task = "batch", TraceTask("main", rng.choice((1, 1, 1, 2, 3)), rng.choice((1_000, 2_500)), 2 * GIB)
    expected, exit_code, cancel_after_s = SUCCEEDED, 0, 0.0
    fate = rng.random()
    if fate < 0.06:
        expected, exit_code = FAILED, rng.choice((1, 3, 137))
    elif fate < 0.10:
        expected, runtime_s, cancel_after_s = CANCELLED, FOR_EVER_S, rng.uniform(1, 15)
    made = TraceJob(f"k-{number:04d}", leaf, at, runtime_s, (task,), priority, exit_code)
    return Planned(job_spec(made.name, made, ROOT), at, made.pods, expected, exit_code, cancel_after_s)


def crowd(number: int) -> list[Planned]:
    """Gangs as large as the cluster, no two alike, so that a leader has much to look at before it knows that none fits
    while anything runs; all are to be cancelled."""
    jobs = []
    for i in range(CROWD_JOBS):
        task = TraceTask("worker", CROWD_PODS, 1_000 + i, GIB, 8_000)
        made = TraceJob(f"crowd-{number}-{i:03d}", "crowd", 0.0, FOR_EVER_S, (task,))
        jobs.append(Planned(job_spec(made.name, made, ROOT), 0.0, made.pods, CANCELLED))
    return jobs


async def make_queues(client: Client) -> None:
    for leaf, limit in QUEUES.items():
        await queues.ensure(client, f"{ROOT}/{leaf}", limit=limit)


class Submitter:
    """Submits the workload on schedule and cancels what is to be cancelled."""

    def __init__(self, client: Client, jobs: Sequence[Planned], rng: Random) -> None:
        self.acknowledged: dict[str, Planned] = {}  # job id -> what was promised
        self.failed_calls: Counter[str] = Counter()  # by gRPC code
        self.batches = self.sent_again = self.crowds = 0
        self._client = client
        self._jobs = list(jobs)
        self._rng = rng

    async def run(self) -> None:
        """Until everything is acknowledged and every cancel is."""
        began_s = time.monotonic()
        at = 0
        async with asyncio.TaskGroup() as group:
            while at < len(self._jobs):
                due = at
                while due < len(self._jobs) and self._jobs[due].arrival_s <= time.monotonic() - began_s:
                    due += 1
                due = min(due, at + BATCH_MAX)
                if due > at:
                    group.create_task(self._submit(f"kills-{at}", self._jobs[at:due], group))
                    at = due
                await asyncio.sleep(TICK_S)

    async def crowd(self, enough: asyncio.Event) -> None:
        """Submit a crowd in one call and cancel it in another, again and again."""
        while not enough.is_set():
            jobs = crowd(self.crowds)
            self.crowds += 1
            ids = await self._send(f"crowd-{self.crowds}", jobs)
            self.acknowledged |= zip(ids, jobs, strict=True)
            await self._cancel(*ids)

    async def _submit(self, request_id: str, batch: Sequence[Planned], group: asyncio.TaskGroup) -> None:
        self.batches += 1
        ids = await self._send(request_id, batch)
        for job_id, planned in zip(ids, batch, strict=True):
            known = self.acknowledged.setdefault(job_id, planned)
            assert known is planned, f"{planned.name} got the id of {known.name}"
            if planned.cancel_after_s:
                group.create_task(self._cancel_later(job_id, planned.cancel_after_s))
        if self._rng.random() < AGAIN_SHARE:
            await asyncio.sleep(self._rng.uniform(*AGAIN_AFTER_S))
            self.sent_again += 1
            assert await self._send(request_id, batch) == ids

    async def _send(self, request_id: str, batch: Sequence[Planned]) -> list[str]:
        """The ids, once every job of the batch is acknowledged."""
        while True:
            try:
                results = await self._client.submit_many([planned.spec for planned in batch], request_id=request_id)
            except Unavailable as error:
                await self._failed(error)
                continue
            errors = [result for result in results if isinstance(result, ClientError)]
            for error in errors:
                if not isinstance(error, Unavailable):
                    raise AssertionError(f"{request_id} was refused: {error.code} {error}")
            if errors:
                await self._failed(errors[0])
                continue
            return [result.id for result in results if isinstance(result, Submitted)]

    async def _cancel_later(self, job_id: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._cancel(job_id)

    async def _cancel(self, *ids: str) -> None:
        """Until every cancel is acknowledged."""
        left = list(ids)
        while left:
            try:
                outcomes = await self._client.cancel(*left, reason="by design", wait="accepted")
            except Unavailable as error:
                await self._failed(error)
                continue
            errors = {job: outcome.error for job, outcome in zip(left, outcomes, strict=True) if outcome.error}
            for job, error in errors.items():
                if not isinstance(error, Unavailable):
                    raise AssertionError(f"cancel of {self.acknowledged[job].name} was refused: {error.code} {error}")
            left = list(errors)
            if left:
                await self._failed(errors[left[0]])

    async def _failed(self, error: ClientError) -> None:
        self.failed_calls[error.code] += 1
        await asyncio.sleep(RETRY_S)


async def watch_all(client: Client, seen: list[Event]) -> None:
    """Everything that `WatchJobs` tells, from the first transaction on, through every lost connection."""
    async for event in client.watch(from_sequence=1):
        seen.append(event)  # noqa: PERF401 - it never ends, and is read meanwhile
