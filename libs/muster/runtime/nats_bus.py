"""`Bus` and `Stream` on a real JetStream.

What nats-py leaves to its users is settled here: it reconnects for ever (`max_reconnect_attempts=-1`; only `close` or a
refusal by the server ends the connection, and `wait_closed` then tells the process to end), liveness is a round trip
every few seconds, nothing is buffered while disconnected, and requests to a JetStream that is still starting are
repeated. Publishing is in `nats_publish`, reading in `nats_read`.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from nats import errors as nats_errors
from nats.aio.client import Client

from muster.runtime.bus_errors import BusRefused
from muster.runtime.nats_publish import Requests
from muster.runtime.nats_read import read_stream
from muster.runtime.ports import OutcomeUnknown, Outgoing, StoredMessage, Stream, StreamInfo, StreamSpec

CONNECT_TIMEOUT_S: Final = 2
RECONNECT_WAIT_S: Final = 0.25
PING_INTERVAL_S: Final = 5
PINGS_UNANSWERED_MAX: Final = 2
PENDING_BYTES_MAX: Final = 16 * 1024 * 1024
FLUSH_TIMEOUT_S: Final = 5.0
API_TIMEOUT_S: Final = 5.0
BIND_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.1
DUPLICATE_WINDOW_S: Final = 120  # longer than anybody repeats an unacknowledged inbox message (LOG-7)
NANOS: Final = 1_000_000_000
STREAM_NAME_IN_USE: Final = 10058  # exists with another configuration
NO_MESSAGE: Final = 10037
_log: Final = logging.getLogger("muster.nats")


async def connect(url: str, *, name: str = "muster", domain: str = "") -> NatsBus:
    """A connection to the NATS at `url` (user and password may be in it; several, separated by commas).

    Tries for ever: put `asyncio.timeout` around it. `domain` is the JetStream domain when connecting through a leaf
    node.
    """
    bus = NatsBus(domain)
    try:
        await bus.open(url, name)
    except BaseException:
        await bus.close()
        raise
    return bus


class NatsBus:
    """One connection. Made by `connect`."""

    def __init__(self, domain: str = "") -> None:
        self._client = Client()
        self._requests = Requests(self._client)
        self._api = f"$JS.{domain}.API" if domain else "$JS.API"
        self._closed = asyncio.Event()

    async def open(self, url: str, name: str) -> None:
        requests = self._requests

        async def on_error(error: Exception) -> None:
            _log.warning("nats: %r", error)

        async def on_disconnected() -> None:
            requests.connection_lost()

        async def on_reconnected() -> None:
            requests.connection_back()

        async def on_closed() -> None:
            requests.connection_closed()
            self._closed.set()

        await self._client.connect(
            servers=url.split(","),
            name=name,
            error_cb=on_error,
            disconnected_cb=on_disconnected,
            reconnected_cb=on_reconnected,
            closed_cb=on_closed,
            connect_timeout=CONNECT_TIMEOUT_S,
            reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # any number of seconds does
            max_reconnect_attempts=-1,
            ping_interval=PING_INTERVAL_S,
            max_outstanding_pings=PINGS_UNANSWERED_MAX,
            pending_size=PENDING_BYTES_MAX,
            flush_timeout=FLUSH_TIMEOUT_S,
            skip_subject_validation=True,  # ours are constants, and it costs on every message
        )
        await requests.start()

    async def stream(self, spec: StreamSpec) -> Stream:
        """Bind, creating if needed; a stream that exists with other limits is taken as it is."""
        config: dict[str, object] = {
            "name": spec.name,
            "subjects": list(spec.subjects),
            "storage": "file",
            "retention": "limits",
            "discard": "new",  # full means an explicit refusal (I9), never the loss of the oldest
            "max_bytes": spec.max_bytes,
            "max_msgs": spec.max_messages,
            "max_msg_size": spec.max_message_bytes,
            "max_msgs_per_subject": spec.max_messages_per_subject,
            "num_replicas": spec.replicas,
            "duplicate_window": DUPLICATE_WINDOW_S * NANOS,
            "allow_direct": False,  # direct reads may be stale on several servers
        }
        if spec.batches:
            config["allow_atomic"] = True
        async with asyncio.timeout(BIND_TIMEOUT_S):
            while True:
                try:
                    await self._requests.api(f"{self._api}.STREAM.CREATE.{spec.name}", config, API_TIMEOUT_S)
                    break
                except OutcomeUnknown:  # creating is idempotent; JetStream may still be starting
                    await asyncio.sleep(RETRY_S)
                except BusRefused as error:
                    if error.code != STREAM_NAME_IN_USE:
                        raise
                    break
        return NatsStream(self._requests, self._api, spec)

    async def publish_core(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """A hint: lost when there is no connection."""
        if not self._client.is_connected:
            return
        try:
            await self._client.publish(subject, data, headers=dict(headers) if headers else None)
        except (nats_errors.Error, OSError) as error:
            _log.debug("nats: hint on %s not sent: %r", subject, error)

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def close(self) -> None:
        await self._client.close()
        self._requests.connection_closed()
        self._closed.set()


class NatsStream:
    """One JetStream stream."""

    def __init__(self, requests: Requests, api_prefix: str, spec: StreamSpec) -> None:
        self.name = spec.name
        self._subject = spec.subjects[0]
        self._requests = requests
        self._api = api_prefix

    async def publish(
        self,
        data: bytes,
        *,
        subject: str | None = None,
        headers: Mapping[str, str] | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        message_id: str | None = None,
        timeout_s: float = 5.0,
    ) -> int:
        """As `Stream.publish`; `BusRefused` when the message can never be stored."""
        all_headers = dict(headers) if headers else {}
        if expected_last_seq is not None:
            all_headers["Nats-Expected-Last-Sequence"] = str(expected_last_seq)
        if expected_last_subject_seq is not None:
            all_headers["Nats-Expected-Last-Subject-Sequence"] = str(expected_last_subject_seq)
        if message_id is not None:
            all_headers["Nats-Msg-Id"] = message_id
        return await self._requests.publish(subject or self._subject, data, all_headers, timeout_s)

    async def publish_batch(
        self, messages: Sequence[Outgoing], *, expected_last_seq: int, timeout_s: float = 5.0
    ) -> int:
        """As `Stream.publish_batch`."""
        return await self._requests.publish_batch(messages, expected_last_seq, timeout_s)

    async def info(self) -> StreamInfo:
        answer = await self._ask("STREAM.INFO", {})
        state = answer["state"]
        messages, last = int(state["messages"]), int(state["last_seq"])
        first = int(state["first_seq"]) if messages else last + 1
        most = int(answer["config"]["max_bytes"])
        return StreamInfo(first_seq=first, last_seq=last, messages=messages, bytes=int(state["bytes"]), max_bytes=most)

    async def get(self, seq: int) -> StoredMessage | None:
        return await self._get({"seq": seq})

    async def last(self, subject: str) -> StoredMessage | None:
        return await self._get({"last_by_subj": subject})

    def read(self, from_seq: int, *, subject: str | None = None) -> AsyncIterator[Sequence[StoredMessage]]:
        """As `Stream.read`. With `subject`, trimming is noticed when reading starts or starts again."""
        return read_stream(self._requests, self._api, self.name, from_seq, subject)

    async def purge_below(self, seq: int) -> None:
        keep_from = min(seq, (await self.info()).last_seq)
        if keep_from > 1:
            await self._ask("STREAM.PURGE", {"seq": keep_from})

    async def _get(self, request: Mapping[str, object]) -> StoredMessage | None:
        try:
            answer = await self._ask("STREAM.MSG.GET", request)
        except BusRefused as error:
            if error.code == NO_MESSAGE:
                return None
            raise
        message = answer["message"]
        headers = _parse_headers(base64.b64decode(message["hdrs"])) if message.get("hdrs") else None
        return StoredMessage(
            seq=int(message["seq"]),
            time_ms=_millis(message["time"]),
            subject=message["subject"],
            data=base64.b64decode(message.get("data", "")),
            headers=headers,
        )

    async def _ask(self, operation: str, request: Mapping[str, object]) -> dict[str, Any]:
        """All of these may be repeated, so an unknown outcome is simply asked again, for as long as it takes."""
        while True:
            try:
                return await self._requests.api(f"{self._api}.{operation}.{self.name}", request, API_TIMEOUT_S)
            except OutcomeUnknown:
                await asyncio.sleep(RETRY_S)


def _parse_headers(raw: bytes) -> dict[str, str]:
    lines = raw.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _millis(rfc3339: str) -> int:
    """JetStream writes nanoseconds with trailing zeros dropped; Python reads microseconds at most."""
    moment, _, fraction = rfc3339.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{moment}+00:00").timestamp())
    return seconds * 1000 + int(fraction.ljust(3, "0")[:3])
