"""Facts about pods: what they mean for the gang they belong to.

Phases only move forward, facts of an old epoch are ignored (LOG-15). After each report `settle` takes the job as far
as its pods have come: started, running, succeeded; a failed pod fails the job, a lost one requeues the whole gang
(rule I2); and when a stopping job's last pod is over it goes where it was bound for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from muster.core import commands
from muster.core import transitions as tr
from muster.core.backoff import backoff_ms
from muster.core.draft import Draft
from muster.core.elastic import can_do_without, shrink, suspects_of
from muster.core.jobs import FAILED, GONE, SUCCEEDED, Job, is_over
from muster.core.limits import MESSAGE_CHARS_MAX
from muster.core.model import JobState, PodChange, Reason

PODS_PER_WORK_UNIT: Final = 32
JOBS_PER_WORK_UNIT: Final = 2
REASON_CHARS_MAX: Final = 200
REFUSED_BY_KUBELET: Final = ("TopologyAffinityError", "UnexpectedAdmissionError", "NodeAffinity", "NodePorts")


def observed(draft: Draft, fact: commands.PodsObserved) -> None:
    by_job: dict[str, list[commands.PodFact]] = {}
    for pod in fact.pods:
        by_job.setdefault(pod.job, []).append(pod)
    draft.spend(len(by_job) // JOBS_PER_WORK_UNIT + len(fact.pods) // PODS_PER_WORK_UNIT)
    for job_id, pods in by_job.items():
        job = draft.job(job_id)
        if job is not None and job.charged:
            _pods_of(draft, job, pods)


def _pods_of(draft: Draft, job: Job, pods: list[commands.PodFact]) -> None:
    changes: dict[int, PodChange] = {}
    for pod in pods:
        if pod.epoch != job.epoch or not 0 <= pod.pod < len(job.phases) or not 0 <= pod.phase <= GONE:
            continue
        if pod.attempt != job.attempt_of(pod.pod):
            continue  # of a pod that had this position before
        now = changes[pod.pod].phase if pod.pod in changes else job.phases[pod.pod]
        if pod.phase > now and not is_over(now):
            reason = pod.reason[:REASON_CHARS_MAX]
            # A pod that was asked to leave has left, however it ended; an index that succeeded has (rule G1).
            left = is_over(pod.phase) and pod.pod in job.leaving
            kept = pod.phase == SUCCEEDED and job.spec.completion
            phase = GONE if left and not kept else pod.phase
            changes[pod.pod] = PodChange(pod.pod, phase, pod.attempt, pod.exit_code, reason)
    if changes:
        settle(draft, job, tuple(changes[position] for position in sorted(changes)), Reason.POD_GONE)


def settle(draft: Draft, job: Job, changes: tuple[PodChange, ...], gone_reason: Reason) -> None:
    """Write the changes and what follows from them. `gone_reason` is why pods that are GONE are gone."""
    done_with = job.leaving
    refused = [c for c in changes if c.phase == FAILED and c.pod not in done_with and refused_by_kubelet(c.reason)]
    spare = [change.pod for change in refused]
    if spare and can_do_without(job, spare):
        changes = tuple(replace(change, phase=GONE) if change in refused else change for change in changes)
        done_with = (*done_with, *spare)
    else:
        spare = []
    job = draft.pods_changed(job, changes)
    if job.state is JobState.STOPPING:
        finish_stopping(draft, job)
        return
    if spare:
        job = shrink(draft, job, spare, Reason.PLACEMENT_REJECTED, refused[0].reason)
    rest = [change for change in changes if change.pod not in done_with] if done_with else changes
    _settle_rest(draft, job, rest, gone_reason)


def _settle_rest(draft: Draft, job: Job, changes: Sequence[PodChange], gone_reason: Reason) -> None:
    """What changes of pods that belong to the job mean for it."""
    if all(change.phase <= SUCCEEDED for change in changes):
        _go_on(draft, job)
        return
    failed = [change for change in changes if change.phase == FAILED]
    refused = [change for change in failed if refused_by_kubelet(change.reason)]
    if refused:
        reject(draft, job, [change.pod for change in refused], refused[0].reason)
    elif failed:
        _fail(draft, job, failed[0])
    elif lost := [change.pod for change in changes if change.phase == GONE]:
        message = f"lost {', '.join(job.gang.pod_name(position) for position in lost[:3])}"
        if can_do_without(job, lost):
            _go_on(draft, shrink(draft, job, lost, gone_reason, message))  # rule I2
        else:
            requeue(draft, job, gone_reason, message)
    else:
        _go_on(draft, job)


def refused_by_kubelet(reason: str) -> bool:
    """Whether a pod failed because its kubelet did not admit it: the model was wrong, not the job (rule G5)."""
    return reason in REFUSED_BY_KUBELET or reason.startswith("OutOf")


def _go_on(draft: Draft, job: Job) -> None:
    if job.all_succeeded():
        draft.finished(draft.change(job, tr.JobSucceeded(job.id, job.epoch)))
        return
    if job.state is JobState.PLACED:
        job = draft.change(job, tr.JobStarting(job.id, job.epoch))
    if job.state is JobState.STARTING and job.minimum_running():
        draft.change(job, tr.JobRunning(job.id, job.epoch))


def _fail(draft: Draft, job: Job, change: PodChange) -> None:
    why = f" ({change.reason})" if change.reason else ""
    job = draft.change(
        job,
        tr.JobStopping(
            job=job.id,
            epoch=job.epoch,
            next=JobState.FAILED,
            reason=Reason.POD_FAILED,
            message=f"pod {job.gang.pod_name(change.pod)} failed with exit code {change.exit_code}{why}",
            exit_code=change.exit_code,
        ),
    )
    finish_stopping(draft, job)


def requeue(draft: Draft, job: Job, reason: Reason, message: str, suspects: tuple[int, ...] = ()) -> None:
    """Take the gang down and queue it again, later each time."""
    job = draft.change(
        job,
        tr.JobStopping(
            job=job.id,
            epoch=job.epoch,
            next=JobState.QUEUED,
            reason=reason,
            message=message,
            not_before_ms=draft.now_ms + backoff_ms(reason, job.requeues),
            suspects=suspects,
        ),
    )
    finish_stopping(draft, job)


def requeue_idle(draft: Draft, job: Job) -> None:
    """Nothing of an array job is left on the nodes and no index finds room: it waits in the queue like any other, as
    old as it is, and may ask for what it is entitled to (rule P2)."""
    stopping = tr.JobStopping(
        job=job.id,
        epoch=job.epoch,
        next=JobState.QUEUED,
        reason=Reason.WAITS_FOR_ROOM,
        message="no index runs any more and there is no room for another one",
    )
    finish_stopping(draft, draft.change(job, stopping))


def reject(draft: Draft, job: Job, positions: list[int], why: str) -> None:
    """The cluster will not have these pods where they were placed; their nodes are avoided from now on."""
    if can_do_without(job, positions):
        shrink(draft, job, positions, Reason.PLACEMENT_REJECTED, why)
        return
    requeue(draft, job, Reason.PLACEMENT_REJECTED, why, suspects_of(job, positions))


def placement_rejected(draft: Draft, fact: commands.PlacementRejected) -> None:
    job = draft.job(fact.job)
    if job is None or job.epoch != fact.epoch or not job.charged or job.state is JobState.STOPPING:
        return
    if not 0 <= fact.pod < len(job.phases) or fact.attempt != job.attempt_of(fact.pod):
        return
    if fact.pod in job.leaving or is_over(job.phases[fact.pod]):
        return  # it is not wanted there any more
    why = f"{fact.code}: {fact.message}" if fact.code else fact.message
    reject(draft, job, [fact.pod], why[:MESSAGE_CHARS_MAX])


def finish_stopping(draft: Draft, job: Job) -> None:
    """If the last pod is over, the job goes where it was bound for. What succeeded all the same has succeeded."""
    if not job.pods_over():
        return
    bound_for = job.next_state
    if bound_for == JobState.SUCCEEDED or (bound_for == JobState.QUEUED and job.all_succeeded()):
        draft.finished(draft.change(job, tr.JobSucceeded(job.id, job.epoch)))
    elif bound_for == JobState.QUEUED:
        draft.requeued(draft.change(job, tr.JobRequeued(job.id, job.reason, job.not_before_ms)))
    elif bound_for == JobState.FAILED:
        draft.finished(draft.change(job, tr.JobFailed(job.id, job.reason, job.message, job.exit_code)))
    else:
        draft.finished(draft.change(job, tr.JobCancelled(job.id, job.reason, job.message)))
