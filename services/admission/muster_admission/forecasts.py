"""Questions that change nothing: what a job or a change of the queues would do, answered by the production core.

Everything runs on this replica's follower, one question at a time between two transactions, and the core bounds its
work, so a question delays nobody for longer than a transaction of the ledger does.
"""

from __future__ import annotations

import uuid

from muster.api.v1 import job_pb2, query_pb2, queue_pb2
from muster.core.commands import ChangeQueues
from muster.core.entitlements import EntitlementEngine
from muster.core.errors import Code, Rejected
from muster.core.model import QueueSpec
from muster.core.queue_changes import differences, plan, too_large
from muster.core.queue_rules import named
from muster.core.whatif import changed_tree, forecast_job, forecast_queues
from muster.runtime.inbox import ITEM_BYTES_MAX
from muster.wire import codec, forecasts
from muster.wire import queues as wire
from muster.wire.jobs import JobReader, Origin
from muster_admission.cell import Cell


class Forecaster:
    """Answers for one cell."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._reader = JobReader()
        self._today = EntitlementEngine()

    def job(self, spec: job_pb2.JobSpec, user: str) -> query_pb2.JobForecast:
        """Raises Rejected as the submission would."""
        request_id = f"what-if-{uuid.uuid4().hex}"  # never the id of a job that was submitted
        try:
            job = self._reader.to_core(spec, 0, Origin(self._cell.name, request_id, user))
            return forecasts.job_to_proto(forecast_job(self._cell.state, job, self._now_ms(), self._today))
        except Rejected as why:
            field = f"job.{why.field}" if why.field else "job"
            raise Rejected(why.code, field, why.message, why.rule) from None

    def queues(self, request: queue_pb2.ApplyQueuesRequest) -> queue_pb2.ApplyQueuesResponse:
        """Raises Rejected as the change would."""
        forecast = forecast_queues(self._cell.state, self.command_of(request), self._now_ms(), self._today)
        return queue_pb2.ApplyQueuesResponse(
            changes=forecasts.changes_to_proto(forecast.changes),
            forecast=forecasts.tree_to_proto(forecast, self._cell.state.queues),
            tree_revision=self._cell.state.tree_log.revision,
        )

    def command_of(self, request: queue_pb2.ApplyQueuesRequest) -> ChangeQueues:
        """The commands that lead from the present tree to what the request wants. Raises Rejected."""
        wanted: dict[str, QueueSpec] = {}
        for queue in request.queues:
            if queue.path in wanted:
                raise Rejected(Code.INVALID_ARGUMENT, "queues", f'queue "{queue.path}" is there twice', "Q4")
            try:
                wanted[queue.path] = wire.to_core(queue)
            except Rejected as why:
                raise Rejected(why.code, named(queue.path, why.field), why.message, why.rule) from None
        changes = plan(
            self._cell.state.queues,
            wanted,
            moves=[(move.path, move.new_path) for move in request.moves],
            prune_root=request.prune_root if request.prune else None,
        )
        expected = request.expected_revision if request.HasField("expected_revision") else -1
        command = ChangeQueues(changes, request.request_id, expected)
        size = len(codec.encode_item(command))
        if size > ITEM_BYTES_MAX:
            raise too_large(len(changes), len(changes) * ITEM_BYTES_MAX // size)
        return command

    def changes(self, command: ChangeQueues) -> list[queue_pb2.QueueChange]:
        """What would differ. Raises Rejected as the command would be."""
        state = self._cell.state
        return forecasts.changes_to_proto(differences(state.queues, changed_tree(state, command, self._now_ms())))

    def _now_ms(self) -> int:
        return max(self._cell.clock.now_ms(), self._cell.state.now_ms)
