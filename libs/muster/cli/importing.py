"""`muster import`: another system's queue definitions, and its priority classes, as one file. Needs no cell."""

from __future__ import annotations

import sys
from pathlib import Path

from muster.cli.errors import CliError, Exit, nearest
from muster.cli.imports import SYSTEMS
from muster.client import classfile, queuefile


def run(system: str, file: str, out: str) -> None:
    """Write the queue file to `out` (or stdout) and the notes to stderr. Raises CliError."""
    reader = SYSTEMS.get(system)
    if reader is None:
        known = ", ".join(SYSTEMS)
        raise CliError(f'"{system}" is not known{nearest(system, SYSTEMS)} (known: {known})', Exit.USAGE)
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}", Exit.USAGE) from None
    try:
        found = reader(text, file)
    except RecursionError:
        raise CliError(f"{file} is nested too deeply, or an alias in it contains itself", Exit.USAGE) from None
    written = queuefile.dump(found.queues)
    if found.classes:
        written = classfile.dump(found.classes) + written
    if out:
        try:
            Path(out).write_text(written, encoding="utf-8")
        except OSError as error:
            raise CliError(f"{out} cannot be written: {error.strerror}", Exit.USAGE) from None
        print(f"{out}: {len(found.queues)} queues; try `muster queue apply -f {out} --dry-run`", file=sys.stderr)
        if found.classes:
            many = f"{len(found.classes)} priority classes"
            print(f"{out}: {many}; try `muster priority-class apply -f {out} --dry-run`", file=sys.stderr)
    else:
        sys.stdout.write(written)
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
