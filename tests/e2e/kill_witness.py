"""The judgement of a kill run, property by property; each returns what is wrong, and nothing when all is well.

Who ran what when is asked only of the simulated API server's audit file. What was decided is read from the ledger, what
was told from the stream EVENTS and from what a client of `WatchJobs` got.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tests.e2e.kill_jobs import CANCELLED, FAILED, SUCCEEDED
from tests.e2e.kill_run import LEADER, Kill, Run

from muster.cli import show
from muster.core import transitions as tr
from muster.core.apply import apply_transaction
from muster.core.model import InboxPosition
from muster.core.replay import replay
from muster.core.state import CellState
from muster.runtime.ports import StoredMessage
from muster.sim.cluster import audit
from muster.wire import codec, events

CELL = "main"
AFTER_KILL_S = 10.0  # how long after a kill the ledger's longest silence is looked for
TERMINAL = {tr.JobSucceeded: SUCCEEDED, tr.JobFailed: FAILED, tr.JobCancelled: CANCELLED}
SHOWN = 8


def lost_or_wrong(run: Run) -> list[str]:
    """Acknowledged jobs that are not known, have not ended, or ended otherwise than they must; by what a client is
    told and by the ledger."""
    wrong = []
    decided = endings(run)
    for job_id, planned in run.acknowledged.items():
        answer = run.answers.get(job_id)
        if answer is None:
            wrong.append(f"{planned.name} is lost")
        elif answer.state != planned.expected or answer.proto.status.exit_code != planned.exit_code:
            wrong.append(
                f"{planned.name} is {answer.state} ({answer.reason}, exit code {answer.proto.status.exit_code}: "
                f"{answer.message}), must be {planned.expected} ({planned.exit_code})"
            )
        if decided[job_id] != [planned.expected]:
            wrong.append(f"{planned.name} ended as {decided[job_id]} in the ledger, must once be {planned.expected}")
    return wrong


def endings(run: Run) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for _, tx in transactions(run):
        for transition in tx.transitions:
            if type(transition) in TERMINAL:
                found[transition.job].append(TERMINAL[type(transition)])
    return found


def queued_otherwise_than_once(run: Run) -> list[str]:
    """Jobs accepted twice although the client only repeated itself (LOG-11), or never, or never asked for."""
    counts = Counter(t.spec.id for _, tx in transactions(run) for t in tx.transitions if isinstance(t, tr.JobQueued))
    wrong = [
        f"{planned.name}: queued {counts[job]} times" for job, planned in run.acknowledged.items() if counts[job] != 1
    ]
    return wrong + [f"job {job}: nobody got an acknowledgement" for job in counts if job not in run.acknowledged]


def duplicates(run: Run) -> list[str]:
    """Pods that ran twice, epochs that coexisted, work repeated: by the audit file alone (I4, LOG-15)."""
    sizes = {job: planned.pods for job, planned in run.acknowledged.items()}
    verdict = audit.judge(run.audit, job_sizes=sizes)
    wrong = [f"{v.rule}: {v.job[:8]} {v.message}" for v in verdict.violations]
    if not verdict.complete:
        wrong.append("the audit file has a hole")
    return wrong


def ran_more_often_than_placed(run: Run) -> list[str]:
    """A pod of a job that was never requeued ran once at most, and once exactly if its job succeeded."""
    runs: dict[str, Counter[str]] = defaultdict(Counter)
    for record in run.audit:
        if record.resource == "pods" and record.verb == audit.RUN and record.job:
            runs[record.job][record.pod] += 1
    again = set(requeues(run))
    wrong = []
    for job, planned in run.acknowledged.items():
        if job in again:
            continue
        if extra := {pod: count for pod, count in runs[job].items() if count > 1}:
            wrong.append(f"{planned.name} was never requeued and ran pods again: {extra}")
        if planned.expected == SUCCEEDED and len(runs[job]) != planned.pods:
            wrong.append(f"{planned.name} succeeded and ran {len(runs[job])} of its {planned.pods} pods")
    return wrong + [f"{job}: pods of a job that nobody submitted ran" for job in runs if job not in run.acknowledged]


def requeues(run: Run) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for _, tx in transactions(run):
        for transition in tx.transitions:
            if isinstance(transition, tr.JobRequeued):
                found[transition.job].append(transition.reason)
    return found


def transactions(run: Run) -> list[tuple[StoredMessage, tr.Transaction]]:
    return [(message, codec.decode_transaction(message.data)) for message in run.ledger]


def broken_ledger(run: Run) -> list[str]:
    """Transactions that do not follow the one before, or came from a leader that was deposed already (LOG-4)."""
    wrong, epoch = [], 0
    for message, tx in transactions(run):
        if tx.header.prev != message.seq - 1:
            wrong.append(f"ledger {message.seq} builds on {tx.header.prev}")
        if tx.header.epoch < epoch:
            wrong.append(f"ledger {message.seq} is of epoch {tx.header.epoch} after one of {epoch}")
        epoch = max(epoch, tx.header.epoch)
    return wrong


def not_replayed(run: Run) -> list[str]:
    """Transactions that the recorded inbox does not give again, whoever led (I8)."""
    items = [
        (InboxPosition(message.seq, index), item)
        for message in run.inbox
        for index, item in enumerate(codec.decode_inbox(message.data))
    ]
    ledger = ((message.seq, tx) for message, tx in transactions(run))
    found = (replayed.difference() for replayed in replay(CellState(CELL), ledger, items))
    return [str(difference) for difference in found if difference is not None]


# --- what was told --------------------------------------------------------------------------------------------------


def wrong_events(run: Run) -> list[str]:
    """EVENTS against the ledger: the same ids in the same order, saying the same; and live readers got just that."""
    state = CellState(CELL)
    names = events.Remembering(events.StateNames(lambda: state))
    expected = []
    for message, tx in transactions(run):
        apply_transaction(state, tx, message.seq)
        names.observe(tx)
        expected += events.public_events(tx, message.seq, names, CELL)
    told = [message for message in run.public if events.id_of(message.headers or {}) <= (run.ledger[-1].seq, 1 << 30)]
    wrong = _unequal(
        "EVENTS", [events.id_of(m.headers or {}) for m in told], [(e.ledger_seq, e.index) for e in expected]
    )
    for message, event in zip(told, expected, strict=False):
        subject, headers, _ = events.cloud_event(event, CELL)
        if (message.subject, (message.headers or {}).get("ce-subject")) != (subject, headers["ce-subject"]):
            wrong.append(f"event {event.id} is {message.subject}, must be {subject}")
    wrong += _unequal(
        "the live reader of EVENTS", [m.seq for m in run.public_tail][: len(run.public)], [m.seq for m in run.public]
    )
    wrong += _unequal(
        "the live reader of the ledger",
        [m.seq for m in run.ledger_tail][: len(run.ledger)],
        [m.seq for m in run.ledger],
    )
    watched = [(e.sequence, e.proto.index) for e in run.watched if e.sequence <= run.ledger[-1].seq]
    wrong += _unequal("WatchJobs", watched, [(e.ledger_seq, e.index) for e in expected if events.job_event_proto(e)])
    return wrong


def _unequal(what: str, got: list, wanted: list) -> list[str]:
    if got == wanted:
        return []
    if any(after <= before for before, after in pairwise(got)):
        return [f"{what}: ids are not strictly ordered"]
    missing, extra = sorted(set(wanted) - set(got)), sorted(set(got) - set(wanted))
    return [f"{what}: {len(missing)} missing {missing[:SHOWN]}, {len(extra)} too many {extra[:SHOWN]}"]


# --- how long nobody led --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Takeover:
    """From the death (or pause) of a leader to the LeaderElected of another, and how long nothing was committed."""

    kill: Kill
    leader: str
    after_s: float
    gap_s: float


def takeovers(run: Run) -> list[Takeover]:
    found, stored = [], transactions(run)
    for kill in (k for k in (*run.kills, *run.pauses) if k.target == LEADER or k in run.pauses):
        before_ms = 0
        for message, tx in stored:
            elected = next((t for t in tx.transitions if isinstance(t, tr.LeaderElected)), None)
            if elected is not None and message.time_ms >= kill.at_s * 1000 and elected.leader != kill.child:
                found.append(
                    Takeover(
                        kill, elected.leader, message.time_ms / 1000 - kill.at_s, (message.time_ms - before_ms) / 1000
                    )
                )
                break
            before_ms = message.time_ms
        else:
            found.append(Takeover(kill, "nobody", float("inf"), float("inf")))
    return found


def silences(run: Run) -> dict[str, list[float]]:
    """Target -> the longest time without a commit after each kill, up to the next kill or AFTER_KILL_S."""
    times = [message.time_ms / 1000 for message in run.ledger]
    kills = sorted((*run.kills, *run.pauses), key=lambda kill: kill.at_s)
    found: dict[str, list[float]] = defaultdict(list)
    for kill, following in zip(kills, [*kills[1:], None], strict=True):
        until_s = kill.at_s + AFTER_KILL_S
        if following is not None:
            until_s = min(until_s, following.at_s)
        clipped = ((max(before, kill.at_s), min(after, until_s)) for before, after in pairwise(times))
        near = [after - before for before, after in clipped if after > before]
        found[kill.target].append(max(near, default=0.0))
    return found


def died_by_themselves(run: Run, *, may_starve: bool = False) -> list[str]:
    """Processes that ended although nobody killed them: what others go through must not end a service. But a leader
    that the machine lets starve (`may_starve`) for longer than its lease lives ends deposed, and has to."""
    killed = Counter(kill.child for kill in (*run.kills, *run.pauses))
    allowed = killed + Counter(run.deposed if may_starve else {})
    return [
        f"{name}: killed {killed[name]}, restarted {count}, deposed {run.deposed.get(name, 0)}"
        for name, count in run.restarts.items()
        if count > allowed[name]
    ]


# --- for people -----------------------------------------------------------------------------------------------------


def report(run: Run) -> str:
    """What happened, as a table."""
    by_target, quiet, takes = Counter(k.target for k in run.kills), silences(run), takeovers(run)
    rows = []
    for target, gaps in quiet.items():
        count = by_target[target] or len(run.pauses)
        rows.append([f"  {target}", str(count), f"{median(gaps):.2f} s", f"{max(gaps):.2f} s"])
    after, gap = sorted(t.after_s for t in takes), sorted(t.gap_s for t in takes)
    states = Counter(job.state for job in run.answers.values())
    killed = Counter(k.child for k in run.kills)
    verdict = audit.judge(run.audit, job_sizes={job: planned.pods for job, planned in run.acknowledged.items()})
    reasons = Counter(reason for found in requeues(run).values() for reason in found)
    pods, refused = sum(p.pods for p in run.acknowledged.values()), sum(p.refused_commit for p in run.pauses)
    lines = [
        "",
        show.table(("  KILLED", "TIMES", "SILENCE P50", "MAX"), rows, right=frozenset({1, 2, 3})),
        f"  kills {len(run.kills)}, by process: {_counts(killed)}",
        f"  restarts: {_counts(run.restarts)}",
        f"  pauses of the leader: {len(run.pauses)}, ended by a refused commit: {refused}",
        f"  another leads after: median {median(after):.2f} s, max {max(after):.2f} s "
        f"(nothing committed for: median {median(gap):.2f} s, max {max(gap):.2f} s)",
        f"  {len(run.acknowledged)} jobs acknowledged, {pods} pods: {_counts(states)}",
        f"  calls: {_counts(run.calls)}",
        f"  requeues: {_counts(reasons) or 'none'}",
        f"  audit: {_counts(verdict.counts)}",
        f"  duplicates: {len(verdict.violations)}   lost or wrong: {len(lost_or_wrong(run))}",
        f"  ledger {len(run.ledger)}, inbox {len(run.inbox)}, events {len(run.public)}, watched {len(run.watched)}",
        f"  wall time {run.wall_s:.0f} s, seed {run.seed}",
    ]
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count)
