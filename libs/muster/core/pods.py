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
from muster.core.draft import Draft
from muster.core.elastic import can_do_without, pauses_ms, shrink, suspects_of
from muster.core.jobs import FAILED, GONE, SUCCEEDED, Job, is_over
from muster.core.lifecycle import PLACED, STARTING, STOPPING
from muster.core.limits import MESSAGE_CHARS_MAX
from muster.core.model import JobState, PodChange, Reason

PODS_PER_WORK_UNIT: Final = 32
JOBS_PER_WORK_UNIT: Final = 2
REASON_CHARS_MAX: Final = 200
POD_GONE: Final = Reason.POD_GONE
REFUSED_BY_KUBELET: Final = ("TopologyAffinityError", "UnexpectedAdmissionError", "NodeAffinity", "NodePorts")


def observed(draft: Draft, fact: commands.PodsObserved) -> None:
    by_job: dict[str, list[commands.PodFact]] = {}
    for pod in fact.pods:
        before = by_job.get(pod.job)
        if before is None:
            by_job[pod.job] = [pod]
        else:
            before.append(pod)
    draft.spend(len(by_job) // JOBS_PER_WORK_UNIT + len(fact.pods) // PODS_PER_WORK_UNIT)
    for job_id, pods in by_job.items():
        job = draft.job(job_id)
        if job is not None and job.charged:
            _pods_of(draft, job, pods)


def _pods_of(draft: Draft, job: Job, pods: list[commands.PodFact]) -> None:
    changes: dict[int, PodChange] = {}
    epoch, phases, leaving = job.epoch, job.phases, job.leaving
    for pod in pods:
        position, phase = pod.pod, pod.phase
        if pod.epoch != epoch or not 0 <= position < len(phases) or not 0 <= phase <= GONE:
            continue
        if pod.attempt != job.attempt_of(position):
            continue  # of a pod that had this position before
        now = changes[position].phase if position in changes else phases[position]
        if phase > now and not is_over(now):
            # A pod that was asked to leave has left, however it ended; an index that succeeded has (rule G1).
            left = position in leaving and is_over(phase)
            if left and not (phase == SUCCEEDED and job.spec.completion):
                phase = GONE
            changes[position] = PodChange(position, phase, pod.attempt, pod.exit_code, pod.reason[:REASON_CHARS_MAX])
    if changes:
        in_order = [changes[position] for position in sorted(changes)] if len(changes) > 1 else changes.values()
        settle(draft, job, tuple(in_order), POD_GONE)


def settle(draft: Draft, job: Job, changes: tuple[PodChange, ...], gone_reason: Reason) -> None:
    """Write the changes and what follows from them. `gone_reason` is why pods that are GONE are gone."""
    done_with = job.leaving
    refused = [c for c in changes if c.phase == FAILED and c.pod not in done_with and refused_by_kubelet(c.reason)]
    spare: list[int] = []
    if refused and can_do_without(job, [change.pod for change in refused]):
        spare = [change.pod for change in refused]
        changes = tuple(replace(change, phase=GONE) if change in refused else change for change in changes)
        done_with = (*done_with, *spare)
    job = draft.pods_changed(job, changes)
    if job.state is STOPPING:
        finish_stopping(draft, job)
        return
    if spare:
        job = shrink(draft, job, spare, Reason.PLACEMENT_REJECTED, refused[0].reason, suspects=suspects_of(job, spare))
    rest = [change for change in changes if change.pod not in done_with] if done_with else changes
    _settle_rest(draft, job, rest, gone_reason)


def _settle_rest(draft: Draft, job: Job, changes: Sequence[PodChange], gone_reason: Reason) -> None:
    """What changes of pods that belong to the job mean for it."""
    if max([change.phase for change in changes], default=SUCCEEDED) <= SUCCEEDED:  # the last one that is no trouble
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
    if job.state is PLACED:
        job = draft.change(job, tr.JobStarting(job.id, job.epoch))
    if job.state is STARTING and job.minimum_running():
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
    """Take the gang down and queue it again, later each time; on other nodes than its suspects, soon (rule L3)."""
    not_before_ms, suspects_until_ms = pauses_ms(draft, job, reason, job.requeues, suspects)
    job = draft.change(
        job,
        tr.JobStopping(
            job=job.id,
            epoch=job.epoch,
            next=JobState.QUEUED,
            reason=reason,
            message=message,
            not_before_ms=not_before_ms,
            suspects=suspects,
            suspects_until_ms=suspects_until_ms,
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


def reject(draft: Draft, job: Job, positions: list[int], why: str, *, by_node: bool = True) -> None:
    """The cluster will not have these pods where they were placed; nodes that refused them are avoided from now on."""
    suspects = suspects_of(job, positions) if by_node else ()
    if can_do_without(job, positions):
        shrink(draft, job, positions, Reason.PLACEMENT_REJECTED, why, suspects=suspects)
        return
    requeue(draft, job, Reason.PLACEMENT_REJECTED, why, suspects)


def placement_rejected(draft: Draft, fact: commands.PlacementRejected) -> None:
    job = draft.job(fact.job)
    if job is None or job.epoch != fact.epoch or not job.charged or job.state is JobState.STOPPING:
        return
    if not 0 <= fact.pod < len(job.phases) or fact.attempt != job.attempt_of(fact.pod):
        return
    if fact.pod in job.leaving or is_over(job.phases[fact.pod]):
        return  # it is not wanted there any more
    why = f"{fact.code}: {fact.message}" if fact.code else fact.message
    reject(draft, job, [fact.pod], why[:MESSAGE_CHARS_MAX], by_node=fact.by_node)


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
