"""Refusals as `google.rpc.Status`: the code, a sentence for people, and details for programs.

`BadRequest` names the field as a path in the request, `ErrorInfo` the rule that was broken, `RetryInfo` when to try
again. The same status answers a whole call or one item of a batch. A rule is one of the scheduling rules (`Q1`,
`LOG-8`), the name of a declared constraint (`string.max_len`), or `RESERVED` for what is not built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from muster.core.errors import Rejected

DOMAIN: Final = "muster.io"
WHOLE_SENTENCE: Final = re.compile(
    r"(?:the |this )?(?:queue|tree of queues|job|priority class|request id|no cluster|tasks)\b"
)  # says what it is about

NOT_IN_REASON: Final = re.compile(r"[^A-Za-z0-9]+")
RESERVED: Final = "RESERVED"

Violations = Sequence[tuple[str, str]]  # (field path, description)


def refused(error: Rejected, prefix: str = "") -> status_pb2.Status:
    """The status of a refusal; `prefix` is the path of the job in the request."""
    return broken_rule(error.code, error.field, error.message, error.rule, prefix)


def broken_rule(code: str, field: str, message: str, rule: str, prefix: str = "") -> status_pb2.Status:
    """As `refused`, from the parts that a `CommandRefused` carries."""
    path = f"{prefix}.{field}" if prefix and field else prefix or field
    sentence = message if not field or WHOLE_SENTENCE.match(message) else f"{field}: {message}"
    return refusal(code, sentence, [(path, message)] if path else (), rule)


def refusal(code: str, message: str, violations: Violations = (), rule: str = "") -> status_pb2.Status:
    """A status from its parts. `code` is the name of a gRPC status code."""
    details: list[Message] = []
    if violations:
        bad = error_details_pb2.BadRequest()
        for field, description in violations:
            bad.field_violations.add(field=field, description=description)
        details.append(bad)
    if rule:
        reason = "RULE_" + NOT_IN_REASON.sub("_", rule).upper()
        details.append(error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata={"rule": rule}))
    return status(code, message, details)


def retry(code: str, message: str, after_s: float) -> status_pb2.Status:
    """A status that says when to try again."""
    delay = duration_pb2.Duration(seconds=int(after_s), nanos=int(after_s % 1 * 1e9))
    return status(code, message, [error_details_pb2.RetryInfo(retry_delay=delay)])


def status(code: str, message: str, details: Iterable[Message] = ()) -> status_pb2.Status:
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    return status_pb2.Status(code=code_pb2.Code.Value(code), message=message, details=packed)


def path_text(elements: Iterable[Any]) -> str:
    """A protovalidate field path as text: `jobs[3].tasks[0].resources.cpu`."""
    parts: list[str] = []
    for element in elements:
        parts.append(f".{element.field_name}" if parts else element.field_name)
        subscript = element.subscript
        if subscript is not None:
            value = subscript.value
            parts.append(f".{value}" if isinstance(value, str) else f"[{value}]")
    return "".join(parts)
