"""A whole cell in virtual time, with faults drawn from a seed, and the checks that never rest.

Two queue-managers, two binders, two relays, fair-share and the preemptor run their production code against a JetStream
and a cluster in memory. Users submit, cancel and repeat themselves. A chaos task kills processes, cuts networks, loses
messages and nodes. A witness, which is never disturbed, follows the ledger from its beginning and checks the invariants
after every transaction (safety). Then all faults stop and everything has to end (liveness), and the audit log of the
cluster, the event stream and the replay of the ledger are judged.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

from muster.core import commands, explain, invariants, replay
from muster.core import transitions as tr
from muster.core.invariants_potential import Calm
from muster.core.lifecycle import TERMINAL
from muster.core.model import InboxPosition, JobState, NodeSpec
from muster.core.state import CellState
from muster.runtime import streams
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.ports import OutcomeUnknown, StoredMessage
from muster.sim.bus import Faults, SimNats
from muster.sim.cluster import audit
from muster.sim.kube import KubeFaults, SimKube
from muster.sim.loop import SimClock
from muster.wire import codec, events

from . import processes, workload
from .processes import CELL, Process, Room

CLUSTER = "sim-a"
NODES = 6
JOBS = 36
CHAOS_S = 25.0
END_WITHIN_S = 400.0  # of virtual time after the faults have stopped
EXPLAIN_EVERY = 10  # transactions


@dataclass
class Report:
    """What a run showed."""

    seed: int
    transactions: int = 0
    jobs: dict[str, str] = field(default_factory=dict)  # job -> final state
    kills: int = 0
    voided: int = 0
    events: int = 0
    problems: list[str] = field(default_factory=list)
    ledger: list[bytes] = field(default_factory=list)
    inbox: list[bytes] = field(default_factory=list)


class Witness:
    """Sees everything: applies each transaction as it is stored and checks what must never happen."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.follower = Follower(room.nats.connect("witness"), CELL, clock=SimClock())
        self.names = events.Remembering(events.StateNames(lambda: self.follower.state))
        self.public: list[tuple[int, int]] = []  # ids of the events that must be relayed, in order
        self.placed: dict[str, list[int]] = {}  # job -> epochs
        self.refused: dict[str, str] = {}  # job -> why it was not taken
        self.transactions = 0
        self.calm: Calm | None = None  # taken after the transaction before
        self.follower.on_transaction(self.applied)

    @property
    def state(self) -> CellState:
        return self.follower.state

    def applied(self, tx: tr.Transaction, ledger_seq: int) -> None:
        self.transactions += 1
        try:
            invariants.check(self.state)
            if self.calm is not None:
                self.calm.check(tx.transitions, self.state.now_ms)
            self.calm = Calm(self.state)
            for transition in tx.transitions:
                if isinstance(transition, tr.JobPlaced):
                    self._placed(transition)
                elif isinstance(transition, tr.CommandRefused) and transition.command == "SubmitJob":
                    self.refused[transition.subject] = f"{transition.code} {transition.field} {transition.message}"
            if self.transactions % EXPLAIN_EVERY == 0:
                self._explain_all()
        except AssertionError as error:
            self._room.failed(f"after transaction {ledger_seq}", error)
        self.names.observe(tx)
        self.public += [
            events.id_of({"ce-id": event.id}) for event in events.public_events(tx, ledger_seq, self.names, CELL)
        ]

    def _placed(self, t: tr.JobPlaced) -> None:
        epochs = self.placed.setdefault(t.job, [])
        assert not epochs or t.epoch > epochs[-1], f"job {t.job} was placed in epoch {t.epoch} after {epochs[-1]}"
        epochs.append(t.epoch)

    def _explain_all(self) -> None:
        """I5: every pending job can say why."""
        for job in self.state.jobs.values():
            told = explain.explain(self.state, job.spec.id)
            assert job.state is not JobState.QUEUED or told.reason, f"job {job.spec.id} waits and cannot say why"


class World:
    """One run of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.report = Report(seed)
        self.nats = SimNats(SimClock(), Random(self.rng.random()))
        self.kube = SimKube(CLUSTER, Random(self.rng.random()))
        self.room = Room(self.nats, {CLUSTER: self.kube}, Random(self.rng.random()))
        self.specs = [workload.job(self.rng, seed, n) for n in range(JOBS)]
        self.accepted: dict[str, InboxPosition] = {}
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

    async def run(self) -> Report:
        for n in range(NODES):
            self.kube.add_node(f"node-{n}", {"cpu": "8", "memory": "64Gi", "pods": "20", workload.GPU: "2"})
        await self._create_streams()
        self.witness = Witness(self.room)
        await self.witness.follower.start()
        self.keeper = asyncio.create_task(self._keep_inbox(), name="inbox recorder")
        for process in self.processes:
            process.start()
        users = asyncio.create_task(self._users(), name="users")
        nodes = asyncio.create_task(self._report_nodes(), name="node reports")
        await self._chaos()
        self._heal()
        await users
        await self._until_all_ended()
        nodes.cancel()
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

    async def _users(self) -> None:
        inbox = await self._writer("users")
        await _write(inbox, workload.queues(self.rng))
        for spec in self.specs:
            await asyncio.sleep(self.rng.expovariate(2.0))
            item = commands.SubmitJob(spec)
            (position,) = await _write(inbox, [item])
            self.accepted[spec.id] = position
            if self.rng.random() < 0.2:  # a client that lost the answer
                await _write(inbox, [item])
            if self.rng.random() < 0.1:
                victim = self.rng.choice(sorted(self.accepted))
                await _write(inbox, [commands.CancelJob(victim, actor="someone", request_id=f"cancel-{spec.id}")])

    async def _report_nodes(self) -> None:
        """The cluster watcher's facts, from a full list every second."""
        inbox = await self._writer("topology")
        while True:
            nodes = tuple(_node_spec(self.kube.nodes[name]) for name in sorted(self.kube.nodes))
            await _write(inbox, [commands.NodesReported(CLUSTER, nodes, first=True, complete=True)])
            await asyncio.sleep(1.0)

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

    # --- faults -----------------------------------------------------------------------------------------------------

    async def _chaos(self) -> None:
        """Each seed has its own mix: some runs lose messages, some nodes, some both, some nothing."""
        rng = self.rng
        self._draw_faults()
        kinds = [kind for kind in ("kill", "partition", "kube-cut", "restart", "node", "skew") if rng.random() < 0.5]
        until_s = asyncio.get_running_loop().time() + CHAOS_S
        while asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(rng.uniform(0.2, 2.0))
            if kinds:
                await self._strike(rng.choice(kinds))

    def _draw_faults(self) -> None:
        rng = self.rng
        maybe = lambda most: rng.random() * most if rng.random() < 0.5 else 0.0  # noqa: E731
        self.nats.faults = Faults(
            delay_max_s=maybe(0.05),
            request_lost_chance=maybe(0.03),
            answer_lost_chance=maybe(0.05),
            stall_chance=maybe(0.003),
            short_batch_chance=maybe(0.5),
        )
        self.kube.faults = KubeFaults(
            delay_max_s=maybe(0.1),
            request_lost_chance=maybe(0.05),
            answer_lost_chance=maybe(0.1),
            late_chance=maybe(0.05),
            throttled_chance=maybe(0.1),
            watch_cut_chance=maybe(0.05),
            admission_refused_chance=maybe(0.05),
            vanish_chance=maybe(0.05),
        )

    async def _strike(self, kind: str) -> None:
        rng = self.rng
        process = rng.choice(self.processes)
        if kind == "kill":
            self.report.kills += 1
            await process.kill()
        elif kind == "partition":
            self.nats.partition(process.name)
            await asyncio.sleep(rng.uniform(0.1, 5.0))
            self.nats.heal(process.name)
        elif kind == "kube-cut":
            for api in process.apis.values():
                api.cut()
            await asyncio.sleep(rng.uniform(0.1, 4.0))
            for api in process.apis.values():
                api.restore()
        elif kind == "restart":
            self.nats.restart()
        elif kind == "skew":
            process.clock.offset_ms = rng.choice((-10_000, -500, 0, 500, 10_000))
        elif kind == "node":
            await self._strike_node(rng)

    async def _strike_node(self, rng: Random) -> None:
        name = rng.choice(sorted(self.kube.nodes))
        self.kube.set_node_ready(name, False)
        await asyncio.sleep(rng.uniform(0.5, 5.0))
        if rng.random() < 0.3 and len(self.kube.nodes) > NODES - 1:
            self.kube.remove_node(name)
        else:
            self.kube.set_node_ready(name, True)

    def _heal(self) -> None:
        self.nats.faults = Faults()
        self.kube.faults = KubeFaults()
        for process in self.processes:
            process.clock.offset_ms = 0

    # --- the end ----------------------------------------------------------------------------------------------------

    async def _until_all_ended(self) -> None:
        """Liveness: without faults everything comes to its end."""
        until_s = asyncio.get_running_loop().time() + END_WITHIN_S
        while asyncio.get_running_loop().time() < until_s and not self.room.failures and self.witness.follower.ready:
            if all(self._has_ended(job) for job in self.accepted):
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

    def _has_ended(self, job_id: str) -> bool:
        job = self.witness.state.jobs.get(job_id)
        return job_id in self.witness.refused if job is None else job.state in TERMINAL

    async def _judge(self) -> None:
        report = self.report
        await self._until_relayed()
        report.transactions = self.witness.transactions
        report.voided = self.witness.follower.voided
        report.jobs = {
            job: str(self.witness.state.jobs[job].state) for job in self.accepted if job in self.witness.state.jobs
        }
        sizes = {spec.id: sum(t.replicas for t in spec.tasks) for spec in self.specs}
        verdict = audit.judge(self.kube.audit.records, job_sizes=sizes)
        # A pod that somebody deletes, or that is preempted, may finish unseen just before: it is run again then, after
        # its end. What the ledger was told is never run again: no transition leads out of Succeeded.
        report.problems += [
            f"audit: {v.rule} {v.job}: {v.message}" for v in verdict.violations if v.rule != "ran-after-success"
        ]
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


async def _write(inbox: InboxWriter, items: list[commands.AnyItem]) -> list[InboxPosition]:
    """As a client does: the same items again for as long as the outcome is unknown."""
    while True:
        try:
            return await inbox.write(items)
        except OutcomeUnknown:
            await asyncio.sleep(0.5)


def _node_spec(node: dict[str, dict[str, object]]) -> NodeSpec:
    ready = node["status"]["conditions"][0]["status"] == "True"  # type: ignore[index]
    return NodeSpec(
        cluster=CLUSTER,
        name=str(node["metadata"]["name"]),
        allocatable=(("cpu", 8_000), ("memory", 64 << 30), (workload.GPU, 2_000), ("pods", 20)),
        ready=ready,
        device_resource=workload.GPU,
        devices=2,
    )
