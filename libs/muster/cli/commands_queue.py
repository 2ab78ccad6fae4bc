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
LendingLimit = Annotated[
    Amounts, typer.Option("--lending-limit", help="How much of an unused guarantee others may use, e.g. gpu=8.")
]
FairBy = Annotated[str, typer.Option(help="Between whom ordering FAIR is fair: NAMESPACE or USER.")]
MinRuntime = Annotated[str, typer.Option(help="Its jobs are not preempted before they ran so long, e.g. 10m.")]
File = Annotated[str, typer.Option("--file", "-f", help="YAML file with a tree of queues; - is stdin.")]
Prune = Annotated[bool, typer.Option("--prune", help="Delete queues that are not in the file (never ones with jobs).")]
Root = Annotated[str, typer.Option("--root", help="With --prune: only below this queue.")]
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
    lending_limit: LendingLimit = None,
    fair_by: FairBy = "",
    min_runtime: MinRuntime = "",
    parents: Annotated[bool, typer.Option("--parents", "-p", help="Create missing parents as well.")] = False,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Create a queue."""
    from muster.cli import queues

    fields = queues.Fields(
        weight=weight,
        priority=priority,
        ordering=ordering,
        preemption=preemption,
        guaranteed=guaranteed,
        limit=limit,
        lending_limit=lending_limit,
        fair_by=fair_by,
        min_runtime=min_runtime,
    )
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
    """Show one queue in full: what is guaranteed, deserved, used, borrowed, lent and waited for."""
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
    lending_limit: LendingLimit = None,
    fair_by: FairBy = "",
    min_runtime: MinRuntime = "",
    revision: Revision = 0,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Change a queue; what is not given stays as it is."""
    from muster.cli import queues

    fields = queues.Fields(
        weight=weight,
        priority=priority,
        ordering=ordering,
        preemption=preemption,
        state=state,
        guaranteed=guaranteed,
        limit=limit,
        lending_limit=lending_limit,
        fair_by=fair_by,
        min_runtime=min_runtime,
    )
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


@app.command()
def apply(
    file: File,
    *,
    prune: Prune = False,
    root: Root = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would change and whom it would make reclaimable, and stop.")
    ] = False,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Make the queues what a file says: all of it at one moment, or nothing."""
    from muster.cli import trees

    trees.apply(file, prune=prune, root=root, dry_run=dry_run, address=address, output=output)


@app.command()
def export(
    root: Annotated[str, typer.Argument(help="Only this queue and what is below it.")] = "", address: Address = ""
) -> None:
    """Print the queues as a file that `apply` takes."""
    from muster.cli import trees

    trees.export(root, address=address)
