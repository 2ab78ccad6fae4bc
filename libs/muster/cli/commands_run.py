"""Command lines that make things run: up, replay."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.options import Address, Format, Output

Target = Annotated[float, typer.Option("--target", min=1, help="Seconds the replay should take.")]
Limit = Annotated[int, typer.Option("--limit", min=0, help="Only the first so many jobs; 0: all.")]
Factor = Annotated[
    float, typer.Option("--time-scale", min=0, help="Divide all times by this; 0: chosen from --target.")
]


def up(
    *,
    replay: Annotated[str, typer.Option("--replay", help="Replay a workload: `sample`, or the path of a trace.")] = "",
    oneshot: Annotated[bool, typer.Option("--oneshot", help="Stop after the replay's summary.")] = False,
    nodes: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="Nodes of each simulated cluster: openb (1,213 nodes), openb-csv:PATH, uniform:100x32cpu128Gi+8gpu. "
            "Default: the node list beside an OpenB trace, else openb.",
            show_default=False,
        ),
    ] = "",
    clusters: Annotated[int, typer.Option(min=1, max=8, help="Simulated clusters.")] = 1,
    sockets: Annotated[int, typer.Option(min=0, help="Nodes with a kubelet pod-resources socket.")] = 16,
    queue_managers: Annotated[int, typer.Option(min=1, max=5, help="Replicas of queue-manager.")] = 2,
    binders: Annotated[int, typer.Option(min=1, max=5, help="Replicas of binder.")] = 2,
    directory: Annotated[str, typer.Option("--dir", help="Run directory, kept; default: a fresh temporary one.")] = "",
    port: Annotated[int, typer.Option(help="gRPC port; another one is taken if it is not free.")] = 7070,
    target: Target = 150.0,
    limit: Limit = 0,
    time_scale: Factor = 0.0,
) -> None:
    """Start everything on this machine: NATS, six services, simulated clusters. Ctrl-C stops it all."""
    from muster.cli import up as stack

    options = stack.Options(
        replay=replay,
        oneshot=oneshot,
        nodes=nodes,
        clusters=clusters,
        sockets=sockets,
        queue_managers=queue_managers,
        binders=binders,
        directory=directory,
        port=port,
        target_s=target,
        limit=limit,
        factor=time_scale,
    )
    raise typer.Exit(stack.up(options))


def replay(
    trace: Annotated[str, typer.Argument(help="OpenB pods csv, Philly csv, SWF (plain or .gz), or `sample`.")],
    *,
    target: Target = 150.0,
    limit: Limit = 0,
    time_scale: Factor = 0.0,
    queue: Annotated[str, typer.Option(help="Root queue for the trace's queues; default: the trace's name.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only read and scale the trace.")] = False,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Submit a workload trace, scaled in time, and watch it through."""
    from muster.cli import replay as command

    code = command.replay(
        trace,
        target_s=target,
        limit=limit,
        factor=time_scale,
        root=queue,
        dry_run=dry_run,
        address=address,
        output=output,
    )
    raise typer.Exit(code)


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command()(up)
    app.command()(replay)
