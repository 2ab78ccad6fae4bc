"""A bare NATS connection for commands that only look: quick to fail, and never creates a stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

from muster.cli.errors import CliError, Exit

CONNECT_TIMEOUT_S: Final = 2
REQUEST_TIMEOUT_S: Final = 3.0


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    """A client connected to `url`. Raises CliError when nothing answers."""

    async def quiet(_error: Exception) -> None:
        """The failure is raised below; nats-py would log it as well."""

    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):  # nats-py itself would try for ever
            client = await nats.connect(
                url.split(","),
                name="muster cli",
                connect_timeout=CONNECT_TIMEOUT_S,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                error_cb=quiet,
            )
    except (OSError, NatsError, TimeoutError, ValueError) as error:
        hint = "start one with `muster up`, or name another with --nats or MUSTER_NATS_URL"
        why = str(error) or "no answer"
        raise CliError(f"nothing answers at {url} ({why})", Exit.UNAVAILABLE, hint) from None
    try:
        yield client
    finally:
        await client.close()


async def api(client: Client, subject: str, request: Any = None) -> dict[str, Any]:
    """One request to the JetStream API; the answer as it came, `error` included. Raises CliError without an answer."""
    body = json.dumps(request).encode() if request is not None else b""
    try:
        answer = await client.request(f"$JS.API.{subject}", body, timeout=REQUEST_TIMEOUT_S)
    except (NatsError, TimeoutError) as error:
        raise CliError(
            f"JetStream does not answer ({error or type(error).__name__})",
            Exit.UNAVAILABLE,
            "is it enabled on this NATS server?",
        ) from None
    found = json.loads(answer.data)
    return found if isinstance(found, dict) else {}


async def stream_info(client: Client, name: str) -> dict[str, Any] | None:
    """STREAM.INFO of a stream, None when it does not exist."""
    found = await api(client, f"STREAM.INFO.{name}")
    return None if "error" in found else found


async def round_trip_ms(client: Client) -> float:
    began = time.perf_counter()
    await client.flush()
    return (time.perf_counter() - began) * 1000
