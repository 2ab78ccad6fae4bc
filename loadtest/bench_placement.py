"""How fast the placement half of the core is, alone: no inbox, no ledger, no encoding.

Each case is built afresh and timed; what comes before its clock starts is not counted. "With apply" is as a leader
works: a new overlay for every batch, whose result is applied before the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from loadtest.harness import Measure, Result, Target, at_least, at_most, repeat

from muster.core.model import GroupPlacement, NodeSpec, TaskGroup
from muster.core.nodes import NodeTable
from muster.core.overlay import Overlay
from muster.core.shortfall import never_fits, shortfall

GIB: Final = 1 << 30
GPU: Final = "nvidia.com/gpu"

# (seconds, things done); the work before the clock starts is not counted
Timed = tuple[float, int]


def cpu_nodes(count: int) -> NodeTable:
    table = NodeTable()
    for n in range(count):
        table.upsert(n, NodeSpec("main", f"node-{n}", (("cpu", 32_000), ("memory", 256 * GIB), ("pods", 110))))
    return table


def gpu_nodes(count: int) -> NodeTable:
    """Two thirds with devices, in sizes as clusters have them."""
    table = NodeTable()
    for n in range(count):
        devices = (0, 2, 8)[n % 3]
        have = [("cpu", 32_000 + 8_000 * devices), ("memory", 256 * GIB)]
        if devices:
            have.append((GPU, devices * 1000))
        spec = NodeSpec("main", f"node-{n}", tuple(have), device_resource=GPU if devices else "", devices=devices)
        table.upsert(n, spec)
    return table


def one(cpu_millis: int, memory_gib: int, gpu_millis: int = 0, *, pods: int = 1, policy: str = "") -> TaskGroup:
    requests = [("cpu", cpu_millis), ("memory", memory_gib * GIB)] + ([(GPU, gpu_millis)] if gpu_millis else [])
    return TaskGroup("main", pods, pods, tuple(requests), policy=policy)


def cpu_shapes(count: int) -> list[TaskGroup]:
    return [one(250 * (1 + i % 7), 1 + i % 5) for i in range(count)]


def gpu_shapes(count: int) -> list[TaskGroup]:
    sizes = (0, 250, 460, 1000, 2000, 8000, 500)
    return [one(1000 + 250 * (i % 9), 2 + i % 11, sizes[i % 7]) for i in range(count)]


def place_all(table: NodeTable, shapes: list[TaskGroup], jobs: int) -> tuple[Timed, list[tuple[int, GroupPlacement]]]:
    placed = []
    begin = time.perf_counter()
    overlay = Overlay(table)
    for job in range(jobs):
        found = overlay.place_gang((shapes[job % len(shapes)],))
        if found is not None:
            placed.append((job, found[0]))
    return (time.perf_counter() - begin, jobs), placed


def identical_at_once() -> Timed:
    table = cpu_nodes(1000)
    begin = time.perf_counter()
    runs = Overlay(table).place_many(one(1000, 4), 32_000)
    return time.perf_counter() - begin, sum(pods for _, pods, _ in runs)


def mixed(nodes: int) -> Timed:
    return place_all(cpu_nodes(nodes), cpu_shapes(20), 32_000)[0]


def mixed_devices(nodes: int) -> Timed:
    return place_all(gpu_nodes(nodes), gpu_shapes(60), 10_000)[0]


def many_shapes() -> Timed:
    return place_all(gpu_nodes(10_000), gpu_shapes(693), 10_000)[0]


def spread() -> Timed:
    return place_all(cpu_nodes(10_000), [one(1000, 4, policy="SPREAD")], 10_000)[0]


def in_batches(nodes: int, per_overlay: int) -> Timed:
    """A new overlay for every batch."""
    table, shapes = cpu_nodes(nodes), cpu_shapes(20)
    Overlay(table).place_gang((shapes[0],))
    begin = time.perf_counter()
    for batch in range(8000 // per_overlay):
        overlay, placed = Overlay(table), []
        for job in range(per_overlay):
            group = shapes[(batch * per_overlay + job) % 20]
            found = overlay.place_gang((group,))
            placed.append((group, found))
        for group, found in placed:
            if found is not None:
                table.charge_placement((group,), found)
    return time.perf_counter() - begin, 8000


def gangs(pods: int, count: int, policy: str = "") -> Timed:
    return place_all(cpu_nodes(10_000), [one(1000, 4, pods=pods, policy=policy)], count)[0]


def apply_mixed() -> Timed:
    table, shapes = cpu_nodes(1000), cpu_shapes(20)
    _, placed = place_all(table, shapes, 32_000)
    begin = time.perf_counter()
    for job, group in placed:
        table.charge_placement((shapes[job % 20],), (group,))
    return time.perf_counter() - begin, len(placed)


def full_cluster() -> Timed:
    """Memory is used up, cpu is not: nothing fits, and every job has to be told so."""
    table = cpu_nodes(10_000)
    Overlay(table)
    for n in range(10_000):
        table.charge(n, (("cpu", 1000), ("memory", 256 * GIB)), 1)
    begin = time.perf_counter()
    for _ in range(50):
        overlay = Overlay(table)
        for group in cpu_shapes(20):
            overlay.place_gang((group,))
    return time.perf_counter() - begin, 1000


def first_question() -> Timed:
    table = gpu_nodes(10_000)
    begin = time.perf_counter()
    Overlay(table).place_gang((one(1000, 4, 250),))
    return time.perf_counter() - begin, 1


def ever() -> Timed:
    table, shapes = gpu_nodes(10_000), gpu_shapes(20)
    for group in shapes:
        never_fits(table, (group,))
    begin = time.perf_counter()
    for job in range(10_000):
        never_fits(table, (shapes[job % 20],))
    return time.perf_counter() - begin, 10_000


def explained() -> Timed:
    table = gpu_nodes(10_000)
    begin = time.perf_counter()
    shortfall(table, (one(4000, 8, 8000, pods=40_000),))
    return time.perf_counter() - begin, 1


CASES: Final[dict[str, tuple[Callable[[], Timed], Target | None]]] = {
    "32,000 of 20 shapes, 1,000 nodes": (lambda: mixed(1000), None),
    "32,000 of 20 shapes, 10,000 nodes": (lambda: mixed(10_000), None),
    "10,000 of 60 device shapes, 1,000 nodes": (lambda: mixed_devices(1000), None),
    "10,000 of 60 device shapes, 10,000 nodes": (lambda: mixed_devices(10_000), None),
    "10,000 of 693 device shapes, 10,000 nodes": (many_shapes, None),
    "10,000 spread, 10,000 nodes": (spread, None),
    "one-pod jobs in batches of 1 with apply, 10,000 nodes": (lambda: in_batches(10_000, 1), at_least(5000)),
    "one-pod jobs in batches of 100 with apply, 10,000 nodes": (lambda: in_batches(10_000, 100), at_least(5000)),
    "gangs of 8, 10,000 nodes": (lambda: gangs(8, 5000), None),
    "gangs of 100, 10,000 nodes": (lambda: gangs(100, 500), None),
    "gangs of 100 spread, 10,000 nodes": (lambda: gangs(100, 100, "SPREAD"), None),
    "gangs of 40,000, 10,000 nodes": (lambda: gangs(40_000, 1), None),
    "apply 32,000 of 20 shapes": (apply_mixed, None),
    "1,000 that do not fit, 10,000 nodes": (full_cluster, None),
    "first share question, 10,000 nodes": (first_question, None),
    "never_fits, 10,000 nodes": (ever, None),
    "shortfall, 10,000 nodes": (explained, None),
}


def once() -> list[Measure]:
    elapsed_s, pods = identical_at_once()
    if pods != 32_000:
        raise RuntimeError(f"only {pods} pods were placed")
    name = "placement: 32,000 identical onto 1,000 nodes, at once"
    measures = [Measure(name=name, value=elapsed_s, unit="s", target=at_most(0.3))]
    for what, (case, target) in CASES.items():
        elapsed_s, things = case()
        name, each_us = f"placement: {what}", elapsed_s / things * 1e6
        measures.append(
            Measure(name=name, value=things / elapsed_s, unit="/s", target=target, cpu_us={"core": each_us})
        )
    return measures


def main(runs: int) -> list[Result]:
    return repeat(runs, once)
