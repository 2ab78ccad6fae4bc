"""What is remembered of a job's placements: where the gang was, how long, how its pods ended, when it grew or shrank.

Bounded: the last attempts, the last growths and shrinks, and of each the first pods. The event stream has all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from muster.core import layout
from muster.core.limits import ATTEMPT_PODS_KEPT_MAX, RESIZE_PODS_KEPT_MAX, RESIZES_KEPT_MAX
from muster.core.model import GroupPlacement, PodPhase, TaskGroup
from muster.core.transitions import JobShrunk

SUCCEEDED: Final = int(PodPhase.SUCCEEDED)
FAILED: Final = int(PodPhase.FAILED)


class PodEnd(Struct, array_like=True, frozen=True, gc=False):
    """How one pod of a placement that is over ended. The exit code is that of a pod that failed."""

    position: int
    phase: int
    exit_code: int = 0


class Attempt(Struct, array_like=True, frozen=True, gc=False):
    """A placement that is over: where the gang was, how long, and how it ended."""

    epoch: int
    placed_ms: int
    started_ms: int  # 0: it never ran
    ended_ms: int
    reason: str
    message: str = ""
    exit_code: int = 0
    placement: tuple[GroupPlacement, ...] = ()
    pods: tuple[PodEnd, ...] = ()  # those that failed first, then by position, the first so many; none: all succeeded


class Resize(Struct, array_like=True, frozen=True, gc=False):
    """An elastic job grew, or shrank and went on."""

    epoch: int
    at_ms: int
    grown: int = 0  # pods that came
    shrunk: int = 0  # pods that were asked to leave
    reason: str = ""  # of a shrink
    message: str = ""
    by: str = ""  # the job that they make room for
    pods: tuple[int, ...] = ()  # positions of those that leave, the first so many

    @property
    def why(self) -> str:
        """For people: whom or what a shrink was for."""
        return self.message or (f"they make room for job {self.by}" if self.by else "")


def shrinking(t: JobShrunk, now_ms: int) -> Resize:
    """What is kept of a shrink."""
    kept = t.pods[:RESIZE_PODS_KEPT_MAX]
    return Resize(t.epoch, now_ms, 0, len(t.pods), t.reason, t.message, t.by, kept)


def resized(before: tuple[Resize, ...], another: Resize) -> tuple[Resize, ...]:
    """The last ones."""
    return (*before, another)[-RESIZES_KEPT_MAX:]


def ends(
    tasks: Sequence[TaskGroup],
    placement: Sequence[GroupPlacement],
    phases: bytearray,
    exits: tuple[tuple[int, int], ...],
) -> tuple[PodEnd, ...]:
    """How the pods of a placement ended: failures first, then the first ones, as many as are kept.

    `exits` are the exit codes that are known, by position. Nothing is kept when all succeeded.
    """
    if phases.count(SUCCEEDED) == len(phases):
        return ()
    codes = dict(exits)
    placed = layout.placed_positions(tasks, placement)
    failed = [position for position in placed if phases[position] == FAILED][:ATTEMPT_PODS_KEPT_MAX]
    others = (position for position in placed if phases[position] != FAILED)
    chosen = (*failed, *islice(others, ATTEMPT_PODS_KEPT_MAX - len(failed)))
    return tuple(PodEnd(position, phases[position], codes.get(position, 0)) for position in chosen)
