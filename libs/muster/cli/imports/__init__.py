"""Queue definitions of other systems as Muster's tree: what has a counterpart becomes a queue file, the rest is told.

Each module here reads one system. Nothing is guessed silently: whatever a definition says that Muster has no setting
for, or that means something slightly different here, comes out as a note naming the queue and the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from muster.cli.imports import kueue, volcano, yunikorn
from muster.cli.imports.tree import Imported

SYSTEMS: Final[Mapping[str, Callable[[str, str], Imported]]] = {
    "kueue": kueue.read,
    "volcano": volcano.read,
    "yunikorn": yunikorn.read,
}

__all__ = ["SYSTEMS", "Imported"]
