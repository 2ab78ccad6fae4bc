"""Who would have to leave so that a job can start (rules P2b, P3, P6).

`plan_preemption` looks inside one queue: running jobs of lower priority that may be preempted, cheapest first (lower
priority, then newer, then id). It releases the cheapest on a copy until the job fits, then takes out every victim that
turns out not to be needed, the most valuable first, so the plan is minimal; the placement is part of it. The leader
checks a plan with `why_invalid` against its own state: only what matters counts, not that nothing changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from muster.core import resources
from muster.core.holds import Kepts
from muster.core.jobs import Job, is_over
from muster.core.lifecycle import CHARGED
from muster.core.limits import PLAN_VICTIMS_MAX
from muster.core.model import GroupPlacement, JobState, TaskGroup
from muster.core.overlay import Overlay
from muster.core.queues import Queue, Usage, over_limit
from muster.core.state import CellState, Hold


class Plan(Struct, frozen=True):
    """Victims (job, epoch), cheapest first, and where the preemptor goes then."""

    victims: tuple[tuple[str, int], ...]
    placement: tuple[GroupPlacement, ...]


def plan_preemption(state: CellState, job_id: str) -> Plan | None:
    """A minimal plan that lets the job start, or None. Nothing is changed."""
    job = state.jobs.get(job_id)
    if job is None or job.state is not JobState.QUEUED or not state.queues.get(job.queue).preempts:
        return None
    candidates = victims_of(job, state.queues.get(job.queue), state.jobs)
    if not candidates:
        return None
    planner = _Planner(state, job)
    needed = planner.fewest(candidates)
    if needed is None or needed == 0:
        return None
    victims = candidates[:needed]
    for victim in sorted(victims, key=cost, reverse=True):
        without = [v for v in victims if v is not victim]
        if planner.place(without) is not None:
            victims = without
    placement = planner.place(victims)
    if placement is None or not victims:
        return None
    return Plan(tuple((v.id, v.epoch) for v in victims), placement)


def cost(job: Job) -> tuple[int, int, str]:
    """Ascending: who is preempted first (rule P3)."""
    return (job.spec.priority, -job.submit_ms, job.id)


def victims_of(job: Job, queue: Queue, jobs: Mapping[str, Job]) -> list[Job]:
    """Whom the job may preempt inside its queue (rule P2b), cheapest first, at most as many as a plan may name."""
    lower = [
        other
        for other in (jobs[running] for running in queue.running)
        if other.spec.preemptible and other.spec.priority < job.spec.priority
    ]
    return sorted(lower, key=cost)[:PLAN_VICTIMS_MAX]


class _Planner:
    """Tries the job with some victims gone, each time on an overlay of its own."""

    def __init__(self, state: CellState, job: Job) -> None:
        self._state = state
        self._job = job
        gang = job.gang
        self._tasks = gang.minimum_tasks or gang.tasks  # nobody leaves for an elastic part
        self._others = {holder: hold for holder, hold in state.holds.items() if holder != job.id}

    def fewest(self, candidates: Sequence[Job]) -> int | None:
        """The length of the shortest prefix that is enough (by bisection), None if all are not."""
        if self.place(candidates) is None:
            return None
        low, high = 0, len(candidates)
        while low < high:
            middle = (low + high) // 2
            if self.place(candidates[:middle]) is None:
                low = middle + 1
            else:
                high = middle
        return low

    def place(self, victims: Sequence[Job]) -> tuple[GroupPlacement, ...] | None:
        state, job = self._state, self._job
        overlay = Overlay(state.nodes)
        kepts = Kepts(self._others, state.jobs.get, overlay, state.queues)
        queue = state.queues.get(job.queue)
        if over_limit(queue, job.gang.minimum_map, _usage_without(victims, lambda q: q.usage), kepts.usage) is not None:
            return None
        for victim in victims:
            overlay.release(*live_pods(victim))
        return overlay.place_gang(self._tasks, cluster_mask=cluster_mask(job), suspects=job.suspects)


def why_invalid(
    job: Job | None,
    victims: Sequence[tuple[Job | None, int]],
    *,
    queue_of: Callable[[Job], Queue],
    usage_of: Callable[[Queue], Usage],
    overlay: Overlay,
    kepts: Kepts,
    placement: Sequence[GroupPlacement],
) -> str | None:
    """Why a plan no longer holds (rule P6); None: it does. `overlay` is used up."""
    if job is None or job.state is not JobState.QUEUED:
        return "the job is no longer queued"
    found: list[Job] = []
    for victim, epoch in victims:
        if victim is None or victim.epoch != epoch or victim.state not in CHARGED - {JobState.STOPPING}:
            return "a victim is no longer running"
        if victim.queue != job.queue or victim.spec.priority >= job.spec.priority or not victim.spec.preemptible:
            return "a victim may not be preempted by this job"
        found.append(victim)
    queue = queue_of(job)
    if not queue.preempts or not queue.starts_jobs:
        return "the queue does not preempt now"
    counts = {group.group: sum(count for _, count in group.runs) for group in placement}
    for number, task in enumerate(job.gang.tasks):
        if not task.min_replicas <= counts.get(number, 0) <= task.replicas:
            return "the placement is not the job's gang"
    need = dict(job.gang.of_counts(counts))
    if over_limit(queue, need, _usage_without(found, usage_of), kepts.usage) is not None:
        return "the job would exceed a limit"
    for victim in found:
        overlay.release(*live_pods(victim))
    if not overlay.fits(job.gang.tasks, placement):
        return "the job would not fit after the eviction"
    return None


def live_pods(job: Job) -> tuple[tuple[TaskGroup, ...], tuple[GroupPlacement, ...], list[int]]:
    """What an eviction of the job frees, as arguments of `Overlay.release`."""
    live = [position for position, phase in enumerate(job.phases) if not is_over(phase)]
    return job.gang.tasks, job.placement, live


def live_usage(job: Job) -> Usage:
    return dict(job.gang.of_positions(live_pods(job)[2]))


def cluster_mask(job: Job) -> tuple[str, ...] | None:
    """The clusters the job may use, as `Overlay.place_gang` wants them."""
    selector = job.spec.cluster_selector
    return (selector[0][1],) if selector else None


def _usage_without(victims: Sequence[Job], usage_of: Callable[[Queue], Usage]) -> Callable[[Queue], Usage]:
    """Usage of a queue as if the victims were gone. They are all in one queue, so every queue of its path loses all."""
    gone = dict(resources.total(tuple(sorted(live_usage(victim).items())) for victim in victims))

    def usage(queue: Queue) -> Usage:
        return {resource: amount - gone.get(resource, 0) for resource, amount in usage_of(queue).items()}

    return usage


def as_hold(job_id: str, plan: Plan, expires_ms: int) -> Hold:
    return Hold(job_id, plan.placement, plan.victims, expires_ms)
