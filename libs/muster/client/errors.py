"""What can go wrong, split by what the caller must do: change the request (`Refused`), or try later (`Unavailable`).

gRPC's errors stop here. The server says which field is wrong in a `BadRequest` and when to retry in a `RetryInfo`; both
arrive as attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import grpc
import grpc.aio
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

TRANSIENT: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})


class Violation(NamedTuple):
    """A field that breaks a rule: its path in the request, such as `jobs[0].tasks[1].replicas`, and why."""

    field: str
    description: str


class ClientError(Exception):
    """Base of all errors of a call. `code` is the name of the gRPC status."""

    def __init__(
        self, code: str, message: str, violations: Sequence[Violation] = (), retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.violations = tuple(violations)
        self.retry_after_s = retry_after_s


class Refused(ClientError):
    """The request breaks a rule; repeating it changes nothing."""


class NotFound(Refused):
    """The job or queue does not exist (or no longer)."""


class WatchExpired(Refused):
    """The sequence to watch from is older than what is kept: list, then watch from the list's sequence (LOG-12)."""


class Unavailable(ClientError):
    """Nobody answered in time, or the cell is full; the same call may work later."""


def from_status(status: status_pb2.Status) -> ClientError:
    """The error a `google.rpc.Status` stands for."""
    violations: list[Violation] = []
    retry_after_s: float | None = None
    for detail in status.details:
        if detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad = error_details_pb2.BadRequest()
            detail.Unpack(bad)
            violations += [Violation(v.field, v.description) for v in bad.field_violations]
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            info = error_details_pb2.RetryInfo()
            detail.Unpack(info)
            retry_after_s = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
    code = code_pb2.Code.Name(status.code)
    return _kind_of(code)(code, status.message, violations, retry_after_s)


def from_call(error: grpc.aio.AioRpcError) -> ClientError:
    """The error of a failed call, with its details where the server gave some."""
    status = rpc_status.from_call(error)
    if status is not None:
        return from_status(status)
    code = error.code().name
    return _kind_of(code)(code, error.details() or code)


def _kind_of(code: str) -> type[ClientError]:
    if code in TRANSIENT:
        return Unavailable
    if code == "NOT_FOUND":
        return NotFound
    if code == "OUT_OF_RANGE":
        return WatchExpired
    return Refused
