"""One binder replica (or two) on virtual time, with a real `CellState` fed by hand and a cluster in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from muster.core import apply
from muster.core import transitions as tr
from muster.core.commands import AnyItem, PlacementRejected, PodFact, PodsObserved
from muster.core.model import (
    GroupPlacement,
    InboxPosition,
    JobSpec,
    JobState,
    NodeSpec,
    PodChange,
    PodPhase,
    QueueSpec,
    TaskGroup,
)
from muster.core.state import CellState, Job
from muster.runtime import kube
from muster.runtime.kube_objects import Pod
from muster.runtime.tracing import Tracing
from muster.sim import loop
from muster.sim.kube import SimKube, SimKubeApi
from muster_binder.binder import Binder, BinderOptions
from muster_binder.metrics import BinderMetrics
from muster_binder.partitions import PARTITIONS
from muster_binder.review import ReviewSettings

T = TypeVar("T")
ONE = (("cpu", 1000),)


class HandLedger:
    """The ledger as the tests write it."""

    def __init__(self) -> None:
        self.state = CellState("main")
        self._callbacks: list[Callable[[tr.Transaction, int], None]] = []
        self.items = 1

    def on_transaction(self, callback: Callable[[tr.Transaction, int], None]) -> None:
        self._callbacks.append(callback)

    def on_reload(self, callback: Callable[[CellState], None]) -> None:
        pass

    async def catch_up(self) -> None:
        await asyncio.sleep(0)

    def commit(self, *transitions: tr.AnyTransition) -> None:
        seq = self.state.ledger_seq
        header = tr.Header(
            version=tr.LEDGER_VERSION,
            id=f"1-{seq}",
            prev=seq,
            epoch=1,
            now_ms=loop.EPOCH_MS + int(asyncio.get_running_loop().time() * 1000),
            inbox_from=self.state.position,
            inbox_to=InboxPosition(self.items, 0),
            work_limit=0,
            work_spent=0,
        )
        tx = tr.Transaction(header, transitions)
        assert apply.apply_transaction(self.state, tx, seq + 1)
        for callback in self._callbacks:
            callback(tx, seq + 1)


class ListInbox:
    """Keeps what was written. `failures` are raised first."""

    def __init__(self, ledger: HandLedger) -> None:
        self._ledger = ledger
        self.items: list[AnyItem] = []
        self.failures: deque[Exception] = deque()

    async def write(self, items: Sequence[AnyItem]) -> list[InboxPosition]:
        await asyncio.sleep(0.001)
        if self.failures:
            raise self.failures.popleft()
        self.items += items
        self._ledger.items += 1
        return [InboxPosition(self._ledger.items - 1, index) for index in range(len(items))]

    @property
    def facts(self) -> list[PodFact]:
        return [fact for item in self.items if isinstance(item, PodsObserved) for fact in item.pods]

    @property
    def rejections(self) -> list[PlacementRejected]:
        return [item for item in self.items if isinstance(item, PlacementRejected)]


class AllPartitions:
    """Partitions without leases; `terms` says which are held."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.terms = dict.fromkeys(range(PARTITIONS), 1)
        self.changed.set()
        self.since_s = -1000.0  # long before: no fence

    def holds(self, partition: int) -> bool:
        return partition in self.terms

    def term(self, partition: int) -> int:
        return self.terms.get(partition, 0)

    def taken_s(self, partition: int) -> float:
        return self.since_s

    def held(self) -> list[int]:
        return sorted(self.terms)

    def lose_all(self) -> None:
        self.terms.clear()
        self.changed.set()

    def take_all(self, term: int) -> None:
        self.terms = dict.fromkeys(range(PARTITIONS), term)
        self.changed.set()


class ScriptedApi(SimKubeApi):
    """A client whose next creates go wrong as told: ("before" | "after", error) around the real call."""

    def __init__(self, server: SimKube, agent: str) -> None:
        super().__init__(server, agent)
        self.creates: deque[tuple[str, Exception]] = deque()
        self.deletes: deque[tuple[str, Exception]] = deque()
        self.calls: list[str] = []
        self.create_gate: asyncio.Event | None = None  # creates wait for it after they happened
        self.in_flight = 0
        self.in_flight_peak = 0

    async def create_pod(self, namespace: str, body: bytes) -> Pod:
        self.calls.append("create")
        self.in_flight += 1
        self.in_flight_peak = max(self.in_flight_peak, self.in_flight)
        try:
            when, error = self.creates.popleft() if self.creates else ("", None)
            if error is not None and when == "before":
                raise error
            pod = await super().create_pod(namespace, body)
            if self.create_gate is not None:
                await self.create_gate.wait()
            await asyncio.sleep(0.002)
            if error is not None:
                raise error
            return pod
        finally:
            self.in_flight -= 1

    async def get_pod(self, namespace: str, name: str) -> Pod:
        self.calls.append("get")
        return await super().get_pod(namespace, name)

    async def delete_pod(self, namespace: str, name: str, *, uid: str, finished: bool = False) -> None:
        self.calls.append("delete")
        when, error = self.deletes.popleft() if self.deletes else ("", None)
        if error is not None and when == "before":
            raise error
        await super().delete_pod(namespace, name, uid=uid, finished=finished)
        if error is not None:
            raise error


class World:
    """A binder, its ledger, its inbox and a cluster called sim."""

    def __init__(self, options: BinderOptions | None = None) -> None:
        self.ledger = HandLedger()
        self.inbox = ListInbox(self.ledger)
        self.partitions = AllPartitions()
        self.server = SimKube("sim", Random(7))
        self.api = ScriptedApi(self.server, "binder-1")
        for number in range(4):
            self.server.add_node(f"n{number}", {"cpu": "64"})
        self.registry = CollectorRegistry()
        self.options = options or BinderOptions(review=ReviewSettings(finished_pod_ttl_ms=30_000))
        self.binder = self._binder()
        self.ledger.commit(
            tr.QueueUpserted(QueueSpec("q1", "research", "")),
            *(tr.NodeUpserted(n, NodeSpec("sim", f"n{n}", (("cpu", 64_000), ("pods", 110)))) for n in range(4)),
        )

    def _binder(self) -> Binder:
        return Binder(
            "main",
            ledger=self.ledger,
            apis={"sim": self.api},
            inbox=self.inbox,
            partitions=self.partitions,
            clock=loop.SimClock(),
            random=Random(1),
            options=self.options,
            tracing=Tracing.off(),
            metrics=BinderMetrics(CollectorRegistry()),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.binder.run())
        await asyncio.sleep(0.1)
        try:
            yield
        finally:
            if task.done():
                task.result()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- what the leader would decide ---

    def job(self, number: int) -> Job:
        return self.ledger.state.jobs[job_id(number)]

    def queue(self, number: int, *, replicas: int = 1, template: dict[str, Any] | None = None) -> None:
        task = TaskGroup("worker", replicas, replicas, ONE, template=msgspec.json.encode(template or pod_template()))
        spec = JobSpec(job_id(number), "team-a", f"job-{number}", "research", (task,))
        self.ledger.commit(tr.JobQueued(spec, "q1", InboxPosition(1, number)))

    def place(self, number: int, epoch: int = 1, runs: tuple[tuple[int, int], ...] | None = None) -> None:
        runs = runs or ((0, self.job(number).spec.tasks[0].replicas),)
        self.ledger.commit(tr.JobPlaced(job_id(number), epoch, (GroupPlacement(0, runs),)))

    def submit(self, number: int, *, replicas: int = 1, template: dict[str, Any] | None = None) -> None:
        self.queue(number, replicas=replicas, template=template)
        self.place(number)

    def stop(self, number: int, next_state: JobState = JobState.CANCELLED) -> None:
        job = self.job(number)
        self.ledger.commit(tr.JobStopping(job.id, job.epoch, next_state, "CancelledByUser"))

    def acknowledge(self) -> None:
        """Write every new fact to the ledger, as the leader would."""
        for fact in self.inbox.facts:
            job = self.ledger.state.jobs.get(fact.job)
            if job is None or not job.charged or job.epoch != fact.epoch or job.attempt_of(fact.pod) != fact.attempt:
                continue
            if job.phases[fact.pod] < min(fact.phase, PodPhase.SUCCEEDED):
                change = PodChange(fact.pod, fact.phase, fact.attempt, fact.exit_code, fact.reason)
                self.ledger.commit(tr.PodsChanged(fact.job, fact.epoch, (change,)))

    async def acknowledge_until(self, done: Callable[[], bool], limit_s: float = 60.0) -> None:
        until_s = asyncio.get_running_loop().time() + limit_s
        while not done():
            assert asyncio.get_running_loop().time() < until_s, self.inbox.items
            await asyncio.sleep(0.05)
            self.acknowledge()

    # --- what the cluster shows ---

    @property
    def pods(self) -> list[dict[str, Any]]:
        return [self.server.pods[key] for key in sorted(self.server.pods)]

    @property
    def pod_names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.pods]

    def phases(self, number: int) -> list[int]:
        """Phases told so far of the job's pod 0, in order."""
        return [fact.phase for fact in self.inbox.facts if fact.job == job_id(number) and fact.pod == 0]


def job_id(number: int) -> str:
    return f"{number:08x}" + "0" * 24


def pod_template(run_seconds: float | None = None, exit_code: int = 0) -> dict[str, Any]:
    annotations = {}
    if run_seconds is not None:
        annotations = {"sim.muster.io/run-seconds": str(run_seconds), "sim.muster.io/exit-code": str(exit_code)}
    return {
        "metadata": {"annotations": annotations, "labels": {"app": "trainer"}},
        "spec": {"containers": [{"name": "main", "image": "trainer", "resources": {"requests": {"cpu": "1"}}}]},
    }


@pytest.fixture
def in_world() -> Callable[..., None]:
    """Runs `scenario(world)` on virtual time with the binder running."""

    def run(scenario: Callable[[World], Coroutine[Any, Any, None]], options: BinderOptions | None = None) -> None:
        async def main() -> None:
            world = World(options)
            async with world.running():
                await scenario(world)

        loop.run(main())

    return run


@pytest.fixture
def in_idle_world() -> Callable[..., None]:
    """The same, but the scenario starts the binder itself."""

    def run(scenario: Callable[[World], Coroutine[Any, Any, None]], options: BinderOptions | None = None) -> None:
        async def main() -> None:
            await scenario(World(options))

        loop.run(main())

    return run


@pytest.fixture
def template() -> Callable[..., dict[str, Any]]:
    return pod_template


@pytest.fixture
def id_of() -> Callable[[int], str]:
    return job_id


__all__ = ["World", "kube"]
