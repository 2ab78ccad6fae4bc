"""How long it takes to plan a preemption on a large, full cell.

10,000 nodes of 8 devices, 95 % of them in use by 50,000 pods of jobs with one to four devices, in ten queues of which
half borrow. Queue `own` is below its entitlement and wants a gang of 8 pods with 8 devices each, with victims in at
least three queues. The plan is made again and again, each time after some of the cell has changed, as a preemptor sees
it. The table of victims, which a preemptor reads before it is ready and follows from then on, is measured by itself.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Final

from loadtest.harness import Measure, Result, at_most, medians

from muster.core import transitions as tr
from muster.core.apply import apply
from muster.core.commands import Entitlement
from muster.core.model import Amounts, GroupPlacement, InboxPosition, JobSpec, NodeSpec, QueueSpec, TaskGroup
from muster.core.preemption import Plan, Planner
from muster.core.state import CellState
from muster.core.victim_table import VictimTable

NODES: Final = 10_000
PODS: Final = 50_000
DEVICES: Final = 8  # of a node
ROUNDS: Final = 15  # in one run
CHANGES_PER_ROUND: Final = 50
GIB: Final = 1 << 30
GPU: Final = "nvidia.com/gpu"
QUEUES: Final = 10
VICTIM_QUEUES_MIN: Final = 3
FULL_PERCENT: Final = 95
LARGE_PERCENT: Final = {4: 4}  # of the pods, by devices; the others have two or one


def job_spec(number: int, queue: str, group: TaskGroup, priority: int = 0) -> JobSpec:
    name = f"job-{number}"
    return JobSpec(f"{number * 2654435761 % (1 << 60):015x}{number:017x}", "bench", name, queue, (group,), priority)


def worker(devices: int, pods: int = 1) -> TaskGroup:
    requests = (("cpu", 4000 * devices), ("memory", 16 * GIB * devices), (GPU, 1000 * devices))
    return TaskGroup("worker", pods, pods, requests)


class Bench:
    """The cell, filled through `apply` alone."""

    def __init__(self) -> None:
        self.state = CellState("main")
        self.rng = random.Random(7)
        self.number = 0
        self.running: list[str] = []
        self._queues()
        have: Amounts = (("cpu", 64_000), ("memory", 512 * GIB), (GPU, 1000 * DEVICES), ("pods", 110))
        for n in range(NODES):
            spec = NodeSpec("main", f"node-{n}", have, device_resource=GPU, devices=DEVICES)
            apply(self.state, tr.NodeUpserted(n, spec))
        apply(self.state, tr.ClusterSynced("main"))
        self._fill()
        self._entitle()

    def _queues(self) -> None:
        for q in range(QUEUES + 1):
            name = "own" if q == QUEUES else f"team-{q}"
            apply(self.state, tr.QueueUpserted(QueueSpec(f"q{q + 1}", name, "", preemption="ANY")))

    def _fill(self) -> None:
        """Each pod on a random node with room for it, the large ones first; then they start in random order."""
        free = [list(range(DEVICES)) for _ in range(NODES)]
        room = list(range(NODES))
        starts: list[tuple[int, bytes]] = []
        for devices in self._sizes():
            at = self.rng.randrange(len(room))
            while len(free[room[at]]) < devices:
                at = self.rng.randrange(len(room))
            node = room[at]
            starts.append((node, bytes(free[node].pop() for _ in range(devices))))
            if not free[node]:
                room[at] = room[-1]
                room.pop()
        self.rng.shuffle(starts)
        for node, taken in starts:
            self._start(node, taken)
        in_use = dict(self.state.nodes.capacity())[GPU] - int(self.state.nodes.device_free.sum())
        if (len(self.running), in_use * 100) != (PODS, FULL_PERCENT * NODES * DEVICES * 1000):
            raise RuntimeError(f"{len(self.running)} pods use {in_use} thousandths of devices")

    @staticmethod
    def _sizes() -> list[int]:
        """Devices of each pod, so many that the cell is as full as it should be."""
        sizes = [devices for devices, percent in LARGE_PERCENT.items() for _ in range(PODS * percent // 100)]
        left_pods, left = PODS - len(sizes), NODES * DEVICES * FULL_PERCENT // 100 - sum(sizes)
        twos = left - left_pods
        return [*sizes, *[2] * twos, *[1] * (left_pods - twos)]

    def _start(self, node: int, devices: bytes) -> None:
        queue = f"q{self.rng.randrange(QUEUES) + 1}"
        self.number += 1
        self.state.now_ms += 20
        spec = job_spec(self.number, queue, worker(len(devices)), self.rng.randrange(3))
        apply(self.state, tr.JobQueued(spec, queue, InboxPosition(self.number, 0)))
        apply(self.state, tr.JobPlaced(spec.id, 1, (GroupPlacement(0, ((node, 1),), devices),)))
        self.running.append(spec.id)

    def _entitle(self) -> None:
        """Half of the queues borrow 2 % of the cell each, which `own` is entitled to."""
        whole = dict(self.state.nodes.capacity())
        shares = []
        for q in range(QUEUES):
            usage = self.state.queues.get(f"q{q + 1}").usage
            lent = {r: amount * 2 // 100 if q % 2 else 0 for r, amount in whole.items()}
            shares.append(Entitlement(f"q{q + 1}", tuple((r, usage[r] - lent[r]) for r in sorted(usage))))
        own = tuple((r, amount // 10) for r, amount in sorted(whole.items()))
        shares.append(Entitlement(f"q{QUEUES + 1}", own))
        apply(self.state, tr.EntitlementsSet(tuple(shares), 1))

    def gang(self) -> str:
        self.number += 1
        spec = job_spec(self.number, f"q{QUEUES + 1}", worker(8, 8), 1)
        apply(self.state, tr.JobQueued(spec, f"q{QUEUES + 1}", InboxPosition(self.number, 0)))
        return spec.id

    def change(self) -> None:
        """Some jobs end and others start in their places."""
        for _ in range(CHANGES_PER_ROUND):
            job = self.state.jobs[self.running.pop(self.rng.randrange(len(self.running)))]
            ((node, _),) = job.placement[0].runs
            devices = job.placement[0].devices
            change = tr.PodsChanged(job.id, 1, (tr.PodChange(0, 3),))
            apply(self.state, change)
            apply(self.state, tr.JobSucceeded(job.id, 1))
            self._start(node, devices)


def once(bench: Bench, job: str) -> list[Measure]:
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    VictimTable().synced(bench.state)
    table_s, table_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    Planner(bench.state).plan(job)  # the bench's own table is read
    walls, cpus, told = [], [], ""
    for _ in range(ROUNDS):
        bench.change()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        answer = Planner(bench.state).plan(job)
        walls.append((time.perf_counter() - began_s) * 1e3)
        cpus.append((time.process_time() - began_cpu_s) * 1e6)
        told = checked(bench, answer.plan)
    plan_note = f"{told}; worst {max(walls):.0f} ms"
    return [
        Measure(
            name=f"preemption: plan for a gang of 8 x 8 devices, {PODS:,} pods",
            value=statistics.median(walls),
            unit="ms",
            target=at_most(100),
            cpu_us={"preemptor": statistics.median(cpus)},
            note=plan_note,
        ),
        Measure(
            name="preemption: table of victims from nothing",
            value=table_s * 1e3,
            unit="ms",
            cpu_us={"preemptor": table_cpu_s * 1e6},
            note="read in parts before a preemptor is ready",
        ),
    ]


def checked(bench: Bench, plan: Plan | None) -> str:
    """What the plan is like. A figure for another kind of plan would mean nothing."""
    if plan is None:
        raise RuntimeError("there is no plan")
    queues = {bench.state.jobs[victim].queue for victim, _ in plan.victims}
    if len(queues) < VICTIM_QUEUES_MIN:
        raise RuntimeError(f"victims are in {len(queues)} queues only")
    return f"{len(plan.victims)} victims in {len(queues)} queues, {FULL_PERCENT} % full"


def main(runs: int) -> list[Result]:
    bench = Bench()
    job = bench.gang()
    return medians([once(bench, job) for _ in range(runs)])
