"""Command lines about queues: create, list, describe, update, move, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.options import Address, Format, Output

app = typer.Typer(help="Create, change and look at queues.", no_args_is_help=True, rich_markup_mode=None)

Path = Annotated[str, typer.Argument(help="Path from the root, such as research/vision.")]
Amounts = list[str] | None
Weight = Annotated[int | None, typer.Option(min=0, help="Share among siblings; 0: only what nobody else wants.")]
Priority = Annotated[int | None, typer.Option(help="Higher goes first among siblings.")]
Ordering = Annotated[str, typer.Option(help="FIFO, PRIORITY or FAIR.")]
Preemption = Annotated[str, typer.Option(help="NEVER, LOWER_PRIORITY or ANY.")]
State = Annotated[str, typer.Option(help="OPEN, CLOSED, STOPPED or DRAINING.")]
Guaranteed = Annotated[Amounts, typer.Option("--guaranteed", help="Its own, e.g. gpu=64 or cpu=500.")]
Limit = Annotated[
    Amounts, typer.Option("--limit", help="Never exceeded, e.g. gpu=128,memory=2Ti; gpu=none takes a limit away.")
]
Revision = Annotated[int, typer.Option("--revision", help="Only if this is its current revision.")]


@app.command()
def create(
    path: Path,
    *,
    weight: Weight = None,
    priority: Priority = None,
    ordering: Ordering = "",
    preemption: Preemption = "",
    guaranteed: Guaranteed = None,
    limit: Limit = None,
    parents: Annotated[bool, typer.Option("--parents", "-p", help="Create missing parents as well.")] = False,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Create a queue."""
    from muster.cli import queues

    fields = queues.Fields(weight, priority, ordering, preemption, "", guaranteed, limit)
    queues.create(path, fields, parents=parents, address=address, output=output)


@app.command(name="list")
def list_(
    root: Annotated[str, typer.Argument(help="Only this queue and what is below it.")] = "",
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """List the queue tree with what each queue has, may have and uses."""
    from muster.cli import queues

    queues.list_queues(root, address=address, output=output)


@app.command()
def describe(path: Path, address: Address = "", output: Output = Format.TABLE) -> None:
    """Show one queue in full."""
    from muster.cli import queues

    queues.describe(path, address=address, output=output)


@app.command()
def update(
    path: Path,
    *,
    weight: Weight = None,
    priority: Priority = None,
    ordering: Ordering = "",
    preemption: Preemption = "",
    state: State = "",
    guaranteed: Guaranteed = None,
    limit: Limit = None,
    revision: Revision = 0,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Change a queue; what is not given stays as it is."""
    from muster.cli import queues

    fields = queues.Fields(weight, priority, ordering, preemption, state, guaranteed, limit)
    queues.update(path, fields, revision=revision, address=address, output=output)


@app.command()
def move(
    path: Path,
    new_path: Annotated[str, typer.Argument(help="Where it goes, with all below it; its jobs go on.")],
    *,
    revision: Revision = 0,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Give a queue another place or name."""
    from muster.cli import queues

    queues.move(path, new_path, revision=revision, address=address, output=output)


@app.command()
def delete(path: Path, *, revision: Revision = 0, address: Address = "", output: Output = Format.TABLE) -> None:
    """Delete an empty queue."""
    from muster.cli import queues

    queues.delete(path, revision=revision, address=address, output=output)
