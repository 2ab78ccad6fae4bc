"""What a replay comes to: how jobs ended, what the clusters saw, how long things took.

Two witnesses are asked. Muster's own answers say how each job ended; the simulated clusters' audit logs say which pods
really ran and when they were created. A job is *lost* if it was accepted, did not end and the cell does not know it, or
if it is said to have succeeded and no kubelet ever ran it. A job *ran twice* if the audit says so; Muster's state is
not asked for that.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from muster.cli import show
from muster.cli.errors import Exit
from muster.cli.replayer import Outcome, Tracked, quantile
from muster.sim.cluster import audit

PAGE: Final = 50_000
FETCH_TIMEOUT_S: Final = 30.0
NAMED_MAX: Final = 5  # jobs named when something is wrong with more


class AuditPage(msgspec.Struct):
    """A page of a simulated cluster's audit log. `next`: where the next page begins."""

    records: list[audit.Record]
    next: int


@dataclass(slots=True)
class Witness:
    """What the audit logs of the clusters say. Times in seconds since the epoch."""

    asked: bool = False  # False: no simulated cluster to ask
    complete: bool = True  # False: early records were dropped, so an absence of violations proves nothing
    bound_s: dict[str, float] = field(default_factory=dict)  # job id -> its first gang was complete in the cluster
    ran: set[str] = field(default_factory=set)  # job ids
    doubled: dict[str, str] = field(default_factory=dict)  # job id -> what was seen


@dataclass(frozen=True, slots=True)
class Process:
    """A process of `muster up` at the end."""

    name: str
    peak_rss_bytes: int
    cpu_s: float
    restarts: int


def witness(records: Sequence[audit.Record], job_sizes: dict[str, int]) -> Witness:
    """Judge audit records of all clusters together. `job_sizes`: job id -> pods needed to succeed."""
    seen = Witness(asked=True)
    first_epoch: dict[str, int] = {}
    for record in records:
        if record.resource != "pods" or not record.job:
            continue
        if record.verb == audit.RUN:
            seen.ran.add(record.job)
        elif record.verb == "create" and record.code == 201:
            epoch = int(record.epoch or 0)
            if epoch == first_epoch.setdefault(record.job, epoch):
                seen.bound_s[record.job] = max(seen.bound_s.get(record.job, 0.0), record.time_ms / 1000)
    verdict = audit.judge(records, job_sizes=job_sizes)
    seen.complete = verdict.complete
    for violation in verdict.violations:
        seen.doubled.setdefault(violation.job, f"{violation.job[:8]} {violation.rule}: {violation.message}")
    return seen


def fetch(urls: Mapping[str, str]) -> list[audit.Record]:
    """The audit records of simulated clusters by their API servers' urls. Raises OSError."""
    records: list[audit.Record] = []
    for url in urls.values():
        since = 0
        while True:
            with urllib.request.urlopen(
                f"{url}/sim/audit?since={since}&limit={PAGE}", timeout=FETCH_TIMEOUT_S
            ) as answer:
                page = msgspec.json.decode(answer.read(), type=AuditPage)
            if not page.records:
                break
            records += page.records
            since = page.next
    return records


def lost(outcome: Outcome, seen: Witness) -> list[Tracked]:
    """Jobs that were accepted and are not known any more, or are said to have succeeded without ever having run."""
    never_ran = [t for t in outcome.jobs if seen.asked and t.state == "Succeeded" and t.id not in seen.ran]
    return outcome.lost + never_ran


def exit_code(outcome: Outcome, seen: Witness) -> Exit:
    """BROKEN when a job was lost, ran twice, was refused, did not end or ended otherwise than its trace says."""
    troubles = (lost(outcome, seen), seen.doubled, outcome.refused, outcome.unexpected, outcome.unended)
    return Exit.BROKEN if any(troubles) or not seen.complete else Exit.OK


def lines(outcome: Outcome, seen: Witness, processes: Sequence[Process] = ()) -> list[str]:
    """The summary for people."""
    gone, total = lost(outcome, seen), len(outcome.jobs)
    parts = [f"{outcome.count('Succeeded'):,} succeeded", f"{outcome.failed_by_design:,} failed by design"]
    parts.append(f"{len(gone):,} lost")
    parts.append(f"{len(seen.doubled):,} run twice" if seen.asked else "run twice: no audit to ask")
    waiting = [t for t in outcome.unended if not t.unknown]
    troubles = (("not ended", waiting), ("refused", outcome.refused), ("unexpected end", outcome.unexpected))
    parts += [f"{len(found):,} {what}" for what, found in troubles if found]
    out = [f"{total:,} jobs: {', '.join(parts)}"]
    if not seen.complete:
        out.append("  the audit log has lost its oldest records: it proves nothing about jobs that ran twice")
    out += [f"  {name:<22} {value}" for name, value in _measures(outcome, seen)]
    for what, found in (("lost", gone), *troubles):
        out += _named(what, found)
    out += [f"  run twice: {text}" for text in list(seen.doubled.values())[:NAMED_MAX]]
    if processes:
        rows = [
            [f"  {p.name}", show.mebibytes(p.peak_rss_bytes), f"{p.cpu_s:,.1f} s", str(p.restarts)] for p in processes
        ]
        header = ("  PROCESS", "PEAK RSS", "CPU", "RESTARTS")
        out += ["", *show.table(header, rows, right=frozenset({1, 2, 3})).splitlines()]
    return out


def data(outcome: Outcome, seen: Witness) -> dict[str, Any]:
    """The summary for programs."""
    bound = _bound_latencies(outcome, seen)
    return {
        "run": outcome.run_id,
        "queue": outcome.root,
        "jobs": len(outcome.jobs),
        "succeeded": outcome.count("Succeeded"),
        "failed_by_design": outcome.failed_by_design,
        "lost": len(lost(outcome, seen)),
        "run_twice": len(seen.doubled) if seen.asked else None,
        "not_ended": len(outcome.unended),
        "refused": len(outcome.refused),
        "unexpected": len(outcome.unexpected),
        "wall_seconds": round(outcome.wall_s, 3),
        "submit_to_bound_p50_seconds": round(quantile(bound, 0.5), 4),
        "submit_to_bound_p99_seconds": round(quantile(bound, 0.99), 4),
        "wait_p50_seconds": round(quantile(outcome.waits_s, 0.5), 4),
        "wait_p99_seconds": round(quantile(outcome.waits_s, 0.99), 4),
    }


def _measures(outcome: Outcome, seen: Witness) -> list[tuple[str, str]]:
    ended = sum(outcome.count(state) for state in ("Succeeded", "Failed", "Cancelled"))
    pods = sum(t.job.pods for t in outcome.jobs)
    wall_s = max(outcome.wall_s, 1e-3)
    found = [("wall time", f"{show.countdown(wall_s)}   {ended / wall_s:,.1f} jobs/s   {pods:,} pods")]
    found.append(("submit -> placed", _quantiles(outcome.waits_s)))
    if seen.asked:
        bound = sorted(seen.bound_s[t.id] - t.placed_s for t in outcome.jobs if t.placed_s and t.id in seen.bound_s)
        found.append(("placed -> bound", _quantiles(bound)))
        found.append(("submit -> bound", _quantiles(_bound_latencies(outcome, seen))))
    return found


def _bound_latencies(outcome: Outcome, seen: Witness) -> list[float]:
    """From sending the submission to the last pod of the first gang existing in the cluster; sorted seconds."""
    return sorted(seen.bound_s[t.id] - t.sent_s for t in outcome.jobs if t.sent_s and t.id in seen.bound_s)


def _quantiles(ordered: Sequence[float]) -> str:
    if not ordered:
        return show.NOTHING
    shown = ((name, quantile(ordered, q)) for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)))
    return "  ".join(f"{name} {show.duration(value)}" for name, value in shown)


def _named(what: str, found: Sequence[Tracked]) -> list[str]:
    if not found:
        return []
    shown = [
        f"{t.job.name} {t.id[:8]} {t.state or 'not submitted'} {t.refused or t.why}".strip() for t in found[:NAMED_MAX]
    ]
    more = f" ... and {len(found) - NAMED_MAX:,} more" if len(found) > NAMED_MAX else ""
    return [f"  {what}: {text}" for text in shown] + ([f"  {more}"] if more else [])
