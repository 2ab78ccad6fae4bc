"""Who wrote what, and what really ran: the log by which duplicates are judged.

The API server records every write with its outcome; the kubelets record when containers really start and stop, which
is not the same as what the API shows (a force-deleted pod on a cut-off node runs on unseen). `judge` reads only this
log, never the scheduler's state: it is the independent witness of invariants I2 and I4 and rule LOG-15.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import msgspec

MAX_RECORDS = 2_000_000  # in memory; older ones are dropped and counted (the file, if any, has them all)

RUN, STOP, REJECT, REMOVE = "run", "stop", "reject", "remove"
LABEL_PREFIX = "muster.io/"


class Record(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One write, or one thing a kubelet did (verbs run, stop, reject) or an object's end (remove)."""

    seq: int
    time_ms: int
    cluster: str
    verb: str
    resource: str  # "pods", "pods/binding", ...
    namespace: str
    name: str
    uid: str
    user_agent: str
    code: int  # HTTP status of a write; 0 for what a kubelet did
    node: str = ""
    phase: str = ""  # of the pod after the record's event
    job: str = ""
    pod: str = ""  # the pod's position in its job
    epoch: str = ""
    attempt: str = ""


class AuditLog:
    """Append-only; `since` pages through it. A new cluster is empty, so its file, if any, starts empty too."""

    def __init__(self, cluster: str, path: Path | None = None) -> None:
        self.records: list[Record] = []
        self.dropped = 0  # records no longer in memory; the first one kept has this sequence
        self._cluster = cluster
        self._encode = msgspec.json.Encoder().encode
        self._file: IO[bytes] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=1 << 18)

    def add(
        self,
        time_ms: int,
        verb: str,
        resource: str,
        obj: dict[str, Any],
        *,
        user_agent: str,
        code: int = 0,
    ) -> None:
        """Record something about `obj`, whose metadata, labels, node and phase are copied out."""
        metadata = obj.get("metadata") or {}
        labels = metadata.get("labels") or {}
        record = Record(
            seq=self.dropped + len(self.records),
            time_ms=time_ms,
            cluster=self._cluster,
            verb=verb,
            resource=resource,
            namespace=metadata.get("namespace", ""),
            name=metadata.get("name", ""),
            uid=metadata.get("uid", ""),
            user_agent=user_agent,
            code=code,
            node=(obj.get("spec") or {}).get("nodeName") or "",
            phase=(obj.get("status") or {}).get("phase") or "",
            job=labels.get("muster.io/job", ""),
            pod=labels.get("muster.io/pod", ""),
            epoch=labels.get("muster.io/epoch", ""),
            attempt=labels.get("muster.io/attempt", ""),
        )
        self.records.append(record)
        if len(self.records) > MAX_RECORDS:
            half = MAX_RECORDS // 2
            del self.records[:half]
            self.dropped += half
        if self._file is not None:
            self._file.write(self._encode(record))
            self._file.write(b"\n")

    def since(self, seq: int, limit: int = 1 << 30) -> list[Record]:
        start = max(0, seq - self.dropped)
        return self.records[start : start + limit]

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_file(path: Path) -> list[Record]:
    """The records of an audit file; a last line cut short by a kill is left out."""
    decoder = msgspec.json.Decoder(Record)
    lines = path.read_bytes().split(b"\n")[:-1]
    return [decoder.decode(line) for line in lines if line]


class Violation(msgspec.Struct, frozen=True):
    rule: str  # ran-twice-at-once | epochs-overlap | ran-after-success
    job: str
    message: str


class Verdict(msgspec.Struct):
    """What the log shows. `ok` is False when anything ran that must not have run, or the log has a hole."""

    violations: list[Violation]
    counts: dict[str, int]
    complete: bool  # False: early records were dropped, so an absence of violations proves nothing

    @property
    def ok(self) -> bool:
        return self.complete and not self.violations


class _Life(msgspec.Struct):
    """One pod object, by uid: when it existed and when its containers ran. Open ends are the end of the log."""

    uid: str
    name: str
    job: str
    pod: str
    epoch: int
    attempt: int
    created_ms: int
    removed_ms: int | None = None
    started_ms: int | None = None
    stopped_ms: int | None = None
    phase: str = ""

    def gone_ms(self, end_ms: int) -> int:
        """The object is removed and nothing of it runs any more."""
        if self.removed_ms is None or (self.started_ms is not None and self.stopped_ms is None):
            return end_ms
        return max(self.removed_ms, self.stopped_ms or 0)


def judge(records: Iterable[Record], *, job_sizes: dict[str, int] | None = None) -> Verdict:
    """Find pods that ran twice at once, epochs that coexisted, and work redone after its job had succeeded.

    `job_sizes` (job id -> pods needed to succeed) is better than what the log alone tells: without it a job is taken
    to be as large as the most pods any one epoch of it had.
    """
    ordered = sorted(records, key=lambda record: (record.time_ms, record.cluster, record.seq))
    lives, counts = _lives(ordered)
    end_ms = ordered[-1].time_ms + 1 if ordered else 0
    by_job: dict[str, list[_Life]] = {}
    for life in lives.values():
        if life.job:
            by_job.setdefault(life.job, []).append(life)
    violations: list[Violation] = []
    for job, members in by_job.items():
        members.sort(key=lambda life: (life.created_ms, life.epoch, life.attempt, life.uid))
        violations += _ran_twice(job, members, end_ms)
        violations += _epochs_overlap(job, members, end_ms)
        violations += _ran_after_success(job, members, (job_sizes or {}).get(job))
    counts["jobs"] = len(by_job)
    first_seq: dict[str, int] = {}
    for record in ordered:
        first_seq[record.cluster] = min(record.seq, first_seq.get(record.cluster, record.seq))
    return Verdict(violations, counts, not any(first_seq.values()))


def _lives(ordered: list[Record]) -> tuple[dict[str, _Life], dict[str, int]]:
    lives: dict[str, _Life] = {}
    counts = dict.fromkeys(
        ("created", "bound", "started", "succeeded", "failed", "rejected", "evicted", "removed", "refused_writes"), 0
    )
    for record in ordered:
        if record.code >= 400:
            counts["refused_writes"] += 1
            continue
        if record.resource == "pods/binding":
            counts["bound"] += 1
        elif record.resource == "pods/eviction":
            counts["evicted"] += 1
        if record.resource != "pods" or not record.uid:
            continue
        life = lives.get(record.uid)
        if life is None:
            life = lives[record.uid] = _Life(
                record.uid,
                record.name,
                record.job,
                record.pod,
                _number(record.epoch),
                _number(record.attempt),
                record.time_ms,
            )
        life.phase = record.phase or life.phase
        _advance(life, record, counts)
    counts["running"] = sum(life.started_ms is not None and life.stopped_ms is None for life in lives.values())
    counts["existing"] = sum(life.removed_ms is None for life in lives.values())
    return lives, counts


def _advance(life: _Life, record: Record, counts: dict[str, int]) -> None:
    if record.verb == "create":
        counts["created"] += 1
    elif record.verb == RUN:
        counts["started"] += 1
        life.started_ms = record.time_ms
    elif record.verb == STOP:
        life.stopped_ms = record.time_ms
        counts["succeeded" if record.phase == "Succeeded" else "failed"] += 1
    elif record.verb == REJECT:
        counts["rejected"] += 1
    elif record.verb == REMOVE:
        counts["removed"] += 1
        life.removed_ms = record.time_ms


def _number(text: str) -> int:
    return int(text) if text.isdigit() else -1


def _ran_twice(job: str, members: list[_Life], end_ms: int) -> list[Violation]:
    found = []
    latest: dict[str, tuple[int, _Life]] = {}  # pod position -> (when its last run ended, that run)
    for life in sorted(
        (life for life in members if life.started_ms is not None), key=lambda life: life.started_ms or 0
    ):
        stopped_ms = end_ms if life.stopped_ms is None else life.stopped_ms
        before = latest.get(life.pod)
        if before is not None and (life.started_ms or 0) < before[0]:
            message = (
                f"pod {life.pod}: {life.name} started at {life.started_ms} while {before[1].name} ran until {before[0]}"
            )
            found.append(Violation("ran-twice-at-once", job, message))
        if before is None or stopped_ms > before[0]:
            latest[life.pod] = (stopped_ms, life)
    return found


def _epochs_overlap(job: str, members: list[_Life], end_ms: int) -> list[Violation]:
    found = []
    gone_ms: dict[int, tuple[int, _Life]] = {}  # epoch -> (when the last of its pods was gone, that pod)
    for life in members:
        for epoch, (until_ms, other) in gone_ms.items():
            if epoch != life.epoch and life.created_ms < until_ms:
                message = (
                    f"{life.name} (epoch {life.epoch}) was created at {life.created_ms}; "
                    f"{other.name} (epoch {epoch}) was there until {until_ms}"
                )
                found.append(Violation("epochs-overlap", job, message))
        until_ms = life.gone_ms(end_ms)
        if life.epoch not in gone_ms or until_ms > gone_ms[life.epoch][0]:
            gone_ms[life.epoch] = (until_ms, life)
    return found


def _ran_after_success(job: str, members: list[_Life], size: int | None) -> list[Violation]:
    succeeded: dict[int, dict[str, int]] = {}  # epoch -> pod position -> when it succeeded
    pods: dict[int, set[str]] = {}
    for life in members:
        pods.setdefault(life.epoch, set()).add(life.pod)
        if life.phase == "Succeeded" and life.stopped_ms is not None:
            succeeded.setdefault(life.epoch, {}).setdefault(life.pod, life.stopped_ms)
    needed = size if size is not None else max(len(positions) for positions in pods.values())
    done = [(max(when.values()), epoch) for epoch, when in succeeded.items() if len(when) >= needed]
    job_done_ms, job_epoch = min(done, default=(None, -1))
    found = []
    for life in members:
        if life.started_ms is None:
            continue
        own_ms = succeeded.get(life.epoch, {}).get(life.pod)
        if own_ms is not None and life.started_ms > own_ms:
            message = (
                f"{life.name} started at {life.started_ms}; pod {life.pod} of epoch {life.epoch} succeeded at {own_ms}"
            )
            found.append(Violation("ran-after-success", job, message))
        elif job_done_ms is not None and life.epoch != job_epoch and life.started_ms > job_done_ms:
            message = (
                f"{life.name} started at {life.started_ms}; the job succeeded in epoch {job_epoch} at {job_done_ms}"
            )
            found.append(Violation("ran-after-success", job, message))
    return found
