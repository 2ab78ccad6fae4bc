"""How long it takes to plan a preemption on a large, full cell.

    python -m loadtest.bench_preemption [nodes] [pods]

10,000 nodes of 8 devices, 95 % of them in use by 50,000 pods of jobs with one to eight devices, in ten queues of which
half borrow. Queue `own` is below its entitlement and wants a gang of 8 pods with 8 devices each. The plan is made again
and again, each time after some of the cell has changed, as a preemptor would see it; the first one, which makes the
table of victims, is shown by itself. Wanted: less than 100 ms at the median, victims in at least three queues.
"""

from __future__ import annotations

import platform
import random
import statistics
import sys
import time

from muster.core import transitions as tr
from muster.core.apply import apply
from muster.core.commands import Entitlement
from muster.core.model import Amounts, GroupPlacement, InboxPosition, JobSpec, NodeSpec, QueueSpec, TaskGroup
from muster.core.preemption import Plan, Planner
from muster.core.state import CellState

ROUNDS = 15
CHANGES_PER_ROUND = 50
GIB = 1 << 30
GPU = "nvidia.com/gpu"
QUEUES = 10
FULL_PERCENT = 95
WANTED_MS = 100
SIZES = (1, 1, 1, 2, 2, 1, 4, 1, 1, 2)  # devices of the jobs; scaled so that so many pods use so much


def job_spec(number: int, queue: str, group: TaskGroup, priority: int = 0) -> JobSpec:
    name = f"job-{number}"
    return JobSpec(f"{number * 2654435761 % (1 << 60):015x}{number:017x}", "bench", name, queue, (group,), priority)


def worker(devices: int, pods: int = 1) -> TaskGroup:
    requests = (("cpu", 4000 * devices), ("memory", 16 * GIB * devices), (GPU, 1000 * devices))
    return TaskGroup("worker", pods, pods, requests)


class Bench:
    """The cell, filled through `apply` alone."""

    def __init__(self, nodes: int, pods: int) -> None:
        self.state = CellState("main")
        self.rng = random.Random(7)
        self.number = 0
        self.nodes = nodes
        self.running: list[str] = []
        self._queues()
        have: Amounts = (("cpu", 64_000), ("memory", 512 * GIB), (GPU, 8000), ("pods", 110))
        for n in range(nodes):
            spec = NodeSpec("main", f"node-{n}", have, device_resource=GPU, devices=8)
            apply(self.state, tr.NodeUpserted(n, spec))
        apply(self.state, tr.ClusterSynced("main"))
        self._fill(pods)

    def _queues(self) -> None:
        for q in range(QUEUES + 1):
            name = "own" if q == QUEUES else f"team-{q}"
            apply(self.state, tr.QueueUpserted(QueueSpec(f"q{q + 1}", name, "", preemption="ANY")))

    def _fill(self, pods: int) -> None:
        """Devices in use spread over the nodes, as evenly as the sizes allow."""
        free = {n: list(range(8)) for n in range(self.nodes)}
        order = list(range(self.nodes)) * 8
        self.rng.shuffle(order)
        in_use, wanted = 0, self.nodes * 8 * FULL_PERCENT // 100
        for n in order:
            left_pods = pods - len(self.running)
            if in_use >= wanted or left_pods <= 0:
                break
            even = max((wanted - in_use) // left_pods, 1)
            devices = self.rng.choice((even, even + 1, even + 1, max(even - 1, 1)))
            if len(free[n]) >= devices:
                taken = bytes(free[n].pop() for _ in range(devices))
                self._start(n, taken)
                in_use += devices
        self.in_use = in_use
        self._entitle()

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


def timed(bench: Bench, job: str) -> tuple[float, Plan | None]:
    begin = time.perf_counter()
    answer = Planner(bench.state).plan(job)
    return time.perf_counter() - begin, answer.plan


def main() -> int:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    pods = int(sys.argv[2]) if len(sys.argv) > 2 else 5 * nodes
    bench = Bench(nodes, pods)
    print(f"python {platform.python_version()}, {nodes} nodes, {len(bench.running)} pods, ", end="")
    print(f"{bench.in_use / nodes / 8:.1%} of the devices in use")
    job = bench.gang()
    first, plan = timed(bench, job)
    taken: list[float] = []
    queues: set[str] = set()
    victims = 0
    for _ in range(ROUNDS):
        bench.change()
        seconds, plan = timed(bench, job)
        taken.append(seconds)
        if plan is not None:
            victims = len(plan.victims)
            queues = {bench.state.jobs[victim].queue for victim, _ in plan.victims}
    median, worst = statistics.median(taken) * 1000, max(taken) * 1000
    print(f"first plan {first * 1000:.0f} ms; then median {median:.1f} ms, worst {worst:.1f} ms of {ROUNDS}")
    print(f"victims {victims} in {len(queues)} queues")
    good = plan is not None and len(queues) >= 3 and median < WANTED_MS
    print("as wanted" if good else f"NOT as wanted: a plan with victims in 3 queues in {WANTED_MS} ms")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
