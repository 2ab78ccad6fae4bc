"""The options that say what a queue is, once for all commands that take them: create, update, what-if queue.

A command is written with one parameter `given`; `takes_fields` puts an option for each field in its place, and calls
the command with those that were used. The names are those of `queues.Fields`. Imports nothing slow.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Final

import typer

Path = Annotated[str, typer.Argument(help="Path from the root, such as research/vision.")]
File = Annotated[str, typer.Option("--file", "-f", help="YAML file with a tree of queues; - is stdin.")]
Prune = Annotated[bool, typer.Option("--prune", help="Delete queues that are not in the file (never ones with jobs).")]
Root = Annotated[str, typer.Option("--root", help="With --prune: only below this queue.")]
Revision = Annotated[int, typer.Option("--revision", help="Only if this is its current revision.")]
TreeRevision = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Only if the tree of queues has this revision still, as export and dry runs tell it (and files have it).",
    ),
]
Given = dict[str, Any]  # fields of `queues.Fields`

_AMOUNTS: Final = list[str] | None
FIELDS: Final[dict[str, Any]] = {
    "weight": Annotated[int | None, typer.Option(min=0, help="Share among siblings; 0: only what nobody else wants.")],
    "priority": Annotated[int | None, typer.Option(help="Higher goes first among siblings.")],
    "ordering": Annotated[str, typer.Option(help="FIFO, PRIORITY or FAIR.")],
    "preemption": Annotated[str, typer.Option(help="NEVER, LOWER_PRIORITY or ANY.")],
    "state": Annotated[str, typer.Option(help="OPEN, CLOSED, STOPPED or DRAINING.")],
    "guaranteed": Annotated[_AMOUNTS, typer.Option("--guaranteed", help="Its own, e.g. gpu=64 or cpu=500.")],
    "limit": Annotated[
        _AMOUNTS, typer.Option("--limit", help="Never exceeded, e.g. gpu=128,memory=2Ti; gpu=none takes a limit away.")
    ],
    "lending_limit": Annotated[
        _AMOUNTS, typer.Option("--lending-limit", help="How much of an unused guarantee others may use, e.g. gpu=8.")
    ],
    "per_namespace": Annotated[
        _AMOUNTS, typer.Option("--per-namespace", help="What each namespace may have in it, as --per-user.")
    ],
    "per_user": Annotated[
        _AMOUNTS,
        typer.Option("--per-user", help="What each user may have in it, e.g. running_jobs=3,pending_jobs=100,gpu=8."),
    ],
    "fair_by": Annotated[str, typer.Option(help="Between whom ordering FAIR is fair: NAMESPACE or USER.")],
    "min_runtime": Annotated[str, typer.Option(help="Its jobs are not preempted before they ran so long, e.g. 10m.")],
    "preemption_backoff": Annotated[
        str, typer.Option(help="How long a preempted job waits the first time, doubled each time, e.g. 30s.")
    ],
    "preemption_backoff_max": Annotated[str, typer.Option(help="How long it waits at most, e.g. 10m.")],
    "half_life": Annotated[
        str,
        typer.Option(
            help="Of a root queue: past usage counts in the order of its tree, half after so long, e.g. 7d; 0s: not."
        ),
    ],
}


def takes_fields(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with options for all fields instead of its parameter `given`."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default="" if kind.__origin__ is str else None,
                          annotation=kind)
        for name, kind in FIELDS.items()
    ]  # fmt: skip
    at = next(place for place, parameter in enumerate(own) if parameter.name == "given")

    @wraps(command)
    def wrapped(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in FIELDS}
        command(**arguments, given=given)

    parameters = [*own[:at], *options, *own[at + 1 :]]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped
