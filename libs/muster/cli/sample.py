"""The bundled workload: about 2,000 jobs of the same shape as the OpenB trace, made on the spot from a seed.

No data file is shipped. What is copied from the trace is its mix (CPU only 13 %, a share of a GPU 38 %, one GPU 48 %,
the rest 2, 4 or 8), the kind of requests seen in each class, and that arrivals come in bursts. What is added so that a
first run shows something: gangs of 2 .. 8 workers, a few jobs that fail by design (exit code 1), and queues with a GPU
limit below what a burst asks for, so that jobs wait and `muster explain` has something to say.

`generate()` gives the same jobs for the same arguments on every machine; times are already replay seconds.
"""

from __future__ import annotations

import random
from typing import Final

from muster.cli.traces import GIB, Trace, TraceJob, TraceTask

JOBS: Final = 2_000
SEED: Final = 2_023
SPAN_S: Final = 70.0
RUNTIME_MEDIAN_S: Final = 6.0
RUNTIME_SIGMA: Final = 1.1
RUNTIME_MIN_S: Final = 0.2
RUNTIME_MAX_S: Final = 60.0
FAILING_SHARE: Final = 0.02
GANG_SHARE: Final = 0.05  # of the jobs with one whole GPU
GANG_WORKERS: Final = (2, 2, 4, 4, 4, 8)
BURSTS: Final = 9
BURST_SHARE: Final = 0.6  # of all jobs arrive in bursts
BURST_WIDTH_S: Final = 1.5

# (weight, GPU millis of one pod; 0: CPU only, None: a share)
_CLASSES: Final = ((13.0, 0), (38.0, None), (48.0, 1000), (0.3, 2000), (0.2, 4000), (0.5, 8000))
_SHARES: Final = ((35, 800), (25, 470), (11, 320), (8, 650), (8, 240), (5, 590), (4, 160), (3, 370), (1, 100))
# class -> (weight, cpu millis, memory GiB)
_REQUESTS: Final = {
    "cpu": ((34, 12_500, 56), (27, 32_000, 48), (20, 8_000, 30), (11, 15_500, 50), (8, 16_000, 32)),
    "share": ((37, 3_000, 6), (20, 12_000, 46), (17, 4_000, 22), (16, 8_000, 30), (10, 6_000, 12)),
    "one": ((38, 11_500, 48), (12, 3_000, 6), (20, 12_000, 24), (14, 16_000, 56), (8, 4_000, 24), (8, 20_000, 64)),
}
_PER_GPU: Final = (10_000, 40)  # cpu millis and GiB per GPU of pods with several
# leaf -> (weight of its share of the jobs, GPU limit, priority of its jobs)
_QUEUES: Final = {"serving": (55, 136, 50), "batch": (38, 88, 0), "interactive": (7, 16, 80)}


def generate(jobs: int = JOBS, seed: int = SEED, span_s: float = SPAN_S) -> Trace:
    """The sample: `jobs` jobs submitted over `span_s` seconds, ordered by arrival."""
    rng = random.Random(seed)
    arrivals = _arrivals(rng, jobs, span_s)
    made = [_job(rng, number, at) for number, at in enumerate(arrivals)]
    limits = {leaf: limit for leaf, (_, limit, _) in _QUEUES.items()}
    return Trace("sample", "generated, OpenB-shaped", made, queue_gpu_limits=limits)


def _arrivals(rng: random.Random, jobs: int, span_s: float) -> list[float]:
    """Part evenly spread, part in short bursts, as tenants submit sweeps; the first at 0."""
    starts = sorted(rng.uniform(0, 0.85 * span_s) for _ in range(BURSTS))
    times = []
    for _ in range(jobs):
        if rng.random() < BURST_SHARE:
            at = rng.choice(starts) + rng.expovariate(1 / BURST_WIDTH_S)
        else:
            at = rng.uniform(0, span_s)
        times.append(min(at, span_s))
    times.sort()
    return [round(at - times[0], 3) for at in times]


def _job(rng: random.Random, number: int, arrival_s: float) -> TraceJob:
    queue = rng.choices(list(_QUEUES), [weight for weight, _, _ in _QUEUES.values()])[0]
    runtime_s = min(max(rng.lognormvariate(0, RUNTIME_SIGMA) * RUNTIME_MEDIAN_S, RUNTIME_MIN_S), RUNTIME_MAX_S)
    return TraceJob(
        name=f"job-{number:04d}",
        queue=queue,
        arrival_s=arrival_s,
        runtime_s=round(runtime_s, 2),
        tasks=(_task(rng),),
        priority=_QUEUES[queue][2],
        exit_code=1 if rng.random() < FAILING_SHARE else 0,
    )


def _task(rng: random.Random) -> TraceTask:
    gpu_millis = rng.choices([size for _, size in _CLASSES], [weight for weight, _ in _CLASSES])[0]
    if gpu_millis is not None and gpu_millis > 1000:
        gpus = gpu_millis // 1000
        return TraceTask("main", 1, gpus * _PER_GPU[0], gpus * _PER_GPU[1] * GIB, gpu_millis)
    kind = "share" if gpu_millis is None else "one" if gpu_millis else "cpu"
    cpu_millis, memory_gib = _pick(rng, _REQUESTS[kind])
    if gpu_millis is None:
        gpu_millis = rng.choices([size for _, size in _SHARES], [weight for weight, _ in _SHARES])[0]
    if kind == "one" and rng.random() < GANG_SHARE:
        return TraceTask("worker", rng.choice(GANG_WORKERS), cpu_millis, memory_gib * GIB, gpu_millis)
    return TraceTask("main", 1, cpu_millis, memory_gib * GIB, gpu_millis)


def _pick(rng: random.Random, table: tuple[tuple[int, int, int], ...]) -> tuple[int, int]:
    _, cpu_millis, memory_gib = rng.choices(table, [weight for weight, _, _ in table])[0]
    return cpu_millis, memory_gib
