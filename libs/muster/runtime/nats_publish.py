"""Requests to JetStream with many in flight: one inbox subscription, one future a request.

nats-py's own `publish` and `request` create a token, a future and a timer task each and wait on them one by one; with
one wildcard inbox and a table of futures the same connection carries more than twice as many acknowledged messages.
A lost connection fails everything in flight at once as `OutcomeUnknown`, because the answers will never come: the
callers send again as soon as the connection is back, instead of waiting out their timeouts.

A batch is stored by the server as a whole or not at all. Its messages go out without a reply, only the last is a
request, and what is answered to that counts for all.

This is also the one place where JetStream's error codes become the exceptions of `ports`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
from nats import errors as nats_errors

from muster.runtime.bus_errors import BusRefused, ConnectionClosed
from muster.runtime.ports import Conflict, OutcomeUnknown, Outgoing, StreamFull

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

CONFLICT_CODES: Final = frozenset({10071, 10164})  # wrong last sequence; another write to the same guard in flight
FULL_CODES: Final = frozenset({10077, 10023, 10028, 10047})  # stream limits, then server and account storage
INCOMPLETE_CODES: Final = frozenset({10176})  # a message of the batch was lost: nothing is stored
_NO_LINE_ENDS: Final = {ord("\r"): " ", ord("\n"): " "}  # a text of somebody else's must not become a header
NO_RESPONDERS: Final = "503"
HTTP_UNAVAILABLE: Final = 500  # and above: the server's trouble, not the message's


class ApiError(msgspec.Struct, frozen=True):
    code: int = 0  # HTTP-like class
    err_code: int = 0
    description: str = ""


class PubAck(msgspec.Struct, frozen=True):
    seq: int = 0
    duplicate: bool = False
    error: ApiError | None = None


_ack_decoder: Final = msgspec.json.Decoder(PubAck)


class Requests:
    """Sends requests over one connection and pairs the answers."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.on_connection_lost: set[Callable[[], None]] = set()
        self._prefix = client.new_inbox()
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._tokens = itertools.count(1)
        self._connected = asyncio.Event()
        self._closed = False

    async def start(self) -> None:
        """Subscribe to the inbox of answers; the connection is up."""
        # No limit on pending answers: there are never more than requests in flight.
        await self.client.subscribe(
            f"{self._prefix}.*", cb=self._on_answer, pending_msgs_limit=0, pending_bytes_limit=0
        )
        self._connected.set()

    @property
    def unheard_reply(self) -> str:
        """A reply subject nobody waits on, for requests whose answer does not matter."""
        return f"{self._prefix}.0"

    def connection_lost(self) -> None:
        """Everything in flight has an unknown outcome from here on."""
        self._connected.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(OutcomeUnknown("the connection was lost before the answer came"))
        self._waiting.clear()
        for tell in list(self.on_connection_lost):
            tell()

    def connection_back(self) -> None:
        self._connected.set()

    def connection_closed(self) -> None:
        self.connection_lost()
        self._closed = True
        self._connected.set()  # wakes those who wait; they find it closed

    async def wait_connected(self) -> None:
        """Returns when connected. Raises ConnectionClosed."""
        if not self._connected.is_set():
            await self._connected.wait()
        if self._closed:
            raise ConnectionClosed("the NATS connection is closed")

    async def call(self, subject: str, payload: bytes, headers: Mapping[str, str] | None, timeout_s: float) -> bytes:
        """One request, one answer. Raises OutcomeUnknown when none came in time, ConnectionClosed."""
        loop = asyncio.get_running_loop()
        token = str(next(self._tokens))
        future: asyncio.Future[bytes] = loop.create_future()
        self._waiting[token] = future
        timer = loop.call_later(timeout_s, _give_up, future, timeout_s)
        try:
            # Not buffered while disconnected: nats-py would send it much later, behind the caller's back.
            if self._connected.is_set() and not self._closed:
                await self.client.publish(subject, payload, reply=f"{self._prefix}.{token}", headers=_plain(headers))
            else:
                await self._publish_when_connected(future, subject, payload, headers, token)
            return await future
        except (nats_errors.ConnectionClosedError, nats_errors.ConnectionDrainingError) as error:
            raise ConnectionClosed(str(error)) from error
        except nats_errors.MaxPayloadError as error:
            raise BusRefused(0, "message is larger than the server's max_payload") from error
        except (nats_errors.Error, OSError) as error:
            raise OutcomeUnknown(f"not sent: {error!r}") from error
        finally:
            timer.cancel()
            self._waiting.pop(token, None)

    async def _publish_when_connected(
        self,
        future: asyncio.Future[bytes],
        subject: str,
        payload: bytes,
        headers: Mapping[str, str] | None,
        token: str,
    ) -> None:
        waiting = asyncio.ensure_future(self.wait_connected())
        await asyncio.wait((waiting, future), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            return  # the timer ran out: `future` carries the error
        waiting.result()
        self._waiting[token] = future  # connection_lost may have emptied the table meanwhile
        await self.client.publish(subject, payload, reply=f"{self._prefix}.{token}", headers=_plain(headers))

    async def publish(self, subject: str, data: bytes, headers: Mapping[str, str] | None, timeout_s: float) -> int:
        """Store a message in the stream that listens on `subject`; returns its sequence. Raises as `Stream.publish`."""
        answer = _ack_decoder.decode(await self.call(subject, data, headers, timeout_s))
        if answer.error is not None:
            raise translate(answer.error)
        return answer.seq

    async def publish_batch(self, messages: Sequence[Outgoing], expected_last_seq: int, timeout_s: float) -> int:
        """Store messages as `Stream.publish_batch` says; returns the sequence of the last."""
        if max(len(message.data) for message in messages) > self.client.max_payload:
            raise BusRefused(0, "message is larger than the server's max_payload")
        await self.wait_connected()
        batch = uuid4().hex
        first = f"Nats-Expected-Last-Sequence: {expected_last_seq}\r\n"
        parts: list[bytes] = []
        for number, message in enumerate(messages[:-1], 1):
            more = f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {number}\r\n"
            parts.append(_part(message, more if parts else more + first))
        # Under the surface of nats-py, which takes several times as long to write a message with headers. The request
        # that follows makes the client send.
        await self.client._send_command(b"".join(parts))
        last = messages[-1]
        headers = {
            **last.headers,
            "Nats-Batch-Id": batch,
            "Nats-Batch-Sequence": str(len(messages)),
            "Nats-Batch-Commit": "1",
        }
        if not parts:
            headers["Nats-Expected-Last-Sequence"] = str(expected_last_seq)
        return await self.publish(last.subject, last.data, headers, timeout_s)

    async def api(self, subject: str, request: Mapping[str, object], timeout_s: float) -> dict[str, Any]:
        """A JetStream API request. Raises what `translate` says for the error in the answer."""
        answer = msgspec.json.decode(await self.call(subject, msgspec.json.encode(request), None, timeout_s))
        error = answer.get("error")
        if error is not None:
            raise translate(msgspec.convert(error, ApiError))
        result: dict[str, Any] = answer
        return result

    async def _on_answer(self, msg: Msg) -> None:
        future = self._waiting.pop(msg.subject.rpartition(".")[2], None)
        if future is None or future.done():
            return
        if msg.headers and not msg.data and msg.headers.get("Status") == NO_RESPONDERS:
            future.set_exception(OutcomeUnknown("JetStream is not there (yet)"))
        else:
            future.set_result(msg.data)


def _give_up(future: asyncio.Future[bytes], timeout_s: float) -> None:
    if not future.done():
        future.set_exception(OutcomeUnknown(f"no answer within {timeout_s:g} s"))


def _part(message: Outgoing, more_headers: str) -> bytes:
    """A message of a batch as it goes over the wire. `more_headers` are whole lines."""
    lines = "".join([f"{key}: {value}\r\n" for key, value in message.headers.items()])
    if lines.count("\n") > len(message.headers) or lines.count("\r") > len(message.headers):
        lines = "".join([f"{key}: {value.translate(_NO_LINE_ENDS)}\r\n" for key, value in message.headers.items()])
    head = f"NATS/1.0\r\n{lines}{more_headers}\r\n".encode()
    sizes = f"HPUB {message.subject} {len(head)} {len(head) + len(message.data)}\r\n".encode()
    return b"".join((sizes, head, message.data, b"\r\n"))


def _plain(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    return dict(headers) if headers else None


def translate(error: ApiError) -> Exception:
    """The exception of `ports` or `bus_errors` for an error JetStream answered with."""
    if error.err_code in CONFLICT_CODES:
        last = error.description.rpartition(" ")[2]  # "wrong last sequence: 7"; 10164 has no number
        return Conflict(error.description, int(last) if last.isdigit() else None)
    if error.err_code in FULL_CODES:
        return StreamFull(error.description)
    if error.code >= HTTP_UNAVAILABLE or error.err_code in INCOMPLETE_CODES:
        return OutcomeUnknown(f"JetStream error {error.err_code}: {error.description}")
    return BusRefused(error.err_code, error.description)
