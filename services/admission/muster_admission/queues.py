"""Queues: created, changed and deleted by commands whose decision the caller waits for, and read with what they use.

A change of some fields is written as the whole queue with the revision it was made from, so two people who change one
queue at the same time never undo each other: the later one is decided against a newer revision and made again from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from muster.api.v1 import job_pb2, queue_pb2
from muster.core.commands import DeleteQueue, UpsertQueue
from muster.core.errors import Code, Rejected
from muster.core.model import InboxPosition, QueueSpec
from muster.core.promises import overpromised
from muster.core.queues import Queue
from muster.core.standing import standings
from muster.core.submission import find_queue
from muster.wire import quantities
from muster.wire import queues as wire
from muster.wire.status import position as to_position
from muster_admission.calls import Context, unary
from muster_admission.cell import Cell
from muster_admission.forecasts import Forecaster
from muster_admission.identity import Identity

UPDATE_TRIES_MAX: Final = 5
OF_REQUEST: Final = frozenset({"new_path", "expected_revision", "update_mask", "request_id"})


class QueueServicer:
    """muster.api.v1.QueueService."""

    def __init__(self, cell: Cell, identity: Identity, forecaster: Forecaster) -> None:
        self._cell = cell
        self._identity = identity
        self._forecaster = forecaster

    @unary
    async def CreateQueue(  # noqa: N802  # the names of the proto
        self, request: queue_pb2.CreateQueueRequest, context: Context
    ) -> queue_pb2.CreateQueueResponse:
        self._identity.user(context)
        path = request.queue.path
        command = UpsertQueue(path=path, spec=_read(request.queue), expected_revision=0, request_id=request.request_id)
        position = await self._decide(command, request.dry_run)
        if position is None:
            return queue_pb2.CreateQueueResponse(queue=self._after(command))
        return queue_pb2.CreateQueueResponse(
            queue=self._proto(await self._find(path, "queue.path")), inbox_position=to_position(position)
        )

    @unary
    async def UpdateQueue(  # noqa: N802
        self, request: queue_pb2.UpdateQueueRequest, context: Context
    ) -> queue_pb2.UpdateQueueResponse:
        self._identity.user(context)
        path = request.queue.path
        tries_left = 1 if request.expected_revision else UPDATE_TRIES_MAX
        while True:
            current = (await self._find(path, "queue.path")).spec
            only_moves = bool(request.new_path) and not request.update_mask.paths
            spec = current if only_moves else _read(request.queue, current, request.update_mask.paths)
            command = UpsertQueue(
                path=path,
                spec=spec,
                expected_revision=request.expected_revision or current.revision,
                request_id=request.request_id,
                new_path=request.new_path.strip("/"),
            )
            tries_left -= 1
            try:
                position = await self._decide(command, request.dry_run)
                break
            except Rejected as error:
                if tries_left == 0 or error.code != Code.ABORTED:
                    raise
        if position is None:
            return queue_pb2.UpdateQueueResponse(queue=self._after(command))
        now = await self._find(request.new_path.strip("/") or path, "queue.path")
        return queue_pb2.UpdateQueueResponse(queue=self._proto(now), inbox_position=to_position(position))

    @unary
    async def DeleteQueue(  # noqa: N802
        self, request: queue_pb2.DeleteQueueRequest, context: Context
    ) -> queue_pb2.DeleteQueueResponse:
        self._identity.user(context)
        command = DeleteQueue(
            path=request.path,
            expected_revision=request.expected_revision or -1,
            request_id=request.request_id,
        )
        position = await self._cell.command(command, dry_run=request.dry_run)
        return queue_pb2.DeleteQueueResponse(inbox_position=to_position(position) if position else None)

    @unary
    async def GetQueue(  # noqa: N802
        self, request: queue_pb2.GetQueueRequest, context: Context
    ) -> queue_pb2.GetQueueResponse:
        self._identity.user(context)
        await self._cell.reach(request.min_position)
        queue = self._proto(await self._find(request.path, "path"))
        return queue_pb2.GetQueueResponse(queue=queue, ledger_sequence=self._cell.state.ledger_seq)

    @unary
    async def ListQueues(  # noqa: N802
        self, request: queue_pb2.ListQueuesRequest, context: Context
    ) -> queue_pb2.ListQueuesResponse:
        self._identity.user(context)
        await self._cell.reach(request.min_position)
        root = (await self._find(request.root, "root")).id if request.root else ""
        state = self._cell.state
        standing = standings(state, root)
        return queue_pb2.ListQueuesResponse(
            queues=[wire.to_proto(state, queue, standing[queue.id]) for queue in state.queues.subtree(root)],
            ledger_sequence=state.ledger_seq,
            tree_revision=state.tree_log.revision,
        )

    @unary
    async def GetShares(  # noqa: N802
        self, request: queue_pb2.GetSharesRequest, context: Context
    ) -> queue_pb2.GetSharesResponse:
        self._identity.user(context)
        await self._cell.reach(request.min_position)
        root = (await self._find(request.root, "root")).id if request.root else ""
        state = self._cell.state
        standing, now_ms = standings(state, root), self._cell.clock.now_ms()
        return queue_pb2.GetSharesResponse(
            queues=[wire.shares_to_proto(queue, standing[queue.id], now_ms) for queue in state.queues.subtree(root)],
            capacity=quantities.quantities(state.nodes.capacity()),
            ledger_sequence=state.ledger_seq,
            entitlements_sequence=state.entitled_seq,
            warnings=overpromised(state.queues, state.nodes.capacity()) if state.clusters_synced else (),
        )

    @unary
    async def ApplyQueues(  # noqa: N802
        self, request: queue_pb2.ApplyQueuesRequest, context: Context
    ) -> queue_pb2.ApplyQueuesResponse:
        self._identity.user(context)
        await self._cell.reach(job_pb2.InboxPosition())
        await self._cell.follower.catch_up()  # what is compared with should be what the leader has
        try:
            return self._forecaster.queues(request) if request.dry_run else await self._apply(request)
        except Rejected as why:
            field = wire.request_field(why.field, [queue.path for queue in request.queues])
            raise Rejected(why.code, field, why.message, why.rule) from None

    async def _apply(self, request: queue_pb2.ApplyQueuesRequest) -> queue_pb2.ApplyQueuesResponse:
        """Raises Rejected with the queue in the field."""
        tries_left = 1 if request.HasField("expected_revision") else UPDATE_TRIES_MAX
        while True:
            command = self._forecaster.command_of(request)
            changes = self._forecaster.changes(command)
            if not changes:
                return queue_pb2.ApplyQueuesResponse(tree_revision=self._cell.state.tree_log.revision)
            tries_left -= 1
            try:
                position = await self._cell.command(command)
                break
            except Rejected as error:
                if tries_left == 0 or error.code != Code.ABORTED:
                    raise
        return queue_pb2.ApplyQueuesResponse(
            changes=changes,
            inbox_position=to_position(position) if position else None,
            tree_revision=self._cell.state.tree_log.made_by(position) if position else 0,
        )

    async def _decide(self, command: UpsertQueue, dry_run: bool) -> InboxPosition | None:
        """As `Cell.command`. Raises Rejected with the field as it is in the request."""
        try:
            return await self._cell.command(command, dry_run=dry_run)
        except Rejected as why:
            raise _placed(why) from None

    def _after(self, command: UpsertQueue) -> queue_pb2.Queue:
        """The queue as the command would leave it. A new one has no id before it exists."""
        now = self._cell.state.queues.find(command.path)
        message = wire.spec_to_proto(command.new_path or command.path, command.spec)
        if now is not None:
            message.id = now.id
            message.revision = now.spec.revision + (message != self._settings(now))
        else:
            message.revision = 1
        return message

    def _settings(self, queue: Queue) -> queue_pb2.Queue:
        """What can be set, and the id."""
        message = wire.spec_to_proto(queue.path, queue.spec)
        message.id = queue.id
        return message

    async def _find(self, path: str, field: str) -> Queue:
        """Raises Rejected (NOT_FOUND)."""
        queue = self._cell.state.queues.find(path)
        if queue is None:
            await self._cell.follower.catch_up()
            queue = self._cell.state.queues.find(path)
        return queue or find_queue(self._cell.state.queues, path, field)

    def _proto(self, queue: Queue) -> queue_pb2.Queue:
        state = self._cell.state
        return wire.to_proto(state, queue, standings(state, queue.id)[queue.id])


def _read(queue: queue_pb2.Queue, current: QueueSpec | None = None, paths: Iterable[str] = ()) -> QueueSpec:
    """A new queue's spec, or the current one with fields changed. Raises Rejected naming the field in the request."""
    try:
        return wire.to_core(queue) if current is None else wire.changed(current, queue, paths)
    except Rejected as why:
        raise _placed(why) from None


def _placed(why: Rejected) -> Rejected:
    """What a queue's own fields are called in a request that has the queue in a field."""
    if why.field in OF_REQUEST:
        return why
    return Rejected(why.code, f"queue.{why.field}" if why.field else "queue", why.message, why.rule)
