"""Workload traces as jobs: three public formats become one stream of (arrival, run time, what to run).

`read(path)` looks at the first lines of a file (gzip or plain), picks the format and returns a `Trace`: jobs ordered by
arrival, seconds counted from the first one, and how many rows were left out and why. Replay (`replayer`) and
`timescale` work on that and know nothing of the formats. What a format does not say is assumed by a named constant
here, and each assumption is listed in `Trace.assumed` so that it can be printed.

- OpenB (Alibaba cluster-trace-gpu-v2023, pods csv): one pod a job; shares of a GPU, GPU models as `A|B`.
- Philly (csv as reduced for Sia: timestamp, duration, num_gpus, gpu_time, cluster): GPUs only; over 8 GPUs is a gang.
- SWF (Standard Workload Format): processors only; more than one node's worth is a gang.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import IO, Final

MIB: Final = 1 << 20
GIB: Final = 1 << 30
PHILLY_GPUS_PER_POD_MAX: Final = 8
PHILLY_CPU_MILLIS_PER_GPU: Final = 4_000
PHILLY_MEMORY_BYTES_PER_GPU: Final = 24 * GIB
SWF_PROCESSORS_PER_POD_MAX: Final = 16
SWF_MEMORY_BYTES_PER_PROCESSOR: Final = 2 * GIB
SWF_FIELDS_MIN: Final = 18
SNIFF_LINES: Final = 200
NAME_CHARS_MAX: Final = 40

OPENB_COLUMNS: Final = frozenset({"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"})
OPENB_TIME_COLUMNS: Final = frozenset({"creation_time", "deletion_time"})
PHILLY_COLUMNS: Final = frozenset({"timestamp", "duration", "num_gpus", "cluster"})


class TraceError(Exception):
    """The file cannot be replayed; the message says why, where, and what would do."""


@dataclass(frozen=True, slots=True)
class TraceTask:
    """A group of equal pods. `gpu_millis` per pod: 460 is a share of one GPU, 2000 are two whole ones."""

    name: str
    replicas: int
    cpu_millis: int
    memory_bytes: int
    gpu_millis: int = 0
    gpu_models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace. `queue` is the leaf it belongs to; times are seconds, arrival from the first job."""

    name: str
    queue: str
    arrival_s: float
    runtime_s: float
    tasks: tuple[TraceTask, ...]
    priority: int = 0
    exit_code: int = 0

    @property
    def gpu_millis(self) -> int:
        return sum(t.replicas * t.gpu_millis for t in self.tasks)

    @property
    def cpu_millis(self) -> int:
        return sum(t.replicas * t.cpu_millis for t in self.tasks)

    @property
    def pods(self) -> int:
        return sum(t.replicas for t in self.tasks)


@dataclass(slots=True)
class Trace:
    """A trace ready to be scaled and replayed. `skipped` counts left-out rows by reason.

    `queue_gpu_limits`: leaf -> whole GPUs its queue may use; only the generated sample sets them.
    """

    name: str
    format: str
    jobs: list[TraceJob]
    skipped: Counter[str] = field(default_factory=Counter)
    assumed: tuple[str, ...] = ()
    queue_gpu_limits: dict[str, int] = field(default_factory=dict)

    @property
    def queues(self) -> list[str]:
        return sorted({job.queue for job in self.jobs})


def read(path: Path, limit: int = 0) -> Trace:
    """Read a trace file; at most the first `limit` jobs by arrival when given. Raises TraceError."""
    try:
        with _open(path) as file:
            trace = _parse(path, file)
    except FileNotFoundError:
        raise TraceError(f"trace {path} does not exist") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path} cannot be read: {error}") from error
    if not trace.jobs:
        reasons = ", ".join(f"{n:,} {why}" for why, n in trace.skipped.items()) or "it has no rows"
        raise TraceError(f"trace {path} ({trace.format}) has no job to replay: {reasons}")
    trace.jobs.sort(key=lambda job: (job.arrival_s, job.name))
    if limit:
        del trace.jobs[limit:]
    start_s = trace.jobs[0].arrival_s
    trace.jobs = [replace(job, arrival_s=job.arrival_s - start_s) for job in trace.jobs]
    return trace


def _open(path: Path) -> IO[str]:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    if packed:
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open("rt", encoding="utf-8", newline="")


def _parse(path: Path, file: Iterable[str]) -> Trace:
    lines = iter(file)
    head = list(islice(lines, SNIFF_LINES))
    build = _sniff(path, head)
    return build(_stem(path), chain(head, lines))


def _sniff(path: Path, head: Sequence[str]) -> Callable[[str, Iterator[str]], Trace]:
    first = next((line for line in head if line.strip()), "")
    columns = {column.strip() for column in first.lstrip("\ufeff").split(",")}
    if columns >= OPENB_COLUMNS:
        if missing := OPENB_TIME_COLUMNS - columns:
            raise TraceError(f"trace {path} looks like OpenB pods but has no {' and '.join(sorted(missing))} column")
        return _openb
    if columns >= PHILLY_COLUMNS:
        return _philly
    data = next((line for line in head if line.strip() and not line.startswith(";")), "")
    if len(data.split()) >= SWF_FIELDS_MIN and _is_number(data.split()[1]):
        return _swf
    raise TraceError(
        f"trace {path} is in no known format: expected OpenB pods csv ({', '.join(sorted(OPENB_COLUMNS))}, ...), "
        f"Philly csv ({', '.join(sorted(PHILLY_COLUMNS))}) or SWF (lines of {SWF_FIELDS_MIN} numbers)"
    )


def _openb(name: str, lines: Iterator[str]) -> Trace:
    trace = Trace(name, "OpenB", [])
    for row_number, row in enumerate(csv.DictReader(lines), start=2):
        try:
            created_s = float(row["creation_time"])
            started_s = float(row.get("scheduled_time") or created_s)
            runtime_s = float(row["deletion_time"]) - started_s
            gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"])
            cpu_millis, memory_mib = int(row["cpu_milli"]), int(row["memory_mib"])
        except (TypeError, ValueError, KeyError):
            raise TraceError(f"trace {name} line {row_number}: a number is missing or wrong: {row}") from None
        if runtime_s <= 0:
            trace.skipped["end before they start"] += 1
            continue
        models = tuple(m for m in (row.get("gpu_spec") or "").split("|") if m)
        task = TraceTask(
            name="main",
            replicas=1,
            cpu_millis=cpu_millis,
            memory_bytes=memory_mib * MIB,
            gpu_millis=gpus * 1000 if gpus != 1 else min(milli, 1000),
            gpu_models=models if gpus else (),
        )
        queue = dns_label(row.get("qos") or "default")
        trace.jobs.append(TraceJob(dns_label(row["name"]), queue, created_s, runtime_s, (task,)))
    return trace


def _philly(name: str, lines: Iterator[str]) -> Trace:
    assumed = (f"{PHILLY_CPU_MILLIS_PER_GPU // 1000} cpu and {PHILLY_MEMORY_BYTES_PER_GPU // GIB} GiB per GPU",)
    trace = Trace(name, "Philly", [], assumed=assumed)
    for row_number, row in enumerate(csv.DictReader(lines), start=2):
        try:
            moment = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC)
            runtime_s, gpus = float(row["duration"]), int(row["num_gpus"])
        except (TypeError, ValueError, KeyError):
            raise TraceError(f"trace {name} line {row_number}: a value is missing or wrong: {row}") from None
        if runtime_s <= 0 or gpus <= 0:
            trace.skipped["without run time or GPU"] += 1
            continue
        per_pod = max(n for n in range(1, PHILLY_GPUS_PER_POD_MAX + 1) if gpus % n == 0)
        task = TraceTask(
            name="worker",
            replicas=gpus // per_pod,
            cpu_millis=per_pod * PHILLY_CPU_MILLIS_PER_GPU,
            memory_bytes=per_pod * PHILLY_MEMORY_BYTES_PER_GPU,
            gpu_millis=per_pod * 1000,
        )
        queue = dns_label(f"vc-{row['cluster']}")
        trace.jobs.append(TraceJob(f"philly-{row_number - 1:06d}", queue, moment.timestamp(), runtime_s, (task,)))
    return trace


def _swf(name: str, lines: Iterator[str]) -> Trace:
    """Fields (from 1): 1 job, 2 submit s, 4 run s, 5 processors, 8 requested processors, 12 user."""
    assumed = (
        f"{SWF_MEMORY_BYTES_PER_PROCESSOR // GIB} GiB per processor",
        f"at most {SWF_PROCESSORS_PER_POD_MAX} processors a pod",
    )
    trace = Trace(name, "SWF", [], assumed=assumed)
    for line_number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields or line.startswith(";"):
            continue
        try:
            submit_s, runtime_s = float(fields[1]), float(fields[3])
            processors = max(int(float(fields[4])), int(float(fields[7])))
            user = int(float(fields[11]))
        except (ValueError, IndexError):
            raise TraceError(f"trace {name} line {line_number}: not a line of SWF: {line.strip()[:80]!r}") from None
        if runtime_s <= 0 or processors <= 0:
            trace.skipped["that never ran"] += 1
            continue
        queue = f"user-{user}" if user >= 0 else "nobody"
        job_name = dns_label(f"swf-{fields[0]}")
        trace.jobs.append(TraceJob(job_name, queue, submit_s, runtime_s, _swf_tasks(processors)))
    return trace


def _swf_tasks(processors: int) -> tuple[TraceTask, ...]:
    """`processors` as pods of at most SWF_PROCESSORS_PER_POD_MAX: the full ones, and one with the rest if any."""
    full, rest = divmod(processors, SWF_PROCESSORS_PER_POD_MAX)
    groups = (("full", full, SWF_PROCESSORS_PER_POD_MAX), ("rest", 1 if rest else 0, rest))
    return tuple(
        TraceTask(name, replicas, size * 1000, size * SWF_MEMORY_BYTES_PER_PROCESSOR)
        for name, replicas, size in groups
        if replicas
    )


def dns_label(text: str) -> str:
    """`text` as a name Kubernetes and Muster accept: lower case letters, digits and dashes."""
    label = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:NAME_CHARS_MAX].strip("-")
    return label or "x"


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (".gz", ".csv", ".swf", ".txt"):
        name = name.removesuffix(suffix)
    return dns_label(name)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
