"""The API's way to say no: `Status` objects with the code and reason a Kubernetes client branches on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

REASON_OF_CODE = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class StatusError(Exception):
    """A request that ends in a `Status` of failure."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason if reason is not None else REASON_OF_CODE[code]
        self.details = dict(details) if details else {}
        self.retry_after_s = retry_after_s
        if retry_after_s is not None:
            self.details["retryAfterSeconds"] = retry_after_s

    def body(self) -> dict[str, Any]:
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if self.details:
            status["details"] = self.details
        status["code"] = self.code
        return status

    def encode(self) -> bytes:
        return msgspec.json.encode(self.body())


def success(code: int, details: Mapping[str, Any] | None = None) -> bytes:
    body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        body["details"] = dict(details)
    body["code"] = code
    return msgspec.json.encode(body)


def bad_request(message: str) -> StatusError:
    return StatusError(400, message)


def not_found(resource: str, name: str, group: str = "") -> StatusError:
    shown = f"{resource}.{group}" if group else resource
    details = {"name": name, "group": group, "kind": resource} if group else {"name": name, "kind": resource}
    return StatusError(404, f'{shown} "{name}" not found', details=details)


def no_such_path() -> StatusError:
    return StatusError(404, "the server could not find the requested resource", details={})


def already_exists(resource: str, name: str, group: str = "") -> StatusError:
    shown = f"{resource}.{group}" if group else resource
    details = {"name": name, "group": group, "kind": resource}
    return StatusError(409, f'{shown} "{name}" already exists', reason="AlreadyExists", details=details)


def conflict(resource: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return StatusError(409, message, details={"name": name, "kind": resource})


def expired(message: str) -> StatusError:
    return StatusError(410, message)


def invalid(kind: str, name: str, problems: Sequence[tuple[str, str, str]]) -> StatusError:
    """422 with one cause per problem; a problem is (field path, reason, message)."""
    causes = [{"reason": reason, "message": message, "field": field} for field, reason, message in problems]
    joined = ", ".join(f"{field}: {message}" for field, _, message in problems)
    shown = joined if len(problems) == 1 else f"[{joined}]"
    return StatusError(
        422, f'{kind} "{name}" is invalid: {shown}', details={"name": name, "kind": kind, "causes": causes}
    )


def too_many_requests(message: str, retry_after_s: int) -> StatusError:
    return StatusError(429, message, retry_after_s=retry_after_s)
