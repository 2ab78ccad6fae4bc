"""A connection for the length of one command, and the translation of what can go wrong with it.

`run(address, work)` checks that something listens (so that a missing server is told at once, not after retries), opens
the client, runs the coroutine `work(client)` and turns the client's errors into `CliError`.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from muster.cli import rundir
from muster.cli.errors import CliError, Exit, closest, from_client, nearest, sentence
from muster.client import Client, ClientError, Job, NotFound, connect
from muster.wire.ids import DEFAULT_NAMESPACE

CALL_TIMEOUT_S: Final = 15.0
PROBE_TIMEOUT_S: Final = 2.0
SUGGESTED_FROM_JOBS: Final = 500

_NO_QUEUE: Final = re.compile(r'queue "([^"]*)" does not exist')

T = TypeVar("T")


def run(address_option: str, work: Callable[[Client], Awaitable[T]], timeout_s: float = CALL_TIMEOUT_S) -> T:
    """Run `work` with a client of the cell at the address that the option means. Raises CliError."""
    address = rundir.address_of(address_option)
    probe(address)

    async def main() -> T:
        async with connect(address, timeout_s=timeout_s) as client:
            try:
                return await work(client)
            except ClientError as error:
                raise from_client(error, address) from None

    return asyncio.run(main())


def probe(address: str) -> None:
    """Raise CliError unless something accepts connections at `address`."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise CliError(f'"{address}" is not an address', Exit.USAGE, "expected host:port, such as 127.0.0.1:7070")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_TIMEOUT_S).close()
    except OSError as error:
        raise CliError(
            f"nothing answers at {address} ({error.strerror or error})",
            Exit.UNAVAILABLE,
            "start everything on this machine with `muster up`, or name another cell with --address or MUSTER_ADDRESS",
        ) from None


async def unknown_job(client: Client, name: str, error: NotFound) -> CliError:
    """The error for a job that does not exist, with the nearest name among the newest jobs."""
    newest: list[Job] = []
    try:
        newest = [job async for job in client.list(limit=SUGGESTED_FROM_JOBS, newest_first=True)]
    except ClientError:
        pass  # the suggestion is a courtesy
    said = error.message if "did you mean" in error.message else error.message + nearest_job(name, newest)
    said = sentence(error, said)
    return CliError(said, Exit.NOT_FOUND, "`muster list` shows the jobs")


async def unknown_queue(client: Client, path: str, error: ClientError) -> CliError:
    """The error for a queue that does not exist, with the nearest path; of a move it may be the place it goes to."""
    paths: list[str] = []
    try:
        paths = [queue.path for queue in await client.list_queues()]
    except ClientError:
        pass  # the suggestion is a courtesy
    named = _NO_QUEUE.search(error.message)  # not always the one the command is about: it may be a parent
    said = error.message
    if "did you mean" not in said:
        said += nearest(named[1] if named else path, paths)
    said = sentence(error, said)
    return CliError(said, Exit.NOT_FOUND, "`muster queue list` shows the queues")


def nearest_job(name: str, known: Iterable[Job]) -> str:
    """As `nearest`, told as it has to be typed: with the namespace where that is not the default one."""
    typed: dict[str, str] = {}  # what is compared with `name` -> what to type
    for job in known:
        full = job.name if job.namespace == DEFAULT_NAMESPACE else f"{job.namespace}/{job.name}"
        typed.setdefault(full if "/" in name else job.name, full)
    found = closest(name, [short for short, full in typed.items() if full != name])
    return f' (did you mean "{typed[found]}"?)' if found else ""
