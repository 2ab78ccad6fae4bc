"""Squeeze a trace of days or years into minutes, and say what was done to it.

`squeeze(jobs, ...)` divides arrivals by one factor and run times by another, cuts idle gaps to `GAP_LIMIT_S` and clamps
run times to 0.2 .. 60 s. One common factor would turn most run times of a long trace into the minimum and leave the
cluster idle, so each factor is the least distorting one: for arrivals the smallest that submits everything in time for
the longest job to end within the target wall time, for run times the one that clamps the fewest jobs, raised until the
replay is expected to end within the target on the given capacity. All of it changes the workload: `Squeezed.describe`
prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from muster.cli.traces import TraceJob

RUNTIME_MIN_S: Final = 0.2
RUNTIME_MAX_S: Final = 60.0
GAP_LIMIT_S: Final = 1.0
SUBMIT_SHARE_MIN: Final = 0.4  # of the target
SUBMIT_SHARE_MAX: Final = 0.6
CAPACITY_SHARE: Final = 0.85  # of the cluster that jobs of mixed sizes can be expected to fill
FACTOR_MAX: Final = 1e9
FACTOR_PRECISION: Final = 1.002

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the clusters have in all; 0 means unknown, and does not bound the wall time."""

    gpu_millis: int = 0
    cpu_millis: int = 0


@dataclass(frozen=True, slots=True)
class Squeezed:
    """Jobs with replay times, and what the scaling did to them."""

    jobs: tuple[TraceJob, ...]
    arrival_factor: float
    runtime_factor: float
    gaps_cut: int
    gap_cut_s: float  # in seconds of the trace
    runtimes_raised: int
    runtimes_lowered: int
    span_s: float  # from the first submission to the last
    wall_s: float  # expected, if every job starts at once or the cluster is kept full

    def describe(self) -> list[str]:
        """Two lines for people."""
        return [
            f"arrivals 1 : {self.arrival_factor:,.0f}, {self.gaps_cut:,} idle gaps cut to {GAP_LIMIT_S:g} s "
            f"({self.gap_cut_s / 86_400:,.1f} days of the trace left out); "
            f"submitting {len(self.jobs):,} jobs in {self.span_s:,.0f} s",
            f"run times 1 : {self.runtime_factor:,.0f}, clamped to {RUNTIME_MIN_S:g} .. {RUNTIME_MAX_S:g} s "
            f"({self.runtimes_raised:,} raised, {self.runtimes_lowered:,} lowered); "
            f"expected to take {self.wall_s:,.0f} s",
        ]


def squeeze(
    jobs: Sequence[TraceJob], *, target_s: float, capacity: Capacity | None = None, factor: float = 0.0
) -> Squeezed:
    """Scale `jobs` (not empty, ordered by arrival) to end within `target_s`, or both times by exactly `factor`."""
    room = capacity or Capacity()
    gaps = np.diff(np.array([job.arrival_s for job in jobs]), prepend=jobs[0].arrival_s)
    runtimes = np.array([job.runtime_s for job in jobs])
    work = np.array([(job.gpu_millis, job.cpu_millis) for job in jobs], dtype=np.float64)

    def arrivals(by: float) -> Floats:
        return np.cumsum(np.minimum(gaps / by, GAP_LIMIT_S))

    window_s = min(max(target_s - RUNTIME_MAX_S, SUBMIT_SHARE_MIN * target_s), SUBMIT_SHARE_MAX * target_s)
    arrival_factor = factor or _smallest(lambda by: float(arrivals(by)[-1]), window_s, 1.0)
    at = arrivals(arrival_factor)

    def wall(by: float) -> float:
        return _wall(at, np.clip(runtimes / by, RUNTIME_MIN_S, RUNTIME_MAX_S), work, room)

    runtime_factor = factor or _smallest(wall, target_s, _least_clamping(runtimes))
    wanted = runtimes / runtime_factor
    lasts = np.clip(wanted, RUNTIME_MIN_S, RUNTIME_MAX_S)
    cut = np.maximum(gaps - GAP_LIMIT_S * arrival_factor, 0.0)
    return Squeezed(
        jobs=tuple(
            replace(job, arrival_s=float(a), runtime_s=float(r)) for job, a, r in zip(jobs, at, lasts, strict=True)
        ),
        arrival_factor=arrival_factor,
        runtime_factor=runtime_factor,
        gaps_cut=int(np.count_nonzero(cut)),
        gap_cut_s=float(cut.sum()),
        runtimes_raised=int(np.count_nonzero(lasts > wanted)),
        runtimes_lowered=int(np.count_nonzero(lasts < wanted)),
        span_s=float(at[-1]),
        wall_s=wall(runtime_factor),
    )


def _wall(at: Floats, lasts: Floats, work: NDArray[np.float64], capacity: Capacity) -> float:
    wall_s = float((at + lasts).max())
    for column, size in enumerate((capacity.gpu_millis, capacity.cpu_millis)):
        if size:
            wall_s = max(wall_s, float(work[:, column] @ lasts) / (size * CAPACITY_SHARE))
    return wall_s


def _least_clamping(runtimes: Floats) -> float:
    """The smallest factor f >= 1 for which most run times lie in [RUNTIME_MIN_S * f, RUNTIME_MAX_S * f]."""
    ordered = np.sort(runtimes)
    # The count only grows where the upper bound reaches a further run time.
    factors = np.maximum(np.concatenate(([1.0], ordered / RUNTIME_MAX_S)), 1.0)
    highest = np.searchsorted(ordered, factors * RUNTIME_MAX_S * (1 + 1e-12), side="right")
    inside = highest - np.searchsorted(ordered, factors * RUNTIME_MIN_S, side="left")
    return float(factors[int(np.argmax(inside))])


def _smallest(measure: Callable[[float], float], limit: float, start: float) -> float:
    """The smallest factor >= start with measure(factor) <= limit, for a measure that falls as the factor grows.

    When even a huge factor is not enough (too many jobs at the shortest run time), the start is as good as any.
    """
    if measure(start) <= limit or measure(FACTOR_MAX) > limit:
        return start
    low, high = start, FACTOR_MAX
    while high / low > FACTOR_PRECISION:
        middle = (low * high) ** 0.5
        if measure(middle) > limit:
            low = middle
        else:
            high = middle
    return high
