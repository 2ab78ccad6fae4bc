"""What is remembered of a placement that is over: where the gang was, how long, and how its pods ended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from muster.core import layout
from muster.core.limits import ATTEMPT_PODS_KEPT_MAX
from muster.core.model import GroupPlacement, PodPhase, TaskGroup

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
