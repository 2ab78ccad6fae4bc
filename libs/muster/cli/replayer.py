"""Replays a trace against a cell: jobs are submitted when their time comes, in batches, and followed to their end.

    Trace --timescale--> Squeezed --Replayer--> SubmitJobs ... WatchJobs --> Tracker (counts, waits) --> Report

`Replayer.run` creates the queues (one root, a leaf per tenant or class of the trace), submits on schedule and returns
when every job has ended or nothing has moved for `STALL_S`. `Tracker` follows the jobs by name, because an event may
come before the answer to the submission that caused it; a list of the queue corrects it when the watch falls silent.
All calls are safe to repeat: request ids follow from the run's id, so no retry submits anything twice.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from muster.api.v1 import job_pb2
from muster.cli import queues, show
from muster.cli.errors import CliError, Exit
from muster.cli.timescale import Squeezed
from muster.cli.traces import Trace, TraceJob, TraceTask
from muster.client import Client, ClientError, Event, Job, NotFound, Submitted
from muster.client.requests import job_filter
from muster.core.resources import GPU_MILLI

GPU: Final = "nvidia.com/gpu"
GPU_MODEL_LABEL: Final = "nvidia.com/gpu.product"
IMAGE: Final = "registry.example/replay:1"
TICK_S: Final = 0.05
BATCH_MAX: Final = 250
BATCH_WINDOW_S: Final = 0.02
BATCHES_IN_FLIGHT: Final = 4
STALL_S: Final = 90.0  # nothing moved for so long: what has not ended is reported as it is
EXPLAINED_MAX: Final = 5
SILENCE_S: Final = 5.0  # without an event: compare with a list
RATE_WINDOW_S: Final = 10.0
CHARGED: Final = frozenset({"Placed", "Starting", "Running", "Stopping"})
ENDED: Final = frozenset({"Succeeded", "Failed", "Cancelled"})


@dataclass(slots=True)
class Tracked:
    """One job of the replay and what has been seen of it. Times are seconds since the epoch; 0: not yet."""

    job: TraceJob
    state: str = ""  # "" until it is submitted
    id: str = ""
    sent_s: float = 0.0
    queued_s: float = 0.0
    placed_s: float = 0.0
    ended_s: float = 0.0
    exit_code: int = 0
    refused: str = ""
    unknown: bool = False  # it was accepted, and the cell says it does not exist
    why: str = ""  # what the cell says when asked why it has not ended
    place: tuple[int, int] = (0, -1)  # (ledger sequence, index) of the last event seen

    @property
    def wait_s(self) -> float:
        """From the submission to the placement; 0 while it is not placed. The time in the inbox counts."""
        return max(1e-6, self.placed_s - self.sent_s) if self.placed_s and self.sent_s else 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How far the replay is. GPUs in thousandths; waits (submitted to placed) in seconds."""

    total: int
    submitted: int
    queued: int
    starting: int
    running: int
    done: int
    refused: int
    gpu_millis: int
    wait_p50_s: float
    wait_p99_s: float
    elapsed_s: float
    eta_s: float

    @property
    def share_done(self) -> float:
        return (self.done + self.refused) / self.total if self.total else 1.0


class Tracker:
    """Jobs by name, counted by state."""

    def __init__(self, jobs: dict[str, Tracked]) -> None:
        self.jobs = jobs
        self.states: Counter[str] = Counter({"": len(jobs)})
        self.gpu_millis = 0
        self.moved_at = time.monotonic()
        self._waits: list[float] = []  # sorted
        self._by_id: dict[str, Tracked] = {}

    def event(self, event: Event) -> None:
        """Take one event of the watch; older ones than already seen change nothing."""
        tracked = self.jobs.get(event.name) or self._by_id.get(event.job)
        place = (event.proto.ledger_sequence, event.proto.index)
        if tracked is None or place <= tracked.place:
            return
        tracked.place = place
        state = event.state
        if event.type == "command.refused" and not tracked.queued_s:
            self.refuse(tracked, event.message)
        if not state:
            return
        tracked.id = event.job
        at = show.seconds_of(event.proto.time)
        if state == "Queued" and not tracked.queued_s:
            tracked.queued_s = at
        if state in CHARGED and not tracked.placed_s:
            self._placed(tracked, at)
        if state in ENDED:
            tracked.ended_s, tracked.exit_code = at, event.proto.exit_code
        self._move(tracked, state)

    def listed(self, job: Job) -> None:
        """Take a job as a list shows it; corrects what the watch did not tell."""
        tracked = self.jobs.get(job.name)
        if tracked is None or tracked.state in ENDED or tracked.state == job.state:
            return
        status = job.proto.status
        tracked.id = job.id
        tracked.queued_s = tracked.queued_s or show.seconds_of(status.submit_time)
        if status.attempts and not tracked.placed_s:
            self._placed(tracked, show.seconds_of(status.attempts[0].place_time))
        if job.finished:
            tracked.ended_s, tracked.exit_code = show.seconds_of(status.finish_time), status.exit_code
        self._move(tracked, job.state)

    def sent(self, tracked: Tracked, at_s: float) -> None:
        tracked.sent_s = at_s

    def accepted(self, tracked: Tracked, job_id: str) -> None:
        tracked.id = job_id
        self._by_id[job_id] = tracked
        if not tracked.state:
            self._move(tracked, "Queued")

    def refuse(self, tracked: Tracked, why: str) -> None:
        tracked.refused = why
        self._move(tracked, "Refused")

    def snapshot(self, elapsed_s: float, eta_s: float) -> Snapshot:
        s = self.states
        return Snapshot(
            total=len(self.jobs),
            submitted=len(self.jobs) - s[""],
            queued=s["Queued"] + s["Reserved"] + s["Suspended"],
            starting=s["Placed"] + s["Starting"],
            running=s["Running"] + s["Stopping"],
            done=sum(s[state] for state in ENDED),
            refused=s["Refused"],
            gpu_millis=self.gpu_millis,
            wait_p50_s=quantile(self._waits, 0.5),
            wait_p99_s=quantile(self._waits, 0.99),
            elapsed_s=elapsed_s,
            eta_s=eta_s,
        )

    @property
    def unfinished(self) -> int:
        """Jobs that are not submitted yet or have not ended."""
        return len(self.jobs) - self.states["Refused"] - sum(self.states[state] for state in ENDED)

    def _placed(self, tracked: Tracked, at_s: float) -> None:
        tracked.placed_s = at_s
        if wait_s := tracked.wait_s:
            bisect.insort(self._waits, wait_s)

    def _move(self, tracked: Tracked, state: str) -> None:
        if tracked.state == state:
            return
        self.moved_at = time.monotonic()
        self.states[tracked.state] -= 1
        self.states[state] += 1
        self.gpu_millis += ((state in CHARGED) - (tracked.state in CHARGED)) * tracked.job.gpu_millis
        tracked.state = state


@dataclass(slots=True)
class Outcome:
    """A replay that has ended (or stalled)."""

    run_id: str
    root: str
    jobs: list[Tracked]
    wall_s: float
    submit_s: float
    waits_s: list[float] = field(default_factory=list)  # sorted; submitted to placed

    def count(self, state: str) -> int:
        return sum(t.state == state for t in self.jobs)

    @property
    def failed_by_design(self) -> int:
        return sum(t.state == "Failed" and bool(t.job.exit_code) and t.exit_code == t.job.exit_code for t in self.jobs)

    @property
    def unexpected(self) -> list[Tracked]:
        """Ended otherwise than the trace says: failed without design, succeeded against it, or cancelled."""
        return [
            t
            for t in self.jobs
            if t.state in ENDED
            and not (t.state == "Failed" and t.job.exit_code and t.exit_code == t.job.exit_code)
            and not (t.state == "Succeeded" and not t.job.exit_code)
        ]

    @property
    def refused(self) -> list[Tracked]:
        return [t for t in self.jobs if t.state == "Refused"]

    @property
    def unended(self) -> list[Tracked]:
        """Accepted and not ended when the replay gave up; among them those that are lost."""
        return [t for t in self.jobs if t.state not in ENDED and t.state != "Refused"]

    @property
    def lost(self) -> list[Tracked]:
        """Accepted, not ended, and the cell does not know them."""
        return [t for t in self.unended if t.unknown]


class Replayer:
    """One replay of one trace against one cell."""

    def __init__(self, client: Client, trace: Trace, squeezed: Squeezed, *, root: str, run_id: str) -> None:
        self._client = client
        self._trace = trace
        self._squeezed = squeezed
        self._root = root
        self._run_id = run_id
        jobs = {f"{run_id}-{job.name}": Tracked(job) for job in squeezed.jobs}
        if len(jobs) != len(squeezed.jobs):
            raise CliError(f"trace {trace.name}: job names are not unique", Exit.USAGE)
        self.tracker = Tracker(jobs)
        self._started_at = time.monotonic()
        self._submit_s = 0.0
        self._ended: deque[tuple[float, int]] = deque()  # (elapsed, jobs ended), of the last RATE_WINDOW_S

    async def run(self, on_tick: Callable[[Snapshot], None]) -> Outcome:
        """Create queues, submit, follow; `on_tick` is called about twenty times a second."""
        await self._create_queues()
        since = (await self._client.cell()).ledger_sequence + 1
        self._started_at = time.monotonic()
        watching = asyncio.create_task(self._watch(since), name="watch the replay")
        submitting = asyncio.create_task(self._submit_all(), name="submit the replay")
        try:
            while not self._finished(submitting):
                for task in (submitting, watching):
                    if task.done():
                        task.result()
                on_tick(self.snapshot())
                await self._reconcile_if_silent()
                await asyncio.sleep(TICK_S)
        finally:
            for task in (submitting, watching):
                task.cancel()
            await asyncio.gather(submitting, watching, return_exceptions=True)
        await self._ask_about_unended()
        on_tick(self.snapshot())
        jobs = list(self.tracker.jobs.values())
        waits = sorted(t.wait_s for t in jobs if t.wait_s)
        return Outcome(self._run_id, self._root, jobs, self._elapsed_s(), self._submit_s, waits)

    def snapshot(self) -> Snapshot:
        """The eta is what the schedule leaves, or longer if jobs wait faster than they have ended lately."""
        elapsed_s = self._elapsed_s()
        now = self.tracker.snapshot(elapsed_s, 0.0)
        self._ended.append((elapsed_s, now.done))
        while elapsed_s - self._ended[0][0] > RATE_WINDOW_S:
            self._ended.popleft()
        rate = (now.done - self._ended[0][1]) / max(elapsed_s - self._ended[0][0], 1.0)
        backlog_s = now.queued / rate if rate else 0.0
        return replace(now, eta_s=max(self._squeezed.wall_s - elapsed_s, backlog_s, 0.0))

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_at

    def _finished(self, submitting: asyncio.Task[None]) -> bool:
        if not submitting.done():
            return False
        return not self.tracker.unfinished or time.monotonic() - self.tracker.moved_at > STALL_S

    async def _create_queues(self) -> None:
        limits = self._trace.queue_gpu_limits
        await queues.ensure(self._client, self._root)
        for leaf in sorted({job.queue for job in self._squeezed.jobs}):
            fields = {"limit": {GPU: str(limits[leaf])}} if leaf in limits else {}
            await queues.ensure(self._client, f"{self._root}/{leaf}", **fields)

    async def _watch(self, since: int) -> None:
        """Feed the tracker for as long as the replay runs; a watch that cannot go on starts anew from the present."""
        filters = job_filter(queue=self._root)
        while True:
            try:
                async for event in self._client.watch(filters=filters, from_sequence=since):
                    since = event.sequence
                    self.tracker.event(event)
            except ClientError:
                since = 0
                await asyncio.sleep(1.0)

    async def _reconcile_if_silent(self) -> None:
        if time.monotonic() - self.tracker.moved_at < SILENCE_S or self._elapsed_s() % SILENCE_S > 2 * TICK_S:
            return
        with contextlib.suppress(ClientError):  # it is looked at again in a moment
            async for job in self._client.list(job_filter(queue=self._root, name_prefix=f"{self._run_id}-")):
                self.tracker.listed(job)

    async def _ask_about_unended(self) -> None:
        """Tell jobs that are lost from those that only wait, and learn why these do."""
        left = [t for t in self.tracker.jobs.values() if t.id and t.state not in ENDED and t.state != "Refused"]
        for asked, tracked in enumerate(left):
            try:
                self.tracker.listed(await self._client.get(tracked.id))
                if asked < EXPLAINED_MAX and tracked.state not in ENDED:
                    tracked.why = (await self._client.explain(tracked.id)).summary
            except NotFound:
                tracked.unknown = True

    async def _submit_all(self) -> None:
        """Send every job at its time; jobs that are due together go in one batch."""
        flying: set[asyncio.Task[None]] = set()
        waiting = list(self.tracker.jobs.items())
        number = at = 0
        while at < len(waiting):
            due = at
            elapsed_s = self._elapsed_s()
            while due < len(waiting) and waiting[due][1].job.arrival_s <= elapsed_s and due - at < BATCH_MAX:
                due += 1
            if due == at:
                # Not to the millisecond: what is due together goes together.
                await asyncio.sleep(min(TICK_S, max(BATCH_WINDOW_S, waiting[at][1].job.arrival_s - elapsed_s)))
                continue
            if len(flying) >= BATCHES_IN_FLIGHT:
                done, flying = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            flying.add(asyncio.create_task(self._submit(f"{self._run_id}-{number}", waiting[at:due])))
            number, at = number + 1, due
        await asyncio.gather(*flying)
        self._submit_s = self._elapsed_s()

    async def _submit(self, request_id: str, batch: Sequence[tuple[str, Tracked]]) -> None:
        specs = [job_spec(name, tracked.job, self._root) for name, tracked in batch]
        for _, tracked in batch:
            self.tracker.sent(tracked, time.time())
        results = await self._client.submit_many(specs, request_id=request_id)
        for (_, tracked), result in zip(batch, results, strict=True):
            if isinstance(result, Submitted):
                self.tracker.accepted(tracked, result.id)
            else:
                self.tracker.refuse(tracked, result.message)


def job_spec(name: str, job: TraceJob, root: str) -> job_pb2.JobSpec:
    """A job of a trace as it is submitted. The simulated kubelet reads run time and exit code from the annotations."""
    annotations = {"sim.muster.io/run-seconds": f"{job.runtime_s:.3f}"}
    if job.exit_code:
        annotations["sim.muster.io/exit-code"] = str(job.exit_code)
    template = {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": IMAGE}]},
    }
    return job_pb2.JobSpec(
        name=name,
        queue=f"{root}/{job.queue}",
        priority=job.priority,
        template=json.dumps(template, separators=(",", ":")),
        tasks=[_task_group(task) for task in job.tasks],
    )


def _task_group(task: TraceTask) -> job_pb2.TaskGroup:
    wanted = {"cpu": f"{task.cpu_millis}m", "memory": str(task.memory_bytes)}
    if task.gpu_millis >= 1000:
        wanted[GPU] = str(task.gpu_millis // 1000)
    elif task.gpu_millis:
        wanted[GPU_MILLI] = str(task.gpu_millis)
    group = job_pb2.TaskGroup(name=task.name, replicas=task.replicas, resources=wanted)
    if task.gpu_models:
        rule = job_pb2.NodeRequirement(key=GPU_MODEL_LABEL, operator="In", values=task.gpu_models)
        group.affinity.append(job_pb2.NodeSelectorTerm(requirements=[rule]))
    return group


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of sorted values; 0 for none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
