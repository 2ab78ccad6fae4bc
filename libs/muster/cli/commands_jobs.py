"""Command lines about jobs: submit, list, get, explain, cancel, checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.options import Address, Format, Output

Job = Annotated[str, typer.Argument(help="Name, namespace/name, id, or the first digits of an id.")]


def submit(
    *,
    file: Annotated[list[str], typer.Option("--file", "-f", help="YAML file with one or many jobs; - is stdin.")],
    request_id: Annotated[
        str, typer.Option(help="Makes repeating safe: the same id and jobs are accepted only once.")
    ] = "",
    queue: Annotated[str, typer.Option(help="Queue for jobs that name none.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the jobs have ended.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Submit the jobs of a file (Muster YAML or batch/v1 Job; many documents are fine)."""
    from muster.cli import jobs

    jobs.submit(file, request_id=request_id, queue=queue, wait=wait, dry_run=dry_run, address=address, output=output)


def list_(
    *,
    queue: Annotated[str, typer.Option("--queue", "-q", help="Only this queue and what is below it.")] = "",
    state: Annotated[list[str] | None, typer.Option("--state", "-s", help="Only these states, e.g. Queued.")] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Only this namespace.")] = "",
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="Only jobs with key=value.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many, newest first; 0: all.")] = 50,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """List jobs, newest first."""
    from muster.cli import jobs

    jobs.list_jobs(
        queue=queue,
        states=state or [],
        namespace=namespace,
        labels=label or [],
        limit=limit,
        address=address,
        output=output,
    )


def get(job: Job, address: Address = "", output: Output = Format.TABLE) -> None:
    """Show one job: its life as a time line, with the reason for each step."""
    from muster.cli import jobs

    jobs.get(job, address=address, output=output)


def explain(job: Job, address: Address = "", output: Output = Format.TABLE) -> None:
    """Say in numbers why a job waits, and what would let it start."""
    from muster.cli import explain as view

    view.explain(job, address=address, output=output)


def cancel(
    job: Annotated[list[str], typer.Argument(help="Jobs by name, namespace/name or id.")],
    reason: Annotated[str, typer.Option(help="Shown in the job's history.")] = "",
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """End jobs; their pods get their grace period."""
    from muster.cli import jobs

    jobs.cancel(job, reason=reason, address=address, output=output)


def checkpoint(
    job: Job,
    at: Annotated[
        str, typer.Option(help="When the work was saved: 2026-01-31T18:00:00Z, or 90s ago. Now if absent.")
    ] = "",
    epoch: Annotated[int, typer.Option(min=0, help="Of this placement of the job; 0: the current one.")] = 0,
    address: Address = "",
    output: Output = Format.TABLE,
) -> None:
    """Say that a running job has saved its work: a preemption would lose only what comes after."""
    from muster.cli import jobs

    jobs.checkpoint(job, at=at, epoch=epoch, address=address, output=output)


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command()(submit)
    app.command(name="list")(list_)
    app.command()(get)
    app.command()(explain)
    app.command()(cancel)
    app.command()(checkpoint)
