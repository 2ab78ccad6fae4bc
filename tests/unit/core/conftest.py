"""What the core's tests need again and again: a driven cell and short ways to say jobs, nodes and pods."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.unit.core.preempting import Around

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.jobs import Job
from muster.core.model import Amounts, JobSpec, NodeSpec, QueueSpec, TaskGroup
from muster.sim.cell import Cell


class World:
    """A cell with one queue `research` and no nodes; every transaction is checked against the naive invariants."""

    def __init__(self) -> None:
        self.cell = Cell()
        self.cell.start_term()
        self.queue("research")

    @property
    def state(self) -> Any:
        return self.cell.state

    @staticmethod
    def id(name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()[:32]

    def job(self, name: str) -> Job:
        found: Job = self.state.jobs[self.id(name)]
        return found

    def spec(
        self,
        name: str,
        /,
        *,
        cpu: int = 1000,
        replicas: int = 1,
        least: int | None = None,
        queue: str = "research",
        requests: Amounts | None = None,
        **more: Any,
    ) -> JobSpec:
        amounts = (("cpu", cpu),) if requests is None else requests
        tasks = (TaskGroup("main", replicas, replicas if least is None else least, amounts),)
        fields: dict[str, Any] = {
            "id": self.id(name),
            "namespace": "default",
            "name": name,
            "queue": queue,
            "tasks": tasks,
            "request_id": f"request-{name}",
            "digest": f"digest-{name}",
        }
        return JobSpec(**{**fields, **more})

    def submit(self, name: str, /, **more: Any) -> list[tr.Transition]:
        return self.cell.send(c.SubmitJob(self.spec(name, **more)))

    def nodes(self, count: int = 1, *, cluster: str = "sim-a", **more: Any) -> list[tr.Transition]:
        """Replaces the cluster's nodes by `count` equal ones."""
        specs = tuple(self.node(f"node-{i}", cluster=cluster, **more) for i in range(count))
        return self.cell.send(c.NodesReported(cluster, specs, first=True, complete=True))

    @staticmethod
    def node(name: str, *, cpu: int = 4000, gpus: int = 0, cluster: str = "sim-a", **more: Any) -> NodeSpec:
        allocatable = (("cpu", cpu), *((("nvidia.com/gpu", gpus * 1000),) if gpus else ()), ("pods", 110))
        kind = "nvidia.com/gpu" if gpus else ""
        return NodeSpec(cluster, name, allocatable, device_resource=kind, devices=gpus, **more)

    def queue(self, path: str, *, expect: int = -1, to: str = "", **more: Any) -> list[tr.Transition]:
        return self.cell.send(c.UpsertQueue(path, QueueSpec("", "", "", **more), expect, new_path=to))

    def pods(self, name: str, phase: int, *positions: int, **more: Any) -> list[tr.Transition]:
        """Pods of the job (all, if none are named) reach a phase in its current epoch."""
        job = self.job(name)
        epoch = more.pop("epoch", job.epoch)
        chosen = positions or range(len(job.phases))
        facts = tuple(c.PodFact(job.id, epoch, pod, phase, **more) for pod in chosen)
        return self.cell.send(c.PodsObserved("sim-a", facts))

    def reject(self, transitions: list[tr.Transition]) -> tr.CommandRefused:
        """The one refusal among the transitions."""
        (refusal,) = [t for t in transitions if isinstance(t, tr.CommandRefused)]
        return refusal


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def around(world: World) -> Around:
    """What preemption needs around the world's cell."""
    return Around(world.cell)
