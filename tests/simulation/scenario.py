"""A cell in virtual time that a test tells a story to: hardware, queues, jobs, and what must be so at which moment.

What runs is what runs in production: two queue-managers, a binder, fair-share, two preemptors and the watcher of the
clusters' nodes, each with its own follower, on a JetStream and clusters in memory. Nothing fails unless the story says
so. Entitlements are what fair-share publishes, evictions what the preemptors plan, pods leave when their kubelets let
them go. A witness checks every invariant after every transaction, P1 (PSI strictly rises with every action) among them,
and at the end no pod may have run twice or beside its quota.

    @told()
    async def test_something(cell: Scenario) -> None:
        cell.nodes(6, cpu=1000)
        await cell.queue("q1", weight=2)
        await cell.submit("a", 6, queue="q1", cpu=1000)
        await cell.until(lambda: cell.used("q1") == 6000)
        await cell.is_silent()

Amounts are as in the core: cpu in milli-cores, memory in bytes, gpu in thousandths of one. Times are seconds from the
start of the story.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec

from muster.core import commands, invariants
from muster.core import transitions as tr
from muster.core.jobs import Job, is_over
from muster.core.lifecycle import TERMINAL
from muster.core.limits import PREEMPTION_RETRY_MAX_MS
from muster.core.model import Amounts, JobSpec, JobState, QueueSpec, TaskGroup
from muster.core.state import CellState
from muster.runtime import streams
from muster.runtime.inbox import InboxWriter
from muster.sim import loop
from muster.sim.bus import SimNats
from muster.sim.cluster import audit
from muster.sim.kube import SimKube
from muster.sim.loop import SimClock

from . import processes
from .processes import CELL, Process, Room
from .watching import cluster_watcher
from .world import Witness

GPU = "nvidia.com/gpu"
GI = 1 << 30
RESOURCES = {"cpu": "cpu", "memory": "memory", "gpu": GPU}
LOOK_EVERY_S = 0.05
STIR_EVERY_S = 3.0
CYCLES = 30  # a minute and a half: victims may start again after one (rule P5)
REST_S = 5.0  # without any scheduling action: at rest. Longer than the first pauses between two requests for a plan
OVERTAKEN = "a victim is no longer running"  # why the leader drops the second plan for a victim
ACTIONS = (tr.JobPlaced, tr.JobGrown, tr.JobPreempted, tr.JobShrunk, tr.JobRequeued)


def amounts(**named: int) -> Amounts:
    """cpu=..., memory=..., gpu=... as the core writes it."""
    return tuple(sorted((RESOURCES[name], amount) for name, amount in named.items() if amount))


def told(*clusters: str) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a test of a story: an async function of a `Scenario` (and of what pytest fills in)."""

    def made(story: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(story)
        def test(**case: Any) -> None:
            loop.run(_tell(story, clusters or ("sim-a",), case))

        _, *others = inspect.signature(story).parameters.values()
        test.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        return test

    return made


async def _tell(story: Callable[..., Awaitable[None]], clusters: tuple[str, ...], case: dict[str, Any]) -> None:
    cell = Scenario(clusters)
    await cell.open()
    try:
        await story(cell, **case)
        cell.judge()
    finally:
        await cell.close()


class Record:
    """What the ledger told, in order. Names are the jobs' names."""

    def __init__(self, witness: Witness, room: Room) -> None:
        self.evicted: list[str] = []  # victims of plans that left as a whole
        self.took: list[tuple[str, str]] = []  # (preemptor, victim), shrunk ones too
        self.shrunk: list[tuple[str, int]] = []  # elastic jobs and how many replicas they lost to a plan
        self.placed: list[str] = []
        self.requests = 0
        self.unanswered: list[str] = []  # why requests for a plan led to nothing
        self.refused: list[str] = []
        self.last_action_s = 0.0
        self._room = room
        self._follower = witness.follower
        self._before = invariants.Before(self._follower.state)
        self._follower.on_transaction(self._applied)

    def _applied(self, tx: tr.Transaction, ledger_seq: int) -> None:
        state = self._follower.state
        try:
            self._before.check(state)
        except AssertionError as error:
            self._room.failed(f"after transaction {ledger_seq}", error)
        self._before = invariants.Before(state)
        for transition in tx.transitions:
            self._note(state, transition)

    def _note(self, state: CellState, t: tr.AnyTransition) -> None:
        if isinstance(t, ACTIONS):
            self.last_action_s = asyncio.get_running_loop().time()
        if isinstance(t, tr.JobPlaced):
            self.placed.append(_name(state, t.job))
        elif isinstance(t, tr.JobPreempted):
            self.evicted.append(_name(state, t.job))
            self.took.append((_name(state, t.by), _name(state, t.job)))
        elif isinstance(t, tr.JobShrunk) and t.by:
            self.shrunk.append((_name(state, t.job), len(t.pods)))
            self.took.append((_name(state, t.by), _name(state, t.job)))
        elif isinstance(t, tr.PreemptionRequested):
            self.requests += 1
        elif isinstance(t, tr.PreemptionAnswered):
            self.unanswered.append(t.reason)
        elif isinstance(t, tr.CommandRefused):
            self.refused.append(f"{t.command} {t.subject}: {t.message}")


def _name(state: CellState, job: str) -> str:
    return state.jobs[job].spec.name


class Scenario:
    """See the module's text."""

    def __init__(self, clusters: tuple[str, ...]) -> None:
        self.nats = SimNats(SimClock(), Random(1))
        self.kubes = {name: SimKube(name, Random(2)) for name in clusters}
        self.room = Room(self.nats, self.kubes, Random(3))
        self.processes = [
            Process(name, self.room, main)
            for name, main in (
                ("qm-1", processes.queue_manager),
                ("qm-2", processes.queue_manager),
                ("binder-1", processes.binder),
                ("fair-share-1", processes.fair_share),
                ("preemptor-1", processes.preemptor),
                ("preemptor-2", processes.preemptor),
                ("watcher-1", cluster_watcher),
            )
        ]
        self._queues: dict[str, dict[str, Any]] = {}
        self._stirred = 0

    async def open(self) -> None:
        bus = self.nats.connect("setup")
        for spec in (
            streams.ledger_spec(CELL),
            streams.snapshots_spec(CELL),
            streams.leases_spec(),
            streams.events_spec(),
        ):
            await bus.stream(spec)
        self._inbox = InboxWriter(await bus.stream(streams.inbox_spec(CELL)), clock=SimClock())
        self.witness = Witness(self.room)
        self.record = Record(self.witness, self.room)
        await self.witness.follower.start()
        for process in self.processes:
            process.start()

    async def close(self) -> None:
        for process in self.processes:
            await process.stop()
        await self.witness.follower.stop()

    def judge(self) -> None:
        """What must be so at the end of every story."""
        self._nothing_failed()
        assert not self.record.refused
        assert OVERTAKEN not in self.record.unanswered  # no two preemptors ever planned the same victims
        sizes = {job.id: job.gang.pods for job in self.state.jobs.values()}
        for kube in self.kubes.values():
            verdict = audit.judge(kube.audit.records, job_sizes=sizes)
            assert not verdict.violations, verdict.violations

    def _nothing_failed(self) -> None:
        for what, error in self.room.failures:
            raise AssertionError(what) from error
        if self.witness.follower.failure is not None:
            raise AssertionError("the witness stopped") from self.witness.follower.failure

    # --- hardware ---------------------------------------------------------------------------------------------------

    def node(self, name: str, cluster: str = "", labels: dict[str, str] | None = None, **quantities: int) -> None:
        """One node. cpu in milli-cores, memory in bytes, gpu in devices."""
        units = {"cpu": "m", "memory": "", "gpu": ""}
        allocatable = {RESOURCES[r]: f"{amount}{units[r]}" for r, amount in quantities.items()}
        kube = self.kubes[cluster or next(iter(self.kubes))]
        kube.add_node(name, {"pods": "110", **allocatable}, labels)

    def nodes(self, count: int, **quantities: int) -> None:
        for n in range(count):
            self.node(f"node-{n}", **quantities)

    # --- users ------------------------------------------------------------------------------------------------------

    async def queue(self, path: str, **settings: Any) -> None:
        """Create the queue, or change what is named of it."""
        known = self._queues.setdefault(path, {})
        known |= settings
        spec = QueueSpec(id="", name="", parent="", **known)
        await self._write([commands.UpsertQueue(path, spec, -1)])
        await self.until(lambda: self.state.queues.find(path) is not None)

    async def priority_class(self, name: str, value: int = 0, **settings: Any) -> None:
        """Create the class, or make it this."""
        await self._write([commands.UpsertPriorityClass(name, value, **settings)])
        await self.until(lambda: name in self.state.classes)

    async def submit(self, name: str, count: int = 0, *, queue: str, **more: Any) -> None:
        """A job, or so many, numbered, in one message. See `spec` for what can be said about them."""
        names = [f"{name}-{n}" for n in range(count)] if count else [name]
        await self._write([commands.SubmitJob(self.spec(each, queue=queue, **more)) for each in names])

    def spec(
        self,
        name: str,
        *,
        queue: str,
        replicas: int = 1,
        least: int = 0,
        run_s: float | None = None,
        tasks: tuple[TaskGroup, ...] = (),
        **more: Any,
    ) -> JobSpec:
        """`cpu`, `memory`, `gpu`: of one pod. `run_s`: they end by themselves; else they run until they are deleted."""
        each = amounts(**{resource: more.pop(resource, 0) for resource in RESOURCES})
        groups = tasks or (group("main", replicas, each, least=least, run_s=run_s),)
        return JobSpec(
            id=job_id(name),
            namespace="default",
            name=name,
            queue=queue,
            tasks=groups,
            submitter="someone",
            request_id=f"request-{name}",
            digest=f"digest-{name}",
            **more,
        )

    async def cancel(self, name: str) -> None:
        await self._write([commands.CancelJob(job_id(name), actor="someone", request_id=f"cancel-{name}")])

    async def delete_queue(self, path: str) -> None:
        await self._write([commands.DeleteQueue(path)])

    async def _write(self, items: list[commands.AnyItem]) -> None:
        (*_, last) = await self._inbox.write(items)
        await self.witness.follower.wait_applied(last, 10.0)

    # --- time -------------------------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._nothing_failed()

    async def until(self, condition: Callable[[], bool], within_s: float = 30.0) -> None:
        """Until it is so; it has to be within this time."""
        deadline_s = asyncio.get_running_loop().time() + within_s
        while not condition():
            self._nothing_failed()
            assert asyncio.get_running_loop().time() < deadline_s, f"not within {within_s} s; {self.told()}"
            await asyncio.sleep(LOOK_EVERY_S)
        self._nothing_failed()

    async def rests(self, within_s: float = 300.0) -> None:
        """Until nobody has been started, evicted or requeued for a while and nobody is on the way out."""
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        await self.until(
            lambda: now_s() - max(self.record.last_action_s, began_s) >= REST_S and not self.state.potential.leaving,
            within_s,
        )

    async def is_silent(self, cycles: int = CYCLES, every_s: float = STIR_EVERY_S) -> None:
        """While demand is constant nobody is evicted or shrunk, however often the cell looks at everybody again."""
        before = (list(self.record.evicted), list(self.record.shrunk), self._usage())
        began = self.witness.transactions
        for _ in range(cycles):
            self._stir()
            await self.wait(every_s)
        assert self.witness.transactions - began >= cycles
        assert (self.record.evicted, self.record.shrunk, self._usage()) == before

    async def writes_nothing(self, for_s: float = 600.0) -> None:
        """While nothing happens, nothing is written, once the last requests were answered and their pauses are over."""
        await self.wait(2 * PREEMPTION_RETRY_MAX_MS / 1000)
        written = self.witness.transactions
        await self.wait(for_s)
        assert self.witness.transactions == written

    def _stir(self) -> None:
        """Something about a node changes that matters to nobody; every blocked job is looked at again."""
        self._stirred += 1
        kube = next(iter(self.kubes.values()))
        kube.label_node(min(kube.nodes), {"stirred": str(self._stirred)})

    # --- what is so -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> CellState:
        return self.witness.state

    @property
    def evicted(self) -> list[str]:
        return self.record.evicted

    def job(self, name: str) -> Job:
        return self.state.jobs[job_id(name)]

    def runs(self, name: str) -> bool:
        return self.job(name).state is JobState.RUNNING

    def waits(self, name: str) -> bool:
        return self.job(name).state is JobState.QUEUED

    def ended(self, name: str) -> bool:
        return self.job(name).state in TERMINAL

    def live(self, name: str) -> int:
        """How many pods of the job are there."""
        job = self.job(name)
        return sum(not is_over(phase) for phase in job.phases) if job.charged else 0

    def node_of(self, name: str) -> str:
        """The one node the job is on."""
        ((node, _),) = self.job(name).placement[0].runs
        return self.state.nodes.spec(node).name

    def used(self, queue: str, resource: str = "cpu") -> int:
        """Charged usage."""
        return self.state.queues.find(queue).usage.get(RESOURCES[resource], 0)

    def entitled(self, queue: str, resource: str = "cpu") -> int:
        """As fair-share published it."""
        return dict(self.state.entitled.get(self.state.queues.find(queue).id, ())).get(RESOURCES[resource], 0)

    def running(self, queue: str) -> list[str]:
        found = self.state.queues.find(queue)
        return sorted(
            j.spec.name for j in self.state.jobs.values() if j.queue == found.id and j.state is JobState.RUNNING
        )

    def _usage(self) -> dict[str, dict[str, int]]:
        return {queue.path: dict(queue.usage) for queue in self.state.queues.subtree()}

    def told(self) -> str:
        """Where everybody is, for the message of an expectation that was not met."""
        jobs = [f"{j.spec.name} {j.state}" for j in self.state.jobs.values() if j.state not in TERMINAL]
        record = self.record
        return (
            f"at {asyncio.get_running_loop().time():.1f} s: usage {self._usage()}, jobs {jobs}, "
            f"evicted {record.evicted}, requests {record.requests}, without a plan {record.unanswered[-5:]}"
        )


def group(
    name: str, replicas: int, requests: Amounts, *, least: int = 0, run_s: float | None = None, **more: Any
) -> TaskGroup:
    """A task group whose pods end by themselves after `run_s`, and take `start_s`, if it is given, to start."""
    times = {"sim.muster.io/run-seconds": run_s, "sim.muster.io/start-seconds": more.pop("start_s", None)}
    annotations = {name: str(seconds) for name, seconds in times.items() if seconds is not None}
    template = {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "registry.example/work:1"}]},
    }
    return TaskGroup(name, replicas, least or replicas, requests, template=msgspec.json.encode(template), **more)


def job_id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]
