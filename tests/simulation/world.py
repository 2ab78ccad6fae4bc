"""A whole cell in virtual time, with faults drawn from a seed, and the checks that never rest.

Two queue-managers, two binders, two relays, fair-share and the preemptor run their production code against a JetStream
and one or two clusters in memory. Users submit, cancel and repeat themselves; operators change the tree of queues,
drain queues and nodes. A chaos task kills processes, cuts networks, loses messages and nodes. A witness, which is never
disturbed, follows the ledger from its beginning and checks the invariants after every transaction (safety). Then all
faults stop, what was shut is opened, and everything has to end (liveness); the audit logs of the clusters, the event
stream and the replay of the ledger are judged.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

from muster.core import commands, explain, replay
from muster.core import transitions as tr
from muster.core.lifecycle import TERMINAL
from muster.core.model import InboxPosition, NodeSpec
from muster.core.state import CellState
from muster.runtime import streams
from muster.runtime.inbox import InboxWriter
from muster.runtime.ports import StoredMessage
from muster.sim.bus import SimNats
from muster.sim.cluster import audit
from muster.sim.kube import SimKube
from muster.sim.loop import SimClock
from muster.wire import codec, events

from . import arrays, processes, workload
from .faults import Chaos
from .operators import Operators
from .processes import CELL, Process, Room
from .users import Users, write
from .witness import Witness

CLUSTERS = ("sim-a", "sim-b")
SECOND_CLUSTER_CHANCE = 0.25
NODES = (3, 3, 4, 5)  # of a cell with one cluster
NODES_OF_TWO = ((2, 3), (2, 2), (3, 3))
LASTING_CHANCE = 0.2  # that the cell is full for longer than a hold is kept
END_WITHIN_S = 2_400.0  # of virtual time after the faults have stopped


@dataclass
class Report:
    """What a run showed."""

    seed: int
    transactions: int = 0
    jobs: dict[str, str] = field(default_factory=dict)  # job -> final state
    kills: int = 0
    voided: int = 0
    events: int = 0
    seen: dict[str, int] = field(default_factory=dict)  # what happened, how often
    problems: list[str] = field(default_factory=list)
    ledger: list[bytes] = field(default_factory=list)
    inbox: list[bytes] = field(default_factory=list)


class World:
    """One run of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.report = Report(seed)
        self.nats = SimNats(SimClock(), Random(self.rng.random()))
        self.kubes = [SimKube(CLUSTERS[0], Random(self.rng.random()))]
        if self.rng.random() < SECOND_CLUSTER_CHANCE:
            self.kubes.append(SimKube(CLUSTERS[1], Random(self.rng.random())))
        self.room = Room(self.nats, {kube.cluster: kube for kube in self.kubes}, Random(self.rng.random()))
        lasting = self.rng.random() < LASTING_CHANCE
        self.workload = workload.Workload(self.rng, seed, clusters=list(self.room.kubes), lasting=lasting)
        self.specs = self.workload.jobs
        self.processes = [
            Process("qm-1", self.room, processes.queue_manager),
            Process("qm-2", self.room, processes.queue_manager),
            Process("binder-1", self.room, processes.binder),
            Process("binder-2", self.room, processes.binder),
            Process("relay-1", self.room, processes.relay),
            Process("relay-2", self.room, processes.relay),
            Process("fair-share-1", self.room, processes.fair_share),
            Process("preemptor-1", self.room, processes.preemptor),
        ]
        if self.rng.random() < 0.3:
            self.processes += [
                Process("fair-share-2", self.room, processes.fair_share),
                Process("preemptor-2", self.room, processes.preemptor),
            ]
        self.chaos = Chaos(self.rng, self.nats, self.kubes, self.processes, stuck=lasting)
        self.faulty = True

    async def run(self) -> Report:
        several = self.rng.choice(NODES_OF_TWO) if len(self.kubes) > 1 else (self.rng.choice(NODES),)
        for kube, count in zip(self.kubes, several, strict=True):
            for n in range(count):
                kube.add_node(f"node-{n}", {"cpu": "8", "memory": "64Gi", "pods": "20", workload.GPU: "2"})
        await self._create_streams()
        self.witness = Witness(self.room)
        await self.witness.follower.start()
        self.keeper = asyncio.create_task(self._keep_inbox(), name="inbox recorder")
        for process in self.processes:
            process.start()
        await self._live()
        await self._until_all_ended()
        self.reports.cancel()
        await self._judge()
        for process in self.processes:
            await process.stop()
        self.keeper.cancel()
        await self.witness.follower.stop()
        self.report.problems += [f"{what}: {error!r}" for what, error in self.room.failures]
        return self.report

    # --- users and hardware -----------------------------------------------------------------------------------------

    async def _create_streams(self) -> None:
        bus = self.nats.connect("setup")
        for spec in (
            streams.inbox_spec(CELL),
            streams.ledger_spec(CELL),
            streams.snapshots_spec(CELL),
            streams.leases_spec(),
            streams.events_spec(),
        ):
            await bus.stream(spec)

    async def _writer(self, name: str) -> InboxWriter:
        bus = self.nats.connect(name)
        return InboxWriter(await bus.stream(streams.inbox_spec(CELL)), clock=SimClock())

    async def _live(self) -> None:
        """Everybody does what they do until the faults stop; then what operators have shut is opened again."""
        inbox = await self._writer("users")
        self._operator_inbox = await self._writer("operators")
        self.users = Users(self.rng, inbox, lambda: self.witness.state)
        self.accepted = self.users.accepted
        self.operators = Operators(self.rng, self.workload, self.kubes, lambda: self.witness.state, self._command)
        self.reports = asyncio.create_task(self._report_nodes(), name="node reports")
        await write(inbox, self.workload.queues())
        checkpoints = asyncio.create_task(self.users.report_checkpoints(), name="checkpoints")
        submitting = asyncio.create_task(self.users.submit(self.specs), name="users")
        operating = asyncio.create_task(self.operators.run(), name="operators")
        await self.chaos.run()
        self.chaos.heal()
        self.faulty = False
        self.report.kills = self.chaos.kills
        checkpoints.cancel()
        await submitting
        await operating
        await self.operators.put_right()

    async def _command(self, items: list[commands.AnyItem]) -> None:
        """Of an operator, who looks at what became of it before going on."""
        *_, last = await write(self._operator_inbox, items)
        while self.witness.state.position <= last and not self.room.failures and self.witness.follower.ready:
            await asyncio.sleep(0.1)

    async def _report_nodes(self) -> None:
        """The cluster watcher's facts, from a full list every second; less often when nothing happens any more."""
        inbox = await self._writer("topology")
        while True:
            for kube in self.kubes:
                nodes = tuple(_node_spec(kube.cluster, kube.nodes[name]) for name in sorted(kube.nodes))
                await write(inbox, [commands.NodesReported(kube.cluster, nodes, first=True, complete=True)])
            await asyncio.sleep(1.0 if self.faulty else 10.0)

    async def _keep_inbox(self) -> None:
        bus = self.nats.connect("recorder")
        inbox = await bus.stream(streams.inbox_spec(CELL))
        ledger = await bus.stream(streams.ledger_spec(CELL))

        async def keep(stream_read: object, into: list[bytes]) -> None:
            async for batch in stream_read:  # type: ignore[attr-defined]
                into.extend(message.data for message in batch)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep(inbox.read(1), self.report.inbox))
            tasks.create_task(keep(ledger.read(1), self.report.ledger))

    # --- the end ----------------------------------------------------------------------------------------------------

    async def _until_all_ended(self) -> None:
        """Liveness: without faults everything comes to its end."""
        until_s = asyncio.get_running_loop().time() + END_WITHIN_S
        while asyncio.get_running_loop().time() < until_s and not self.room.failures and self.witness.follower.ready:
            if all(self._has_ended(job) for job in self.accepted):
                self._nothing_is_left(self.witness.state)
                return
            await asyncio.sleep(0.5)
        if self.witness.follower.failure is not None:
            self.room.failed("the witness stopped", self.witness.follower.failure)
        if self.room.failures:
            return
        for job_id in sorted(job for job in self.accepted if not self._has_ended(job)):
            job = self.witness.state.jobs.get(job_id)
            if job is None:
                self.report.problems.append(f"accepted job {job_id} is lost")
            else:
                told = explain.explain(self.witness.state, job_id)
                self.report.problems.append(f"job {job_id} is still {job.state}: {told.reason} {job.message}")

    def _nothing_is_left(self, state: CellState) -> None:
        """All jobs have ended: nobody uses, holds or asks for anything."""
        left = {queue.path: queue.usage for queue in state.queues.subtree() if queue.usage or queue.held}
        if left or state.holds or state.asks:
            self.report.problems.append(f"left over: {left}, holds {sorted(state.holds)}, asks {sorted(state.asks)}")

    def _has_ended(self, job_id: str) -> bool:
        job = self.witness.state.jobs.get(job_id)
        return job_id in self.witness.refused if job is None else job.state in TERMINAL

    async def _judge(self) -> None:
        report = self.report
        await self._until_relayed()
        report.transactions = self.witness.transactions
        report.seen = dict(self.witness.sightings.counts + self.operators.seen)
        report.voided = self.witness.follower.voided
        report.jobs = {
            job: str(self.witness.state.jobs[job].state) for job in self.accepted if job in self.witness.state.jobs
        }
        sizes = {spec.id: sum(t.replicas for t in spec.tasks) for spec in self.specs}
        records = sorted((r for k in self.kubes for r in k.audit.records), key=lambda r: (r.time_ms, r.cluster, r.seq))
        verdict = audit.judge(records, job_sizes=sizes)
        # A pod that somebody deletes, or that is preempted, may finish unseen just before: it is run again then, after
        # its end. What the ledger was told is never run again: no transition leads out of Succeeded.
        report.problems += [
            f"audit: {v.rule} {v.job}: {v.message}" for v in verdict.violations if v.rule != "ran-after-success"
        ]
        indices = arrays.judge(records, self.specs, self.witness.promises.succeeded)
        report.problems += [f"G1: {what}" for what in indices]
        report.problems += [f"Q1, Q4: {what}" for what in self.operators.problems]
        report.problems += [f"LOG-15: {what}" for what in self.witness.truth.came_after_their_end()]
        if not self.room.failures:
            self._judge_events(await self._stored_events())
            self._judge_replay()

    async def _until_relayed(self) -> None:
        """A relay that was just killed is followed by another within a lease; the recorders read with delay, too."""
        logs = self.nats.streams
        for _ in range(60):
            await asyncio.sleep(1.0)
            recorded = (len(self.report.inbox), len(self.report.ledger))
            stored = tuple(logs[spec.name].last_seq for spec in (streams.inbox_spec(CELL), streams.ledger_spec(CELL)))
            if recorded == stored and len(await self._stored_events()) >= len(self.witness.public):
                return

    async def _stored_events(self) -> list[StoredMessage]:
        stream = await self.nats.connect("judge").stream(streams.events_spec())
        info = await stream.info()
        found = [await stream.get(seq) for seq in range(info.first_seq, info.last_seq + 1)]
        return [message for message in found if message is not None]

    def _judge_events(self, stored: list[StoredMessage]) -> None:
        """LOG-13: no gaps, no duplicates."""
        ids = [events.id_of(message.headers or {}) for message in stored]
        self.report.events = len(ids)
        if ids != self.witness.public:
            where = next((n for n, (a, b) in enumerate(zip(ids, self.witness.public, strict=False)) if a != b), -1)
            self.report.problems.append(
                f"events: {len(ids)} stored, {len(self.witness.public)} expected, first difference at {where}"
            )

    def _judge_replay(self) -> None:
        """I8: the recorded headers over the recorded inbox give the ledger's bytes."""
        items = [
            (InboxPosition(seq, index), item)
            for seq, data in enumerate(self.report.inbox, 1)
            for index, item in enumerate(codec.decode_inbox(data))
        ]
        ledger = self._valid_ledger()
        for replayed in replay.replay(CellState(CELL), ledger, items):
            again = codec.encode_transaction(replayed.again)
            if again != self.report.ledger[replayed.ledger_seq - 1]:
                self.report.problems.append(f"replay: {replayed.difference()}")
                return

    def _valid_ledger(self) -> list[tuple[int, tr.Transaction]]:
        """The transactions that count: each builds on the last one that does (LOG-4)."""
        valid: list[tuple[int, tr.Transaction]] = []
        for seq, data in enumerate(self.report.ledger, 1):
            tx = codec.decode_transaction(data)
            if tx.header.prev == (valid[-1][0] if valid else 0):
                valid.append((seq, tx))
        return valid


def _node_spec(cluster: str, node: dict[str, dict[str, object]]) -> NodeSpec:
    ready = node["status"]["conditions"][0]["status"] == "True"  # type: ignore[index]
    return NodeSpec(
        cluster=cluster,
        name=str(node["metadata"]["name"]),
        allocatable=(("cpu", 8_000), ("memory", 64 << 30), (workload.GPU, 2_000), ("pods", 20)),
        ready=ready,
        cordoned=bool(node["spec"].get("unschedulable")),
        device_resource=workload.GPU,
        devices=2,
    )
