"""What is asked of a queue in which 100,000 jobs wait, step by step: no step may keep the leader's loop for long.

The jobs are of twenty shapes and a hundred users, and all that fits runs. Each change is one command, decided, encoded
and applied as by a leader, and so is whatever follows from it, until nothing is left to do: after a change of the order
a full pass looks at everybody. A step is to decide and encode a transaction, or to apply it; between two of them the
loop is free. The figure is the longest step. All of it starts again from the same jobs in every run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from loadtest import workload
from loadtest.harness import Measure, Result, at_most, repeat
from msgspec.structs import replace

from muster.core import commands, decide, snapshot
from muster.core.apply import apply_transaction
from muster.core.limits import FINISHED_TTL_MS
from muster.core.model import Allowance, InboxPosition, QueueSpec
from muster.core.state import CellState
from muster.runtime.pace import ITEMS_MAX, Pace
from muster.wire import codec

PENDING: Final = 100_000
NODES: Final = 100
USERS: Final = 100
CANCELLED_PER_MESSAGE: Final = 1000  # as many as one request may name
NOW_MS: Final = 1_800_000_000_000
STALL: Final = at_most(200)
BIG: Final = "here/big"


@dataclass
class Steps:
    """CPU milliseconds of each, which is how long it keeps the loop when nobody else wants the processor."""

    decide: list[float] = field(default_factory=list)
    apply: list[float] = field(default_factory=list)

    def longest(self) -> float:
        return max(*self.decide, *self.apply)

    def total(self) -> float:
        return sum(self.decide) + sum(self.apply)


class Leader:
    """Decides, encodes and applies as a term does, and notes how long each step takes."""

    def __init__(self) -> None:
        self.state = CellState("main")
        self.now_ms = NOW_MS
        self._pace = Pace()
        self._seq = 1
        self._inbox_seq = 0
        apply_transaction(self.state, decide.leader_elected(self.state, leader="bench", now_ms=NOW_MS), 1)

    def run(self, items: Sequence[commands.AnyItem], steps: Steps | None = None) -> None:
        """One inbox message, and whatever follows from it now."""
        self._inbox_seq += 1
        entries = [(InboxPosition(self._inbox_seq, at), item) for at, item in enumerate(items)]
        while self._step(entries, steps or Steps()):
            entries = [entry for entry in entries if entry[0] >= self.state.position]

    def _step(self, entries: Sequence[tuple[InboxPosition, commands.AnyItem]], steps: Steps) -> bool:
        state, now_ms, limit = self.state, self.now_ms, self._pace.work_limit
        began_s = time.process_time()
        decision = decide.decide(state, entries[:ITEMS_MAX], now_ms, limit)
        if not decision.transitions and decision.inbox_to == state.position:
            return False
        tx = decide.transaction(state, decision, transaction_id=f"1-{self._seq}", now_ms=now_ms, work_limit=limit)
        codec.encode_transaction(tx)
        decided_s = time.process_time()
        self._pace.measured(decision.work_spent, decided_s - began_s)
        self._seq += 1
        if not apply_transaction(state, tx, self._seq):
            raise RuntimeError(f"transaction {tx.header.id} is void")
        steps.decide.append((decided_s - began_s) * 1e3)
        steps.apply.append((time.process_time() - decided_s) * 1e3)
        return True


def jobs() -> Iterator[commands.AnyItem]:
    for number in range(PENDING):
        submit = workload.job(number, workload.TWENTY, BIG)
        user = number // len(workload.TWENTY) % USERS
        who = {"namespace": f"team-{user % 10}", "submitter": f"user-{user}", "priority": number % 3}
        yield commands.SubmitJob(replace(submit.spec, **who))


def filled() -> Leader:
    leader = Leader()
    counted = QueueSpec("", "", "", per_user=Allowance(running_jobs=PENDING))
    leader.run([workload.queue("here"), workload.queue(BIG), commands.UpsertQueue("there", counted)])
    leader.run([workload.nodes(NODES)])
    for batch in _batches(jobs(), 1000):
        leader.now_ms += 10
        leader.run(batch)
    return leader


def _batches(items: Iterable[commands.AnyItem], size: int) -> Iterator[list[commands.AnyItem]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def changed(path: str = BIG, to: str = "", **settings: object) -> Callable[[Leader], Iterator[list[commands.AnyItem]]]:
    """One command; what is not named stays as it is."""

    def messages(leader: Leader) -> Iterator[list[commands.AnyItem]]:
        queue = leader.state.queues.find(path)
        if queue is None:
            raise RuntimeError(f"there is no queue {path}")
        yield [commands.UpsertQueue(path, replace(queue.spec, **settings), new_path=to)]

    return messages


def cancelled(leader: Leader) -> Iterator[list[commands.AnyItem]]:
    live = [job.id for job in leader.state.jobs.values() if job.live]
    return _batches([commands.CancelJob(job) for job in live], CANCELLED_PER_MESSAGE)


def forgotten(leader: Leader) -> Iterator[list[commands.AnyItem]]:
    leader.now_ms += FINISHED_TTL_MS
    yield []


CHANGES: Final = {
    "PRIORITY becomes FAIR": changed(ordering="FAIR", fair_by="USER"),
    "FAIR becomes FIFO": changed(ordering="FIFO"),
    "FIFO becomes FAIR": changed(ordering="FAIR", fair_by="NAMESPACE"),
    "FAIR becomes PRIORITY": changed(ordering="PRIORITY"),
    "PRIORITY becomes FIFO": changed(ordering="FIFO"),
    "FIFO becomes PRIORITY": changed(ordering="PRIORITY"),
    "it moves below one that counts users": changed(to="there/big"),
    "it moves back": changed("there/big", to=BIG),
    "an allowance for each user": changed(per_user=Allowance(running_jobs=PENDING)),
    "no allowance any more": changed(per_user=Allowance()),
    "another weight": changed(weight=7),
    "it is stopped": changed(state="STOPPED"),
    "it is open again": changed(state="OPEN"),
    "it is drained": changed(state="DRAINING"),
    "all jobs are cancelled, a thousand a message": cancelled,
    "they are forgotten": forgotten,
}


def once() -> list[Measure]:
    leader = filled()
    gc.collect()
    gc.freeze()
    gc.disable()  # as a leader has it (LOG-16)
    try:
        return [*_snapshot(leader), *(_change(leader, name, messages) for name, messages in CHANGES.items())]
    finally:
        gc.enable()
        gc.unfreeze()


def _change(leader: Leader, name: str, messages: Callable[[Leader], Iterator[list[commands.AnyItem]]]) -> Measure:
    steps = Steps()
    for items in messages(leader):
        leader.run(items, steps)
    return Measure(
        name=f"queues: {name}",
        value=steps.longest(),
        unit="ms",
        target=STALL,
        cpu_us={"all steps": steps.total() * 1e3},
        note=f"decide {max(steps.decide):.0f}, apply {max(steps.apply):.0f}, {len(steps.apply)} transactions",
    )


def _snapshot(leader: Leader) -> Iterator[Measure]:
    """Not on the loop: a follower that starts builds its state in a thread, one that dumps stands still (LOG-6)."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    parts = [codec.encode_snapshot_part(part) for part in snapshot.dump(leader.state)]
    dumped_s, dumped_cpu_s = time.perf_counter(), time.process_time()
    snapshot.load(codec.decode_snapshot_part(part) for part in parts)
    loaded_s, loaded_cpu_s = time.perf_counter(), time.process_time()
    cpu_us = {"dump": (dumped_cpu_s - began_cpu_s) * 1e6, "load": (loaded_cpu_s - dumped_cpu_s) * 1e6}
    size_mb = sum(map(len, parts)) / 1e6
    note = f"dump {(dumped_s - began_s) * 1e3:.0f} ms, {size_mb:.0f} MB"
    yield Measure(name="queues: a snapshot is loaded", value=loaded_s - dumped_s, unit="s", cpu_us=cpu_us, note=note)


def main(runs: int) -> list[Result]:
    return repeat(runs, once)
