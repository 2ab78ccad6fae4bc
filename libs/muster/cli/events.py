"""`muster events`: the public events of a cell, read from NATS and resumable by stream sequence (LOG-13).

The sequence printed first on each line is that of the EVENTS stream: `--from` takes it. Without --follow it reads up to
the end of the stream as it was at the start; with it, it goes on for ever.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from muster.cli import rundir, show
from muster.cli.errors import CliError, Exit
from muster.cli.natsio import connected, stream_info
from muster.cli.options import Format
from muster.runtime import nats_bus, streams
from muster.runtime.ports import MessagesLost, StoredMessage

SHOWN_BY_DEFAULT: Final = 20
CONNECT_TIMEOUT_S: Final = 10.0
SUBJECT_TOKENS: Final = 6  # muster.events.<cell>.<namespace>.<kind>.<what>


def events(*, follow: bool, from_: int, type_: str, namespace: str, cell: str, nats: str, output: Format) -> None:
    """Print events, oldest first."""
    url = rundir.nats_url_of(nats)
    wanted = subject_filter(cell, namespace, type_)
    asyncio.run(_read(url, wanted, from_, follow, output))


def subject_filter(cell: str, namespace: str, type_: str) -> str:
    """The NATS subject for a type such as `job.placed`, `job.*`, `job`, or nothing for all. Raises CliError."""
    tokens = type_.split(".") if type_ else ["*", "*"]
    if len(tokens) == 1:
        tokens.append("*")
    if len(tokens) != 2 or not all(tokens):
        raise CliError(f'"{type_}" is not an event type', Exit.USAGE, "types are like job.placed, job.*, queue.updated")
    return ".".join(("muster", "events", cell, namespace or "*", *tokens))


def matches(subject: str, wanted: str) -> bool:
    """Whether a subject is let through by a filter with single-token wildcards."""
    have, want = subject.split("."), wanted.split(".")
    return len(have) == len(want) and all(w in ("*", h) for h, w in zip(have, want, strict=True))


async def _read(url: str, wanted: str, from_: int, follow: bool, output: Format) -> None:
    async with connected(url) as client:
        info = await stream_info(client, streams.EVENTS)
    if info is None:
        raise CliError(f"{url} has no stream {streams.EVENTS}", Exit.NOT_FOUND, "is admission running? `muster doctor`")
    first, last = int(info["state"]["first_seq"]), int(info["state"]["last_seq"])
    if from_ and from_ < first:
        raise CliError(
            f"event {from_:,} is no longer kept: the oldest is {first:,}", Exit.REFUSED, f"use --from {first}"
        )
    start = from_ or (last + 1 if follow else max(first, last + 1 - SHOWN_BY_DEFAULT))
    if not follow and start > last:
        return
    async with asyncio.timeout(CONNECT_TIMEOUT_S):  # it answered a moment ago
        bus = await nats_bus.connect(url, name="muster events")
    try:
        stream = await bus.stream(streams.events_spec())
        # A filtered read would not tell where the stream ends, so only an endless one is filtered by the server.
        async for batch in stream.read(start, subject=wanted if follow else None):
            for message in batch:
                if matches(message.subject, wanted):
                    _print(message, output)
                if not follow and message.seq >= last:
                    return
    except MessagesLost:
        raise CliError(f"event {start:,} is no longer kept", Exit.REFUSED, "choose a later one with --from") from None
    finally:
        await bus.close()


def _print(message: StoredMessage, output: Format) -> None:
    try:
        data = json.loads(message.data)
    except ValueError:
        data = {"raw": message.data.decode(errors="replace")}
    headers = dict(message.headers or {})
    if show.is_machine(output):
        record = {"sequence": message.seq, "subject": message.subject, "headers": headers, "data": data}
        if output is Format.JSON:  # one line an event, so that a stream of them can be piped
            print(json.dumps(record, ensure_ascii=False), flush=True)
        else:
            print("---")
            show.emit(output, record)
        return
    print(line(message.seq, message.subject, data, wide=output is Format.WIDE), flush=True)


def line(sequence: int, subject: str, data: dict[str, Any], wide: bool = False) -> str:
    """One event for people: sequence, time, type, who, where, why."""
    tokens = subject.split(".")
    type_ = ".".join(tokens[-2:]) if len(tokens) == SUBJECT_TOKENS else subject

    def text(*names: str) -> str:
        return next((str(data[n]) for n in names if data.get(n)), "")

    moment = text("time")[11:19]
    who = text("name", "queue", "node", "subject", "leader", "cell")
    where = text("queue") if data.get("name") else text("cluster", "command")
    why = show.enum_name(text("reason"), "REASON_")
    said = text("message")
    parts = [f"{sequence:>8}", moment, f"{type_:<15}", f"{who:<32}", f"{where:<20}", f"{why} {said}".strip()]
    if wide:
        parts.append(text("job_id", "jobId")[:8])
    return "  ".join(parts).rstrip()
