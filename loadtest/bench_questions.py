"""Questions to a follower: explain and what-if with 100,000 pending jobs on 10,000 nodes that run 50,000 pods.

Fifty leaf queues in ten departments, twenty shapes of jobs; every node is full but for crumbs. Asked are the
explanation of a job in the middle of the order, a job that would wait, one that would start, a weight that changes, the
shares of all queues, and a usage report. Prints medians and the worst. Run with
`python -m loadtest.bench_questions [pending jobs]`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Final

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.apply import apply, apply_transaction
from muster.core.decide import decide, leader_elected, transaction
from muster.core.explain import explain
from muster.core.model import GroupPlacement, InboxPosition, JobSpec, NodeSpec, QueueSpec, TaskGroup
from muster.core.queue_changes import plan
from muster.core.standing import standings
from muster.core.state import CellState
from muster.core.whatif import forecast_job, forecast_queues

NODES: Final = 10_000
PODS_PER_NODE: Final = 5
DEPARTMENTS: Final = 10
LEAVES: Final = 5  # of each
SHAPES: Final = 20
ROUNDS: Final = 15
WORK: Final = 1 << 20
GPU: Final = "nvidia.com/gpu"
GIB: Final = 1 << 30


def group(shape: int) -> TaskGroup:
    return TaskGroup("main", 1, 1, (("cpu", 4000 + 100 * shape), ("memory", (16 + shape) * GIB), (GPU, 1000)))


def spec(number: int, leaf: str, tasks: tuple[TaskGroup, ...], priority: int = 0) -> JobSpec:
    return JobSpec(
        id=f"{number:032x}",
        namespace=f"team-{number % 100}",
        name=f"job-{number}",
        queue=leaf,
        tasks=tasks,
        submitter=f"user-{number % 500}",
        request_id=f"r{number}",
        priority=priority,
    )


def build(pending: int) -> CellState:
    """The cell, folded from transitions as a follower does it."""
    state = CellState("main")
    apply_transaction(state, leader_elected(state, leader="bench", now_ms=1_700_000_000_000), 1)
    position = InboxPosition(1, 0)
    for n in range(NODES):
        allocatable = (("cpu", 64_000), (GPU, 5000), ("memory", 256 * GIB), ("pods", 110))
        node = NodeSpec("sim-a", f"node-{n:05d}", allocatable, device_resource=GPU, devices=PODS_PER_NODE)
        apply(state, tr.NodeUpserted(n, node))
    apply(state, tr.ClusterSynced("sim-a"))
    leaves: list[tuple[str, str]] = []
    for d in range(DEPARTMENTS):
        top = f"q{len(state.queues) + 1}"
        apply(state, tr.QueueUpserted(QueueSpec(top, f"dept-{d}", "", weight=d + 1)))
        for leaf in range(LEAVES):
            number = f"q{len(state.queues) + 1}"
            apply(state, tr.QueueUpserted(QueueSpec(number, f"leaf-{leaf}", top)))
            leaves.append((number, f"dept-{d}/leaf-{leaf}"))
    shapes = [(group(shape),) for shape in range(SHAPES)]
    running = NODES * PODS_PER_NODE
    for n in range(running + pending):
        queue, path = leaves[n % len(leaves)]
        apply(state, tr.JobQueued(spec(n, path, shapes[n % SHAPES], n % 3), queue, position))
        if n < running:
            where = GroupPlacement(0, ((n // PODS_PER_NODE, 1),), bytes([n % PODS_PER_NODE]))
            apply(state, tr.JobPlaced(f"{n:032x}", 1, (where,)))
    return state


def settle(state: CellState) -> None:
    """Decide until the cell rests, with the follower's own core."""
    number = 0
    while True:
        decision = decide(state, [], state.now_ms, WORK)
        if not decision.transitions:
            return
        number += 1
        tx = transaction(state, decision, transaction_id=f"1-{number}", now_ms=state.now_ms, work_limit=WORK)
        apply_transaction(state, tx, state.ledger_seq + 1)
        if number > 50:
            print(f"  still deciding after {number} transactions: {[type(t).__name__ for t in tx.transitions][:3]}")
            return


def measure(name: str, ask: Callable[[int], object]) -> None:
    times = []
    for turn in range(ROUNDS):
        began = time.perf_counter()
        ask(turn)
        times.append((time.perf_counter() - began) * 1000)
    print(f"{name:<34} median {median(times):7.1f} ms   worst {max(times):7.1f} ms   first {times[0]:7.1f} ms")


def main() -> None:
    pending = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    began = time.perf_counter()
    state = build(pending)
    settle(state)
    print(f"{len(state.pending):,} pending, {NODES * PODS_PER_NODE:,} running ({time.perf_counter() - began:.0f} s)")
    first = NODES * PODS_PER_NODE
    now_ms = state.now_ms + 60_000
    small = (TaskGroup("main", 1, 1, (("cpu", 100),)),)
    measure("explain a pending job", lambda turn: explain(state, f"{first + pending // 2 + turn:032x}"))
    waits = [spec(10_000_000 + turn, "dept-3/leaf-1", (group(turn % SHAPES),)) for turn in range(ROUNDS)]
    measure("what-if: a job that would wait", lambda turn: forecast_job(state, waits[turn], now_ms))
    starts = [spec(20_000_000 + turn, "dept-3/leaf-1", small) for turn in range(ROUNDS)]
    measure("what-if: a job that would start", lambda turn: forecast_job(state, starts[turn], now_ms))
    urgent = [spec(30_000_000 + turn, "dept-3/leaf-1", (group(turn % SHAPES),), 9) for turn in range(ROUNDS)]
    measure("what-if: a job that preempts", lambda turn: forecast_job(state, urgent[turn], now_ms))
    changes = c.ChangeQueues(plan(state.queues, {"dept-0": QueueSpec("", "", "", weight=5)}))
    measure("what-if: a weight", lambda _: forecast_queues(state, changes, now_ms))
    measure("shares of all queues", lambda _: standings(state))
    measure("usage by account", lambda _: state.accounts.report(0, now_ms))


if __name__ == "__main__":
    main()
