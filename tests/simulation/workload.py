"""What simulated users ask for: a queue tree, other settings for its queues, jobs of many kinds.

Everything is drawn from the seed. Each run has a tree of its own: plain queues, queues with guarantees, weights and
policies of every kind, or a tree of several levels. The jobs ask for more than there is, in bursts of one queue after
the other, so queues borrow, get back what is theirs, and shrink; some are elastic, some matter more, some cannot be
preempted, and some are arrays whose indices have to succeed once each. They are small enough to end within a minute of
virtual time, and many enough to wait for each other.

In some runs (`guarded`) most jobs cannot be preempted, and those of queues with a guarantee come last: what is kept for
them is idle until then, and in the way of the others (rule P4).
"""

from __future__ import annotations

import hashlib
from random import Random
from typing import Any

import msgspec

from muster.core import commands
from muster.core.model import EVERY_INDEX, Allowance, Amounts, JobSpec, QueueSpec, TaskGroup

GPU = "nvidia.com/gpu"
PLAIN = ("team-a", "team-b", "team-c")
DEEP = ("research", "research/vision", "research/vision/a", "research/vision/b", "research/language", "prod")
ALLOWANCES = (  # every job fits into each
    Allowance(running_jobs=8),
    Allowance(running_jobs=2),
    Allowance(pending_jobs=5),
    Allowance(resources=(("cpu", 12_000),)),
)
HALF_LIFE_MS = 30_000
INNER = ("research", "vision")
JOBS = 20
ARRAY_CHANCE = 0.2
NO_ARRAY: dict[str, Any] = {"completion": "", "max_parallel": 0}
BURST_CHANCE = 0.25  # that the jobs to come are of another queue
LASTING_RUN_JOBS = 12  # of a run that is `lasting`
LASTING_JOBS = 3  # of them take all there is
LASTING_S = 340.0  # longer than a hold is kept
GUARDED_SEEDS = (0, 6, 7)  # last digits; those of seeds that had failed before there were such runs stay as they were
GUARANTEED_MILLIS = 10_000  # in all, of a run that is `guarded`
LENT_MILLIS = 1_000  # of each of those, where they are kept from lending
LENT_CHANCE = 0.35
GUARDED_JOBS_FIRST = 15  # of queues without a guarantee
GUARDED_MILLIS_MAX = 5_000  # of a job that cannot be preempted: with the guarantees it fits what is left of any cell
GUARDED_RUN_S = (2.0, 9.0)
PROTECTED_CHANCE = 0.75


class Workload:
    """The users of one run. `lasting`: the first jobs take all there is, and for long."""

    def __init__(self, rng: Random, seed: int, *, clusters: list[str], lasting: bool) -> None:
        self._rng = rng
        self._seed = seed
        self._clusters = clusters
        self.lasting = lasting
        paths = rng.choice((PLAIN, PLAIN, DEEP))
        shared = paths is DEEP or rng.random() < 0.75
        self._queues = {path: self._queue(path) if shared else _plain_queue(rng, path) for path in paths}
        self._keep_from_lending(rng.choice(paths))
        if rng.random() < 0.25:  # past usage counts in one of the trees (rule F4)
            self._queues[paths[0]] = msgspec.structs.replace(self._queues[paths[0]], half_life_ms=HALF_LIFE_MS)
        self.leaves = [p for p in paths if not any(other.startswith(f"{p}/") for other in paths)]
        self.jobs = self._lasting_jobs() if lasting else self._jobs(JOBS)
        self.guarded = seed % 10 in GUARDED_SEEDS and not lasting
        if self.guarded:
            self._guard(rng)

    def queues(self) -> list[commands.AnyItem]:
        """The tree, parents first."""
        return [
            commands.UpsertQueue(path=path, spec=spec, expected_revision=0, request_id=f"queue-{path}")
            for path, spec in self._queues.items()
        ]

    def other(self, before: QueueSpec) -> QueueSpec:
        """Other settings for a queue."""
        other = self._queue(before.name)
        return msgspec.structs.replace(other, guaranteed=before.guaranteed) if self.guarded else other

    def limit(self, name: str) -> Amounts:
        """What the queue was made with: every job that was taken can run some day with it."""
        return next((spec.limit for spec in self._queues.values() if spec.name == name), ())

    def _queue(self, path: str) -> QueueSpec:
        rng = self._rng
        name = path.rpartition("/")[2]
        guaranteed: Amounts = ()
        if rng.random() < 0.5 and name not in INNER:
            guaranteed = ((("cpu", rng.choice((4_000, 8_000))),), (("cpu", 4_000), (GPU, 2_000)))[rng.random() < 0.4]
        return QueueSpec(
            id="",
            name=name,
            parent="",
            weight=rng.choice((0, 1, 1, 2, 3)),
            priority=rng.choice((0, 0, 0, 1)),
            ordering=rng.choice(("PRIORITY", "PRIORITY", "FIFO", "FAIR")),
            preemption=rng.choice(("NEVER", "LOWER_PRIORITY", "LOWER_PRIORITY", "ANY", "ANY", "ANY")),
            guaranteed=guaranteed,
            limit=(("cpu", rng.choice((8_000, 12_000))),) if path == "team-c" else (),
            per_user=rng.choice(ALLOWANCES) if rng.random() < 0.2 else Allowance(),
            per_namespace=rng.choice(ALLOWANCES) if rng.random() < 0.1 else Allowance(),
            fair_by=rng.choice(("NAMESPACE", "USER")),
            min_runtime_ms=rng.choice((0, 0, 0, 1_500)),
        )

    def _keep_from_lending(self, path: str) -> None:
        """Sometimes one queue, and no more, keeps most of its guarantee to itself."""
        spec = self._queues[path]
        if spec.guaranteed and self._rng.random() < 0.5:
            self._queues[path] = msgspec.structs.replace(spec, lending_limit=(("cpu", 2_000),))

    # --- jobs that nobody can take back -------------------------------------------------------------------------------

    def _guard(self, rng: Random) -> None:
        """Guarantees of one or two leaves, no others; most jobs are protected, those of the guaranteed leaves late."""
        guaranteed = rng.sample([p for p in self.leaves if not self._queues[p].limit], len(self.leaves) // 2)
        lent: Amounts = (("cpu", LENT_MILLIS),) if rng.random() < LENT_CHANCE else ()
        for path, spec in self._queues.items():
            own: Amounts = (("cpu", GUARANTEED_MILLIS // len(guaranteed)),) if path in guaranteed else ()
            self._queues[path] = msgspec.structs.replace(spec, guaranteed=own, lending_limit=lent if own else ())
        others = [path for path in self.leaves if path not in guaranteed]
        for number, spec in enumerate(self.jobs):
            queue = rng.choice(others if number < GUARDED_JOBS_FIRST else guaranteed)
            small = sum(task.min_replicas * dict(task.requests)["cpu"] for task in spec.tasks) <= GUARDED_MILLIS_MAX
            tasks = tuple(_lasts(task, rng.uniform(*GUARDED_RUN_S)) for task in spec.tasks)
            self.jobs[number] = msgspec.structs.replace(
                spec, queue=queue, tasks=tasks, preemptible=not (small and rng.random() < PROTECTED_CHANCE)
            )

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _jobs(self, count: int) -> list[JobSpec]:
        found, queue = [], self._rng.choice(self.leaves)
        for number in range(count):
            if self._rng.random() < BURST_CHANCE:
                queue = self._rng.choice(self.leaves)
            found.append(self._job(number, queue))
        return found

    def _lasting_jobs(self) -> list[JobSpec]:
        """A few that take all there is, and some that matter more."""
        found = self._jobs(LASTING_RUN_JOBS)
        tasks = (_group("main", 8, 1_000, 0, run_s=LASTING_S, exit_code=0, least=2),)
        for number, spec in enumerate(found):
            if number < LASTING_JOBS:
                found[number] = msgspec.structs.replace(
                    spec, tasks=tasks, priority=0, preemptible=True, max_runtime_ms=0, **NO_ARRAY
                )
            else:
                found[number] = msgspec.structs.replace(spec, priority=max(spec.priority, 50))
        return found

    def _job(self, number: int, queue: str) -> JobSpec:
        rng = self._rng
        identity = hashlib.sha256(f"{self._seed}/{number}".encode()).hexdigest()[:32]
        spec = JobSpec(
            id=identity,
            namespace=rng.choice(("default", "default", "other")),
            name=f"job-{number}",
            queue=queue,
            tasks=self._tasks(),
            priority=rng.choice((0, 0, 0, 0, 50, 100)),
            preemptible=rng.random() > 0.05,
            submitter=rng.choice(("someone", "someone-else")),
            request_id=f"request-{number}",
            digest=hashlib.sha256(f"{self._seed}/{number}/body".encode()).hexdigest()[:32],
            checkpoint_ms=rng.choice((0, 0, 500)),
            max_runtime_ms=rng.randint(3_000, 12_000) if rng.random() < 0.06 else 0,
            cluster_selector=(("muster.io/cluster", rng.choice(self._clusters)),) if rng.random() < 0.15 else (),
        )
        return self._array(spec) if rng.random() < ARRAY_CHANCE else spec

    def _array(self, spec: JobSpec) -> JobSpec:
        """The same as an array job: one group or two, all indices at once or a few at a time."""
        rng = self._rng
        run_s = round(rng.uniform(0.2, 2.5), 2)
        exit_code = 3 if rng.random() < 0.03 else 0
        indices, least = rng.randint(3, 9), rng.randint(1, 2)
        tasks = [_group("main", indices, 1_000, 0, run_s=run_s, exit_code=exit_code, least=least)]
        if rng.random() < 0.2:
            tasks.append(_group("more", 3, 500, rng.choice((0, 250)), run_s=2 * run_s, exit_code=0, least=1))
        most = sum(task.min_replicas for task in tasks) + rng.randint(0, 3) if rng.random() < 0.6 else 0
        return msgspec.structs.replace(spec, tasks=tuple(tasks), completion=EVERY_INDEX, max_parallel=most)

    def _tasks(self) -> tuple[TaskGroup, ...]:
        """A single pod, a gang, an elastic job, a GPU share, a GPU gang or a large gang; a few fail by design."""
        rng = self._rng
        kind = rng.choices(("one", "gang", "elastic", "share", "gpus", "large"), (30, 20, 20, 12, 13, 5))[0]
        run_s = round(rng.uniform(0.2, 6.0), 2)
        exit_code = 3 if rng.random() < 0.05 else 0
        if kind == "one":
            return (_group("main", 1, rng.choice((1_000, 2_000)), 0, run_s=run_s, exit_code=exit_code),)
        if kind == "gang":
            return (_group("main", rng.randint(2, 5), 1_000, 0, run_s=run_s, exit_code=exit_code),)
        if kind == "elastic":
            most = rng.randint(4, 10)
            return (_group("main", most, 1_000, 0, run_s=2 * run_s, exit_code=0, least=rng.randint(1, 2)),)
        if kind == "share":
            return (_group("main", 1, 500, rng.choice((250, 460)), run_s=run_s, exit_code=exit_code),)
        if kind == "gpus":
            return (
                _group("ps", 1, 1_000, 0, run_s=run_s, exit_code=0),
                _group("worker", rng.randint(1, 3), 1_000, 1_000, run_s=run_s, exit_code=exit_code),
            )
        return (_group("main", 5, 2_000, 0, run_s=run_s, exit_code=exit_code),)


def _plain_queue(rng: Random, path: str) -> QueueSpec:
    """As somebody makes it who has not read about fair sharing."""
    limit = (("cpu", rng.choice((8_000, 12_000))),) if path == "team-c" else ()
    return QueueSpec(id="", name=path, parent="", weight=rng.randint(1, 3), limit=limit)


def _lasts(task: TaskGroup, run_s: float) -> TaskGroup:
    """The same, running for so long."""
    template = msgspec.json.decode(task.template)
    template["metadata"]["annotations"]["sim.muster.io/run-seconds"] = f"{run_s:.2f}"
    return msgspec.structs.replace(task, template=msgspec.json.encode(template))


def _group(
    name: str, replicas: int, cpu_millis: int, gpu_millis: int, *, run_s: float, exit_code: int, least: int = 0
) -> TaskGroup:
    requests = (("cpu", cpu_millis), ("memory", 1 << 30))
    if gpu_millis:
        requests = (*requests, (GPU, gpu_millis))
    template = {
        "metadata": {
            "annotations": {"sim.muster.io/run-seconds": f"{run_s:.2f}", "sim.muster.io/exit-code": str(exit_code)}
        },
        "spec": {"containers": [{"name": "main", "image": "registry.example/work:1"}]},
    }
    return TaskGroup(
        name=name,
        replicas=replicas,
        min_replicas=least or replicas,
        requests=tuple(sorted(requests)),
        template=msgspec.json.encode(template),
    )
