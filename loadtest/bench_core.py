"""Deciding: the whole core with encoding, as a leader runs it, but without a bus.

    queue -> nodes -> jobs submitted (decide, encode, apply) -> nodes arrive -> the cycle places (decide, encode, apply)

The jobs wait before there is any room, so the cycle has all of them to order: strictly, over all queues. "decide +
encode" is what the leader has to do before it can commit; applying is what every follower pays as well. "submit" is to
decide and encode the submissions, before.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Final

from loadtest import workload
from loadtest.harness import Measure, Result, Target, at_least, at_most, repeat

from muster.core import commands, decide
from muster.core.apply import apply_transaction
from muster.core.model import InboxPosition, TaskGroup
from muster.core.state import CellState
from muster.wire import codec

JOBS: Final = 32_000
QUEUES: Final = tuple(f"queue-{n:02}" for n in range(50))
NOW_MS: Final = 1_800_000_000_000


class Leader:
    """Decides, encodes and applies, each on its own clock."""

    def __init__(self) -> None:
        self.state = CellState("main")
        self.decide_s = self.decide_cpu_s = self.apply_cpu_s = self.submit_cpu_s = 0.0
        self.bytes = self.transactions = 0
        self._seq = 0
        self._inbox_seq = 0
        elected = decide.leader_elected(self.state, leader="bench", now_ms=NOW_MS)
        self._seq = 1
        apply_transaction(self.state, elected, self._seq)

    def run(self, items: Sequence[commands.AnyItem]) -> None:
        self._inbox_seq += 1
        entries = [(InboxPosition(self._inbox_seq, i), item) for i, item in enumerate(items)]
        state, limit = self.state, workload.WORK_LIMIT
        while True:
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            decision = decide.decide(state, entries, NOW_MS, limit)
            if not decision.transitions and decision.inbox_to == state.position:
                return
            tx = decide.transaction(state, decision, transaction_id=f"1-{self._seq}", now_ms=NOW_MS, work_limit=limit)
            data = codec.encode_transaction(tx)
            self.decide_s += time.perf_counter() - began_s
            decided_cpu_s = time.process_time()
            self._seq += 1
            apply_transaction(state, tx, self._seq)
            self.decide_cpu_s += decided_cpu_s - began_cpu_s
            self.apply_cpu_s += time.process_time() - decided_cpu_s
            self.bytes += len(data)
            self.transactions += 1
            entries = [entry for entry in entries if entry[0] >= state.position]

    def placed_jobs(self) -> int:
        return sum(bool(job.placement) for job in self.state.jobs.values())


def place(shapes: Sequence[TaskGroup], jobs: int, nodes: int, queues: Sequence[str] = QUEUES) -> Leader:
    """All jobs queued, then all placed; the clocks of the returned leader stand at the placing."""
    leader = Leader()
    leader.run([workload.queue(name) for name in queues])
    for items in workload.batches(workload.jobs(jobs, shapes, queues)):
        leader.run(items)
    leader.submit_cpu_s = leader.decide_cpu_s
    leader.decide_s = leader.decide_cpu_s = leader.apply_cpu_s = 0.0
    leader.bytes = 0
    gc.collect()
    gc.disable()  # as a leader has it (LOG-16)
    try:
        leader.run([workload.nodes(nodes, memory_gib=512)])
    finally:
        gc.enable()
    if leader.placed_jobs() != jobs:
        raise RuntimeError(f"{leader.placed_jobs()} of {jobs} jobs were placed")
    return leader


def measures(name: str, leader: Leader, jobs: int, target: Target) -> list[Measure]:
    seconds = {"decide+encode": leader.decide_cpu_s, "apply": leader.apply_cpu_s, "submit": leader.submit_cpu_s}
    cpu = {part: spent_s / jobs * 1e6 for part, spent_s in seconds.items()}
    note = f"{leader.bytes / jobs:.0f} bytes each"
    if target.at_least:
        value, unit = jobs / leader.decide_s, "/s"
    else:
        value, unit = leader.decide_s, "s"
    return [Measure(name=f"core: {name}", value=value, unit=unit, target=target, cpu_us=cpu, note=note)]


def once() -> list[Measure]:
    found = measures(
        "32,000 jobs of 20 shapes in 50 queues, 1,000 nodes",
        place(workload.TWENTY, JOBS, 1000),
        JOBS,
        at_most(1.2),
    )
    found += measures(
        "32,000 identical jobs, 1,000 nodes", place(workload.IDENTICAL, JOBS, 1000, QUEUES[:1]), JOBS, at_most(1.2)
    )
    found += measures(
        "one-pod jobs of 20 shapes, 10,000 nodes", place(workload.TWENTY, JOBS, 10_000), JOBS, at_least(5000)
    )
    for pods, jobs in ((8, 5000), (100, 500)):
        shapes = [workload.task(250 * (1 + i % 7), 1 + i % 5, pods=pods) for i in range(20)]
        leader = place(shapes, jobs, 10_000)
        found += measures(f"gangs of {pods}, 10,000 nodes", leader, jobs, at_least(5000 / pods))
    return found


def main(runs: int) -> list[Result]:
    return repeat(runs, once)
