"""Command lines about shares: what-if, usage, import."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.options import Address, Format, Output
from muster.cli.queue_options import File, Given, Path, Prune, Root, takes_fields

what_if = typer.Typer(
    help="Ask what a job or a change would do now; nothing is changed.", no_args_is_help=True, rich_markup_mode=None
)


@what_if.command()
def submit(
    *,
    file: Annotated[list[str], typer.Option("--file", "-f", help="YAML file with one or many jobs; - is stdin.")],
    queue: Annotated[str, typer.Option(help="Queue for jobs that name none.")] = "",
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Would it start now, on what, and whom would it displace? Of several jobs each is asked about alone."""
    from muster.cli import whatif

    whatif.submit(file, queue=queue, address=address, output=output)


@what_if.command(name="queue")
@takes_fields
def queue_(
    path: Path,
    *,
    given: Given,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Whose entitlement would change, and which running jobs would become reclaimable?"""
    from muster.cli import queues, whatif

    whatif.queue(path, queues.Fields(**given), address=address, output=output)


@what_if.command()
def apply(
    file: File, *, prune: Prune = False, root: Root = "", address: Address = "", output: Output = Format.TABLE
) -> None:
    """What would `muster queue apply` of this file do?"""
    from muster.cli import whatif

    whatif.apply(file, prune=prune, root=root, address=address, output=output)


def usage(
    *,
    since: Annotated[str, typer.Option(help="How far back: 24h, 7d, 2026-01-31. Default: everything.")] = "",
    by: Annotated[
        list[str] | None, typer.Option("--by", help="Group by queue, namespace, user, priority; also several.")
    ] = None,
    queue: Annotated[str, typer.Option("--queue", "-q", help="Only this queue and what is below it.")] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Only this namespace.")] = "",
    user: Annotated[str, typer.Option(help="Only this submitter.")] = "",
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Account for resource-hours, waits, preemptions and the work they cost."""
    from muster.cli import usage as view

    view.usage(since=since, by=by or [], queue=queue, namespace=namespace, user=user, address=address, output=output)


def import_(
    system: Annotated[str, typer.Argument(help="kueue, volcano or yunikorn.")],
    file: Annotated[str, typer.Argument(help="Its queue definitions as YAML; - is stdin.")],
    out: Annotated[str, typer.Option("--out", "-w", help="Write the queue file here instead of to stdout.")] = "",
) -> None:
    """Turn another system's queues and priority classes into a file; what has no counterpart is listed on stderr."""
    from muster.cli import importing

    importing.run(system, file, out)


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.add_typer(what_if, name="what-if")
    app.command()(usage)
    app.command(name="import")(import_)
