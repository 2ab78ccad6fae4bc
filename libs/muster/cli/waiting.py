"""`submit --wait`: all jobs watched together, over one stream, until each of them has ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from muster.api.v1 import query_pb2
from muster.cli import show
from muster.cli.errors import Exit
from muster.client import Client, Job, Submitted

SUCCEEDED: Final = "Succeeded"


async def until_ended(client: Client, accepted: Sequence[Submitted], *, quiet: bool) -> int:
    """Tell every step as it happens, at the time it happened; JOB_FAILED if a job did not succeed."""
    left = {job.id for job in accepted}
    failed = False
    for job in accepted:
        if job.known:  # submitted before: the stream may not tell of its end any more
            now = await client.get(job.id)
            _tell(quiet, _moment(now), now.name, now.state, now.reason)
            if now.finished:
                left.discard(job.id)
                failed |= now.state != SUCCEEDED
    if left:
        filters = query_pb2.JobFilter(job_ids=sorted(left))
        first = min(job.watch_from for job in accepted if job.id in left)
        async with aclosing(client.watch(filters=filters, from_sequence=first)) as events:  # type: ignore[type-var]
            async for event in events:
                if event.job not in left:
                    continue
                _tell(quiet, show.seconds_of(event.proto.time), event.name, event.state, event.reason)
                if event.last:
                    left.discard(event.job)
                    failed |= event.state != SUCCEEDED
                if not left:
                    break
    return Exit.JOB_FAILED if failed else Exit.OK


def _moment(job: Job) -> float:
    status = job.proto.status
    return (
        show.seconds_of(status.finish_time) or show.seconds_of(status.start_time) or show.seconds_of(status.submit_time)
    )


def _tell(quiet: bool, seconds: float, name: str, state: str, reason: str) -> None:
    if not quiet:
        print(f"{show.clock(seconds)}  {name}  {state}{f' ({reason})' if reason else ''}", flush=True)
