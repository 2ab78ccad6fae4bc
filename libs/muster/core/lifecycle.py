"""The life of a job as one complete table (rule L1).

Every state is a key; terminal states are empty; a pair that is not in the table is an error. `docs/lifecycle.md` is
drawn from it, and `apply` asks it before any state changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muster.core import transitions as tr
from muster.core.errors import InvariantBroken
from muster.core.model import JobState as S

TABLE: Final[Mapping[S, Mapping[type[tr.Transition], S]]] = {
    S.QUEUED: {
        tr.JobPlaced: S.PLACED,
        tr.JobCancelled: S.CANCELLED,
        tr.JobFailed: S.FAILED,
    },
    S.RESERVED: {  # reached once reservations are built (rule B1)
        tr.JobPlaced: S.PLACED,
        tr.JobCancelled: S.CANCELLED,
        tr.JobFailed: S.FAILED,
    },
    S.PLACED: {
        tr.JobGrown: S.PLACED,
        tr.JobShrunk: S.PLACED,
        tr.CheckpointReported: S.PLACED,
        tr.JobStarting: S.STARTING,
        tr.JobStopping: S.STOPPING,
        tr.JobPreempted: S.STOPPING,
        tr.JobSucceeded: S.SUCCEEDED,  # pods came and went between two reports
    },
    S.STARTING: {
        tr.JobGrown: S.STARTING,
        tr.JobShrunk: S.STARTING,
        tr.CheckpointReported: S.STARTING,
        tr.JobRunning: S.RUNNING,
        tr.JobStopping: S.STOPPING,
        tr.JobPreempted: S.STOPPING,
        tr.JobSucceeded: S.SUCCEEDED,
    },
    S.RUNNING: {
        tr.JobGrown: S.RUNNING,
        tr.JobShrunk: S.RUNNING,
        tr.CheckpointReported: S.RUNNING,
        tr.JobStopping: S.STOPPING,
        tr.JobPreempted: S.STOPPING,
        tr.JobSucceeded: S.SUCCEEDED,
    },
    S.STOPPING: {
        tr.JobStopping: S.STOPPING,  # a cancel overrides a requeue
        tr.JobRequeued: S.QUEUED,
        tr.JobFailed: S.FAILED,
        tr.JobCancelled: S.CANCELLED,
        tr.JobSucceeded: S.SUCCEEDED,
    },
    S.SUSPENDED: {  # reached once suspend is built
        tr.JobRequeued: S.QUEUED,
        tr.JobCancelled: S.CANCELLED,
    },
    S.SUCCEEDED: {},
    S.FAILED: {},
    S.CANCELLED: {},
}

QUEUED: Final = S.QUEUED  # states that decisions ask for all the time: a member of an enumeration is slow to name
PLACED: Final = S.PLACED
STARTING: Final = S.STARTING
STOPPING: Final = S.STOPPING
SUCCEEDED: Final = S.SUCCEEDED

TERMINAL: Final = frozenset(state for state, row in TABLE.items() if not row)
CHARGED: Final = frozenset({S.PLACED, S.STARTING, S.RUNNING, S.STOPPING})


def after(state: S, transition: type[tr.Transition], job: str) -> S:
    """The state that `transition` leads to. Raises InvariantBroken naming job, state and transition."""
    try:
        return TABLE[state][transition]
    except KeyError:
        raise InvariantBroken(f"job {job}: {transition.__name__} is not possible in state {state}") from None
