"""How near to its entitlement every queue stays, over time, in a cell of any size.

    python -m tests.simulation.fairness [SCENARIO ...] [--nodes N] [--seed 1]

The cell starts unfair: half of the leaves have it all to themselves. Then the others come, and from the first lifetime
on (the longest that a job may run), every ten seconds, each leaf's usage is compared with the entitlement that is
published at that moment, and that with a water-filling of its own, written from the definition for one resource and
equal jobs. |usage - E| <= max(1 job, 2 % of E) has to hold in 99 of 100 samples, or the run ends with exit code 1.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import nlargest

from tests.simulation.sharing import GPUS_PER_NODE, ONE, Setting, Sharing, Weights

WITHIN_MIN = Fraction(99, 100)
TOLERANCE = Fraction(2, 100)  # of E; at least one job
SAMPLE_TICKS = 10
SAMPLED_LIFETIMES = 2
MORE_THAN_ENOUGH = 1 << 40
ASKED_PER_CENT = 105  # of its share when all want something, a leaf wants so much ...
ASKED_PER_CENT_CHANGING = 400  # ... where it may get more because others want nothing ...
ASKED_BEYOND = 8  # ... and so many jobs more
WORST = 3


# --- trees ------------------------------------------------------------------------------------------------------------


def two_queues() -> Weights:
    return {"heavy": 2, "light": 1}


def random_tree(levels: int, leaves: int, seed: int) -> Weights:
    """Every leaf on the last level, random parents, random weights everywhere."""
    rng = random.Random(seed)
    weights: Weights = {}
    above = [""]
    for level in range(1, levels + 1):
        count = max(len(above), round(leaves ** (level / levels)))
        parents = above + [rng.choice(above) for _ in range(count - len(above))]
        names = [f"{parent}/q{n}".strip("/") for n, parent in enumerate(parents)]
        weights |= {name: rng.randint(1, 10) for name in names}
        above = names
    return weights


def leaves_of(weights: Weights) -> list[str]:
    parents = {path.rpartition("/")[0] for path in weights}
    return [path for path in weights if path not in parents]


def water_filled(weights: Weights, demand: Mapping[str, int], amount: int) -> dict[str, Fraction]:
    """Weighted max-min, level by level (rule F2 for one resource). `demand` is of the leaves."""
    children: dict[str, list[str]] = {}
    asked: dict[str, int] = {}
    for path in weights:
        children.setdefault(path.rpartition("/")[0], []).append(path)
    for path in reversed(weights):
        asked[path] = sum(asked[child] for child in children[path]) if path in children else demand.get(path, 0)
    shares = {"": Fraction(min(amount, sum(asked[child] for child in children[""])))}
    for parent in ("", *weights):
        left, hungry = shares[parent], children.get(parent, [])
        while hungry:
            level = left / sum(weights[child] for child in hungry)
            content = [child for child in hungry if asked[child] <= level * weights[child]]
            if not content:
                shares |= {child: level * weights[child] for child in hungry}
                break
            shares |= {child: Fraction(asked[child]) for child in content}
            left -= sum(asked[child] for child in content)
            hungry = [child for child in hungry if asked[child] > level * weights[child]]
    return shares


# --- samples ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Deviation:
    excess: float  # as a multiple of what is allowed
    path: str
    used: int
    entitled: int
    second: int

    def __str__(self) -> str:
        return f"{self.path}: {self.used / ONE:g} used, E {self.entitled / ONE:g}, after {self.second} s"


@dataclass
class Report:
    """What a run has shown. Amounts are thousandths of a GPU."""

    samples: int = 0
    within: int = 0
    outside: dict[str, int] = field(default_factory=dict)  # leaf -> samples
    worst: list[Deviation] = field(default_factory=list)
    worst_inner: Deviation | None = None  # of queues that are no leaves
    farthest: Fraction = Fraction(0)  # published E from the water-filling
    starts: int = 0  # while samples were taken
    evictions: int = 0  # meanwhile

    @property
    def share(self) -> Fraction:
        return Fraction(self.within, self.samples)


def allowed(entitled: int) -> Fraction:
    return max(Fraction(ONE), TOLERANCE * entitled)


class Run:
    """One scenario. `change` may alter what leaves want, tick by tick, once all of them have come."""

    def __init__(self, setting: Setting, change: Callable[[Run], None] | None = None) -> None:
        self.sharing = Sharing(setting)
        self.setting = setting
        self.leaves = leaves_of(setting.weights)
        self.rng = random.Random(setting.seed)
        self.report = Report()
        self.seconds = 0
        self._change = change
        self._per_cent = ASKED_PER_CENT if change is None else ASKED_PER_CENT_CHANGING
        self.enough = self._enough(self.leaves)

    def _enough(self, leaves: Sequence[str]) -> dict[str, int]:
        """A little more than each of these would get if all of them wanted everything."""
        demand = dict.fromkeys(leaves, MORE_THAN_ENOUGH)
        shares = water_filled(self.setting.weights, demand, self.setting.gpus * ONE)
        return {leaf: int(shares[leaf] * self._per_cent / 100 / ONE) + ASKED_BEYOND for leaf in leaves}

    def run(self) -> Report:
        """Fill the cell unfairly, let everybody come, wait for a lifetime, sample."""
        shortest, longest = (most // self.setting.tick_ms for most in self.setting.lifetime_ms)
        self.sharing.wanted = self._enough(self.leaves[::2])
        self._ticks(SAMPLE_TICKS)
        self.sharing.wanted = dict(self.enough)
        self._ticks(longest)
        counts, report = self.sharing.counts, self.report
        starts, evictions = counts.placed, counts.evicted
        for _ in range(SAMPLED_LIFETIMES * (shortest + longest) // 2 // SAMPLE_TICKS):
            self._ticks(SAMPLE_TICKS)
            self._sample()
        report.starts, report.evictions = counts.placed - starts, counts.evicted - evictions
        return report

    def _ticks(self, count: int) -> None:
        for _ in range(count):
            if self._change is not None:
                self._change(self)
            self.sharing.tick()
            self.seconds += self.setting.tick_ms // 1000

    def _sample(self) -> None:
        sharing, report, leaves = self.sharing, self.report, dict.fromkeys(self.leaves)
        demand = {leaf: sharing.live(leaf) * ONE for leaf in leaves}
        exact = water_filled(self.setting.weights, demand, self.setting.gpus * ONE)
        for path in self.setting.weights:
            used, entitled = sharing.usage(path), sharing.entitled(path)
            report.farthest = max(report.farthest, abs(entitled - exact[path]))
            excess = abs(used - entitled) / allowed(entitled)
            deviation = Deviation(float(excess), path, used, entitled, self.seconds)
            if path not in leaves:
                report.worst_inner = max(report.worst_inner or deviation, deviation)
                continue
            report.samples += 1
            report.within += excess <= 1
            report.worst = nlargest(WORST, [*report.worst, deviation])
            if excess > 1:
                report.outside[path] = report.outside.get(path, 0) + 1


# --- scenarios --------------------------------------------------------------------------------------------------------


IDLE_AND_BUSY_LIFETIMES = 10


def comes_and_goes(run: Run) -> None:
    """Now and then a leaf loses interest, or regains it."""
    mean = run.setting.lifetime_ms[1] // run.setting.tick_ms * IDLE_AND_BUSY_LIFETIMES
    for leaf in run.leaves:
        if run.rng.random() * mean < 1:
            if run.sharing.wanted.get(leaf):
                run.sharing.withdraw(leaf)
            else:
                run.sharing.wanted[leaf] = run.enough[leaf]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    about: str
    levels: int  # 0: two queues of weights 2 and 1
    leaves: int
    nodes: int
    preemption: str = "NEVER"
    lifetime_ms: tuple[int, int] = (300_000, 900_000)
    change: Callable[[Run], None] | None = None
    within_min: Fraction = WITHIN_MIN

    def run(self, *, nodes: int = 0, leaves: int = 0, levels: int = 0, seed: int = 1) -> Run:
        """Ready to run, also smaller than it is meant to be."""
        weights = random_tree(levels or self.levels, leaves or self.leaves, seed) if self.levels else two_queues()
        setting = Setting(
            nodes=nodes or self.nodes,
            weights=weights,
            preemption=self.preemption,
            seed=seed,
            lifetime_ms=self.lifetime_ms,
            grace_ms=2000,
        )
        return Run(setting, self.change)


SHORT_MS = (60_000, 180_000)
SCENARIOS = {
    "weights": Scenario(about="weights 2 and 1; who borrows ends some day", levels=0, leaves=2, nodes=12_500),
    "tree": Scenario(about="a deep tree; who borrows ends some day", levels=10, leaves=1000, nodes=12_500),
    "reclaim": Scenario(
        about="what is borrowed is reclaimed",
        levels=5,
        leaves=50,
        nodes=250,
        preemption="ANY",
        lifetime_ms=SHORT_MS,
    ),
    "changing": Scenario(
        about="leaves lose interest and come back, and reclaim",
        levels=5,
        leaves=50,
        nodes=250,
        preemption="ANY",
        lifetime_ms=SHORT_MS,
        change=comes_and_goes,
        within_min=Fraction(95, 100),  # after a change the victims' grace has to pass first
    ),
}


def told(name: str, run: Run, wall_s: float) -> str:
    report, counts = run.report, run.sharing.counts
    spent_s = sum(counts.spent_s.values())
    lines = [
        f"{name}: {SCENARIOS[name].about}",
        f"  size              {run.setting.gpus:,} GPUs, {len(run.leaves):,} leaves, {counts.placed:,} jobs placed",
        f"  within the bound  {float(report.share):.4%} of {report.samples:,} samples; at some moment outside: "
        f"{len(report.outside)} leaves, the worst in {max(report.outside.values(), default=0)} samples",
        *(f"  worst             {deviation}" for deviation in report.worst),
        f"  worst inner queue {report.worst_inner}",
        f"  published E       at most {float(report.farthest) / ONE:.4f} GPUs from the water-filling",
        f"  preemption        {counts.asked:,} asked, {counts.planned:,} plans, {counts.evicted:,} evicted; "
        f"while samples were taken {report.evictions:,} at {report.starts:,} starts",
        f"  cost              {wall_s:.0f} s, of these CPU "
        + ", ".join(f"{part} {seconds:.0f}" for part, seconds in sorted(counts.spent_s.items()))
        + f"; {counts.placed / spent_s:,.0f} jobs a CPU second, {counts.transactions:,} transactions, "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:,} MiB",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenario", nargs="*", help=", ".join(SCENARIOS))
    parser.add_argument("--nodes", type=int, default=0, help=f"of {GPUS_PER_NODE} GPUs; default: by scenario")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    failed = []
    for name in given.scenario or SCENARIOS:
        gc.collect()
        gc.disable()  # as a leader has it
        began_s = time.perf_counter()
        run = SCENARIOS[name].run(nodes=given.nodes, seed=given.seed)
        if run.run().share < SCENARIOS[name].within_min:
            failed.append(name)
        gc.enable()
        print(told(name, run, time.perf_counter() - began_s), flush=True)
    print(f"outside the bound too often: {', '.join(failed)}" if failed else "every scenario within its bound")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
