"""How a call is answered: checked against the proto's rules first, and every refusal with its details.

Handlers raise what they mean (`Refused` with a finished status, or the errors of the core and of the runtime) and
`unary` turns it into the call's status: your fault with the field, or try again with a time. Anything else is a bug and
stays one (UNKNOWN to the caller, a traceback in the log).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, Final, NamedTuple, TypeVar

import grpc.aio
import protovalidate
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc_status import rpc_status

from muster.core.errors import Rejected
from muster.runtime.backpressure import InboxFull
from muster.runtime.bus_errors import ConnectionClosed
from muster.runtime.inbox import ItemTooLarge
from muster.runtime.ports import MessagesLost, OutcomeUnknown
from muster.wire import errors

RETRY_AFTER_S: Final = 1.0

Context = grpc.aio.ServicerContext[Any, Any]
S = TypeVar("S")
Req = TypeVar("Req", bound=Message)
Res = TypeVar("Res")

_validator = protovalidate.Validator()


class Refused(Exception):
    """A call (or an item of a batch) that is not done; `status` is the answer."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class Broken(NamedTuple):
    """A rule declared in the proto, and the field that breaks it."""

    field: str
    description: str
    rule: str


def violations(request: Message) -> list[Broken]:
    """What breaks the rules declared in the proto."""
    found = [violation.proto for violation in _validator.collect_violations(request)]
    return [Broken(errors.path_text(v.field.elements) if v.field else "", _sentence(v), v.rule_id) for v in found]


def _sentence(violation: Any) -> str:
    """Every pattern of the protos is that of names, of one or of a path: say so instead of showing it."""
    if violation.rule_id == "string.pattern":
        return "is not a name: lower-case letters, digits and dashes, with a letter or digit at both ends"
    return str(violation.message)


def check(request: Message) -> None:
    """Raises Refused naming every field that breaks a declared rule."""
    found = violations(request)
    if found:
        raise Refused(invalid(found))


def invalid(found: list[Broken]) -> status_pb2.Status:
    """INVALID_ARGUMENT for violations; the sentence and the rule are those of the first."""
    first = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    named = [(each.field, each.description) for each in found]
    return errors.refusal("INVALID_ARGUMENT", f"{first.field}: {first.description}{more}", named, first.rule)


def status_of(error: Exception) -> status_pb2.Status | None:
    """The status for an error somebody may expect; None for a bug."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, Rejected):
        return errors.refused(error)
    if isinstance(error, InboxFull):
        after_s = error.retry_after_ms / 1000
        return errors.retry("RESOURCE_EXHAUSTED", f"{error}: retry in about {after_s:g} s", after_s)
    if isinstance(error, OutcomeUnknown):
        message = "the inbox did not answer in time; repeat the call with the same request id, that is safe"
        return errors.retry("UNAVAILABLE", message, RETRY_AFTER_S)
    if isinstance(error, ConnectionClosed):
        return errors.retry("UNAVAILABLE", "this replica has lost its connection: repeat the call", RETRY_AFTER_S)
    if isinstance(error, ItemTooLarge):
        return errors.refusal("INVALID_ARGUMENT", str(error), rule="LOG-8")
    if isinstance(error, MessagesLost):
        return errors.refusal(
            "OUT_OF_RANGE", "the ledger no longer holds that sequence: list, then watch from there", rule="LOG-12"
        )
    return None


def unary(
    handler: Callable[[S, Req, Context], Awaitable[Res]],
) -> Callable[Concatenate[S, Req, Context, ...], Awaitable[Res]]:
    """Answer a call with what `handler` returns, or with the status of what it raises."""

    @functools.wraps(handler)
    async def call(self: S, request: Req, context: Context) -> Res:
        try:
            check(request)
            return await handler(self, request, context)
        except Exception as error:
            await abort(context, error)
            raise

    return call


async def abort(context: Context, error: Exception) -> None:
    """End the call with the status of `error`; returns when it is a bug (or the call has ended already)."""
    status = status_of(error)
    if status is not None:
        await context.abort_with_status(rpc_status.to_status(status))


def unbuilt_call(name: str) -> Callable[[Any, Message, Context], Awaitable[None]]:
    """The handler of a call that is in the API and not built yet."""
    message = f"{name} is part of the API but not built yet"
    error = Refused(errors.refusal("UNIMPLEMENTED", message, [(name, "not built yet")], errors.RESERVED))

    async def call(_self: Any, _request: Message, context: Context) -> None:
        await abort(context, error)

    return call
