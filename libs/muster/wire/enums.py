"""The core's names for states, reasons and phases as the API's enums, and back.

The names are the same but for the style, so the tables follow from them; a reason that this version of the API does not
know becomes REASON_OTHER, because the ledger may be written by a newer core.
"""

from __future__ import annotations

import re
from typing import Final

from muster.api.v1 import job_pb2, queue_pb2
from muster.core.model import JobState, PodPhase, Reason

STATES: Final = {str(s): job_pb2.JobState.Value(f"JOB_STATE_{s.upper()}") for s in JobState}
STATE_NAMES: Final = {value: JobState(name) for name, value in STATES.items()}
PHASES: Final = {int(p): job_pb2.PodPhase.Value(f"POD_PHASE_{p.name}") for p in PodPhase}
_REASON_NAMES: Final = frozenset(job_pb2.Reason.keys())
REASONS: Final = {
    str(reason): job_pb2.Reason.Value(name)
    for reason in Reason
    if reason and (name := "REASON_" + re.sub(r"(?<!^)(?=[A-Z])", "_", reason).upper()) in _REASON_NAMES
}

QUEUE_STATES: Final = {
    queue_pb2.QUEUE_STATE_OPEN: "OPEN",
    queue_pb2.QUEUE_STATE_CLOSED: "CLOSED",
    queue_pb2.QUEUE_STATE_STOPPED: "STOPPED",
    queue_pb2.QUEUE_STATE_DRAINING: "DRAINING",
}
ORDERINGS: Final = {
    queue_pb2.QUEUE_ORDERING_FIFO: "FIFO",
    queue_pb2.QUEUE_ORDERING_PRIORITY: "PRIORITY",
    queue_pb2.QUEUE_ORDERING_FAIR: "FAIR",
}
PREEMPTIONS: Final = {
    queue_pb2.QUEUE_PREEMPTION_NEVER: "NEVER",
    queue_pb2.QUEUE_PREEMPTION_LOWER_PRIORITY: "LOWER_PRIORITY",
    queue_pb2.QUEUE_PREEMPTION_ANY: "ANY",
}
FAIR_BY: Final = {
    queue_pb2.QUEUE_FAIR_BY_NAMESPACE: "NAMESPACE",
    queue_pb2.QUEUE_FAIR_BY_USER: "USER",
}


def state(name: str) -> job_pb2.JobState.ValueType:
    """ "" (no state) is the unspecified value."""
    return STATES[name] if name else job_pb2.JOB_STATE_UNSPECIFIED


def reason(name: str) -> job_pb2.Reason.ValueType:
    return REASONS.get(name, job_pb2.REASON_OTHER) if name else job_pb2.REASON_UNSPECIFIED
