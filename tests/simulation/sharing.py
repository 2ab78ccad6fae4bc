"""A large cell that is shared over time: the production core with everything around it, in virtual time.

    clients      keep so many jobs alive in every leaf as they want (`wanted`), beside those that wait because they
                 were evicted; what ends is submitted anew
    clusters     say that pods run, that they end after a random lifetime, and that evicted ones are gone
    fair-share   the demand index and the engine of the service, at intervals; only what changed is written
    preemptor    the planner of the service, a bounded number of answers at a time
    leader       decide, then apply, until nothing is left to do

Everything that belongs to one tick goes into one inbox message, as a busy cell batches it. All jobs are one pod of one
GPU. No bus and no bytes: they are tested elsewhere, and at this size they would only cost time. `spent_s` is CPU time
by part; nothing depends on it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import heappop, heappush

from muster.core import commands as c
from muster.core import decide
from muster.core import transitions as tr
from muster.core.apply import apply_transaction
from muster.core.demand import demand, startable
from muster.core.entitlements import EntitlementEngine
from muster.core.model import InboxPosition, JobSpec, NodeSpec, QueueSpec, TaskGroup
from muster.core.preemption import Planner
from muster.core.state import CellState

GPU = "nvidia.com/gpu"
GIB = 1 << 30
ONE = 1000  # one GPU
GPUS_PER_NODE = 8
WORK_LIMIT = 50_000
START_MS = 1_700_000_000_000
QUEUES_A_COMMAND = 500
RUNNING, SUCCEEDED, GONE = 2, 3, 5
Weights = dict[str, int]  # by path, parents before children


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How the cell and those around it behave."""

    nodes: int
    weights: Weights
    preemption: str = "ANY"
    seed: int = 1
    lifetime_ms: tuple[int, int] = (300_000, 900_000)
    grace_ms: int = 5000  # from the order to leave until the pod is gone
    tick_ms: int = 1000
    publish_ticks: int = 1
    answers_a_tick: int = 64

    @property
    def gpus(self) -> int:
        return self.nodes * GPUS_PER_NODE


@dataclass
class Counts:
    placed: int = 0
    succeeded: int = 0
    evicted: int = 0
    asked: int = 0
    planned: int = 0
    published: int = 0  # messages with changed entitlements
    transactions: int = 0
    spent_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        began_s = time.process_time()
        yield
        self.spent_s[part] = self.spent_s.get(part, 0.0) + time.process_time() - began_s


class Sharing:
    """`wanted` may be changed between ticks."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.state = CellState("main")
        self.now_ms = START_MS
        self.counts = Counts()
        self.wanted: dict[str, int] = {}  # by path of a leaf: live jobs
        self._rng = random.Random(setting.seed)
        self._live: dict[str, int] = {}
        self._queue_of: dict[str, str] = {}
        self._away: dict[str, dict[str, None]] = {}  # of a leaf: evicted jobs, which wait for their backoff
        self._facts: list[c.PodFact] = []
        self._later: list[tuple[int, str, int, int]] = []  # (when, job, epoch, phase)
        self._numbers = 0
        self._inbox_seq = 0
        self._ticks = 0
        self._engine = EntitlementEngine()
        requests = (("cpu", 8000), ("memory", 64 * GIB), (GPU, ONE))
        self._tasks = (TaskGroup("main", 1, 1, requests),)
        self._apply(decide.leader_elected(self.state, leader="leader", now_ms=self.now_ms))
        self._build()

    def _build(self) -> None:
        setting = self.setting
        allocatable = (("cpu", 96_000), ("memory", 1024 * GIB), (GPU, ONE * GPUS_PER_NODE), ("pods", 110))
        names = [f"node-{n:05}" for n in range(setting.nodes)]
        for first in range(0, len(names), 1000):
            specs = tuple(
                NodeSpec("c", name, allocatable, device_resource=GPU, devices=GPUS_PER_NODE)
                for name in names[first : first + 1000]
            )
            last = first + 1000 >= len(names)
            self.run([c.NodesReported("c", specs, first=first == 0, complete=last)])
        changes = []
        for path, weight in setting.weights.items():
            spec = QueueSpec("", path.rpartition("/")[2], "", weight=weight, preemption=setting.preemption)
            changes.append(c.UpsertQueue(path, spec, expected_revision=0))
        for first in range(0, len(changes), QUEUES_A_COMMAND):
            self.run([c.ChangeQueues(tuple(changes[first : first + QUEUES_A_COMMAND]))])

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """One step of time, with everything that happens in it."""
        self.now_ms += self.setting.tick_ms
        self._ticks += 1
        with self.counts.timed("around"):
            items = [*self._clusters(), *self._clients()]
        self.run(items)
        if self._ticks % self.setting.publish_ticks == 0:
            self._fair_share()
        self._preemptor()

    def run(self, items: Sequence[c.AnyItem]) -> None:
        """Decide these as one inbox message, and whatever follows from them now."""
        entries = []
        if items:
            self._inbox_seq += 1
            entries = [(InboxPosition(self._inbox_seq, n), item) for n, item in enumerate(items)]
        state = self.state
        while True:
            with self.counts.timed("decide"):
                decision = decide.decide(state, entries, self.now_ms, WORK_LIMIT)
            if not decision.transitions and decision.inbox_to == state.position:
                return
            name = f"1-{state.ledger_seq}"
            self._apply(
                decide.transaction(state, decision, transaction_id=name, now_ms=self.now_ms, work_limit=WORK_LIMIT)
            )
            if entries:
                entries = entries[decision_end(entries, state.position) :]

    def _apply(self, tx: tr.Transaction) -> None:
        with self.counts.timed("apply"):
            if not apply_transaction(self.state, tx, self.state.ledger_seq + 1):
                raise AssertionError(f"transaction {tx.header.id} is void")
        with self.counts.timed("around"):
            self.counts.transactions += 1
            for transition in tx.transitions:
                self._note(transition)

    def _note(self, t: tr.Transition) -> None:
        """What clusters and clients see of it."""
        counts = self.counts
        if isinstance(t, tr.JobPlaced):
            counts.placed += 1
            self._away.get(self._queue_of[t.job], {}).pop(t.job, None)
            self._facts.append(c.PodFact(t.job, t.epoch, 0, RUNNING))
            ends_ms = self.now_ms + self._rng.randint(*self.setting.lifetime_ms)
            heappush(self._later, (ends_ms, t.job, t.epoch, SUCCEEDED))
        elif isinstance(t, tr.JobSucceeded | tr.JobCancelled):
            counts.succeeded += isinstance(t, tr.JobSucceeded)
            path = self._queue_of.pop(t.job)
            self._live[path] -= 1
            self._away.get(path, {}).pop(t.job, None)
        elif isinstance(t, tr.JobPreempted):
            counts.evicted += 1
            self._away.setdefault(self._queue_of[t.job], {})[t.job] = None
            heappush(self._later, (self.now_ms + self.setting.grace_ms, t.job, t.epoch, GONE))
        elif isinstance(t, tr.PreemptionRequested):
            counts.asked += 1
        elif isinstance(t, tr.HoldMade):
            counts.planned += 1
        elif isinstance(t, tr.CommandRefused):
            raise AssertionError(t.message)

    # --- those around -----------------------------------------------------------------------------------------------

    def _clusters(self) -> list[c.AnyItem]:
        """What started and what ended since the last tick."""
        facts, self._facts = self._facts, []
        while self._later and self._later[0][0] <= self.now_ms:
            _, job, epoch, phase = heappop(self._later)
            facts.append(c.PodFact(job, epoch, 0, phase))
        return [c.PodsObserved("c", tuple(facts[n : n + 500])) for n in range(0, len(facts), 500)]

    def _clients(self) -> list[c.AnyItem]:
        """Every leaf is topped up to what it wants."""
        items: list[c.AnyItem] = []
        for path, wanted in self.wanted.items():
            missing = wanted - self._live.get(path, 0) + len(self._away.get(path, ()))
            items += [self._submission(path) for _ in range(missing)]
        return items

    def _submission(self, path: str) -> c.SubmitJob:
        self._numbers += 1
        number = self._numbers
        digest = sha256(b"%d" % number).hexdigest()
        job = digest[:32]
        self._queue_of[job] = path
        self._live[path] = self._live.get(path, 0) + 1
        name = f"job-{number}"
        return c.SubmitJob(JobSpec(job, "default", name, path, self._tasks, request_id=name, digest=digest))

    def withdraw(self, path: str) -> None:
        """The leaf wants nothing any more: what waits there is cancelled, what runs runs on."""
        self.wanted[path] = 0
        queue = self.state.queues.find(path)
        assert queue is not None
        found = self.state.pending.of_queue.get(queue.id, {})
        jobs = [key[2] for waiting in found.values() for key in waiting.keys[waiting.head :]]
        jobs += [job for job in self._away.get(path, ()) if not self.state.is_pending(self.state.jobs[job])]
        self.run([c.CancelJob(job) for job in jobs])

    def _fair_share(self) -> None:
        state = self.state
        with self.counts.timed("fair-share"):
            flows = startable(state, state.queues, demand(state))
            computed = self._engine.entitlements(state.queues, flows, state.nodes.capacity())
            known = state.entitled
            changed = [(queue, e) for queue, e in computed.items() if known.get(queue, ()) != e]
        if changed:
            self.counts.published += 1
            sent = tuple(c.Entitlement(queue, e) for queue, e in sorted(changed))
            self.run([c.EntitlementsComputed(state.ledger_seq, sent)])

    def _preemptor(self) -> None:
        state = self.state
        asked = sorted((ask.request, job) for job, ask in state.asks.items() if not ask.answered)
        if not asked:
            return
        with self.counts.timed("preemptor"):
            planner = Planner(state)
            answers = [self._planned(planner, *ask) for ask in asked[: self.setting.answers_a_tick]]
        self.run(answers)

    def _planned(self, planner: Planner, request: int, job: str) -> c.PreemptionPlanned:
        answer = planner.plan(job)
        if answer.plan is None:
            return c.PreemptionPlanned(job, request, again_at_ms=answer.again_at_ms, reason=answer.reason)
        return c.PreemptionPlanned(job, request, answer.plan.victims, answer.plan.placement)

    # --- what there is ----------------------------------------------------------------------------------------------

    def live(self, path: str) -> int:
        """Jobs that wait or run."""
        return self._live.get(path, 0)

    def usage(self, path: str) -> int:
        """GPUs charged, in thousandths."""
        queue = self.state.queues.find(path)
        assert queue is not None
        return queue.usage.get(GPU, 0)

    def entitled(self, path: str) -> int:
        """As published."""
        queue = self.state.queues.find(path)
        assert queue is not None
        return dict(self.state.entitled.get(queue.id, ())).get(GPU, 0)


def decision_end(entries: Sequence[tuple[InboxPosition, c.AnyItem]], position: InboxPosition) -> int:
    """How many of the entries are decided."""
    return next((n for n, (at, _) in enumerate(entries) if at >= position), len(entries))
