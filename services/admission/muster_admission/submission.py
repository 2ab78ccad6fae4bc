"""Jobs come in: batches and streams of submissions, and commands on jobs.

    request -> declared rules -> each job in the core's form -> known already? queue there? -> inbox -> positions

A batch is answered job by job: the good ones are written in one go, each bad one gets its own status with the path of
its field in the request. A job that this replica already knows under the same request id is answered from the state,
so a client that repeats a batch costs no second inbox message (LOG-11).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Final

from google.protobuf import timestamp_pb2
from google.rpc import status_pb2

from muster.api.v1 import submission_pb2
from muster.core.commands import CancelJob, ReportCheckpoint, SubmitJob
from muster.core.errors import Code, Rejected
from muster.core.model import InboxPosition, JobSpec
from muster.core.submission import check_spec, find_class, find_queue
from muster.runtime.streams import inbox_subject
from muster.wire import errors, ids
from muster.wire.jobs import JobReader, Origin, without_name
from muster.wire.status import position as to_position
from muster_admission.calls import Context, Refused, abort, invalid, status_of, unary, unbuilt_call
from muster_admission.cell import Cell, refused
from muster_admission.checked import CheckedJobs, Violations
from muster_admission.identity import Identity

ITEM_PREFIX: Final = "jobs["

Results = list[submission_pb2.SubmitResult]


class SubmissionServicer:
    """muster.api.v1.SubmissionService."""

    def __init__(self, cell: Cell, identity: Identity) -> None:
        self._cell = cell
        self._identity = identity
        self._reader = JobReader()
        self._checked = CheckedJobs()

    async def SubmitJobs(  # noqa: N802  # the names of the proto
        self, request: submission_pb2.SubmitJobsRequest, context: Context
    ) -> submission_pb2.SubmitJobsResponse:
        try:
            results, ledger_seq = await self._submit(request, self._identity.user(context))
        except Exception as error:
            await abort(context, error)
            raise
        return submission_pb2.SubmitJobsResponse(results=results, ledger_sequence=ledger_seq)

    async def SubmitJobsStream(  # noqa: N802
        self, requests: AsyncIterator[submission_pb2.SubmitJobsStreamRequest], context: Context
    ) -> AsyncIterator[submission_pb2.SubmitJobsStreamResponse]:
        try:
            user = self._identity.user(context)
        except Refused as error:
            await abort(context, error)
            return
        async for request in requests:
            answer = submission_pb2.SubmitJobsStreamResponse(request_id=request.batch.request_id)
            try:
                results, ledger_seq = await self._submit(request.batch, user)
                answer.results.extend(results)
                answer.ledger_sequence = ledger_seq
            except Exception as error:
                status = status_of(error)
                if status is None:
                    raise
                answer.error.CopyFrom(status)
            yield answer

    # --- submissions ------------------------------------------------------------------------------------------------

    async def _submit(self, request: submission_pb2.SubmitJobsRequest, user: str) -> tuple[Results, int]:
        """(one result per job, ledger sequence before any of them). Raises what refuses the batch as a whole."""
        bodies = [without_name(spec) for spec in request.jobs]
        bad = _by_job(self._checked.violations(request, bodies))
        ledger_seq = self._cell.state.ledger_seq
        with self._cell.tracing.send_span(inbox_subject(self._cell.name), len(request.jobs)):
            origin = Origin(
                cell=self._cell.name,
                request_id=request.request_id,
                submitter=user,
                trace=self._cell.tracing.current(),
            )
            batch = _Batch(len(request.jobs))
            for index, spec in enumerate(request.jobs):
                try:
                    if index in bad:
                        raise Refused(invalid(bad[index]))
                    batch.take(index, self._check(self._reader.to_core(spec, index, origin, bodies[index])))
                except (Rejected, Refused) as error:
                    batch.refuse(index, _status(error, f"jobs[{index}]"))
            await self._check_names(batch)
            if request.dry_run:
                self._try_out(batch)
            else:
                await self._write(batch)
        if request.wait == submission_pb2.WAIT_DECIDED and not request.dry_run:
            await self._add_decisions(batch)
        return batch.results(), ledger_seq

    def _check(self, spec: JobSpec) -> JobSpec:
        if spec.cluster_selector:  # the one rule of `check_spec` that neither the proto nor `to_core` has
            check_spec(spec)
        return spec

    async def _check_names(self, batch: _Batch) -> None:
        """Refuse jobs whose queue or class does not exist, once this replica is surely not just late."""
        state = self._cell.state
        paths, classes = state.queues.by_path, {"", *state.classes}
        unknown = [i for i, job in batch.taken.items() if job.queue not in paths or job.priority_class not in classes]
        if not unknown:
            return
        await self._cell.follower.catch_up()
        for index in unknown:
            try:
                job = batch.taken[index]
                find_queue(self._cell.state.queues, job.queue)
                if job.priority_class:
                    find_class(self._cell.state.classes, job.priority_class)
            except Rejected as error:
                batch.refuse(index, errors.refused(error, f"jobs[{index}]"))

    async def _write(self, batch: _Batch) -> None:
        state = self._cell.state
        fresh: list[int] = []
        for index, spec in batch.taken.items():
            job, forgotten = state.jobs.get(spec.id), state.forgotten.get(spec.id)
            if job is not None and job.spec.digest == spec.digest:
                batch.positions[index] = job.submit_position
                batch.known.add(index)
            elif forgotten is not None and forgotten.digest == spec.digest:
                batch.known.add(index)
            else:
                fresh.append(index)
        positions = await self._cell.write([SubmitJob(batch.taken[index]) for index in fresh])
        batch.positions.update(zip(fresh, positions, strict=True))

    def _try_out(self, batch: _Batch) -> None:
        indices = list(batch.taken)
        outcomes = self._cell.try_out([SubmitJob(batch.taken[i]) for i in indices])
        for index, rejected in zip(indices, outcomes, strict=True):
            if rejected is not None:
                batch.refuse(index, errors.refused(rejected, f"jobs[{index}]"))

    async def _add_decisions(self, batch: _Batch) -> None:
        if not batch.positions:
            return
        indices = list(batch.positions)
        for index, refusal in zip(
            indices, await self._cell.decided([batch.positions[i] for i in indices]), strict=True
        ):
            if refusal is not None:
                batch.refuse(index, refused(refusal, f"jobs[{index}]"))

    # --- commands on jobs -------------------------------------------------------------------------------------------

    @unary
    async def CancelJobs(  # noqa: N802
        self, request: submission_pb2.CancelJobsRequest, context: Context
    ) -> submission_pb2.CancelJobsResponse:
        user = self._identity.user(context)
        results = [submission_pb2.CommandResult(job_id=reference) for reference in request.jobs]
        items: dict[int, CancelJob] = {}
        for index, reference in enumerate(request.jobs):
            try:
                job = await self._job_id(reference, f"jobs[{index}]")
            except Refused as error:
                results[index].error.CopyFrom(error.status)
                continue
            results[index].job_id = job
            items[index] = CancelJob(job=job, actor=user, reason=request.reason, request_id=request.request_id)
        if request.dry_run:
            for index, rejected in zip(items, self._cell.try_out(list(items.values())), strict=True):
                if rejected is not None:
                    results[index].error.CopyFrom(refused(rejected, f"jobs[{index}]", whole=True))
            return submission_pb2.CancelJobsResponse(results=results)
        positions = await self._cell.write(list(items.values()))
        for index, position in zip(items, positions, strict=True):
            results[index].inbox_position.CopyFrom(to_position(position))
        if positions and request.wait == submission_pb2.WAIT_DECIDED:
            for index, refusal in zip(items, await self._cell.decided(positions), strict=True):
                if refusal is not None:
                    results[index].error.CopyFrom(refused(refusal, f"jobs[{index}]", whole=True))
        return submission_pb2.CancelJobsResponse(results=results)

    @unary
    async def ReportCheckpoint(  # noqa: N802
        self, request: submission_pb2.ReportCheckpointRequest, context: Context
    ) -> submission_pb2.ReportCheckpointResponse:
        self._identity.user(context)
        now_ms = self._cell.clock.now_ms()  # of the caller who says "now", not of the decision
        command = ReportCheckpoint(
            job=await self._job_id(request.job),
            epoch=request.epoch,
            at_ms=_milliseconds(request.at) if request.HasField("at") else now_ms,
            request_id=request.request_id,
        )
        answer = submission_pb2.ReportCheckpointResponse(job_id=command.job)
        if request.wait == submission_pb2.WAIT_DECIDED or request.dry_run:
            position = await self._cell.command(command, dry_run=request.dry_run)
        else:
            (position,) = await self._cell.write([command])
        if position is not None:
            answer.inbox_position.CopyFrom(to_position(position))
        return answer

    async def _job_id(self, reference: str, field: str = "job") -> str:
        """A whole id is taken as it is: the job may be in the inbox and not yet in the state."""
        if len(reference) == ids.ID_HEX_DIGITS and set(reference) <= set("0123456789abcdef"):
            return reference
        return (await self._cell.job(reference, field)).id

    UpdateJob = unbuilt_call("UpdateJob")
    SuspendJobs = unbuilt_call("SuspendJobs")
    ResumeJobs = unbuilt_call("ResumeJobs")
    RequeueJobs = unbuilt_call("RequeueJobs")


class _Batch:
    """The jobs of one request on their way: taken, refused, written."""

    def __init__(self, size: int) -> None:
        self.taken: dict[int, JobSpec] = {}
        self.positions: dict[int, InboxPosition] = {}
        self.known: set[int] = set()  # submitted before
        self._size = size
        self._ids: dict[int, str] = {}
        self._refused: dict[int, status_pb2.Status] = {}

    def take(self, index: int, spec: JobSpec) -> None:
        self.taken[index] = spec
        self._ids[index] = spec.id

    def refuse(self, index: int, status: status_pb2.Status) -> None:
        self.taken.pop(index, None)
        self._refused[index] = status

    def results(self) -> Results:
        results: Results = []
        for index in range(self._size):
            position = self.positions.get(index)
            results.append(
                submission_pb2.SubmitResult(
                    index=index,
                    job_id=self._ids.get(index, ""),
                    inbox_position=to_position(position) if position else None,
                    error=self._refused.get(index),
                    known=index in self.known,
                )
            )
        return results


def _milliseconds(at: timestamp_pb2.Timestamp) -> int:
    """Raises Rejected for a time that no work was ever done at."""
    milliseconds = at.seconds * 1000 + at.nanos // 1_000_000
    if milliseconds <= 0:
        raise Rejected(Code.INVALID_ARGUMENT, "at", "is no time of this job", "P3")
    return milliseconds


def _by_job(found: Violations) -> dict[int, Violations]:
    """Violations of single jobs, by index. Raises Refused for those of the request as a whole."""
    by_job: dict[int, Violations] = defaultdict(list)
    whole: Violations = []
    for broken in found:
        if broken.field.startswith(ITEM_PREFIX):
            by_job[int(broken.field[len(ITEM_PREFIX) : broken.field.index("]")])].append(broken)
        else:
            whole.append(broken)
    if whole:
        raise Refused(invalid(whole))
    return by_job


def _status(error: Rejected | Refused, prefix: str) -> status_pb2.Status:
    return error.status if isinstance(error, Refused) else errors.refused(error, prefix)
