"""`muster usage`: what was used, waited for and lost, as a table."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from muster.api.v1 import query_pb2
from muster.cli import show
from muster.cli.errors import CliError, Exit
from muster.cli.options import Format
from muster.cli.session import run
from muster.client import Client
from muster.client.durations import parse_duration_ms
from muster.client.planning import dimensions
from muster.core import resources

GIB = 1 << 30
FIRST_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "cpu", "memory")


def usage(
    *, since: str, by: Sequence[str], queue: str, namespace: str, user: str, address: str, output: Format
) -> None:
    """Print the account."""
    groups = [name for names in by for name in names.split(",") if name] or ["queue"]
    try:
        dimensions(groups)
    except ValueError as error:
        raise CliError(f"--by: {error}", Exit.USAGE) from None
    moment = since_of(since, datetime.datetime.now(datetime.UTC))

    async def work(client: Client) -> query_pb2.GetUsageResponse:
        return await client.usage(since=moment, group_by=groups, queue=queue, namespace=namespace, user=user)

    answer = run(address, work)
    if show.is_machine(output):
        show.emit(output, show.plain(answer))
        return
    print(table(answer, groups))
    start, end = show.seconds_of(getattr(answer, "from")), show.seconds_of(answer.to)
    print(f"from {show.clock(start)} to {show.clock(end)}")
    if answer.truncated:
        print(f"only the first {len(answer.rows):,} groups are shown")


def since_of(text: str, now: datetime.datetime) -> datetime.datetime | None:
    """`24h`, `7d`, a date or a time; "" is everything. Raises CliError."""
    if not text:
        return None
    try:
        return now - datetime.timedelta(milliseconds=parse_duration_ms(text))
    except ValueError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise CliError(
            f"--since {text!r} is neither a duration (24h, 7d) nor a date (2026-01-31)", Exit.USAGE
        ) from None
    return moment if moment.tzinfo else moment.astimezone()


def table(answer: query_pb2.GetUsageResponse, groups: Sequence[str]) -> str:
    """One row a group and the total; a column for each resource that was used."""
    named = sorted(answer.total.resource_hours, key=_rank)
    header = [group.upper() for group in groups]
    header += [f"{resources.short_name(r).upper()}-H" if r != resources.MEMORY else "GIB-H" for r in named]
    header += ["JOBS", "STARTED", "DONE", "FAILED", "CANCELLED", "PREEMPTED", "LOST", "WAIT AVG", "WAIT MAX"]
    rows = [_row(row, [str(getattr(row, group)) or show.NOTHING for group in groups], named) for row in answer.rows]
    rows.append(_row(answer.total, ["total", *[""] * (len(groups) - 1)], named))
    return show.table(header, rows, right=frozenset(range(len(groups), len(header))))


def _row(row: query_pb2.UsageRow, names: list[str], named: Sequence[str]) -> list[str]:
    lost = next((r for r in sorted(row.lost_hours, key=_rank) if row.lost_hours[r]), "")
    return [
        *names,
        *[_hours(r, row.resource_hours.get(r, 0.0)) for r in named],
        f"{row.submitted:,}",
        f"{row.started:,}",
        f"{row.succeeded:,}",
        f"{row.failed:,}",
        f"{row.cancelled:,}",
        f"{row.preempted:,}" + (f" (+{row.shrunk_replicas:,} replicas)" if row.shrunk_replicas else ""),
        f"{_hours(lost, row.lost_hours[lost])} {resources.short_name(lost)}-h" if lost else show.NOTHING,
        show.duration(row.mean_wait_seconds) if row.started else show.NOTHING,
        show.duration(row.max_wait_seconds) if row.started else show.NOTHING,
    ]


def _hours(resource: str, hours: float) -> str:
    return f"{hours / GIB if resources.is_bytes(resource) else hours:,.2f}"


def _rank(resource: str) -> tuple[int, str]:
    known = resource in FIRST_RESOURCES
    return (FIRST_RESOURCES.index(resource) if known else len(FIRST_RESOURCES), resource)
