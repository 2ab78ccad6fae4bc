"""Jobs, nodes and queues for benches, in the core's own form, and a leader without a bus.

Jobs differ in what they ask for (`TWENTY` shapes), as a cell's jobs do; everything else about them is alike. Names and
ids follow from a number, so runs are comparable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

from muster.core import commands, decide
from muster.core import transitions as tr
from muster.core.apply import apply_transaction
from muster.core.model import InboxPosition, JobSpec, NodeSpec, QueueSpec, TaskGroup
from muster.core.state import CellState
from muster.runtime.clock import SystemClock
from muster.wire import codec

GIB: Final = 1 << 30
CLOCK: Final = SystemClock()
WORK_LIMIT: Final = 50_000
BATCH: Final = 100
QUEUE: Final = "team"
TEMPLATE: Final = b'{"containers":[{"name":"main","image":"registry.example/train:1","args":["--epochs","3"]}]}'


def queue(name: str = QUEUE) -> commands.UpsertQueue:
    return commands.UpsertQueue(path=name, spec=QueueSpec(id="", name=name, parent=""))


def nodes(count: int, *, cpus: int = 32, memory_gib: int = 256, cluster: str = "c") -> commands.NodesReported:
    allocatable = (("cpu", 1000 * cpus), ("memory", memory_gib * GIB), ("pods", 110))
    specs = tuple(NodeSpec(cluster=cluster, name=f"node-{i:05}", allocatable=allocatable) for i in range(count))
    return commands.NodesReported(cluster=cluster, nodes=specs, first=True, complete=True)


def task(cpu_millis: int = 1000, memory_gib: int = 4, pods: int = 1) -> TaskGroup:
    requests = (("cpu", cpu_millis), ("memory", memory_gib * GIB))
    return TaskGroup(name="main", replicas=pods, min_replicas=pods, requests=requests, template=TEMPLATE)


IDENTICAL: Final = (task(),)
TWENTY: Final = tuple(task(250 * (1 + i % 7), 1 + i % 5) for i in range(20))


def job(number: int, shapes: Sequence[TaskGroup] = IDENTICAL, queue_name: str = QUEUE) -> commands.SubmitJob:
    spec = JobSpec(
        id=sha256(b"%d" % number).hexdigest()[:32],
        namespace="default",
        name=f"job-{number}",
        queue=queue_name,
        tasks=(shapes[number % len(shapes)],),
        request_id=f"request-{number // BATCH}",
        digest=sha256(b"d%d" % number).hexdigest(),
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    return commands.SubmitJob(spec)


def jobs(
    count: int, shapes: Sequence[TaskGroup] = IDENTICAL, queues: Sequence[str] = (QUEUE,)
) -> list[commands.AnyItem]:
    return [job(number, shapes, queues[number % len(queues)]) for number in range(count)]


def batches(items: Sequence[commands.AnyItem], size: int = 1000) -> Iterator[Sequence[commands.AnyItem]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


class OffTheBus:
    """A leader without a bus: decides items as a term does and keeps the transactions' bytes."""

    def __init__(self, cell: str = "main") -> None:
        self.state = CellState(cell)
        self.messages: list[bytes] = []
        self.transitions = 0
        self._inbox_seq = 0
        self._commit(decide.leader_elected(self.state, leader="bench", now_ms=CLOCK.now_ms()))

    def run(self, items: Sequence[commands.AnyItem]) -> None:
        """Decide items as one inbox message, and whatever follows from them now."""
        self._inbox_seq += 1
        entries = [(InboxPosition(self._inbox_seq, i), item) for i, item in enumerate(items)]
        while True:
            now_ms = CLOCK.now_ms()
            decision = decide.decide(self.state, entries, now_ms, WORK_LIMIT)
            if not decision.transitions and decision.inbox_to == self.state.position:
                return
            name = f"1-{len(self.messages)}"
            self._commit(
                decide.transaction(self.state, decision, transaction_id=name, now_ms=now_ms, work_limit=WORK_LIMIT)
            )
            entries = [entry for entry in entries if entry[0] >= self.state.position]

    def _commit(self, tx: tr.Transaction) -> None:
        self.messages.append(codec.encode_transaction(tx))
        self.transitions += len(tx.transitions)
        if not apply_transaction(self.state, tx, len(self.messages)):
            raise RuntimeError(f"transaction {tx.header.id} is void")
