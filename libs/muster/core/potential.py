"""The potential PSI, which every scheduling action raises (rule P1): why preemption cannot go round in circles.

For a priority p, EU_p is the sum over leaf queues and resources of min(usage by placed jobs of priority >= p, E) /
capacity. PSI is EU_p for every p from the highest down, then the placed replicas of every job, the most important job
first, compared lexicographically. It is a matter of committed usage (rule Q3): a job that is on its way out counts as
gone, the holder of a plan as placed. With constant demand PSI is bounded and only ever rises, so the cell falls silent.

`Potential` keeps usage by leaf queue and priority as `apply` folds transitions; `weigh` says whether a change raises
PSI by looking at the leaves it touches only, in exact integers. Planner and leader ask the same function, and
`invariants_potential` recomputes it naively for every action of every simulated commit.

Pod slots are no resource here: every pod uses one, nobody is entitled to any. Until fair-share has answered for a
queue, its entitlement is its guarantee, and resources that the guarantee does not name are left out of account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Final, NamedTuple

from muster.core import resources
from muster.core.jobs import RUNNING_STATES, Job, is_over
from muster.core.lifecycle import STOPPING
from muster.core.model import Amounts
from muster.core.queues import Queue, Usage
from muster.core.resources import PODS

TOUCHED_MAX: Final = 65_536  # remembered job ids; readers that are further behind start afresh

ByPriority = dict[int, Usage]


class Entitled(NamedTuple):
    """What a queue is entitled to. `complete`: resources that are not named have an entitlement of 0."""

    amounts: Mapping[str, int]
    complete: bool

    def over(self, usage: Mapping[str, int], resource: str) -> bool:
        """Whether usage is above E in the resource."""
        most = self.amounts.get(resource, 0 if self.complete else None)
        return most is not None and usage.get(resource, 0) > most

    def below(self, usage: Mapping[str, int], resource: str) -> bool:
        """Whether usage is below E in the resource."""
        return usage.get(resource, 0) < self.amounts.get(resource, 0)


def entitled(queue: Queue, published: Mapping[str, Amounts]) -> Entitled:
    """E of the queue: as fair-share published it, or its guarantee (rules F1, F2)."""
    amounts = published.get(queue.id)
    if amounts is None:
        return Entitled(dict(queue.spec.guaranteed), complete=False)
    return Entitled(dict(amounts), complete=True)


class Potential:
    """Committed usage by leaf queue and priority, and who is on the way out. Changed by `apply` only."""

    __slots__ = ("_first", "_log", "derived", "leaving", "usage")

    def __init__(self) -> None:
        self.usage: dict[str, ByPriority] = {}
        self.leaving: dict[str, None] = {}  # jobs with pods that were asked to leave and are not over
        self.derived: object | None = None  # made by `victim_table.table_of`, never stored
        self._log: list[str] = []
        self._first = 0

    def count(self, queue: str, priority: int, amounts: Amounts, times: int) -> None:
        """Jobs of the leaf queue use so many times the amounts more (or less) in the sense of rule P1."""
        if amounts:
            usage = self.usage.setdefault(queue, {})
            add(usage, priority, amounts, times)
            if not usage:
                del self.usage[queue]

    def touch(self, job: str) -> None:
        """Something about the job has changed that matters to whoever looks for victims."""
        self._log.append(job)
        if len(self._log) > TOUCHED_MAX:
            cut = len(self._log) // 2
            del self._log[:cut]
            self._first += cut

    def goes(self, job: Job) -> None:
        """Whether the job has pods that were asked to leave has changed."""
        if job.leaving or (job.state is STOPPING and not job.pods_over()):
            self.leaving[job.spec.id] = None
        else:
            self.leaving.pop(job.spec.id, None)

    @property
    def end(self) -> int:
        """The cursor of a reader that has seen every touch."""
        return self._first + len(self._log)

    def touched(self, cursor: int) -> list[str] | None:
        """Jobs touched since `cursor`, each once; None: read everything afresh."""
        if cursor < self._first:
            return None
        return list(dict.fromkeys(self._log[cursor - self._first :]))

    def of_leaf(self, queue: str) -> Usage:
        """Committed usage of a leaf queue."""
        return summed(self.usage.get(queue, {}))


def staying(job: Job) -> list[int]:
    """Positions that count as placed: not over, not asked to leave."""
    if job.state not in RUNNING_STATES:
        return []
    if not job.leaving and not job.unplaced and not any(job.phases):
        return list(range(len(job.phases)))
    return [p for p, phase in enumerate(job.phases) if not is_over(phase) and p not in job.leaving]


def add(usage: ByPriority, priority: int, amounts: Iterable[tuple[str, int]], times: int) -> None:
    """Add to the usage of a priority; what becomes zero is dropped."""
    totals = usage.setdefault(priority, {})
    resources.count(totals, amounts, times)
    if not totals:
        del usage[priority]


def summed(usage: Mapping[int, Usage]) -> Usage:
    """Of all priorities together."""
    totals: Usage = {}
    for amounts in usage.values():
        for resource, amount in amounts.items():
            totals[resource] = totals.get(resource, 0) + amount
    return totals


class Step(NamedTuple):
    """A part of an action: a job gains (sign 1) or loses (-1) so many replicas that use `amounts`."""

    job: Job
    amounts: Amounts
    replicas: int
    sign: int


class Weighed(NamedTuple):
    """What an action does: whether PSI rises, and the sign of the change of EU of the lowest priority."""

    rises: bool
    total: int


def weigh(
    steps: Sequence[Step],
    *,
    usage_of: Callable[[str], Mapping[int, Usage]],
    entitled_of: Callable[[str], Entitled],
    capacity: Mapping[str, int],
) -> Weighed:
    """What the steps, as one action, do to PSI (rule P1)."""
    changed: dict[str, ByPriority] = {}
    for step in steps:
        add(changed.setdefault(step.job.queue, {}), step.job.spec.priority, step.amounts, step.sign)
    before = {queue: usage_of(queue) for queue in changed}
    priorities = sorted({p for queue in changed for p in (*changed[queue], *before[queue])}, reverse=True)
    scale = prod(capacity.values())
    moved, total = 0, 0
    at: dict[str, tuple[Usage, Usage]] = {queue: ({}, {}) for queue in changed}
    for priority in priorities:
        total = 0
        for queue, by_priority in changed.items():
            had, change = at[queue]
            _cumulate(had, before[queue].get(priority, {}))
            _cumulate(change, by_priority.get(priority, {}))
            total += gained(had, change, entitled_of(queue), capacity, scale)
        moved = moved or total
    sign = (total > 0) - (total < 0)
    if moved:
        return Weighed(moved > 0, sign)
    return Weighed(_replicas_rise(steps), sign)


def _cumulate(totals: Usage, amounts: Mapping[str, int]) -> None:
    for resource, amount in amounts.items():
        totals[resource] = totals.get(resource, 0) + amount


def gained(
    had: Mapping[str, int], change: Mapping[str, int], share: Entitled, capacity: Mapping[str, int], scale: int
) -> int:
    """By how much min(usage, E) / capacity of a leaf rises, summed over resources, times `scale`."""
    gain = 0
    for resource, amount in change.items():
        whole = capacity.get(resource, 0)
        most = share.amounts.get(resource, 0)
        if amount and whole > 0 and resource != PODS:
            used = had.get(resource, 0)
            gain += (min(used + amount, most) - min(used, most)) * (scale // whole)
    return gain


def _replicas_rise(steps: Sequence[Step]) -> bool:
    """The second part of PSI: the most important job whose replicas change decides."""
    changes: dict[tuple[int, int, str], int] = {}
    for step in steps:
        key = (-step.job.spec.priority, step.job.submit_ms, step.job.spec.id)
        changes[key] = changes.get(key, 0) + step.sign * step.replicas
    for key in sorted(changes):
        if changes[key]:
            return changes[key] > 0
    return False


def capacity_of(amounts: Amounts) -> dict[str, int]:
    """The resources that shares are about, with what the cell has of them."""
    return {resource: amount for resource, amount in amounts if amount > 0 and resource != PODS}


def entitled_use(
    usage: Mapping[str, ByPriority], entitled_of: Callable[[str], Entitled], capacity: Mapping[str, int]
) -> dict[str, int]:
    """By resource: the sum over leaf queues of min(usage, E), what EU of the lowest priority is made of."""
    used = dict.fromkeys(capacity, 0)
    for queue, by_priority in usage.items():
        share = entitled_of(queue)
        for resource, amount in summed(by_priority).items():
            if resource in used:
                used[resource] += min(amount, share.amounts.get(resource, 0))
    return used
