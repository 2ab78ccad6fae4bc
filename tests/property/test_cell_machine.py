"""Random lives of a cell: commands, facts and time in any order, checked against naive invariants at every transaction.

The machine plays clients, clusters and preemptors. It knows nothing of how the core decides; it checks what must hold
whatever happens: I1 to I4 and every index (`invariants.check`, after each transaction), limits (I3), that every queued
job can be explained (I5), that a snapshot loads into a state that decides alike, and that the run replays (I8).
"""

from __future__ import annotations

import hashlib
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from muster.core import commands as c
from muster.core import snapshot
from muster.core.explain import explain
from muster.core.jobs import is_over
from muster.core.model import EVERY_INDEX, JobSpec, JobState, NodeSpec, PodPhase, QueueSpec, TaskGroup
from muster.core.preemption import plan_preemption
from muster.core.replay import replay
from muster.core.state import CellState
from muster.sim.cell import Cell, items_from
from muster.wire import codec

CLUSTERS = ("sim-a", "sim-b")
QUEUES = ("research", "research/vision", "research/nlp", "batch")
LEAVES = ("research/vision", "research/nlp", "batch")
GIB = 1 << 30


def job_id(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


def node(cluster: str, name: str, gpus: int, **kwargs: object) -> NodeSpec:
    allocatable = [("cpu", 8000), ("memory", 32 * GIB), ("pods", 8)]
    if gpus:
        allocatable.append(("nvidia.com/gpu", gpus * 1000))
    resource = "nvidia.com/gpu" if gpus else ""
    return NodeSpec(cluster, name, tuple(sorted(allocatable)), device_resource=resource, devices=gpus, **kwargs)  # type: ignore[arg-type]


requests = st.sampled_from(
    (
        (("cpu", 1000),),
        (("cpu", 3000), ("memory", 4 * GIB)),
        (("cpu", 500), ("nvidia.com/gpu", 460)),
        (("cpu", 2000), ("nvidia.com/gpu", 1000)),
        (("nvidia.com/gpu", 2000),),
        (("cpu", 9000),),
    )
)
groups = st.lists(
    st.builds(
        lambda replicas, short, request, policy: TaskGroup(
            "", replicas, max(replicas - short, 1), request, policy=policy
        ),
        st.integers(1, 4),
        st.integers(0, 2),
        requests,
        st.sampled_from(("", "SPREAD")),
    ),
    min_size=1,
    max_size=2,
).map(
    lambda many: tuple(
        TaskGroup(f"g{i}", g.replicas, g.min_replicas, g.requests, policy=g.policy) for i, g in enumerate(many)
    )
)


one_job = st.fixed_dictionaries(
    {
        "tasks": groups,
        "queue": st.sampled_from((*LEAVES, *LEAVES, *LEAVES, "research", "nowhere")),
        "priority": st.integers(-1, 2),
        "preemptible": st.sampled_from((True, True, True, False)),
        "max_runtime_ms": st.sampled_from((0, 0, 30_000)),
        "cluster": st.sampled_from(("", "", "", "", "sim-b", "sim-x")),
        "array": st.sampled_from((None, None, 0, 2, 5)),  # max_parallel of array jobs
    }
)


class CellMachine(RuleBasedStateMachine):
    jobs = Bundle("jobs")

    @initialize(work_limit=st.sampled_from((3, 17, 1000)))
    def start(self, work_limit: int) -> None:
        self.cell = Cell(work_limit=work_limit)
        self.number = 0
        self.done: dict[str, set[int]] = {}
        self.cell.send(*[c.UpsertQueue(path, QueueSpec("", "", "")) for path in QUEUES])
        for cluster in CLUSTERS:
            nodes = tuple(node(cluster, f"{cluster}-{i}", gpus=i % 3) for i in range(3))
            self.cell.send(c.NodesReported(cluster, nodes, first=True, complete=True))

    @property
    def state(self) -> CellState:
        return self.cell.state

    def teardown(self) -> None:
        if hasattr(self, "cell"):
            self.replays()

    # --- commands ---------------------------------------------------------------------------------------------------

    @rule(target=jobs, wanted=st.lists(one_job, min_size=1, max_size=6), settle=st.booleans())
    def submit(self, wanted: list[dict[str, Any]], settle: bool) -> str:
        return self.submit_all(wanted, settle)

    @rule(target=jobs, wanted=one_job, count=st.integers(2, 8))
    def submit_equal_ones(self, wanted: dict[str, Any], count: int) -> str:
        return self.submit_all([wanted] * count, settle=True)

    def submit_all(self, wanted: list[dict[str, Any]], settle: bool) -> str:
        specs = []
        for one in wanted:
            self.number += 1
            specs.append(self.spec(self.number, **one))
        self.put(settle, *map(c.SubmitJob, specs))
        return specs[0].id

    def spec(
        self,
        number: int,
        *,
        tasks: tuple[TaskGroup, ...],
        queue: str,
        priority: int,
        preemptible: bool,
        max_runtime_ms: int,
        cluster: str,
        array: int | None,
    ) -> JobSpec:
        return JobSpec(
            id=job_id(number),
            namespace="default",
            name=f"job-{number % 97}",  # names collide now and then
            queue=queue,
            tasks=tasks,
            priority=priority,
            request_id=f"request-{number}",
            digest=f"digest-{number}",
            max_runtime_ms=max_runtime_ms,
            cluster_selector=(("muster.io/cluster", cluster),) if cluster else (),
            preemptible=preemptible,
            completion="" if array is None else EVERY_INDEX,
            max_parallel=array or 0,
            checkpoint_ms=20_000 if priority < 0 else 0,
        )

    @rule(again=st.integers(1, 60), other=st.booleans())
    def submit_again(self, again: int, other: bool) -> None:
        known = self.state.jobs.get(job_id(again))
        if known is None:
            return
        digest = "another" if other else known.spec.digest
        spec = JobSpec(known.id, "default", "again", "batch", known.spec.tasks, request_id="again", digest=digest)
        before = len(self.state.jobs)
        done = self.cell.send(c.SubmitJob(spec))
        assert len(self.state.jobs) <= before
        assert any(type(t).__name__ == "CommandRefused" and t.code == "ALREADY_EXISTS" for t in done) == other  # type: ignore[attr-defined]

    @rule(job=jobs)
    def cancel(self, job: str) -> None:
        self.cell.send(c.CancelJob(job))
        found = self.state.jobs.get(job)
        assert found is None or not found.live or found.state is JobState.STOPPING

    @rule(job=jobs, epoch=st.integers(0, 2), ago_ms=st.sampled_from((-5000, 0, 0, 40_000)))
    def checkpoint(self, job: str, epoch: int, ago_ms: int) -> None:
        """Work that was reported as safe stays so until the job leaves its place."""
        found = self.state.jobs.get(job)
        before = found.saved_ms if found is not None else 0
        self.cell.send(c.ReportCheckpoint(job, epoch, max(self.state.now_ms - ago_ms, 0)))
        if found is not None and found.charged:
            assert before <= found.saved_ms <= self.state.now_ms

    @rule(
        path=st.sampled_from(QUEUES),
        cpu=st.sampled_from((None, None, None, 0, 6000, 20000)),
        state=st.sampled_from(("OPEN",) * 8 + ("CLOSED", "STOPPED", "DRAINING")),
        ordering=st.sampled_from(("PRIORITY", "PRIORITY", "FIFO", "FAIR")),
        preemption=st.sampled_from(("LOWER_PRIORITY", "LOWER_PRIORITY", "NEVER")),
        priority=st.integers(0, 1),
        settle=st.booleans(),
    )
    def change_queue(  # noqa: PLR0917
        self, path: str, cpu: int | None, state: str, ordering: str, preemption: str, priority: int, settle: bool
    ) -> None:
        limit = () if cpu is None else (("cpu", cpu),)
        spec = QueueSpec(
            "", "", "", state=state, ordering=ordering, preemption=preemption, priority=priority, limit=limit
        )
        self.put(settle, c.UpsertQueue(path, spec))

    @rule(path=st.sampled_from(QUEUES), to=st.sampled_from(("batch/moved", "research/nlp/deep", "research", "nlp")))
    def move_queue(self, path: str, to: str) -> None:
        queue = self.state.queues.find(path)
        if queue is not None:
            self.cell.send(c.UpsertQueue(path, queue.spec, new_path=to))

    @rule(path=st.sampled_from(("nlp", "batch/moved", "research/nlp/deep")))
    def delete_queue(self, path: str) -> None:
        self.cell.send(c.DeleteQueue(path))

    # --- facts ------------------------------------------------------------------------------------------------------

    @rule(data=st.data(), settle=st.booleans())
    def pods_move(self, data: st.DataObject, settle: bool) -> None:
        """Some pods of some jobs go on, any way a cluster can show it, also late and of old epochs."""
        charged = [job for job in self.state.jobs.values() if job.charged]
        if not charged:
            return
        facts = []
        for _ in range(data.draw(st.integers(1, 4))):
            job = data.draw(st.sampled_from(charged))
            pod = data.draw(st.integers(-1, len(job.phases)))
            phase = data.draw(st.sampled_from((1, 2, 2, 3, 3, 3, 4, 5)))
            epoch = job.epoch - data.draw(st.sampled_from((0, 0, 0, 0, 1)))
            reason = data.draw(st.sampled_from(("", "", "OutOfcpu")))
            facts.append(c.PodFact(job.id, epoch, pod, phase, exit_code=phase == 4, reason=reason))
        self.put(settle, c.PodsObserved("sim-a", tuple(facts)))

    @rule(data=st.data(), phase=st.sampled_from((1, 2, 2, 3, 3)), most=st.integers(1, 5))
    def jobs_go_on(self, data: st.DataObject, phase: int, most: int) -> None:
        """All pods of some jobs reach a phase."""
        charged = [job for job in self.state.jobs.values() if job.charged]
        chosen = data.draw(st.lists(st.sampled_from(charged), max_size=most)) if charged else []
        facts = [c.PodFact(job.id, job.epoch, pod, phase) for job in chosen for pod in range(len(job.phases))]
        self.cell.send(c.PodsObserved("sim-b", tuple(facts)))

    @rule()
    def stopping_pods_go(self) -> None:
        self.cell.settle()  # what waits in the inbox may make more of them stop
        facts = [
            c.PodFact(job.id, job.epoch, pod, int(PodPhase.GONE), job.attempt_of(pod))
            for job in self.state.jobs.values()
            if job.state is JobState.STOPPING
            for pod, phase in enumerate(job.phases)
            if not is_over(phase)
        ]
        if facts:
            self.cell.send(c.PodsObserved("sim-a", tuple(facts)))
        assert not any(job.state is JobState.STOPPING for job in self.state.jobs.values())

    @rule(job=jobs, pod=st.integers(0, 3))
    def reject(self, job: str, pod: int) -> None:
        found = self.state.jobs.get(job)
        if found is not None:
            self.cell.send(c.PlacementRejected("sim-a", job, found.epoch, pod, "Invalid", "no"))

    @rule(
        cluster=st.sampled_from(CLUSTERS),
        index=st.integers(0, 3),
        gpus=st.integers(0, 4),
        ready=st.booleans(),
        cordoned=st.booleans(),
        settle=st.booleans(),
    )
    def node_changes(self, cluster: str, index: int, gpus: int, ready: bool, cordoned: bool, settle: bool) -> None:  # noqa: PLR0917
        spec = node(cluster, f"{cluster}-{index}", gpus, ready=ready, cordoned=cordoned)
        self.put(settle, c.NodesReported(cluster, (spec,)))

    @rule(cluster=st.sampled_from(CLUSTERS), index=st.integers(0, 3), settle=st.booleans())
    def node_goes(self, cluster: str, index: int, settle: bool) -> None:
        self.put(settle, c.NodesReported(cluster, removed=(f"{cluster}-{index}",)))

    @rule(cluster=st.sampled_from(CLUSTERS), present=st.sets(st.integers(0, 3)), split=st.booleans())
    def relist(self, cluster: str, present: set[int], split: bool) -> None:
        nodes = tuple(node(cluster, f"{cluster}-{i}", gpus=i % 3) for i in sorted(present))
        if split:
            self.cell.send(c.NodesReported(cluster, nodes[:1], first=True))
            self.cell.send(c.NodesReported(cluster, nodes[1:], complete=True))
        else:
            self.cell.send(c.NodesReported(cluster, nodes, first=True, complete=True))
        table = self.state.nodes
        assert [table.spec(n).name for n in table.live(cluster)] == [
            f"{cluster}-{i}" for i in sorted(present)
        ] or sorted(table.spec(n).name for n in table.live(cluster)) == [f"{cluster}-{i}" for i in sorted(present)]

    @rule(stale=st.booleans())
    def preemptor_answers(self, stale: bool) -> None:
        """Every open request is planned on the state as it is, and answered now or after something else happened."""
        plans = []
        for job, ask in sorted(self.state.asks.items()):
            if not ask.answered:
                plan = plan_preemption(self.state, job)
                victims, placement = (plan.victims, plan.placement) if plan else ((), ())
                plans.append(c.PreemptionPlanned(job, ask.request, victims, placement, self.state.ledger_seq))
        if stale:
            self.stopping_pods_go()
        if plans:
            self.cell.send(*plans)

    # --- time -------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((1, 1, 5, 61, 301, 601, 3700)))
    def time_passes(self, seconds: int) -> None:
        self.cell.wait(seconds * 1000)

    @rule()
    def leader_changes(self) -> None:
        self.cell.start_term("another")

    @rule()
    def reload(self) -> None:
        """A snapshot is taken and loaded; the run goes on with what was loaded."""
        parts = [codec.encode_snapshot_part(part) for part in snapshot.dump(self.state)]
        loaded = snapshot.load(map(codec.decode_snapshot_part, parts))
        assert [codec.encode_snapshot_part(part) for part in snapshot.dump(loaded)] == parts
        self.cell.state = loaded

    # --- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def pending_jobs_can_say_why(self) -> None:
        if not hasattr(self, "cell"):
            return
        for job in self.state.jobs.values():
            told = explain(self.state, job.id)
            assert told.summary
            if job.state is JobState.QUEUED:
                assert 1 <= told.position <= told.pending

    @invariant()
    def what_has_succeeded_stays_so(self) -> None:
        """G1: an index of an array job that has succeeded is never run again, whatever becomes of the job."""
        if not hasattr(self, "cell"):
            return
        for job in self.state.jobs.values():
            if job.spec.completion == EVERY_INDEX:
                done = {position for position, phase in enumerate(job.phases) if phase == PodPhase.SUCCEEDED}
                assert done >= self.done.get(job.id, set())
                self.done[job.id] = done

    @invariant()
    def settled_means_nothing_fits(self) -> None:
        """After everything due is done, no queued job that may start is said to fit (I5, and no lost wake-up)."""
        if not hasattr(self, "cell") or self.cell.waiting():
            return
        self.cell.settle()
        for job in self.state.jobs.values():
            if job.state is JobState.QUEUED:
                assert explain(self.state, job.id).blockers, job

    def put(self, settle: bool, *items: c.AnyItem) -> None:
        """Written now; decided now, or together with what comes next."""
        self.cell.write(*items)
        if settle:
            self.cell.settle()

    def replays(self) -> None:
        self.cell.settle()
        ledger = [(seq, codec.decode_transaction(data)) for seq, data in enumerate(self.cell.log, 1)]
        state = CellState("main")
        for replayed in replay(state, ledger, items_from(self.cell.inbox, state.position)):
            assert replayed.difference() is None
        assert state.position == self.state.position


TestCellMachine = CellMachine.TestCase
TestCellMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
