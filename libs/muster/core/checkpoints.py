"""A job says that its work is safe (rule P3): `ReportCheckpoint` becomes `CheckpointReported`.

The time is the job's own, or the moment at which the command is decided. It never goes back and never lies in the
future, so a clock that is wrong costs at most the work since the last good report. A report of another epoch is about
work that is lost already. Repeating a report changes nothing.
"""

from __future__ import annotations

from muster.core import commands
from muster.core import transitions as tr
from muster.core.draft import Draft
from muster.core.errors import Code, Rejected
from muster.core.jobs import RUNNING_STATES


def report_checkpoint(draft: Draft, command: commands.ReportCheckpoint) -> None:
    """Raises Rejected for a job that does not run, or not in this epoch."""
    job = draft.job(command.job)
    if job is None:
        raise Rejected(Code.NOT_FOUND, "job", f"job {command.job} does not exist, or ended long ago")
    if command.at_ms < 0 or command.epoch < 0:
        field = "at" if command.at_ms < 0 else "epoch"
        raise Rejected(Code.INVALID_ARGUMENT, field, "is negative", "P3")
    if job.state not in RUNNING_STATES:
        have = f"job {job.id} is {job.state}: only a running job has work to save"
        raise Rejected(Code.FAILED_PRECONDITION, "job", have, "P3")
    if command.epoch not in (0, job.epoch):
        have = f"job {job.id} is in epoch {job.epoch}, this report is of epoch {command.epoch}"
        raise Rejected(Code.FAILED_PRECONDITION, "epoch", have, "P3")
    at_ms = min(command.at_ms or draft.now_ms, draft.now_ms)
    if at_ms > max(job.saved_ms, job.placed_ms):
        draft.change(job, tr.CheckpointReported(job.id, job.epoch, at_ms))
