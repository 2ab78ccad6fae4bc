"""Command lines about priority classes: set, list, delete, apply, export."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.options import Address, Format, Output

app = typer.Typer(
    help="Name priorities; jobs take theirs when they are queued and keep it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(help="Name of the class, as jobs say it in priority_class.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, or refused, and stop.")]


@app.command(name="set")
def set_(
    name: Name,
    *,
    value: Annotated[int, typer.Option(help="The priority of its jobs; higher goes first.")],
    min_runtime: Annotated[
        str, typer.Option(help="Its jobs are not preempted before they ran so long, e.g. 10m.")
    ] = "",
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="key=value; also several.")] = None,
    dry_run: DryRun = False,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Create a class or make it this; what is not given has its default."""
    from muster.cli import classes

    of = classes.message(name, value, min_runtime, label or [])
    classes.apply([of], prune=False, dry_run=dry_run, address=address, output=output)


@app.command(name="list")
def list_(address: Address = "", output: Output = Format.TABLE) -> None:
    """List the classes, the highest priority first."""
    from muster.cli import classes

    classes.list_classes(address=address, output=output)


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(help="Names of classes; their jobs keep their priority.")],
    *,
    dry_run: DryRun = False,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Forget classes."""
    from muster.cli import classes

    classes.delete(names, dry_run=dry_run, address=address, output=output)


@app.command()
def apply(
    file: Annotated[str, typer.Option("--file", "-f", help="YAML file with priority classes; - is stdin.")],
    *,
    prune: Annotated[bool, typer.Option("--prune", help="Delete classes that are not in the file.")] = False,
    dry_run: DryRun = False,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Make the classes what a file says, one after the other; all are tried first."""
    from muster.cli import classes

    classes.apply(classes.read(file), prune=prune, dry_run=dry_run, address=address, output=output)


@app.command()
def export(address: Address = "") -> None:
    """Print the classes as a file that `apply` takes."""
    from muster.cli import classes

    classes.export(address=address)
