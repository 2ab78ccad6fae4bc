"""How fast entitlements are computed: from nothing, and again after one leaf asks for something else.

1,000 queues on three levels, 8 resources, random weights and demands. "From nothing" includes reading the tree. Of the
changes, "more of the same" is a queue that gets less than it asks for and asks for more; "one more job" changes the mix
of what a queue asks for a little. With one scarce resource that every job needs, that moves a few queues next to it
and no level; with scarce devices as well, it moves the entitlement of almost every queue. The cases with equal jobs
are full of ties, which have to be decided exactly. CPU time counts where the machine is busy.
Garbage is collected between the cases, as the services do it (LOG-16).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from loadtest.harness import Measure, Result, Target, at_most, repeat

from muster.core.entitlements import EntitlementEngine, entitlements
from muster.core.model import Amounts, QueueSpec
from muster.core.queues import QueueTree
from muster.runtime.gc import Collector

CHANGES = 5  # in one run
GIB = 1 << 30
GPU = "nvidia.com/gpu"
ROOTS, TEAMS, LEAVES = 10, 9, 10  # 10 + 90 + 900 queues
CAPACITY: Amounts = (
    ("amd.com/gpu", 2_000_000),
    ("cpu", 40_000_000),
    ("ephemeral-storage", 1500 << 40),
    ("hugepages-2Mi", 3000 * GIB),
    ("memory", 200_000 * GIB),
    (GPU, 8_000_000),
    ("pods", 50_000),
    ("rdma/hca", 8000),
)

SCARCE_GPUS: Amounts = tuple((resource, amount // 2 if resource == GPU else amount) for resource, amount in CAPACITY)

Flow = dict[str, int]
Timed = tuple[float, float]  # wall and CPU time in seconds


class Maker:
    def __init__(
        self, flow: Callable[[random.Random], list[Flow]], *, settings: bool = False, capacity: Amounts = CAPACITY
    ) -> None:
        self.rng = random.Random(1)
        self.capacity = capacity
        self.tree = QueueTree()
        self.demand: dict[str, tuple[Amounts, ...]] = {}
        self.settings = settings
        for root in range(ROOTS):
            top = self.put(f"r{root}", "")
            for team in range(TEAMS):
                middle = self.put(f"t{team}", top)
                for leaf in range(LEAVES):
                    queue = self.put(f"l{leaf}", middle)
                    self.demand[queue] = tuple(tuple(sorted(one.items())) for one in flow(self.rng))

    def put(self, name: str, parent: str) -> str:
        queue, number = f"q{len(self.tree) + 1}", len(self.tree)
        level = 0 if not parent else 1 if name.startswith("t") else 2
        limit: Amounts = (("cpu", 10_000_000),) if self.settings and level == 0 and number % 3 else ()
        guaranteed: Amounts = ((GPU, 20_000),) if self.settings and level == 1 and number % 2 else ()
        weight = self.rng.randint(1, 10)
        self.tree.put(QueueSpec(queue, name, parent, weight=weight, limit=limit, guaranteed=guaranteed))
        return queue


def mixed(rng: random.Random) -> list[Flow]:
    """The jobs of a leaf: cpu and memory, and most often one kind of device."""
    pods = rng.randint(1, 150)
    flow = {
        "cpu": rng.randint(2, 16) * 500 * pods,
        "ephemeral-storage": 10 * GIB * pods,
        "memory": rng.randint(1, 16) * GIB * pods,
        "pods": pods,
    }
    kind = rng.random()
    if kind < 0.5:
        flow |= {GPU: 1000 * pods, "rdma/hca": pods}
    elif kind < 0.65:
        flow["amd.com/gpu"] = 1000 * pods
    elif kind < 0.7:
        flow["hugepages-2Mi"] = GIB * pods
    return [flow]


def two_mixed(rng: random.Random) -> list[Flow]:
    pods = rng.randint(1, 150)
    return [*mixed(rng), {"cpu": rng.randint(2, 16) * 500 * pods, "memory": 2 * GIB * pods}]


def one_gpu(rng: random.Random) -> list[Flow]:
    pods = rng.randint(1, 40)
    return [{"cpu": 8000 * pods, "memory": 64 * GIB * pods, GPU: 1000 * pods, "pods": pods}]


def two_equal(rng: random.Random) -> list[Flow]:
    pods = rng.randint(1, 40)
    return [*one_gpu(rng), {"cpu": 4000 * pods, "memory": 16 * GIB * pods, "pods": pods}]


def from_nothing(maker: Maker) -> Timed:
    return timed(lambda: entitlements(maker.tree, maker.demand, maker.capacity))


def changed(maker: Maker, change: Callable[[tuple[Amounts, ...]], tuple[Amounts, ...]]) -> Timed:
    """Another leaf each time; the result is compared with computing it anew."""
    engine = EntitlementEngine()
    demand = dict(maker.demand)
    engine.entitlements(maker.tree, demand, maker.capacity)
    leaves, rounds = list(demand), []
    for number in range(CHANGES):
        leaf = leaves[(2 * number + 1) * len(leaves) // (2 * CHANGES)]
        demand = {**demand, leaf: change(demand[leaf])}
        rounds.append(timed(lambda now=demand: engine.entitlements(maker.tree, now, maker.capacity)))
    if engine.entitlements(maker.tree, demand, maker.capacity) != entitlements(maker.tree, demand, maker.capacity):
        raise RuntimeError("computing again gives something else than computing anew")
    return sorted(rounds)[CHANGES // 2]


def one_more_job(flows: tuple[Amounts, ...]) -> tuple[Amounts, ...]:
    first = dict(flows[0])
    first["cpu"] += 4000
    first["memory"] += 8 * GIB
    return (tuple(sorted(first.items())), *flows[1:])


def more_of_the_same(flows: tuple[Amounts, ...]) -> tuple[Amounts, ...]:
    return tuple(tuple((resource, 100 * amount) for resource, amount in flow) for flow in flows)


def timed(work: Callable[[], object]) -> Timed:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def insatiable(rng: random.Random) -> list[Flow]:
    return [{resource: 1000 * amount for resource, amount in flow.items()} for flow in mixed(rng)]


def little(rng: random.Random) -> list[Flow]:
    return [{resource: max(amount // 10, 1) for resource, amount in flow.items()} for flow in mixed(rng)]


collector: Final = Collector()
SCRATCH: Final = at_most(20)
AGAIN: Final = at_most(2)
CASES: Final[dict[str, tuple[Callable[[], Timed], Target | None]]] = {
    "from nothing": (lambda: from_nothing(Maker(mixed)), SCRATCH),
    "from nothing, scarce devices as well": (lambda: from_nothing(Maker(mixed, capacity=SCARCE_GPUS)), None),
    "from nothing, guarantees and limits": (lambda: from_nothing(Maker(mixed, settings=True)), None),
    "from nothing, two kinds of jobs a leaf": (lambda: from_nothing(Maker(two_mixed)), None),
    "from nothing, equal jobs": (lambda: from_nothing(Maker(one_gpu)), None),
    "from nothing, two equal kinds": (lambda: from_nothing(Maker(two_equal)), None),
    "one more job": (lambda: changed(Maker(mixed), one_more_job), AGAIN),
    "one more job, scarce devices as well": (lambda: changed(Maker(mixed, capacity=SCARCE_GPUS), one_more_job), None),
    "one more job, guarantees and limits": (lambda: changed(Maker(mixed, settings=True), one_more_job), None),
    "one more job, two kinds of jobs a leaf": (lambda: changed(Maker(two_mixed), one_more_job), None),
    "one more job, equal jobs": (lambda: changed(Maker(one_gpu), one_more_job), None),
    "one more job where there is enough": (lambda: changed(Maker(little), one_more_job), AGAIN),
    "more of the same": (lambda: changed(Maker(insatiable), more_of_the_same), AGAIN),
}


def once() -> list[Measure]:
    measures = []
    for what, (case, target) in CASES.items():
        wall_s, cpu_s = case()
        collector.busy()
        name = f"entitlements: {what}"
        measures.append(Measure(name=name, value=wall_s * 1e3, unit="ms", target=target, cpu_us={"core": cpu_s * 1e6}))
    return measures


def main(runs: int) -> list[Result]:
    collector.loading()
    try:
        return repeat(runs, once)
    finally:
        collector.stop()
