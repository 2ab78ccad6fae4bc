"""What simulated users do: a queue tree, jobs of many kinds, cancellations, the same request sent twice.

Everything is drawn from the seed. Jobs are small enough to end within a minute of virtual time, and many enough that
they have to wait for each other.
"""

from __future__ import annotations

import hashlib
from random import Random

import msgspec

from muster.core import commands
from muster.core.model import JobSpec, QueueSpec, TaskGroup

GPU = "nvidia.com/gpu"
QUEUES = ("team-a", "team-b", "team-c")


def queues(rng: Random) -> list[commands.AnyItem]:
    """The tree: two plain queues and one with a limit."""
    items: list[commands.AnyItem] = []
    for name in QUEUES:
        limit = (("cpu", rng.choice((8_000, 12_000))),) if name == "team-c" else ()
        spec = QueueSpec(id="", name=name, parent="", weight=rng.randint(1, 3), limit=limit)
        items.append(commands.UpsertQueue(path=name, spec=spec, expected_revision=0, request_id=f"queue-{name}"))
    return items


def job(rng: Random, seed: int, number: int) -> JobSpec:
    """One job: a single pod, a gang, a GPU share or a GPU gang; a few fail by design."""
    kind = rng.choices(("one", "gang", "share", "gpus", "large"), (40, 25, 15, 15, 5))[0]
    run_s = round(rng.uniform(0.2, 6.0), 2)
    exit_code = 3 if rng.random() < 0.05 else 0
    if kind == "one":
        groups = (_group("main", 1, rng.choice((1_000, 2_000)), 0, run_s=run_s, exit_code=exit_code),)
    elif kind == "gang":
        groups = (_group("main", rng.randint(2, 5), 1_000, 0, run_s=run_s, exit_code=exit_code),)
    elif kind == "share":
        groups = (_group("main", 1, 500, rng.choice((250, 460)), run_s=run_s, exit_code=exit_code),)
    elif kind == "gpus":
        groups = (
            _group("ps", 1, 1_000, 0, run_s=run_s, exit_code=0),
            _group("worker", rng.randint(1, 3), 1_000, 1_000, run_s=run_s, exit_code=exit_code),
        )
    else:
        groups = (_group("main", 6, 2_000, 0, run_s=run_s, exit_code=exit_code),)
    identity = hashlib.sha256(f"{seed}/{number}".encode()).hexdigest()[:32]
    return JobSpec(
        id=identity,
        namespace="default",
        name=f"job-{number}",
        queue=rng.choice(QUEUES),
        tasks=groups,
        priority=rng.choice((0, 0, 0, 50)),
        submitter="someone",
        request_id=f"request-{number}",
        digest=hashlib.sha256(f"{seed}/{number}/body".encode()).hexdigest()[:32],
    )


def _group(name: str, replicas: int, cpu_millis: int, gpu_millis: int, *, run_s: float, exit_code: int) -> TaskGroup:
    requests = (("cpu", cpu_millis), ("memory", 1 << 30))
    if gpu_millis:
        requests = (*requests, (GPU, gpu_millis))
    template = {
        "metadata": {
            "annotations": {"sim.muster.io/run-seconds": str(run_s), "sim.muster.io/exit-code": str(exit_code)}
        },
        "spec": {"containers": [{"name": "main", "image": "registry.example/work:1"}]},
    }
    return TaskGroup(
        name=name,
        replicas=replicas,
        min_replicas=replicas,
        requests=tuple(sorted(requests)),
        template=msgspec.json.encode(template),
    )
