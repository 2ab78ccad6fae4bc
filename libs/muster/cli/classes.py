"""What the priority class commands do: a file compared with what there is, and the difference made.

Classes are independent of each other, so a file is no one change as a tree of queues is: each class is a command of its
own. All are tried before the first is written, so a mistake in the file changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from muster.api.v1 import admin_pb2
from muster.cli import show
from muster.cli.errors import CliError, Exit
from muster.cli.jobs import pairs
from muster.cli.options import Format
from muster.cli.session import run
from muster.client import Client, JobFileError, classfile
from muster.client.bounds import outside
from muster.client.durations import parse_duration_ms


class Change(NamedTuple):
    """What is to become of one class; `deleted` ones are as they were."""

    what: Literal["created", "changed", "deleted"]
    of: admin_pb2.PriorityClass


def message(name: str, value: int, min_runtime: str, labels: Sequence[str]) -> admin_pb2.PriorityClass:
    """A class from options. Raises CliError."""
    of = admin_pb2.PriorityClass(name=name, labels=pairs(labels, "--label"))
    wrong = outside(admin_pb2.PriorityClass.DESCRIPTOR.fields_by_name["value"], value)
    if wrong:
        raise CliError(f"--value: {wrong}", Exit.USAGE)
    of.value = value
    try:
        least_ms = parse_duration_ms(min_runtime) if min_runtime else 0
    except ValueError as error:
        raise CliError(f"--min-runtime: {error}", Exit.USAGE) from None
    if least_ms:
        of.min_runtime.FromMilliseconds(least_ms)
    return of


def read(file: str) -> list[admin_pb2.PriorityClass]:
    """The classes of a file, or of stdin. Raises CliError."""
    try:
        if file == "-":
            return classfile.parse(sys.stdin.read(), source="stdin")
        return classfile.load(Path(file))
    except JobFileError as error:
        raise CliError(str(error), Exit.USAGE) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}", Exit.USAGE) from None


def apply(
    wanted: Sequence[admin_pb2.PriorityClass], *, prune: bool, dry_run: bool, address: str, output: Format
) -> None:
    """Make the classes these."""

    async def work(client: Client) -> list[Change]:
        changes = difference(await client.list_priority_classes(), wanted, prune=prune)
        for trial in (True, False)[: 1 if dry_run else 2]:
            for change in changes:
                await _make(client, change, dry_run=trial)
        return changes

    _report(run(address, work), dry_run, output)


def difference(
    current: Sequence[admin_pb2.PriorityClass], wanted: Sequence[admin_pb2.PriorityClass], *, prune: bool
) -> list[Change]:
    """What leads from the classes that are there to those of a file."""
    known = {of.name: of for of in current}
    changes = [Change("changed" if of.name in known else "created", of) for of in wanted if known.get(of.name) != of]
    names = {of.name for of in wanted}
    gone = [Change("deleted", of) for of in current if of.name not in names] if prune else []
    return gone + changes  # there may be as many as there can be


async def _make(client: Client, change: Change, *, dry_run: bool) -> None:
    if change.what == "deleted":
        await client.delete_priority_class(change.of.name, dry_run=dry_run)
    else:
        await client.put_priority_class(change.of, dry_run=dry_run)


def delete(names: Sequence[str], *, dry_run: bool, address: str, output: Format) -> None:
    """Forget classes; none if one of them does not exist."""

    async def work(client: Client) -> list[Change]:
        known = {of.name: of for of in await client.list_priority_classes()}
        changes = [
            Change("deleted", known.get(name) or admin_pb2.PriorityClass(name=name)) for name in dict.fromkeys(names)
        ]
        for trial in (True, False)[: 1 if dry_run else 2]:
            for change in changes:
                await _make(client, change, dry_run=trial)
        return changes

    _report(run(address, work), dry_run, output)


def list_classes(*, address: str, output: Format) -> None:
    """Print the classes."""

    async def work(client: Client) -> list[admin_pb2.PriorityClass]:
        return list(await client.list_priority_classes())

    found = run(address, work)
    if show.is_machine(output):
        show.emit(output, {classfile.KEY: [show.plain(of) for of in found]})
    elif not found:
        print("no priority classes: make one with `muster priority-class set NAME --value N`")
    else:
        print(table(found, wide=output is Format.WIDE))


def table(found: Sequence[admin_pb2.PriorityClass], *, wide: bool) -> str:
    """One line a class."""
    header = ["NAME", "VALUE", "MIN RUNTIME", *(["LABELS"] if wide else [])]
    rows = []
    for of in found:
        least_ms = of.min_runtime.ToMilliseconds()
        row = [of.name, str(of.value), show.duration(least_ms / 1000) if least_ms else show.NOTHING]
        labels = ",".join(f"{key}={value}" for key, value in sorted(of.labels.items()))
        rows.append([*row, labels or show.NOTHING] if wide else row)
    return show.table(header, rows, right=frozenset({1, 2}))


def export(*, address: str) -> None:
    """Print the classes as a file."""

    async def work(client: Client) -> list[admin_pb2.PriorityClass]:
        return list(await client.list_priority_classes())

    sys.stdout.write(classfile.dump(run(address, work)))


def _report(changes: Sequence[Change], dry_run: bool, output: Format) -> None:
    if show.is_machine(output):
        told = [{"kind": change.what, "priority_class": show.plain(change.of)} for change in changes]
        show.emit(output, {"changes": told, "dry_run": dry_run})
        return
    for change in changes:
        settings = "" if change.what == "deleted" else f"   {_settings(change.of)}"
        print(f"{change.of.name}  {change.what}{settings}")
    if not changes:
        print("nothing to change")
    if dry_run:
        print("nothing was changed (dry run)")


def _settings(of: admin_pb2.PriorityClass) -> str:
    least_ms = of.min_runtime.ToMilliseconds()
    return f"value {of.value}" + (f"   min runtime {show.duration(least_ms / 1000)}" if least_ms else "")
