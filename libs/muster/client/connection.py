"""The connection to a cell's admission service: one asynchronous call per thing a user does.

Retries are part of the contract: a call that found nobody (UNAVAILABLE), took too long or met a full inbox is sent
again with the same request id until `timeout_s` is over, waiting as long as the server says or a little longer each
time. Reads see the client's own writes: the newest inbox position a write returned goes along with every read (LOG-12).
A name or id prefix stands for a job wherever `job` is asked for.
"""

from __future__ import annotations

import asyncio
import datetime
import random
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Literal, TypeVar

import grpc
import grpc.aio
from google.protobuf import field_mask_pb2

from muster.api.v1 import (
    admin_pb2_grpc,
    job_pb2,
    query_pb2,
    query_pb2_grpc,
    queue_pb2,
    queue_pb2_grpc,
    submission_pb2,
    submission_pb2_grpc,
)
from muster.client import errors, requests, tracing, watching
from muster.client.classes import ClassCalls
from muster.client.planning import PlanningCalls
from muster.client.requests import new_request_id, queue_message
from muster.client.views import CommandOutcome, Event, Explained, Job, JobPage, Queue, Submitted

TIMEOUT_S: Final = 30.0
ATTEMPT_TIMEOUT_S: Final = 10.0
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
REMEMBERED_JOBS_MAX: Final = 100_000
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024

Wait = Literal["accepted", "decided"]
WAITS: Final = {"accepted": submission_pb2.WAIT_ACCEPTED, "decided": submission_pb2.WAIT_DECIDED}

T = TypeVar("T")


def connect(address: str = "127.0.0.1:7070", *, token: str = "", timeout_s: float = TIMEOUT_S) -> Client:
    """A client for `async with`. `token`: the caller's bearer token; `timeout_s` bounds each call with its retries."""
    return Client(address, token=token, timeout_s=timeout_s)


class Client(PlanningCalls, ClassCalls):
    """One connection, for one event loop. Use it as an asynchronous context manager."""

    def __init__(self, address: str, *, token: str = "", timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        options = (
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.keepalive_time_ms", 30_000),
        )
        self.channel = grpc.aio.insecure_channel(address, options=options, interceptors=tracing.interceptors())
        self.submission: submission_pb2_grpc.SubmissionServiceAsyncStub
        self.submission = submission_pb2_grpc.SubmissionServiceStub(self.channel)
        self.query: query_pb2_grpc.QueryServiceAsyncStub
        self.query = query_pb2_grpc.QueryServiceStub(self.channel)
        self.queues: queue_pb2_grpc.QueueServiceAsyncStub
        self.queues = queue_pb2_grpc.QueueServiceStub(self.channel)
        self.admin: admin_pb2_grpc.AdminServiceAsyncStub
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self._newest = (0, 0)
        self._submitted_at: OrderedDict[str, int] = OrderedDict()  # job id -> ledger sequence before its story

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.channel.close()

    # --- jobs: writes -----------------------------------------------------------------------------------------------

    async def submit(
        self, spec: job_pb2.JobSpec, *, request_id: str = "", wait: Wait = "accepted", dry_run: bool = False
    ) -> Submitted:
        """Submit one job. Raises Refused with the field that is wrong. Without a request id a new one is chosen."""
        (result,) = await self.submit_many([spec], request_id=request_id, wait=wait, dry_run=dry_run)
        if isinstance(result, errors.ClientError):
            raise result
        return result

    async def submit_many(
        self,
        specs: Sequence[job_pb2.JobSpec],
        *,
        request_id: str = "",
        wait: Wait = "accepted",
        dry_run: bool = False,
    ) -> Sequence[Submitted | errors.ClientError]:
        """Submit jobs; one result per job, in order: accepted, or why not.

        More jobs, or larger ones, than a request takes go in several, whose request ids follow from `request_id`.
        Raises what ends a request as a whole; repeating the call with the same request id is safe.
        """
        results: list[Submitted | errors.ClientError] = []
        for part in requests.batches(specs, request_id or new_request_id()):
            if part.refusal is not None:
                results.append(part.refusal)
                continue
            request = submission_pb2.SubmitJobsRequest(
                request_id=part.request_id, jobs=part.jobs, dry_run=dry_run, wait=WAITS[wait]
            )
            response = await self._call(self.submission.SubmitJobs, request)
            for result, spec in zip(response.results, part.jobs, strict=True):
                result.index += part.first
                answer = self._submitted(result, spec, response.ledger_sequence)
                results.append(requests.moved(answer, part.first) if isinstance(answer, errors.ClientError) else answer)
        return results

    async def submit_stream(
        self, batches: AsyncIterator[tuple[str, Sequence[job_pb2.JobSpec]]]
    ) -> AsyncIterator[tuple[str, Sequence[Submitted | errors.ClientError]]]:
        """Submit (request id, jobs) batches over one call; yields (request id, results) in the same order.

        No retries: a broken stream raises, and batches without an answer may be sent again with the same request ids.
        """
        sent: asyncio.Queue[Sequence[job_pb2.JobSpec]] = asyncio.Queue()

        async def requests() -> AsyncIterator[submission_pb2.SubmitJobsStreamRequest]:
            async for request_id, specs in batches:
                sent.put_nowait(specs)
                batch = submission_pb2.SubmitJobsRequest(request_id=request_id, jobs=specs)
                yield submission_pb2.SubmitJobsStreamRequest(batch=batch)

        try:
            async for response in self.submission.SubmitJobsStream(requests(), metadata=self._metadata):
                specs = sent.get_nowait()
                if response.HasField("error"):
                    yield response.request_id, [errors.from_status(response.error)] * len(specs)
                    continue
                pairs = zip(response.results, specs, strict=True)
                yield response.request_id, [self._submitted(r, s, response.ledger_sequence) for r, s in pairs]
        except grpc.aio.AioRpcError as error:
            raise errors.from_call(error) from None

    async def cancel(
        self, *jobs: str, reason: str = "", wait: Wait = "decided", dry_run: bool = False
    ) -> Sequence[CommandOutcome]:
        """Cancel jobs; one outcome per job, in order."""
        request = submission_pb2.CancelJobsRequest(
            request_id=new_request_id(), jobs=jobs, reason=reason, dry_run=dry_run, wait=WAITS[wait]
        )
        response = await self._call(self.submission.CancelJobs, request)
        return [self._outcome(result) for result in response.results]

    async def checkpoint(
        self,
        job: str,
        *,
        at: datetime.datetime | None = None,
        epoch: int = 0,
        wait: Wait = "decided",
        dry_run: bool = False,
    ) -> str:
        """The work of a running job is safe up to `at` (now), in this epoch of it (0: the current one). Its id.

        Raises Refused when the job does not run, or no longer in that epoch.
        """
        request = submission_pb2.ReportCheckpointRequest(
            request_id=new_request_id(), job=job, epoch=epoch, dry_run=dry_run, wait=WAITS[wait]
        )
        if at is not None:
            request.at.FromDatetime(at)
        response = await self._call(self.submission.ReportCheckpoint, request)
        self._saw(response.inbox_position)
        return str(response.job_id)

    # --- jobs: reads ------------------------------------------------------------------------------------------------

    async def get(self, job: str) -> Job:
        """Raises NotFound."""
        response = await self._call(self.query.GetJob, query_pb2.GetJobRequest(job=job, min_position=self._position()))
        return Job(response.job)

    async def list_page(
        self,
        filters: query_pb2.JobFilter | None = None,
        *,
        size: int = 100,
        token: str = "",
        newest_first: bool = False,
    ) -> JobPage:
        """One page of the jobs that match, by submit time."""
        request = query_pb2.ListJobsRequest(
            filter=filters, page_size=size, page_token=token, descending=newest_first, min_position=self._position()
        )
        response = await self._call(self.query.ListJobs, request)
        return JobPage([Job(job) for job in response.jobs], response.next_page_token, response.ledger_sequence + 1)

    async def list(
        self, filters: query_pb2.JobFilter | None = None, *, limit: int = 0, newest_first: bool = False
    ) -> AsyncIterator[Job]:
        """All jobs that match (at most `limit`, if set), page by page."""
        token, left = "", limit or 1 << 62
        while left > 0:
            page = await self.list_page(filters, size=min(left, 1000), token=token, newest_first=newest_first)
            for job in page.jobs:
                yield job
            left -= len(page.jobs)
            token = page.next_page_token
            if not token:
                return

    async def watch(
        self, job: str = "", *, filters: query_pb2.JobFilter | None = None, from_sequence: int = 0
    ) -> AsyncIterator[Event]:
        """What happens to jobs, resumed by itself over lost connections, each event once.

        With `job`, its story from the submission on if this client submitted it (else from now on, its present state
        first), until it ends. Without, everything that `filters` let through, for ever. Raises WatchExpired when
        `from_sequence` is older than what the cell keeps.
        """
        if not job:
            async for event in watching.watch(self, filters, from_sequence):
                yield event
            return
        async for event in watching.watch_job(self, job, from_sequence or self._submitted_at.get(job, 0)):
            yield event

    async def explain(self, job: str) -> Explained:
        request = query_pb2.ExplainJobRequest(job=job, min_position=self._position())
        return Explained(await self._call(self.query.ExplainJob, request))

    async def replicas(self, job: str) -> Sequence[job_pb2.Replica]:
        """The pods of the job's current placement."""
        replicas, token = [], ""
        while True:
            request = query_pb2.ListReplicasRequest(job=job, page_token=token, min_position=self._position())
            response = await self._call(self.query.ListReplicas, request)
            replicas += response.replicas
            token = response.next_page_token
            if not token:
                return replicas

    async def cell(self) -> query_pb2.GetCellResponse:
        """The cell at a glance: leader, sequences, jobs by state, capacity and usage."""
        summary: query_pb2.GetCellResponse = await self._call(self.query.GetCell, query_pb2.GetCellRequest())
        return summary

    # --- queues -----------------------------------------------------------------------------------------------------

    async def create_queue(self, path: str, *, dry_run: bool = False, **fields: Any) -> Queue:
        """Create a queue. `fields` are those of the Queue message: weight=2, limit={"cpu": "100"}, state="OPEN"..."""
        request = queue_pb2.CreateQueueRequest(
            request_id=new_request_id(), queue=queue_message(path, fields), dry_run=dry_run
        )
        response = await self._call(self.queues.CreateQueue, request)
        return self._queue(response)

    async def get_queue(self, path: str) -> Queue:
        request = queue_pb2.GetQueueRequest(path=path, min_position=self._position())
        return Queue((await self._call(self.queues.GetQueue, request)).queue)

    async def list_queues(self, root: str = "") -> Sequence[Queue]:
        """The queues of a subtree, parents first."""
        request = queue_pb2.ListQueuesRequest(root=root, min_position=self._position())
        return [Queue(queue) for queue in (await self._call(self.queues.ListQueues, request)).queues]

    async def update_queue(
        self, path: str, *, expected_revision: int = 0, dry_run: bool = False, **fields: Any
    ) -> Queue:
        """Change the named fields and no others."""
        request = queue_pb2.UpdateQueueRequest(
            request_id=new_request_id(),
            queue=queue_message(path, fields),
            update_mask=field_mask_pb2.FieldMask(paths=sorted(fields)),
            expected_revision=expected_revision,
            dry_run=dry_run,
        )
        return self._queue(await self._call(self.queues.UpdateQueue, request))

    async def move_queue(self, path: str, new_path: str, *, expected_revision: int = 0, dry_run: bool = False) -> Queue:
        """Give a queue another place or name; everything below it and its jobs go with it."""
        request = queue_pb2.UpdateQueueRequest(
            request_id=new_request_id(),
            queue=queue_pb2.Queue(path=path),
            expected_revision=expected_revision,
            dry_run=dry_run,
            new_path=new_path,
        )
        return self._queue(await self._call(self.queues.UpdateQueue, request))

    async def delete_queue(self, path: str, *, expected_revision: int = 0, dry_run: bool = False) -> None:
        request = queue_pb2.DeleteQueueRequest(
            request_id=new_request_id(), path=path, expected_revision=expected_revision, dry_run=dry_run
        )
        response = await self._call(self.queues.DeleteQueue, request)
        self._saw(response.inbox_position)

    # --- the call itself --------------------------------------------------------------------------------------------

    async def _call(self, method: Callable[..., Any], request: Any) -> Any:
        """One unary call with its retries. Raises ClientError."""
        deadline = time.monotonic() + self._timeout_s
        backoff_s = BACKOFF_FIRST_S
        while True:
            left_s = deadline - time.monotonic()
            try:
                return await method(
                    request, timeout=max(0.001, min(left_s, ATTEMPT_TIMEOUT_S)), metadata=self._metadata
                )
            except grpc.aio.AioRpcError as failure:
                error = errors.from_call(failure)
            pause_s = max(error.retry_after_s or 0.0, backoff_s * random.uniform(0.5, 1.0))
            if error.rule or not isinstance(error, errors.Unavailable) or time.monotonic() + pause_s >= deadline:
                raise error  # a rule that is broken, such as a quota, is not kept by asking again at once
            await asyncio.sleep(pause_s)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    @property
    def timeout_s(self) -> float:
        return self._timeout_s

    def _position(self) -> job_pb2.InboxPosition | None:
        sequence, item = self._newest
        return job_pb2.InboxPosition(sequence=sequence, item=item) if sequence else None

    def _saw(self, position: job_pb2.InboxPosition) -> tuple[int, int]:
        seen = (position.sequence, position.item)
        self._newest = max(self._newest, seen)
        return seen

    def _submitted(
        self, result: submission_pb2.SubmitResult, spec: job_pb2.JobSpec, ledger_sequence: int
    ) -> Submitted | errors.ClientError:
        if result.HasField("error"):
            return errors.from_status(result.error)
        position = self._saw(result.inbox_position) if result.HasField("inbox_position") else None
        if position and not result.known:
            self._submitted_at[result.job_id] = ledger_sequence + 1
            if len(self._submitted_at) > REMEMBERED_JOBS_MAX:
                self._submitted_at.popitem(last=False)
        namespace = spec.namespace or "default"
        watch_from = ledger_sequence + 1
        return Submitted(result.job_id, spec.name, namespace, result.index, position, watch_from, result.known)

    def _outcome(self, result: submission_pb2.CommandResult) -> CommandOutcome:
        error = errors.from_status(result.error) if result.HasField("error") else None
        position = self._saw(result.inbox_position) if result.HasField("inbox_position") else None
        return CommandOutcome(result.job_id, position, error)

    def _queue(self, response: Any) -> Queue:
        self._saw(response.inbox_position)
        return Queue(response.queue)
