"""Watches that survive: after a lost connection, a restarted server or a cut for slowness they go on where they were.

The server names the ledger sequence with every answer. A resumed watch asks again from the last sequence it saw,
because a transaction holds many events, and drops those it has already delivered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import grpc.aio

from muster.api.v1 import events_pb2, query_pb2
from muster.client import errors
from muster.client.views import TERMINAL, Event, Job

if TYPE_CHECKING:
    from muster.client.connection import Client

RESUME_PAUSE_S: Final = 0.2
RESUMABLE: Final = frozenset({"UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL"})


async def watch(client: Client, filters: query_pb2.JobFilter | None, from_sequence: int) -> AsyncIterator[Event]:
    """Events from `from_sequence` on (0: from now), for ever. Raises Unavailable after `timeout_s` of silence."""
    async for event in _answers(client, filters, from_sequence):
        if event is not None:
            yield event


async def watch_job(client: Client, job: str, from_sequence: int) -> AsyncIterator[Event]:
    """The story of one job until it ends."""
    known = None if from_sequence else await client.get(job)
    job_id = known.id if known else job
    if known and known.finished:
        yield _present(known, 0)
        return
    async for event in _answers(client, query_pb2.JobFilter(job_ids=[job_id]), from_sequence):
        if event is None:  # the watch is open: what happened before the call is in the state read now
            if known is not None:
                present = await client.get(job_id)
                known = None
                yield _present(present, 0)
                if present.finished:
                    return
            continue
        yield event
        if event.last or (_refused(event) and not await _exists(client, job_id)):
            return


def _refused(event: Event) -> bool:
    """Either the job was not taken, or another body came under the request id of one that was."""
    return event.type == "command.refused" and event.proto.command == "SubmitJob"


async def _exists(client: Client, job_id: str) -> bool:
    try:
        await client.get(job_id)
    except errors.NotFound:
        return False
    return True


async def _answers(
    client: Client, filters: query_pb2.JobFilter | None, from_sequence: int
) -> AsyncIterator[Event | None]:
    """Events, and None for each answer that only tells the sequence."""
    sequence, delivered = from_sequence, (0, -1)
    silent_since = time.monotonic()
    while True:
        request = query_pb2.WatchJobsRequest(filter=filters, from_sequence=sequence)
        try:
            async for answer in client.query.WatchJobs(request, metadata=client.metadata):
                silent_since = time.monotonic()
                sequence = answer.ledger_sequence
                if not answer.HasField("event"):
                    yield None
                    continue
                place = (answer.event.ledger_sequence, answer.event.index)
                if place > delivered:
                    delivered = place
                    yield Event(answer.event)
            error: errors.ClientError = errors.Unavailable("UNAVAILABLE", "the server ended the watch")
        except grpc.aio.AioRpcError as failure:
            error = errors.from_call(failure)
        if error.code not in RESUMABLE or time.monotonic() - silent_since > client.timeout_s:
            raise error
        await asyncio.sleep(RESUME_PAUSE_S)


def _present(job: Job, sequence: int) -> Event:
    """A job's present state as an event of type `job.state`."""
    status, spec = job.proto.status, job.proto.spec
    kind = f"job.{job.state.lower()}" if job.state in TERMINAL else "job.state"
    return Event(
        events_pb2.JobEvent(
            type=kind,
            job_id=job.id,
            name=spec.name,
            namespace=spec.namespace,
            queue=job.queue,
            state=status.state,
            reason=status.reason,
            message=status.message,
            ledger_sequence=sequence,
            epoch=status.epoch,
            exit_code=status.exit_code,
        )
    )
