"""The steps in the life of a job as public events tell them: from each transition, what the event says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from muster.api.v1 import job_pb2
from muster.core import layout
from muster.core import transitions as tr
from muster.core.model import JobState, Reason
from muster.core.words import several
from muster.wire import enums
from muster.wire.event_data import rfc3339

Fields = dict[str, Any]

_STATE_NAMES: Final = {name: job_pb2.JobState.Name(value) for name, value in enums.STATES.items()}


def _fields(kind: str, state: str, reason: str, **more: Any) -> Fields:
    fields: Fields = {"type": kind, "state": _STATE_NAMES[state], "reason": _reason_name(reason)}
    return fields | more


def _reason_name(reason: str) -> str:
    return job_pb2.Reason.Name(enums.reason(reason))


QUEUED: Final = _fields("job.queued", JobState.QUEUED, Reason.SUBMITTED)
_PLACED: Final = _fields("job.placed", JobState.PLACED, Reason.PLACED)
_STARTING: Final = _fields("job.starting", JobState.STARTING, Reason.PLACED)
_RUNNING: Final = _fields("job.running", JobState.RUNNING, Reason.PLACED)
_SUCCEEDED: Final = _fields("job.succeeded", JobState.SUCCEEDED, Reason.ALL_SUCCEEDED)


def _placed(t: tr.JobPlaced) -> Fields:
    return {**_PLACED, "epoch": t.epoch}


def _starting(t: tr.JobStarting) -> Fields:
    return {**_STARTING, "epoch": t.epoch}


def _running(t: tr.JobRunning) -> Fields:
    return {**_RUNNING, "epoch": t.epoch}


def _stopping(t: tr.JobStopping) -> Fields:
    more = {"epoch": t.epoch, "message": t.message, "next_state": _STATE_NAMES[t.next]}
    return _fields("job.stopping", JobState.STOPPING, t.reason, not_before=rfc3339(t.not_before_ms), **more)


def _preempted(t: tr.JobPreempted) -> Fields:
    return _fields(
        "job.preempted",
        JobState.STOPPING,
        Reason.PREEMPTED,
        epoch=t.epoch,
        message=f"job {t.by} takes its place",
        preempted_by=t.by,
        next_state=_STATE_NAMES[JobState.QUEUED],
        not_before=rfc3339(t.not_before_ms),
    )


def _grown(t: tr.JobGrown) -> Fields:
    """The state is the one it was in: Placed, Starting or Running."""
    pods = sum(layout.pods_placed(group) for group in t.groups)
    message = several(pods, "more pod")
    return {"type": "job.grown", "reason": _reason_name(Reason.PLACED), "epoch": t.epoch, "message": message}


def _shrunk(t: tr.JobShrunk) -> Fields:
    why = t.message or (f"they make room for job {t.by}" if t.by else "")
    message = f"{several(len(t.pods), 'pod')} fewer" + (f": {why}" if why else "")
    return {
        "type": "job.shrunk",
        "reason": _reason_name(t.reason),
        "epoch": t.epoch,
        "message": message,
        "preempted_by": t.by,
    }


def _checkpointed(t: tr.CheckpointReported) -> Fields:
    """The state is the one it was in."""
    return {"type": "job.checkpointed", "epoch": t.epoch, "checkpoint_time": rfc3339(t.at_ms)}


def _requeued(t: tr.JobRequeued) -> Fields:
    return _fields("job.requeued", JobState.QUEUED, t.reason, not_before=rfc3339(t.not_before_ms))


def _succeeded(t: tr.JobSucceeded) -> Fields:
    return {**_SUCCEEDED, "epoch": t.epoch}


def _failed(t: tr.JobFailed) -> Fields:
    return _fields("job.failed", JobState.FAILED, t.reason, message=t.message, exit_code=t.exit_code)


def _cancelled(t: tr.JobCancelled) -> Fields:
    return _fields("job.cancelled", JobState.CANCELLED, t.reason, message=t.message)


STEPS: Final[Mapping[type[tr.Transition], Callable[[Any], Fields]]] = {
    tr.JobPlaced: _placed,
    tr.JobGrown: _grown,
    tr.JobShrunk: _shrunk,
    tr.JobStarting: _starting,
    tr.JobRunning: _running,
    tr.JobStopping: _stopping,
    tr.JobPreempted: _preempted,
    tr.JobRequeued: _requeued,
    tr.JobSucceeded: _succeeded,
    tr.JobFailed: _failed,
    tr.JobCancelled: _cancelled,
    tr.CheckpointReported: _checkpointed,
}
