"""Garbage collection that does not stall the fast loop (LOG-16).

Python's cyclic collector walks every container object it knows: about 2 ms for each thousand jobs, at moments of its
own choosing. State is not cyclic garbage, so what has been loaded is frozen (never walked again) and from then on
collections happen here: when the process says it is idle, or when so many new objects have come together that
waiting longer would make the next one long. After each, what survived is frozen too, so a collection costs what came
since the last one and not what the cell holds.
"""

from __future__ import annotations

import gc
from typing import Final

IDLE_OBJECTS_MIN: Final = 20_000  # new container objects that make an idle collection worthwhile
BUSY_OBJECTS_MAX: Final = 400_000  # about 40 ms to walk


class Collector:
    """Takes over from the automatic collector of this process."""

    def __init__(self) -> None:
        self.collections = 0

    def start(self) -> None:
        """The state is loaded: freeze it."""
        gc.collect()
        gc.freeze()
        gc.disable()

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
