"""Command lines about queues: create, list, describe, update, move, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.options import Address, Format, Output
from muster.cli.queue_options import File, Given, Path, Prune, Revision, Root, TreeRevision, takes_fields

app = typer.Typer(help="Create, change and look at queues.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
@takes_fields
def create(
    path: Path,
    *,
    given: Given,
    parents: Annotated[bool, typer.Option("--parents", "-p", help="Create missing parents as well.")] = False,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Create a queue."""
    from muster.cli import queues

    queues.create(path, queues.Fields(**given), parents=parents, address=address, output=output)


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
@takes_fields
def update(
    path: Path,
    *,
    given: Given,
    revision: Revision = 0,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Change a queue; what is not given stays as it is."""
    from muster.cli import queues

    queues.update(path, queues.Fields(**given), revision=revision, address=address, output=output)


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
    expect_revision: TreeRevision = None,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Make the queues what a file says: all of it at one moment, or nothing."""
    from muster.cli import trees

    trees.apply(file, prune=prune, root=root, dry_run=dry_run, revision=expect_revision, address=address, output=output)


@app.command()
def export(
    root: Annotated[str, typer.Argument(help="Only this queue and what is below it.")] = "", address: Address = ""
) -> None:
    """Print the queues as a file that `apply` takes."""
    from muster.cli import trees

    trees.export(root, address=address)
