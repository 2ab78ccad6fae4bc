"""What all benches share: a result, medians of several runs, the table, the machine, and CPU time by process.

    bench_*.main(runs) -> list[Result]          python -m loadtest [name ...] [--runs 5] [--profile]

A bench measures one thing a few times; every run gives `Measure`s, and `repeat` makes them `Result`s: the median with
the smallest and the largest. Wall time says what this machine manages now, CPU time by process says what a job costs,
also while something else keeps the machine busy.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

BUSY_LOAD: Final = 0.5
Microseconds = Mapping[str, float]  # by process


@dataclass(frozen=True)
class Target:
    """What the figure has to reach."""

    value: float
    at_least: bool

    def met_by(self, value: float) -> bool:
        return value >= self.value if self.at_least else value <= self.value


def at_least(value: float) -> Target:
    return Target(value, at_least=True)


def at_most(value: float) -> Target:
    return Target(value, at_least=False)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One figure of one run. `cpu_us` is CPU time for each job (or whatever is counted), by process."""

    name: str
    value: float
    unit: str
    target: Target | None = None
    cpu_us: Microseconds = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The median of a figure over all runs."""

    name: str
    value: float
    unit: str
    target: Target | None
    cpu_us: Microseconds
    note: str
    low: float
    high: float

    @property
    def met(self) -> bool:
        return self.target is None or self.target.met_by(self.value)


def repeat(runs: int, once: Callable[[], Sequence[Measure]]) -> list[Result]:
    """Run `once` so often; each run gives the same figures in the same order."""
    return medians([once() for _ in range(runs)])


def medians(runs: Sequence[Sequence[Measure]]) -> list[Result]:
    results = []
    for measures in zip(*runs, strict=True):
        values = [measure.value for measure in measures]
        first = measures[0]
        cpu = {process: statistics.median(m.cpu_us[process] for m in measures) for process in first.cpu_us}
        results.append(
            Result(
                name=first.name,
                value=statistics.median(values),
                unit=first.unit,
                target=first.target,
                cpu_us=cpu,
                note=measures[-1].note,
                low=min(values),
                high=max(values),
            )
        )
    return results


# --- the table ------------------------------------------------------------------------------------------------------


def table(results: Iterable[Result]) -> str:
    rows = [("", "median", "min .. max", "unit", "target", "CPU us each, by process; notes")]
    rows += [_row(result) for result in results]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = []
    for name, *rest, last in rows:
        numbers = "  ".join(text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))
        lines.append(f"{name.ljust(widths[0])}  {numbers}  {last}".rstrip())
    return "\n".join(lines)


def _row(result: Result) -> tuple[str, str, str, str, str, str]:
    target = ""
    if result.target is not None:
        sign = ">=" if result.target.at_least else "<="
        target = f"{sign} {number(result.target.value)} {'met' if result.met else 'MISSED'}"
    cpu = ", ".join(f"{process} {us:.0f}" for process, us in result.cpu_us.items())
    if len(result.cpu_us) > 1:
        cpu += f", all {sum(result.cpu_us.values()):.0f}"
    spread = f"{number(result.low)} .. {number(result.high)}"
    return result.name, number(result.value), spread, result.unit, target, "; ".join(filter(None, (cpu, result.note)))


def number(value: float) -> str:
    """Three digits or so, as people read them."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


# --- the machine ----------------------------------------------------------------------------------------------------


def machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory_gib = psutil.virtual_memory().total / 2**30
    return (
        f"{model}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, load {load():.2f} at the start"
    )


def load() -> float:
    return os.getloadavg()[0]


def warning() -> str:
    """Empty when the figures can be compared with others."""
    if load() <= BUSY_LOAD:
        return ""
    return f"the machine is busy (load {load():.2f} > {BUSY_LOAD}): only CPU times can be compared with other runs"
