"""Command lines that look at what goes on: events, top, doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.options import Address, Cell, Format, NatsUrl, Output


def events(
    *,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Go on with what happens from now on.")] = False,
    from_: Annotated[
        int, typer.Option("--from", min=0, help="First sequence of the event stream; 0: the last 20.")
    ] = 0,
    type_: Annotated[str, typer.Option("--type", "-t", help="Only this type, e.g. job.placed or job.*")] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Only this namespace.")] = "",
    cell: Cell = "main",
    nats: NatsUrl = "",
    output: Output = Format.TABLE,
) -> None:
    """Print public events from NATS, resumable by sequence."""
    from muster.cli import events as view

    view.events(follow=follow, from_=from_, type_=type_, namespace=namespace, cell=cell, nats=nats, output=output)


def top(
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and end.")] = False,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Live view: leader, commit rate, waits, GPUs, clusters, queues."""
    from muster.cli import top as view

    view.top(interval_s=interval, once=once, address=address, output=output)


def doctor(
    address: Address = "",
    nats: NatsUrl = "",
    cell: Cell = "main",
    output: Output = Format.TABLE,
) -> None:
    """Check NATS, streams, leases, services, clusters and clock; say which one is wrong and what to do."""
    from muster.cli import doctor as checks

    checks.doctor(address=address, nats=nats, cell=cell, output=output)


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command()(events)
    app.command()(top)
    app.command()(doctor)
