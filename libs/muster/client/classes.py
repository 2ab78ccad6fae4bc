"""The client's calls about priority classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from muster.api.v1 import admin_pb2, admin_pb2_grpc, job_pb2
from muster.client.durations import parse_duration_ms
from muster.client.requests import new_request_id


class ClassCalls(ABC):
    """Mixed into `Client`, which has the connection."""

    admin: admin_pb2_grpc.AdminServiceAsyncStub

    @abstractmethod
    async def _call(self, method: Any, request: Any) -> Any:
        """One unary call with its retries."""

    @abstractmethod
    def _position(self) -> job_pb2.InboxPosition | None:
        """The newest of the client's own writes, for a read that is to see it."""

    @abstractmethod
    def _saw(self, position: job_pb2.InboxPosition) -> tuple[int, int]:
        """Remember a write."""

    async def set_priority_class(
        self,
        name: str,
        value: int = 0,
        *,
        min_runtime: str | int = "",
        labels: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> None:
        """Create the class or make it exactly this; jobs that exist keep what they have. `min_runtime`: "10m", or
        milliseconds."""
        of = admin_pb2.PriorityClass(name=name, value=value, labels=labels)
        if min_runtime:
            least_ms = parse_duration_ms(min_runtime) if isinstance(min_runtime, str) else min_runtime
            of.min_runtime.FromMilliseconds(least_ms)
        await self.put_priority_class(of, dry_run=dry_run)

    async def put_priority_class(self, of: admin_pb2.PriorityClass, *, dry_run: bool = False) -> None:
        """The same from a message (`classfile.load` makes them)."""
        request = admin_pb2.UpsertPriorityClassRequest(request_id=new_request_id(), priority_class=of, dry_run=dry_run)
        response = await self._call(self.admin.UpsertPriorityClass, request)
        self._saw(response.inbox_position)

    async def list_priority_classes(self) -> Sequence[admin_pb2.PriorityClass]:
        """All, the highest value first."""
        request = admin_pb2.ListPriorityClassesRequest(min_position=self._position())
        response: admin_pb2.ListPriorityClassesResponse = await self._call(self.admin.ListPriorityClasses, request)
        return response.priority_classes

    async def delete_priority_class(self, name: str, *, dry_run: bool = False) -> None:
        """Forget the class; jobs that exist keep what they have. Raises NotFound."""
        request = admin_pb2.DeletePriorityClassRequest(request_id=new_request_id(), name=name, dry_run=dry_run)
        response = await self._call(self.admin.DeletePriorityClass, request)
        self._saw(response.inbox_position)
