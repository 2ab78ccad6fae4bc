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
TOO_LARGE: Final = "larger than max"  # how gRPC says that a message is, under the code of a full server
RULE_PREFIX: Final = "RULE_"


class Violation(NamedTuple):
    """A field that breaks a rule: its path in the request, such as `jobs[0].tasks[1].replicas`, and why."""

    field: str
    description: str


class ClientError(Exception):
    """Base of all errors of a call. `code` is the name of the gRPC status, `rule` what was broken, such as `Q1`."""

    def __init__(
        self,
        code: str,
        message: str,
        violations: Sequence[Violation] = (),
        retry_after_s: float | None = None,
        rule: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.violations = tuple(violations)
        self.retry_after_s = retry_after_s
        self.rule = rule


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
    rule = ""
    for detail in status.details:
        if detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad = error_details_pb2.BadRequest()
            detail.Unpack(bad)
            violations += [Violation(v.field, v.description) for v in bad.field_violations]
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            info = error_details_pb2.RetryInfo()
            detail.Unpack(info)
            retry_after_s = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
        elif detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            reason = error_details_pb2.ErrorInfo()
            detail.Unpack(reason)
            rule = reason.metadata.get("rule", "") or reason.reason.removeprefix(RULE_PREFIX).replace("_", "-")
    code = code_pb2.Code.Name(status.code)
    return _kind_of(code)(code, status.message, violations, retry_after_s, rule)


def from_call(error: grpc.aio.AioRpcError) -> ClientError:
    """The error of a failed call, with its details where the server gave some."""
    status = rpc_status.from_call(error)
    if status is not None:
        return from_status(status)
    code = error.code().name
    said = error.details() or code
    if code == "RESOURCE_EXHAUSTED" and TOO_LARGE in said:
        return Refused("INVALID_ARGUMENT", f"the request, or its answer, is larger than a message may be: {said}")
    return _kind_of(code)(code, said)


def _kind_of(code: str) -> type[ClientError]:
    if code in TRANSIENT:
        return Unavailable
    if code == "NOT_FOUND":
        return NotFound
    if code == "OUT_OF_RANGE":
        return WatchExpired
    return Refused
