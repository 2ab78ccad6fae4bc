"""What a simulated container does, read from its pod's annotations.

`sim.muster.io/run-seconds` (absent: runs until deleted), `sim.muster.io/exit-code` (0), `sim.muster.io/start-seconds`
(0), `sim.muster.io/stop-seconds` (0: ends at once when asked to). Start, run and deadline times are divided by the
cluster's time scale; how long a container takes to stop is not, since its grace period is not either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

_PREFIX = "sim.muster.io/"


class PlanError(ValueError):
    """An annotation is not a number in range."""


@dataclass(frozen=True)
class RunPlan:
    start_ms: int
    run_ms: int | None
    exit_code: int
    stop_ms: int
    deadline_ms: int | None


def run_plan(pod: dict[str, Any], time_scale: float) -> RunPlan:
    annotations = pod["metadata"].get("annotations") or {}
    run_s = _seconds(annotations, "run-seconds")
    deadline_s = pod["spec"].get("activeDeadlineSeconds")
    return RunPlan(
        start_ms=math.ceil((_seconds(annotations, "start-seconds") or 0.0) * 1000 / time_scale),
        run_ms=None if run_s is None else math.ceil(run_s * 1000 / time_scale),
        exit_code=_exit_code(annotations),
        stop_ms=math.ceil((_seconds(annotations, "stop-seconds") or 0.0) * 1000),
        deadline_ms=None if deadline_s is None else math.ceil(deadline_s * 1000 / time_scale),
    )


def _seconds(annotations: dict[str, str], name: str) -> float | None:
    text = annotations.get(_PREFIX + name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise PlanError(f"{_PREFIX}{name}={text!r} is not a number of seconds") from error
    if not (math.isfinite(value) and value >= 0):
        raise PlanError(f"{_PREFIX}{name}={text!r} is not a number of seconds")
    return value


def _exit_code(annotations: dict[str, str]) -> int:
    text = annotations.get(_PREFIX + "exit-code", "0")
    if not text.isdigit() or int(text) > 255:
        raise PlanError(f"{_PREFIX}exit-code={text!r} is not an exit code (0 to 255)")
    return int(text)
