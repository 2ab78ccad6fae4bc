"""Reads: answered from this replica's follower, never from the leader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import islice
from typing import Final

from muster.api.v1 import query_pb2
from muster.core.errors import Code, Rejected
from muster.core.explain import explain
from muster.core.submission import find_queue
from muster.wire import explanations, status
from muster.wire.queues import request_field
from muster.wire.usage import usage_response
from muster_admission.calls import Context, abort, check, unary
from muster_admission.cell import Cell
from muster_admission.filters import JobFilter
from muster_admission.forecasts import Forecaster
from muster_admission.identity import Identity
from muster_admission.listing import page_of
from muster_admission.overview import Overview
from muster_admission.watching import WatchHub

REPLICAS_PAGE: Final = 1000


class QueryServicer:
    """muster.api.v1.QueryService."""

    def __init__(
        self, cell: Cell, identity: Identity, *, hub: WatchHub, overview: Overview, forecaster: Forecaster
    ) -> None:
        self._cell = cell
        self._identity = identity
        self._hub = hub
        self._overview = overview
        self._forecaster = forecaster

    @unary
    async def GetJob(  # noqa: N802  # the names of the proto
        self, request: query_pb2.GetJobRequest, context: Context
    ) -> query_pb2.GetJobResponse:
        self._identity.user(context)
        await self._cell.reach(request.min_position)
        job = await self._cell.job(request.job)
        state = self._cell.state
        return query_pb2.GetJobResponse(job=status.full(state, job), ledger_sequence=state.ledger_seq)

    @unary
    async def ListJobs(  # noqa: N802
        self, request: query_pb2.ListJobsRequest, context: Context
    ) -> query_pb2.ListJobsResponse:
        self._identity.user(context)
        await self._cell.reach(request.min_position)
        state = self._cell.state
        ledger_seq = state.ledger_seq  # of before the walk: what happens during it is seen again by a watch
        jobs, token = await page_of(state, request)
        return query_pb2.ListJobsResponse(
            jobs=[status.brief(state, job) for job in jobs], next_page_token=token, ledger_sequence=ledger_seq
        )

    async def WatchJobs(  # noqa: N802
        self, request: query_pb2.WatchJobsRequest, context: Context
    ) -> AsyncIterator[query_pb2.WatchJobsResponse]:
        try:
            check(request)
            self._identity.user(context)
            await self._cell.reach(request.min_position)
            watch = self._hub.watch(JobFilter(request.filter), request.from_sequence)
            async with aclosing(watch) as answers:
                async for answer in answers:
                    yield answer
        except Exception as error:
            await abort(context, error)
            raise

    @unary
    async def ExplainJob(  # noqa: N802
        self, request: query_pb2.ExplainJobRequest, context: Context
    ) -> query_pb2.ExplainJobResponse:
        self._identity.user(context)
        await self._cell.reach(request.min_position)
        job = await self._cell.job(request.job)
        state = self._cell.state
        return query_pb2.ExplainJobResponse(
            job=status.brief(state, job),
            explanation=explanations.to_proto(explain(state, job.id, self._cell.clock.now_ms())),
            ledger_sequence=state.ledger_seq,
        )

    @unary
    async def ListReplicas(  # noqa: N802
        self, request: query_pb2.ListReplicasRequest, context: Context
    ) -> query_pb2.ListReplicasResponse:
        self._identity.user(context)
        await self._cell.reach(request.min_position)
        job = await self._cell.job(request.job)
        epoch, start = _replica_token(request.page_token, job.epoch)
        size = request.page_size or REPLICAS_PAGE
        state = self._cell.state
        page = list(islice(status.replicas(state, job), start, start + size + 1))
        return query_pb2.ListReplicasResponse(
            epoch=epoch,
            replicas=page[:size],
            next_page_token=f"{epoch}.{start + size}" if len(page) > size else "",
            ledger_sequence=state.ledger_seq,
        )

    @unary
    async def WhatIf(  # noqa: N802
        self, request: query_pb2.WhatIfRequest, context: Context
    ) -> query_pb2.WhatIfResponse:
        user = self._identity.user(context)
        await self._cell.reach(request.min_position)
        ledger_seq = self._cell.state.ledger_seq
        if request.WhichOneof("question") == "queues":
            try:
                changes = self._forecaster.queues(request.queues)
            except Rejected as why:
                field = request_field(why.field, [queue.path for queue in request.queues.queues])
                raise Rejected(why.code, f"queues.{field}", why.message, why.rule) from None
            return query_pb2.WhatIfResponse(queues=changes, ledger_sequence=ledger_seq)
        return query_pb2.WhatIfResponse(job=self._forecaster.job(request.job, user), ledger_sequence=ledger_seq)

    @unary
    async def GetUsage(  # noqa: N802
        self, request: query_pb2.GetUsageRequest, context: Context
    ) -> query_pb2.GetUsageResponse:
        self._identity.user(context)
        await self._cell.reach(request.min_position)
        state = self._cell.state
        queues: set[str] | None = None
        if request.queue:
            queues = state.accounts.removed_below(request.queue.strip("/"))
            if not queues or state.queues.find(request.queue) is not None:
                root = find_queue(state.queues, request.queue, "queue")
                queues |= {queue.id for queue in state.queues.subtree(root.id)}
        now_ms = max(state.now_ms, self._cell.clock.now_ms())
        return usage_response(
            state,
            state.accounts.report(request.since.ToMilliseconds(), now_ms),
            group_by=request.group_by,
            queues=queues,
            namespace=request.namespace,
            user=request.user,
        )

    @unary
    async def GetCell(  # noqa: N802
        self, request: query_pb2.GetCellRequest, context: Context
    ) -> query_pb2.GetCellResponse:
        self._identity.user(context)
        await self._cell.reach(request.min_position)
        return await self._overview.answer()


def _replica_token(token: str, epoch: int) -> tuple[int, int]:
    """(epoch, first pod). Raises Rejected when the job was placed anew since the page before."""
    if not token:
        return epoch, 0
    of_epoch, _, start = token.partition(".")
    if not (of_epoch.isdecimal() and start.isdecimal()):
        raise Rejected(Code.INVALID_ARGUMENT, "page_token", "is not a token of this API")
    if int(of_epoch) != epoch:
        raise Rejected(Code.ABORTED, "page_token", "the job was placed anew: list again")
    return epoch, int(start)
