"""Further replicas of a placed job, put as a job of their own: what plans are made for when growth finds no room.

    wanted(job, group)             how many more replicas of the group the job may use
    within(outlook, job, group)    how many of them a plan may be made for (rule P2a)
    as_job(nodes, job, group, n)   a job that is the old one but asks for these replicas and no others, all or none
    of_placement(...)              the same for what a plan would place, or why there is no such thing (rule P6)

Planner and leader put the stand-in through the same search and the same rules as a queued job. What tells it from one
is that it is charged: it takes from other queues only (`ground`), and as a running job it counts already. A plan goes
as far as E without crossing it; the replica that would cross E is a plan of its own, so rule P1 weighs it by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from muster.core.gangs import Gang, GangShape, shape_key
from muster.core.jobs import Job, may_grow
from muster.core.layout import pods_placed
from muster.core.limits import PLAN_VICTIMS_MAX
from muster.core.model import GroupPlacement
from muster.core.nodes import NodeTable
from muster.core.potential import summed
from muster.core.preemption_rules import Outlook
from muster.core.resources import PODS

REPLICAS_MAX: Final = PLAN_VICTIMS_MAX  # of one plan: for more there would hardly be victims enough


def wanted(job: Job, group: int) -> int:
    """How many more replicas of the group the job may use now."""
    vacant = job.vacant_in(group)
    return min(vacant, job.spec.max_parallel - job.live_pods()) if job.spec.max_parallel else vacant


def within(outlook: Outlook, job: Job, group: int) -> int:
    """How many further replicas a plan may be made for: as many as stay within E, or the one that crosses it."""
    share, usage = outlook.entitled_of(job.queue), summed(outlook.usage_of(job.queue))
    asked = {r: a for r, a in job.gang.per_pod[group] if a and r != PODS and r in outlook.capacity}
    if not any(share.below(usage, resource) for resource in asked):
        return 0
    most = min((share.amounts.get(r, 0) - usage.get(r, 0)) // amount for r, amount in asked.items())
    return min(wanted(job, group), max(most, 1), REPLICAS_MAX)


def cluster_of(nodes: NodeTable, job: Job) -> str:
    """Where a placed job is, and so where its further replicas go."""
    return nodes.spec(next(node for group in job.placement for node, _ in group.runs)).cluster


def as_job(nodes: NodeTable, job: Job, group: int, count: int) -> Job:
    """A job that asks for so many further replicas of the group. Not in the state; to be read only."""
    counts = [count if number == group else 0 for number in range(len(job.gang.tasks))]
    tasks = tuple(replace(task, replicas=n, min_replicas=n) for task, n in zip(job.gang.tasks, counts, strict=True))
    twin = replace(job, asks=Gang(tasks, GangShape(shape_key(tasks))))
    twin.spec = replace(job.spec, cluster_selector=(("", cluster_of(nodes, job)),))
    return twin


def of_placement(
    nodes: NodeTable, outlook: Outlook, job: Job, placement: Sequence[GroupPlacement]
) -> tuple[Job, str | None]:
    """The replicas that a plan would place as a job, or why the job may not get them (rules P2a, P6)."""
    if not may_grow(job, outlook.now_ms):
        return job, "the job does not grow now"
    if len(placement) != 1:
        return job, "the placement is not growth of the job"
    group, count = placement[0].group, pods_placed(placement[0])
    if not 0 < count <= wanted(job, group):
        return job, "the job does not want these replicas any more"
    if count > within(outlook, job, group):
        return job, "the job's queue is not so far below its entitlement"
    found = as_job(nodes, job, group, count)
    cluster = cluster_of(nodes, job)
    if any(not 0 <= n < len(nodes) or nodes.spec(n).cluster != cluster for n, _ in placement[0].runs):
        return job, "the placement is not in the cluster of the job"
    return found, None
