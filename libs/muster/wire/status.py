"""Jobs of the cell's state as the API's messages.

`brief` is what lists carry: no pod templates, no replicas. `full` has both, the replicas of each attempt up to
`REPLICAS_SHOWN_MAX`; `replicas` walks all pods of the current placement. Of an attempt that is over the core keeps how
the first pods ended, those that failed before the others; these come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from google.protobuf import duration_pb2, timestamp_pb2

from muster.api.v1 import job_pb2
from muster.core import layout
from muster.core.attempts import Resize
from muster.core.limits import PREEMPTIONS_MAX
from muster.core.model import EVERY_INDEX, InboxPosition, JobSpec, PodPhase, Reason, TaskGroup
from muster.core.preemption_rules import shortest_ms
from muster.core.state import Attempt, CellState, Job
from muster.wire import enums, quantities

REPLICAS_SHOWN_MAX: Final = 1000
POLICIES: Final = {
    "": job_pb2.PLACEMENT_POLICY_UNSPECIFIED,
    "PACK": job_pb2.PLACEMENT_POLICY_PACK,
    "SPREAD": job_pb2.PLACEMENT_POLICY_SPREAD,
}
COMPLETIONS: Final = {"": job_pb2.COMPLETION_UNSPECIFIED, EVERY_INDEX: job_pb2.COMPLETION_EVERY_INDEX}


def brief(state: CellState, job: Job) -> job_pb2.Job:
    return job_pb2.Job(id=job.id, spec=_spec(job.spec, templates=False), status=_status(state, job))


def full(state: CellState, job: Job) -> job_pb2.Job:
    message = job_pb2.Job(id=job.id, spec=_spec(job.spec, templates=True), status=_status(state, job))
    for past in job.attempts:
        attempt = message.status.attempts.add(
            epoch=past.epoch,
            place_time=timestamp(past.placed_ms),
            start_time=timestamp(past.started_ms),
            end_time=timestamp(past.ended_ms),
            reason=enums.reason(past.reason),
            message=past.message,
            exit_code=past.exit_code,
            resizes=_resizes(job, past.epoch),
        )
        attempt.replicas.extend(islice(_past(state, job, past), REPLICAS_SHOWN_MAX))
    if job.placement:
        attempt = message.status.attempts.add(
            epoch=job.epoch,
            place_time=timestamp(job.placed_ms),
            start_time=timestamp(job.started_ms),
            message=job.message,
            resizes=_resizes(job, job.epoch),
        )
        attempt.replicas.extend(islice(replicas(state, job), REPLICAS_SHOWN_MAX))
    return message


def replicas(state: CellState, job: Job) -> Iterator[job_pb2.Replica]:
    """The pods of the current placement, in the order of the job's groups."""
    exits, left = dict(job.exits), _left(job, job.epoch)
    for pod in layout.each_pod(job.spec.tasks, job.placement):
        position, phase = pod.position, job.phases[pod.position]
        why = left.get(position) if phase == PodPhase.GONE or position in job.leaving else None
        yield _replica(state, job, pod, phase, exits.get(position, 0), left=why)


def _past(state: CellState, job: Job, attempt: Attempt) -> Iterator[job_pb2.Replica]:
    """The pods of a placement that is over: first those of which it is known how they ended."""
    pods = layout.each_pod(job.spec.tasks, attempt.placement)
    if not attempt.pods:
        phase = PodPhase.SUCCEEDED if attempt.reason == Reason.ALL_SUCCEEDED else None
        yield from (_replica(state, job, pod, phase) for pod in pods)
        return
    known, left = {end.position: end for end in attempt.pods}, _left(job, attempt.epoch)
    found: dict[int, layout.Pod] = {}
    others: list[layout.Pod] = []
    for pod in pods:
        if pod.position in known:
            found[pod.position] = pod
        elif len(others) < REPLICAS_SHOWN_MAX:
            others.append(pod)
    for end in attempt.pods:
        why = left.get(end.position) if end.phase == PodPhase.GONE else None
        yield _replica(state, job, found[end.position], end.phase, end.exit_code, left=why)
    yield from (_replica(state, job, pod) for pod in others)


def _resizes(job: Job, epoch: int) -> list[job_pb2.Resize]:
    return [
        job_pb2.Resize(
            time=timestamp(resize.at_ms),
            replicas=resize.grown - resize.shrunk,
            reason=enums.reason(resize.reason),
            message=resize.why,
            preempted_by=resize.by,
        )
        for resize in job.resizes
        if resize.epoch == epoch
    ]


def _left(job: Job, epoch: int) -> dict[int, Resize]:
    """By position, the last shrink that it left with, as far as that is kept."""
    return {position: resize for resize in job.resizes if resize.epoch == epoch for position in resize.pods}


def _replica(
    state: CellState,
    job: Job,
    pod: layout.Pod,
    phase: int | None = None,
    exit_code: int = 0,
    *,
    left: Resize | None = None,
) -> job_pb2.Replica:
    """`phase`: None if it is not known. `left`: with what it left a job that goes on."""
    node, task = state.nodes.spec(pod.node), job.spec.tasks[pod.group].name
    return job_pb2.Replica(
        task=task,
        index=pod.replica,
        cluster=node.cluster,
        node=node.name,
        devices=pod.devices,
        phase=job_pb2.POD_PHASE_UNSPECIFIED if phase is None else enums.PHASES[phase],
        exit_code=exit_code,
        pod=f"{task}-{pod.replica}",
        left_reason=enums.reason(left.reason if left else ""),
        left_message=left.why if left else "",
    )


def _status(state: CellState, job: Job) -> job_pb2.JobStatus:
    return job_pb2.JobStatus(
        state=enums.state(job.state),
        reason=enums.reason(job.reason),
        message=job.message,
        queue=state.queues.path(job.queue) if job.queue in state.queues else job.spec.queue,
        submit_time=timestamp(job.submit_ms),
        start_time=timestamp(job.started_ms),
        finish_time=timestamp(job.finished_ms),
        not_before=timestamp(job.not_before_ms),
        epoch=job.epoch,
        exit_code=job.exit_code,
        pods=_counts(job),
        next_state=enums.state(job.next_state),
        checkpoint_time=timestamp(job.saved_ms) if job.charged else None,
        preemptions=job.preemptions,
        min_runtime=duration(_min_runtime_ms(state, job)),
    )


def _min_runtime_ms(state: CellState, job: Job) -> int:
    """How long the job is left alone once it runs, as the rules see it (rule P4)."""
    queue = state.queues.by_id.get(job.queue)
    return shortest_ms(job, queue) if queue is not None else job.spec.min_runtime_ms


def _counts(job: Job) -> job_pb2.PodCounts:
    phases = job.phases
    if not phases:
        return job_pb2.PodCounts(wanted=job.gang.pods)
    return job_pb2.PodCounts(
        wanted=job.gang.pods,
        placed=phases.count(PodPhase.PLACED),
        created=phases.count(PodPhase.CREATED),
        running=phases.count(PodPhase.RUNNING),
        succeeded=phases.count(PodPhase.SUCCEEDED),
        failed=phases.count(PodPhase.FAILED),
        gone=phases.count(PodPhase.GONE),
    )


def _spec(spec: JobSpec, *, templates: bool) -> job_pb2.JobSpec:
    return job_pb2.JobSpec(
        name=spec.name,
        namespace=spec.namespace,
        queue=spec.queue,
        tasks=[_task(task, templates=templates) for task in spec.tasks],
        priority=spec.priority,
        max_runtime=duration(spec.max_runtime_ms),
        max_wait=duration(spec.max_wait_ms),
        labels=dict(spec.labels),
        annotations=dict(spec.annotations),
        cluster_selector=dict(spec.cluster_selector),
        preemptible=spec.preemptible,
        max_preemptions=spec.max_preemptions if spec.max_preemptions != PREEMPTIONS_MAX else None,
        priority_class=spec.priority_class,
        submitter=spec.submitter,
        trace_context=spec.trace,
        completion=COMPLETIONS[spec.completion],
        array=job_pb2.ArraySpec(max_parallel=spec.max_parallel) if spec.max_parallel else None,
        checkpoint=job_pb2.CheckpointSpec(interval=duration(spec.checkpoint_ms)) if spec.checkpoint_ms else None,
    )


def _task(task: TaskGroup, *, templates: bool) -> job_pb2.TaskGroup:
    return job_pb2.TaskGroup(
        name=task.name,
        replicas=task.replicas,
        min_replicas=task.min_replicas,
        resources=quantities.requests(task.requests),
        node_selector=dict(task.node_selector),
        affinity=[
            job_pb2.NodeSelectorTerm(
                requirements=[job_pb2.NodeRequirement(key=r.key, operator=r.operator, values=r.values) for r in term]
            )
            for term in task.affinity
        ],
        tolerations=[
            job_pb2.Toleration(key=t.key, operator=t.operator, value=t.value, effect=t.effect) for t in task.tolerations
        ],
        policy=POLICIES[task.policy],
        template=task.template.decode() if templates else "",
    )


def timestamp(milliseconds: int) -> timestamp_pb2.Timestamp | None:
    """None for 0, which stands for "not yet"."""
    if not milliseconds:
        return None
    return timestamp_pb2.Timestamp(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)


def duration(milliseconds: int) -> duration_pb2.Duration | None:
    """None for 0, which stands for "none"."""
    if not milliseconds:
        return None
    return duration_pb2.Duration(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)


def position(value: InboxPosition) -> job_pb2.InboxPosition:
    return job_pb2.InboxPosition(sequence=value.seq, item=value.item)


def positions(values: Iterable[InboxPosition]) -> list[job_pb2.InboxPosition]:
    return [position(value) for value in values]
