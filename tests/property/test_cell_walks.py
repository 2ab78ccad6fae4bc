"""Long random walks of a busy cell, from fixed seeds: more jobs, preemptions and failures than the machine of
`test_cell_machine` reaches, with the same checks at every transaction."""

from __future__ import annotations

import hashlib
import random
from collections import Counter

import pytest

from muster.core import commands as c
from muster.core import snapshot
from muster.core.demand import demand, startable
from muster.core.entitlements import entitlements
from muster.core.explain import explain
from muster.core.jobs import Job, is_over
from muster.core.model import EVERY_INDEX, Allowance, JobSpec, JobState, NodeSpec, PodPhase, QueueSpec, TaskGroup
from muster.core.preemption import plan_preemption
from muster.core.replay import replay
from muster.core.state import CellState
from muster.sim.cell import Cell, items_from
from muster.wire import codec

STEPS = 150
GIB = 1 << 30
SHAPES = (
    (("cpu", 1000),),
    (("cpu", 2000), ("memory", 4 * GIB)),
    (("cpu", 500), ("nvidia.com/gpu", 460)),
    (("cpu", 1000), ("nvidia.com/gpu", 1000)),
    (("nvidia.com/gpu", 2000),),
)
LEAVES = ("research/vision", "research/nlp", "batch")
CLASSES = ("high", "low")
LIMIT = (("cpu", 30_000),)  # of research
HALF_LIVES_MS = (0, 60_000, 7_000_000)


def fact(job: Job, pod: int, phase: int) -> c.PodFact:
    return c.PodFact(job.id, job.epoch, pod, phase, job.attempt_of(pod))


def leaves(job: Job, pod: int) -> bool:
    return job.state is JobState.STOPPING or pod in job.leaving


class Walk:
    """Clients, clusters and preemptors of one cell, all drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.cell = Cell(work_limit=self.draw.choice((5, 40, 5000)))
        self.number = 0
        self.done: dict[str, set[int]] = {}  # of array jobs: what has succeeded
        self.seen: Counter[str] = Counter()
        queues = ("research", *LEAVES)
        limits = {"research": LIMIT, "batch": (("cpu", 9_000),)}
        self.send(*[c.UpsertQueue(path, QueueSpec("", "", "", limit=limits.get(path, ()))) for path in queues])
        self.send(*[c.UpsertPriorityClass(name, value) for value, name in enumerate(CLASSES)])
        for cluster in ("sim-a", "sim-b"):
            nodes = tuple(self.node(cluster, n) for n in range(4))
            self.send(c.NodesReported(cluster, nodes, first=True, complete=True))

    @property
    def state(self) -> CellState:
        return self.cell.state

    def send(self, *items: c.AnyItem) -> None:
        self.cell.write(*items)
        if self.draw.random() < 0.8:  # else decided together with what comes next
            self.saw(self.cell.settle())

    def saw(self, transitions: list[object]) -> None:
        self.seen.update(type(transition).__name__ for transition in transitions)

    def node(self, cluster: str, number: int) -> NodeSpec:
        gpus = number % 3
        allocatable = (("cpu", 8000), ("memory", 32 * GIB), *((("nvidia.com/gpu", gpus * 1000),) if gpus else ()))
        ready, cordoned = self.draw.random() > 0.1, self.draw.random() < 0.1
        name = f"{cluster}-{number}"
        kind = "nvidia.com/gpu" if gpus else ""
        return NodeSpec(cluster, name, allocatable, ready=ready, cordoned=cordoned, device_resource=kind, devices=gpus)

    def some(self, jobs: list[Job], most: int) -> list[Job]:
        return self.draw.sample(jobs, min(len(jobs), self.draw.randint(1, most)))

    def charged(self) -> list[Job]:
        return [job for job in self.state.jobs.values() if job.charged]

    # --- what happens -----------------------------------------------------------------------------------------------

    def submit(self) -> None:
        self.send(*[c.SubmitJob(self.spec()) for _ in range(self.draw.randint(1, 6))])

    def spec(self) -> JobSpec:
        self.number += 1
        tasks: list[TaskGroup] = []
        array = self.draw.random() < 0.3
        shape = len(SHAPES)  # the groups with the most devices first: the search does not try all orders
        for name in ("ps", "worker")[: self.draw.choice((1, 1, 1, 2))]:
            shape = self.draw.randrange(shape) if shape > 1 else 0
            replicas = self.draw.choice((1, 1, 1, 2, 4)) if not array else self.draw.choice((2, 3, 6))
            least = self.draw.randint(1, replicas) if self.draw.random() < 0.5 else replicas
            policy = self.draw.choice(("", "SPREAD"))
            tasks.append(TaskGroup(name, replicas, least, SHAPES[shape], policy=policy))
        of_class = self.draw.choice((*CLASSES, "", "", ""))
        return JobSpec(
            id=hashlib.sha256(str(self.number).encode()).hexdigest()[:32],
            namespace=self.draw.choice(("team-a", "team-b")),
            submitter=self.draw.choice(("ann", "bob", "")),
            name=f"job-{self.number}",
            queue=self.draw.choice(LEAVES),
            tasks=tuple(tasks),
            priority=0 if of_class else self.draw.choice((0, 0, 0, 1, 5)),
            request_id=f"request-{self.number}",
            digest=str(self.number),
            max_runtime_ms=self.draw.choice((0, 0, 0, 120_000)),
            preemptible=self.draw.random() < 0.9,
            completion=EVERY_INDEX if array else "",
            max_parallel=self.draw.choice((0, sum(task.min_replicas for task in tasks) + 1)) if array else 0,
            checkpoint_ms=self.draw.choice((0, 0, 30_000)),
            max_preemptions=self.draw.choice((0, 1, 2, 5, 5, 5)),
            priority_class=of_class,
        )

    def go_on(self) -> None:
        """Pods of some jobs appear, run, end."""
        for _ in range(2):
            phase = self.draw.choice((1, 2, 2, 3, 3))
            chosen = self.some(self.charged(), 4)
            facts = [fact(job, pod, phase) for job in chosen for pod in range(len(job.phases))]
            self.send(c.PodsObserved("sim-a", tuple(facts)))

    def go_wrong(self) -> None:
        for job in self.some(self.charged(), 2):
            if not job.charged:
                continue
            pod = self.draw.randrange(len(job.phases))
            phase, reason = self.draw.choice(((4, ""), (4, "OutOfpods"), (5, "")))
            epoch = job.epoch - self.draw.choice((0, 0, 0, 1))
            attempt = job.attempt_of(pod)
            wrong = c.PodFact(job.id, epoch, pod, phase, attempt, exit_code=1, reason=reason)
            self.send(c.PodsObserved("sim-a", (wrong,)))

    def reject(self) -> None:
        for job in self.some(self.charged(), 1):
            pod = self.draw.randrange(len(job.phases))
            attempt = job.attempt_of(pod)
            self.send(c.PlacementRejected("sim-a", job.id, job.epoch, pod, "Forbidden", "quota", attempt))

    def stop(self) -> None:
        """Pods that were asked to go are gone, most of them."""
        facts = [
            fact(job, pod, self.draw.choice((5, 5, 5, 4, 3)))
            for job in self.charged()
            for pod, phase in enumerate(job.phases)
            if not is_over(phase) and leaves(job, pod) and self.draw.random() < 0.8
        ]
        if facts:
            self.send(c.PodsObserved("sim-b", tuple(facts)))

    def preempt(self) -> None:
        for job, ask in sorted(self.state.asks.items()):
            if not ask.answered:
                plan = plan_preemption(self.state, job)
                answer = c.PreemptionPlanned(job, ask.request)
                if plan is not None:
                    self.check_minimal(job, plan.victims)
                    answer = c.PreemptionPlanned(job, ask.request, plan.victims, plan.placement, shrinks=plan.shrinks)
                self.send(answer)

    def check_minimal(self, job: str, victims: tuple[tuple[str, int], ...]) -> None:
        """P2, P4: who may preempt whom, as far as it shows in the jobs."""
        mine = self.state.jobs[job]
        for victim, epoch in victims:
            other = self.state.jobs[victim]
            assert other.epoch == epoch
            policy = self.state.queues.get(mine.queue).spec.preemption
            assert policy != "NEVER"
            assert other.spec.priority < mine.spec.priority or policy == "ANY"
            assert other.spec.preemptible
            assert other.preemptions < other.spec.max_preemptions or other.spec.priority < mine.spec.priority
            assert (other.started_ms or other.placed_ms) + other.spec.min_runtime_ms <= self.state.now_ms

    def share(self) -> None:
        """As fair-share does, from what the jobs ask for."""
        tree = self.state.queues
        computed = entitlements(tree, startable(self.state, tree, demand(self.state)), self.state.nodes.capacity())
        changed = [(q, amounts) for q, amounts in sorted(computed.items()) if self.state.entitled.get(q) != amounts]
        if changed:
            published = tuple(c.Entitlement(queue, amounts) for queue, amounts in changed)
            self.send(c.EntitlementsComputed(self.state.ledger_seq, published))

    def checkpoint(self) -> None:
        for job in self.some(self.charged(), 2):
            at_ms = self.state.now_ms - self.draw.choice((0, 0, 10_000))
            self.send(c.ReportCheckpoint(job.id, self.draw.choice((0, job.epoch, job.epoch - 1)), at_ms))

    def cancel(self) -> None:
        live = [job for job in self.state.jobs.values() if job.live]
        for job in self.some(live, 1) if live else ():
            self.send(c.CancelJob(job.id))

    def change_node(self) -> None:
        cluster, number = self.draw.choice(("sim-a", "sim-b")), self.draw.randrange(4)
        spec = self.node(cluster, number)
        gone = self.draw.random() < 0.3
        self.send(c.NodesReported(cluster, () if gone else (spec,), (spec.name,) if gone else ()))

    def relist(self) -> None:
        cluster = self.draw.choice(("sim-a", "sim-b"))
        nodes = [self.node(cluster, n) for n in range(4) if self.draw.random() < 0.9]
        self.send(c.NodesReported(cluster, tuple(nodes[:2]), first=True))
        self.send(c.NodesReported(cluster, tuple(nodes[2:]), complete=True))

    def change_queue(self) -> None:
        path = self.draw.choice(LEAVES)
        spec = QueueSpec(
            id="",
            name="",
            parent="",
            state=self.draw.choice(("OPEN",) * 6 + ("CLOSED", "STOPPED", "DRAINING")),
            ordering=self.draw.choice(("PRIORITY", "PRIORITY", "FIFO", "FAIR")),
            fair_by=self.draw.choice(("NAMESPACE", "USER")),
            preemption=self.draw.choice(("NEVER", "LOWER_PRIORITY", "ANY", "ANY")),
            priority=self.draw.choice((0, 0, 1)),
            weight=self.draw.choice((0, 1, 1, 3)),
            limit=self.draw.choice(((), (("cpu", 9000),), (("nvidia.com/gpu", 2000),))),
            guaranteed=self.draw.choice(((), (), (("cpu", 3000),))),
            lending_limit=self.draw.choice(((), (("cpu", 1000),))),
            per_namespace=self.draw.choice((Allowance(),) * 3 + (Allowance(8, 4), Allowance(-1, -1, (("cpu", 5000),)))),
            per_user=self.draw.choice((Allowance(),) * 4 + (Allowance(-1, 6),)),
            min_runtime_ms=self.draw.choice((0, 0, 60_000)),
            half_life_ms=self.draw.choice(HALF_LIVES_MS) if path == "batch" else 0,
        )
        self.send(c.UpsertQueue(path, spec))
        if self.draw.random() < 0.3:
            half_life_ms = self.draw.choice(HALF_LIVES_MS)
            self.send(c.UpsertQueue("research", QueueSpec("", "", "", limit=LIMIT, half_life_ms=half_life_ms)))

    def change_class(self) -> None:
        """Jobs that exist keep what they have."""
        before = {job.id: job.spec for job in self.state.jobs.values()}
        name = self.draw.choice(CLASSES)
        if self.draw.random() < 0.3:
            self.send(c.DeletePriorityClass(name))
        else:
            least_ms = self.draw.choice((0, 60_000))
            self.send(c.UpsertPriorityClass(name, self.draw.choice((-1, 0, 1, 5)), min_runtime_ms=least_ms))
        assert all(job.spec == before[job.id] for job in self.state.jobs.values() if job.id in before)

    def wait(self) -> None:
        self.saw(self.cell.wait(self.draw.choice((500, 2000, 30_000, 61_000, 400_000, 4_000_000))))

    def reload(self) -> None:
        parts = [codec.encode_snapshot_part(part) for part in snapshot.dump(self.state)]
        self.cell.state = snapshot.load(map(codec.decode_snapshot_part, parts))
        assert [codec.encode_snapshot_part(part) for part in snapshot.dump(self.state)] == parts

    def step(self) -> None:
        weighted = (
            *((self.submit, 6), (self.go_on, 8), (self.stop, 4), (self.preempt, 4), (self.wait, 2)),
            *((self.go_wrong, 2), (self.reject, 1), (self.cancel, 1), (self.change_node, 1), (self.relist, 1)),
            *((self.change_queue, 1), (self.change_class, 1), (self.reload, 1), (self.share, 3), (self.checkpoint, 1)),
        )
        actions, weights = zip(*weighted, strict=True)
        self.draw.choices(actions, weights)[0]()

    def check(self) -> None:
        """I5, and no lost wake-up: once everything due is done, what is queued has something in its way."""
        self.saw(self.cell.settle())
        for job in self.state.jobs.values():
            told = explain(self.state, job.id)
            assert told.summary
            if job.state is JobState.QUEUED:
                assert told.blockers, told
            if job.spec.completion:
                self.check_done(job)

    def check_done(self, job: Job) -> None:
        """G1: what has succeeded of an array job is never run again."""
        done = {position for position, phase in enumerate(job.phases) if phase == PodPhase.SUCCEEDED}
        assert done >= self.done.get(job.id, set()), job
        self.done[job.id] = done
        if job.state is JobState.SUCCEEDED:
            assert len(done) == job.gang.pods


def finish(walk: Walk) -> None:
    """Everything that was asked for ends: open queues, healthy nodes, pods that run and succeed (I4, I7)."""
    for path in LEAVES:
        walk.cell.write(c.UpsertQueue(path, QueueSpec("", "", "")))
    walk.draw = random.Random(0)
    for cluster in ("sim-a", "sim-b"):
        nodes = tuple(
            NodeSpec(n.cluster, n.name, n.allocatable, device_resource=n.device_resource, devices=n.devices)
            for n in (walk.node(cluster, number) for number in range(4))
        )
        walk.cell.write(c.NodesReported(cluster, nodes, first=True, complete=True))
    for _ in range(400):
        walk.saw(walk.cell.settle())
        if not any(job.live for job in walk.state.jobs.values()):
            return
        facts = []
        for job in walk.charged():
            phase = 5 if job.state is JobState.STOPPING else 3
            facts += [fact(job, pod, 5 if leaves(job, pod) else phase) for pod in range(len(job.phases))]
        walk.share()
        walk.cell.write(c.PodsObserved("sim-a", tuple(facts)))
        walk.preempt()
        walk.saw(walk.cell.wait(60_000))
    raise AssertionError([job for job in walk.state.jobs.values() if job.live])


SEEN: Counter[str] = Counter()


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_the_invariants_hold(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
        if not walk.cell.waiting():
            walk.check()
    finish(walk)
    ledger = [(seq, codec.decode_transaction(data)) for seq, data in enumerate(walk.cell.log, 1)]
    state = CellState("main")
    for replayed in replay(state, ledger, items_from(walk.cell.inbox, state.position)):
        assert replayed.difference() is None
    SEEN.update(walk.seen)


def test_the_walks_have_seen_every_kind_of_transition() -> None:
    """Otherwise the walks prove less than they claim."""
    if not SEEN:
        pytest.skip("the walks did not run")
    wanted = {
        *("JobQueued", "JobPlaced", "PodsChanged", "JobStarting", "JobRunning", "JobSucceeded", "JobFailed"),
        *("JobStopping", "JobPreempted", "JobRequeued", "JobCancelled", "JobForgotten", "HoldMade", "CommandRefused"),
        *("PreemptionRequested", "PreemptionAnswered", "NodeUpserted", "NodeRemoved", "NodesSeen", "CyclePaused"),
        *("JobGrown", "JobShrunk", "EntitlementsSet", "CheckpointReported"),
    }
    assert wanted <= set(SEEN)
