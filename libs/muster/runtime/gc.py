"""Garbage collection that does not stall the fast loop (LOG-16).

Python's cyclic collector walks every container object it knows: about 2 ms for each thousand jobs, at moments of its
own choosing. State is not cyclic garbage, so nothing is collected while it is loaded, and what has been loaded is
frozen: never walked, not even once. From then on collections happen here: when the process says it is idle, or when so
many new objects have come together that waiting longer would make the next one long. After each, what survived is
frozen too, so a collection costs what came since the last one and not what the cell holds.
"""

from __future__ import annotations

import gc
from typing import Final

IDLE_OBJECTS_MIN: Final = 20_000  # new container objects that make an idle collection worthwhile
BUSY_OBJECTS_MAX: Final = 200_000  # about 20 ms to walk


def state_loaded() -> None:
    """A large state has replaced another one. If a `Collector` is in charge, its next collection must not walk it."""
    if not gc.isenabled():
        gc.freeze()


class Collector:
    """Takes over from the automatic collector of this process."""

    def __init__(self) -> None:
        self.collections = 0

    def loading(self) -> None:
        """From here on nothing is collected, until `start`."""
        gc.disable()

    def start(self) -> None:
        """The state is loaded: freeze it."""
        gc.disable()
        gc.freeze()

    def stop(self) -> None:
        """Back to Python's own ways."""
        gc.unfreeze()
        gc.enable()

    def idle(self) -> None:
        """Nothing is waiting: a few milliseconds do not matter now."""
        if gc.get_count()[0] > IDLE_OBJECTS_MIN:
            self._collect()

    def busy(self) -> None:
        """Between two pieces of work."""
        if gc.get_count()[0] > BUSY_OBJECTS_MAX:
            self._collect()

    def _collect(self) -> None:
        gc.collect()
        gc.freeze()
        self.collections += 1
