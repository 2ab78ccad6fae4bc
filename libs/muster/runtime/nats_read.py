"""Reading a stream for ever, in order and without gaps, over nats-py.

A reader is a push consumer without acknowledgements, with flow control and heartbeats, delivering to an inbox of its
own. Callbacks cost a quarter of `fetch`. The server may forget such a consumer (restart, leader change), a
subscription may go silent, a message may be dropped: every delivery carries the consumer's own counter, so a gap shows
at the next message, a missing tail at the next heartbeat, and silence when the watchdog looks. In each case the reader
throws the consumer away and asks for a new one from the sequence it needs next. What it hands out is therefore always
the stream's order, whatever happened underneath.

Flow control is answered when the caller comes back for the next batch: a slow caller slows the server down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from nats import errors as nats_errors

from muster.runtime.ports import MessagesLost, OutcomeUnknown, StoredMessage

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from muster.runtime.nats_publish import Requests

HEARTBEAT_S: Final = 1.0
SILENCE_S: Final = 3.0  # three heartbeats: the consumer is dead
RETRY_S: Final = 0.1
API_TIMEOUT_S: Final = 2.0
FORGOTTEN_AFTER_S: Final = 30.0  # the server removes a consumer nobody listens to
NANOS: Final = 1_000_000_000
CONTROL_STATUS: Final = "100"
ACK_TOKENS: Final = 9  # $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<ns>.<pending>


class Broken(Exception):
    """This consumer can no longer be trusted; take a new one."""


async def read_stream(
    requests: Requests, api_prefix: str, stream: str, from_seq: int, subject: str | None
) -> AsyncIterator[Sequence[StoredMessage]]:
    """As `Stream.read`."""
    next_seq = max(1, from_seq)
    while True:
        await requests.wait_connected()
        consumer = PushConsumer(requests, api_prefix, stream)
        try:
            await consumer.open(next_seq, subject)
            while True:
                batch = await consumer.take()
                if subject is None and (batch[0].seq != next_seq or batch[-1].seq != next_seq + len(batch) - 1):
                    raise MessagesLost(f"{stream}: wanted {next_seq} and on; some were trimmed before they were read")
                next_seq = batch[-1].seq + 1
                yield batch
        except (Broken, OutcomeUnknown, nats_errors.Error, OSError):
            pass
        finally:
            await consumer.close()
        await asyncio.sleep(RETRY_S)


class PushConsumer:
    """One ephemeral consumer and what it has delivered so far."""

    def __init__(self, requests: Requests, api_prefix: str, stream: str) -> None:
        self._client = requests.client
        self._requests = requests
        self._api = api_prefix
        self._stream = stream
        self._name = self._client.new_inbox().rpartition(".")[2]
        self._subscription: Subscription | None = None
        self._messages: list[StoredMessage] = []
        self._arrived = asyncio.Event()
        self._broken = ""
        self._delivered = 0  # the consumer's own counter
        self._first_wanted = 0
        self._flow_reply = ""
        self._heard_s = 0.0
        self._watchdog: asyncio.TimerHandle | None = None

    async def open(self, from_seq: int, subject: str | None) -> None:
        """Start delivery. Raises MessagesLost, OutcomeUnknown."""
        self._requests.on_connection_lost.add(self._connection_lost)
        self._first_wanted = from_seq
        inbox = self._client.new_inbox()
        # No client-side limits: flow control bounds what is pending, and dropping is never right here.
        self._subscription = await self._client.subscribe(
            inbox, cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0
        )
        config: dict[str, object] = {
            "name": self._name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": from_seq,
            "ack_policy": "none",
            "max_deliver": 1,
            "deliver_subject": inbox,
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * NANOS),
            "inactive_threshold": int(FORGOTTEN_AFTER_S * NANOS),
            "mem_storage": True,
            "num_replicas": 1,
        }
        create = f"{self._api}.CONSUMER.CREATE.{self._stream}.{self._name}"
        if subject is not None:
            config["filter_subject"] = subject
            create = f"{create}.{subject}"
        await self._requests.api(create, {"stream_name": self._stream, "config": config}, API_TIMEOUT_S)
        await self._check_start(from_seq)
        self._watch()

    async def _check_start(self, from_seq: int) -> None:
        # The consumer begins silently at the first message there is; with a filter, or with nothing left to deliver,
        # no delivery would show that some are gone.
        info = await self._requests.api(f"{self._api}.STREAM.INFO.{self._stream}", {}, API_TIMEOUT_S)
        state = info["state"]
        first = state["first_seq"] if state["messages"] else state["last_seq"] + 1
        if from_seq < first:
            raise MessagesLost(f"{self._stream}: wanted {from_seq}, the first there is {first}")

    async def take(self) -> list[StoredMessage]:
        """All that has arrived, at least one message. Raises Broken."""
        if self._flow_reply:
            reply, self._flow_reply = self._flow_reply, ""
            await self._client.publish(reply)
        while not self._messages:
            if self._broken:
                raise Broken(self._broken)
            self._arrived.clear()
            await self._arrived.wait()
        batch, self._messages = self._messages, []
        return batch

    async def close(self) -> None:
        """Stop listening; the server is told, and forgets the consumer by itself if that message is lost."""
        self._requests.on_connection_lost.discard(self._connection_lost)
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._subscription is None or self._client.is_closed:
            return
        try:
            await self._subscription.unsubscribe()
            if self._client.is_connected:
                delete = f"{self._api}.CONSUMER.DELETE.{self._stream}.{self._name}"
                await self._client.publish(delete, reply=self._requests.unheard_reply)
        except (nats_errors.Error, OSError):
            pass  # closing or reconnecting: nothing is left to stop

    async def _on_message(self, msg: Msg) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        headers = msg.headers
        if headers and not msg.data and headers.get("Status"):
            await self._on_control(msg, headers)
            return
        tokens = msg.reply.split(".")
        if len(tokens) < ACK_TOKENS:
            self._break(f"delivery without position: {msg.reply!r}")
            return
        # Counted from the end of the fixed part: domains put tokens in front, newer servers one behind.
        offset = 0 if len(tokens) == ACK_TOKENS else 2
        seq, delivered, nanos = int(tokens[5 + offset]), int(tokens[6 + offset]), int(tokens[7 + offset])
        if delivered != self._delivered + 1:
            self._break(f"delivery {delivered} after {self._delivered}")
            return
        self._delivered = delivered
        if seq < self._first_wanted or self._broken:
            return  # asked for a sequence beyond the stream's end: JetStream begins at its end
        self._messages.append(StoredMessage(seq, nanos // 1_000_000, msg.subject, msg.data, headers))
        self._arrived.set()

    async def _on_control(self, msg: Msg, headers: Mapping[str, str]) -> None:
        if headers["Status"] != CONTROL_STATUS:
            self._break(f"status {headers['Status']}")
            return
        # Either a flow control request (to be answered on `reply`) or a heartbeat, which repeats it while stalled.
        flow = msg.reply or headers.get("Nats-Consumer-Stalled", "")
        if flow:
            if self._messages:
                self._flow_reply = flow
            else:
                await self._client.publish(flow)
        if int(headers.get("Nats-Last-Consumer", "0")) > self._delivered:
            self._break("the heartbeat knows of a delivery that never came")

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard_s = loop.time()
        self._watchdog = loop.call_later(HEARTBEAT_S, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._heard_s > SILENCE_S:
            self._break("no heartbeat")
        else:
            self._watchdog = loop.call_later(HEARTBEAT_S, self._look)

    def _connection_lost(self) -> None:
        # The server may forget the consumer, and what it sent meanwhile is gone.
        self._break("the connection was lost")

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        self._arrived.set()
