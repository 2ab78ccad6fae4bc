"""A placed job goes on with fewer pods, because some were lost, refused or did not start (rules I2, G1).

As long as every group keeps its minimum, the loss of a replica is no reason to take the gang down: the job shrinks, and
grows again later, each time a position fails after a longer pause; on other nodes than those that failed, soon.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.core import transitions as tr
from muster.core.backoff import backoff_ms, elsewhere_ms
from muster.core.draft import Draft
from muster.core.jobs import RUNNING_STATES, Job, is_over
from muster.core.model import Reason
from muster.core.whereabouts import node_of


def can_do_without(job: Job, positions: Sequence[int]) -> bool:
    """Whether every group keeps its minimum when the pods at these positions, gone already or not, are not counted."""
    if job.gang.minimum_tasks is None or job.state not in RUNNING_STATES:
        return False
    lost: dict[int, int] = {}
    for position in positions:
        if not is_over(job.phases[position]):  # those that are over are not counted any more
            group = job.gang.group_of(position)
            lost[group] = lost.get(group, 0) + 1
    if job.spec.completion and job.live_pods() <= sum(lost.values()):
        return False  # what has succeeded counts, but something has to go on
    return all(job.spare_count(group) >= lost.get(group, 0) for group in range(len(job.gang.tasks)))


def suspects_of(job: Job, positions: Sequence[int]) -> tuple[int, ...]:
    """The nodes of these pods, ascending."""
    return tuple(sorted({node_of(job, position) for position in positions} - {-1}))


def pauses_ms(draft: Draft, job: Job, reason: Reason, times: int, suspects: Sequence[int]) -> tuple[int, int]:
    """Until when the job is not tried at all, and until when not on its suspects, after the `times`-th trouble."""
    most_ms = backoff_ms(reason, times, draft.tree.by_id[job.queue])
    if not suspects:
        return draft.now_ms + most_ms, 0
    another = any(node not in job.suspects for node in suspects)
    first_ms = elsewhere_ms(reason, len(job.suspects), another=another, most_ms=most_ms)
    return draft.now_ms + first_ms, draft.now_ms + most_ms


def shrink(
    draft: Draft, job: Job, positions: Sequence[int], reason: Reason, message: str, *, suspects: tuple[int, ...] = ()
) -> Job:
    """These pods leave for nobody's sake, or have left. `suspects`: nodes whose fault it is."""
    times = max(job.attempt_of(position) for position in positions)
    not_before_ms, suspects_until_ms = pauses_ms(draft, job, reason, times, suspects)
    shrunk = tr.JobShrunk(
        job=job.id,
        epoch=job.epoch,
        pods=tuple(sorted(positions)),
        reason=reason,
        message=message,
        suspects=suspects,
        not_before_ms=not_before_ms,
        suspects_until_ms=suspects_until_ms,
    )
    return draft.change(job, shrunk)
