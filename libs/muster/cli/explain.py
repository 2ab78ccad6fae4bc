"""`muster explain`: the cell's explanation of a job as a few aligned lines (invariant I5, rule B4)."""

from __future__ import annotations

import time
from typing import Any

from muster.api.v1 import query_pb2
from muster.cli import show
from muster.cli.options import Format
from muster.cli.session import run, unknown_job
from muster.client import Client, Explained, Job, NotFound
from muster.core.words import several

LABEL_WIDTH = 10
ID_DIGITS = 8


def explain(name: str, *, address: str, output: Format) -> None:
    """Print why a job is where it is."""

    async def work(client: Client) -> Explained:
        try:
            return await client.explain(name)
        except NotFound as error:
            raise await unknown_job(client, name, error) from None

    found = run(address, work)
    if show.is_machine(output):
        show.emit(output, found.to_dict())
        return
    print("\n".join(lines(found, time.time())))


def lines(found: Explained, now_s: float) -> list[str]:
    """The explanation for people; `now_s` is the wall clock."""
    why = found.proto.explanation
    out = [_headline(found, now_s)]
    if why.summary:
        out += _labelled("why", [why.summary])
    return out + reasons(why)


def reasons(why: query_pb2.Explanation) -> list[str]:
    """What the job needs, what is in the way, and what would help."""
    out = _labelled("needs", [_needs(why)])
    out += _labelled("share", [_share(share) for share in why.shares])
    out += _labelled("in the way", [_blocker(blocker) for blocker in why.blockers])
    out += _labelled("ahead", [_ahead(list(why.ahead))])
    if why.unblocked_by:
        out.append(" would run at once if   " + " | ".join(why.unblocked_by))
    if why.preemption:
        out.append(f" {why.preemption}")
    return out


def _headline(found: Explained, now_s: float) -> str:
    job, why = found.job, found.proto.explanation
    parts = [f"{job.name}  {job.queue}  {job.state}"]
    if since_s := _since_s(job):
        parts[0] += " " + show.duration(max(0.0, now_s - since_s))
    if why.position:
        parts.append(f"position {why.position:,} of {why.pending:,}")
    if start := show.seconds_of(why.expected_start):
        parts.append(f"expected start {show.clock(start)} (in {show.duration(max(0.0, start - now_s))})")
    elif why.position:
        unknown = why.expected_start_unknown
        parts.append("expected start unknown" + (f": {unknown}" if unknown else ""))
    return "   ".join(parts)


def _since_s(job: Job) -> float:
    """Since when it is in its state; 0 where only the summary tells."""
    status = job.proto.status
    if job.state == "Queued":
        return 0.0 if status.epoch else show.seconds_of(status.submit_time)
    return show.seconds_of(status.start_time) if job.state == "Running" else 0.0


def _needs(why: query_pb2.Explanation) -> str:
    groups = []
    for need in why.needs:
        at_least = need.min_replicas or need.replicas
        count = str(need.replicas) if at_least == need.replicas else f"{at_least}..{need.replicas}"
        groups.append(f"{count} x ({show.amounts(need.resources)})")
    return " + ".join(groups)


def _share(share: query_pb2.QueueShare) -> str:
    """One queue of the path: what it uses, its entitlement and limit, and what this job would make of it."""
    resource = show.main_resource(share.limit, share.entitled, share.with_job, share.usage)
    used = show.one_amount(resource, share.usage) if resource in share.usage else "nothing"
    text = f"{share.queue} uses {used}"
    if resource in share.entitled:
        text += f" of {show.one_amount(resource, share.entitled)} entitled"
    if resource in share.limit:
        text += f", limit {show.one_amount(resource, share.limit)}"
    if resource in share.with_job:
        text += f"; with this job {show.one_amount(resource, share.with_job, unit=False)}"
    return text


def _blocker(blocker: query_pb2.Blocker) -> str:
    subject = f"{blocker.subject}: " if blocker.subject else ""
    if blocker.message:
        text = blocker.message if blocker.subject in blocker.message else subject + blocker.message
    else:
        text = f"{subject}{blocker.kind}"
    numbers: list[Any] = []
    if blocker.resource and blocker.missing and blocker.missing not in text:
        numbers.append(f"short by {show.amounts({blocker.resource: blocker.missing})}")
    if blocker.nodes and str(blocker.nodes) not in text.replace(",", ""):
        numbers.append(f"on {several(blocker.nodes, 'node')}")
    if numbers:
        text += f" ({', '.join(numbers)})"
    return f"{text}  [{blocker.rule}]" if blocker.rule else text


def _ahead(jobs: list[str]) -> str:
    """On one line; ids by their first digits, as `muster get` takes them."""
    return ", ".join(job[:ID_DIGITS] if len(job) == 32 and job.isalnum() else job for job in jobs)


def _labelled(label: str, texts: list[str]) -> list[str]:
    """Lines under one label; the label only on the first."""
    return [
        f" {label if first else '':<{LABEL_WIDTH}} {text}"
        for first, text in ((i == 0, t) for i, t in enumerate(t for t in texts if t))
    ]
