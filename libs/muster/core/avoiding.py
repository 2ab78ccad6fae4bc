"""Where a job goes that failed to start on some nodes before (rule L3), tried on an overlay.

Such nodes come last, and for a while not at all; but when that is over a job must not wait for ever because of them
(I7). Starts, growth and preemption plans ask here, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from muster.core.jobs import Job, shunned
from muster.core.model import GroupPlacement, TaskGroup
from muster.core.overlay import Overlay


def place_avoiding(
    overlay: Overlay, job: Job, tasks: Sequence[TaskGroup], cluster_mask: Container[str] | None, now_ms: int
) -> tuple[GroupPlacement, ...] | None:
    """Where these tasks of the job fit, the nodes that it avoids last; None: nowhere now."""
    avoiding = overlay.place_gang(tasks, cluster_mask=cluster_mask, suspects=job.suspects)
    if avoiding is not None or not job.suspects or shunned(job, now_ms):
        return avoiding
    return overlay.place_gang(tasks, cluster_mask=cluster_mask)
