"""`muster top`: the cell at a glance, again and again. Rates come from the differences between two looks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from muster.api.v1 import query_pb2
from muster.cli import queues, show
from muster.cli.errors import from_client
from muster.cli.options import Format
from muster.cli.session import run
from muster.client import Client, ClientError, Queue

STATES: Final = ("Queued", "Placed", "Starting", "Running", "Stopping", "Succeeded", "Failed", "Cancelled")
GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu")


@dataclass(frozen=True)
class Look:
    """What one look found, and when (seconds, monotonic)."""

    cell: query_pb2.GetCellResponse
    queues: Sequence[Queue]
    at_s: float


def top(*, interval_s: float, once: bool, address: str, output: Format) -> None:
    """Show the cell until interrupted; once when asked, when piped, or in a machine format."""
    if once or show.is_machine(output) or not sys.stdout.isatty():
        found = run(address, _look)
        if show.is_machine(output):
            data = show.plain(found.cell)
            show.emit(output, {"cell": data, "queues": [queue.to_dict() for queue in found.queues]})
        else:
            print(render(found, None))
        return
    run(address, lambda client: _live(client, interval_s))


async def _look(client: Client) -> Look:
    cell = await client.cell()
    return Look(cell, await client.list_queues(), asyncio.get_running_loop().time())


async def _live(client: Client, interval_s: float) -> None:
    from rich.live import Live
    from rich.text import Text

    before: Look | None = None
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            try:
                found = await _look(client)
                text = render(found, before)
                before = found
            except ClientError as error:  # it may be restarting: say so and go on looking
                text = f" {from_client(error, client.address).message}"
            live.update(Text(text, no_wrap=True), refresh=True)
            await asyncio.sleep(interval_s)


def render(now: Look, before: Look | None) -> str:
    """The whole view as text; rates only when there was a look before."""
    cell = now.cell
    lag = max(0, cell.ledger_end - cell.ledger_sequence)
    backlog = max(0, cell.inbox_end - cell.inbox_committed.sequence)
    leader = f"leader {cell.leader or 'none'} (epoch {cell.epoch})"
    lines = [
        f" cell {cell.cell}   {leader}   ledger {cell.ledger_sequence:,}"
        + (f" ({lag:,} behind)" if lag else "")
        + f"   inbox backlog {backlog:,} messages   answered by {cell.replica}",
        _rates(now, before),
        " jobs  " + "   ".join(f"{state.lower()} {cell.jobs_by_state.get(state, 0):,}" for state in STATES),
        f" used  {_usage(cell.usage, cell.capacity)}",
        "",
    ]
    if cell.clusters:
        header = (" CLUSTER", "NODES", "READY", "STATE", "USED")
        rows = [
            [
                f" {c.name}",
                f"{c.nodes:,}",
                f"{c.ready_nodes:,}",
                "synced" if c.synced else "NOT SYNCED",
                _usage(c.usage, c.capacity),
            ]
            for c in cell.clusters
        ]
        lines += [show.table(header, rows, right=frozenset({1, 2})), ""]
    if now.queues:
        lines.append(queues.tree(now.queues))
    return "\n".join(lines)


def _rates(now: Look, before: Look | None) -> str:
    waits = now.cell.waits
    text = (
        f" waits p50 {show.duration(waits.p50_seconds)}  p90 {show.duration(waits.p90_seconds)}  "
        f"p99 {show.duration(waits.p99_seconds)} (last {waits.count:,})"
    )
    if before is None:
        return text
    seconds = max(1e-3, now.at_s - before.at_s)

    def rate(name: str) -> str:
        count: int = getattr(now.cell, name) - getattr(before.cell, name)
        return f"{max(0, count) / seconds:,.0f}"

    rates = f"   commits {rate('transactions_total')}/s   placed {rate('placed_total')}/s"
    return text + rates + f"   finished {rate('finished_total')}/s"


def _usage(usage: Any, capacity: Any) -> str:
    """`GPUs 4,871 / 6,212 (78 %)   cpu 41 %   memory 30 %`."""
    parts = []
    for resource in sorted(capacity, key=lambda r: (r not in GPUS, r)):
        total = show.amount_of(resource, capacity[resource])
        used = show.amount_of(resource, usage[resource]) if resource in usage else 0
        if not total or resource == "ephemeral-storage" or resource.startswith("hugepages-"):
            continue
        if resource in GPUS:
            parts.append(f"GPUs {used / 1000:,.0f} / {total / 1000:,.0f} ({used / total:.0%})")
        else:
            parts.append(f"{resource} {used / total:.0%}")
    return "   ".join(parts) or "nothing"
