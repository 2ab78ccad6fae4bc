"""What an eviction would destroy: work that is not safe (rule P3).

Work begins when a job runs (`started_ms`), of an array job when the pod of the index does (`began`). It is safe up to
the last checkpoint that the job has reported in this epoch (`saved_ms`), and, if the job declares an interval, up to
the last multiple of it after the work began. Accounts count what was lost, what-if tells it before, and the order of
victims compares it, so all of them ask here.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.core.jobs import Job, is_over
from muster.core.model import Amounts


def unsaved_ms(job: Job, since_ms: int, now_ms: int) -> int:
    """How much of the time since the work began is not safe."""
    elapsed_ms = now_ms - max(since_ms, job.saved_ms)
    every_ms = job.spec.checkpoint_ms
    if every_ms:
        elapsed_ms = min(elapsed_ms, (now_ms - since_ms) % every_ms)
    return max(elapsed_ms, 0)


def lost(job: Job, positions: Iterable[int], now_ms: int) -> Amounts:
    """What the pods at these positions would lose, in resource-milliseconds. Those that are over lose nothing."""
    live = [position for position in positions if not is_over(job.phases[position])]
    if not job.spec.completion:
        ran_ms = unsaved_ms(job, job.started_ms, now_ms) if job.started_ms else 0
        return tuple((r, amount * ran_ms) for r, amount in job.gang.of_positions(live)) if ran_ms else ()
    totals: dict[str, int] = {}
    began = job.began or {}
    for position in live:
        since_ms = began.get(position)
        ran_ms = unsaved_ms(job, since_ms, now_ms) if since_ms is not None else 0
        for resource, amount in job.gang.per_pod[job.gang.group_of(position)]:
            if ran_ms:
                totals[resource] = totals.get(resource, 0) + amount * ran_ms
    return tuple(sorted(totals.items()))


def work_since_ms(job: Job, positions: list[int]) -> int:
    """When the work began that these pods would lose: of an array job the mean of its indices."""
    if not job.spec.completion or not positions:
        return job.started_ms or job.placed_ms
    fresh_ms, began = job.grown_ms or job.placed_ms, job.began or {}
    return sum(began.get(position, fresh_ms) for position in positions) // len(positions)
