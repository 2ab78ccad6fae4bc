"""The client's calls about shares: whole trees of queues, what-if questions, usage."""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf import timestamp_pb2

from muster.api.v1 import job_pb2, query_pb2, query_pb2_grpc, queue_pb2, queue_pb2_grpc


class PlanningCalls(ABC):
    """Mixed into `Client`, which has the connection."""

    query: query_pb2_grpc.QueryServiceAsyncStub
    queues: queue_pb2_grpc.QueueServiceAsyncStub

    @abstractmethod
    async def _call(self, method: Any, request: Any) -> Any:
        """One unary call with its retries."""

    @abstractmethod
    def _position(self) -> job_pb2.InboxPosition | None:
        """The newest of the client's own writes, for a read that is to see it."""

    @abstractmethod
    def _saw(self, position: job_pb2.InboxPosition) -> tuple[int, int]:
        """Remember a write."""

    async def apply_queues(self, request: queue_pb2.ApplyQueuesRequest) -> queue_pb2.ApplyQueuesResponse:
        """Make the queues what the request says (`queuefile.load` makes one), or on a dry run say what would change."""
        response: queue_pb2.ApplyQueuesResponse = await self._call(self.queues.ApplyQueues, request)
        self._saw(response.inbox_position)
        return response

    async def queue_tree(self, root: str = "") -> queue_pb2.ListQueuesResponse:
        """The queues of a subtree, parents first, with the revision of the tree for `expected_revision`."""
        request = queue_pb2.ListQueuesRequest(root=root, min_position=self._position())
        response: queue_pb2.ListQueuesResponse = await self._call(self.queues.ListQueues, request)
        return response

    async def shares(self, root: str = "") -> queue_pb2.GetSharesResponse:
        """What is guaranteed, deserved, used, borrowed and lent, by queue and resource."""
        request = queue_pb2.GetSharesRequest(root=root, min_position=self._position())
        response: queue_pb2.GetSharesResponse = await self._call(self.queues.GetShares, request)
        return response

    async def what_if_job(self, spec: job_pb2.JobSpec) -> query_pb2.JobForecast:
        """What would become of the job if it were submitted now. Raises Refused as the submission would."""
        request = query_pb2.WhatIfRequest(job=spec, min_position=self._position())
        response: query_pb2.WhatIfResponse = await self._call(self.query.WhatIf, request)
        return response.job

    async def what_if_queues(self, change: queue_pb2.ApplyQueuesRequest) -> queue_pb2.ApplyQueuesResponse:
        """What would come of the change. Raises Refused as the change would."""
        request = query_pb2.WhatIfRequest(queues=change, min_position=self._position())
        response: query_pb2.WhatIfResponse = await self._call(self.query.WhatIf, request)
        return response.queues

    async def usage(
        self,
        *,
        since: datetime.datetime | None = None,
        group_by: Sequence[str] = ("queue",),
        queue: str = "",
        namespace: str = "",
        user: str = "",
    ) -> query_pb2.GetUsageResponse:
        """What was used, waited for and lost. `group_by`: queue, namespace, user, priority."""
        moment = None
        if since is not None:
            moment = timestamp_pb2.Timestamp()
            moment.FromDatetime(since.astimezone(datetime.UTC).replace(tzinfo=None))
        request = query_pb2.GetUsageRequest(
            since=moment,
            group_by=dimensions(group_by),
            queue=queue,
            namespace=namespace,
            user=user,
            min_position=self._position(),
        )
        response: query_pb2.GetUsageResponse = await self._call(self.query.GetUsage, request)
        return response


def dimensions(names: Iterable[str]) -> list[query_pb2.UsageDimension.ValueType]:
    """Raises ValueError that lists the known ones."""
    values = query_pb2.UsageDimension.DESCRIPTOR.values[1:]
    known = {value.name.removeprefix("USAGE_DIMENSION_").lower(): value.number for value in values}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is nothing to group by (possible: {', '.join(known)})")
    return [query_pb2.UsageDimension.ValueType(known[name]) for name in names]
