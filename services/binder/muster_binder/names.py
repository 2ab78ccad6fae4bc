"""How the pods of a job are called and labelled, and how a pod in a cluster is recognised as one of them (LOG-15).

The name holds everything that tells one run of one pod from all others: job, group, index, epoch, attempt. Creating it
twice is therefore the same as creating it once: the API server answers AlreadyExists. Programs never take a name apart;
they read the labels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from muster.core.limits import NAME_CHARS_MAX

SCHEDULER: Final = "muster"
LABEL_CHARS_MAX: Final = 63
JOB_ID_CHARS: Final = 32
ID_CHARS_IN_NAME: Final = 8

CELL: Final = "muster.io/cell"
JOB: Final = "muster.io/job"
JOB_NAME: Final = "muster.io/job-name"
GROUP: Final = "muster.io/group"
POD: Final = "muster.io/pod"
INDEX: Final = "muster.io/index"
EPOCH: Final = "muster.io/epoch"
ATTEMPT: Final = "muster.io/attempt"
QUEUE: Final = "muster.io/queue"
DEVICES: Final = "muster.io/devices"  # annotation
TRACE: Final = "muster.io/trace"  # annotation

_NOT_LABEL: Final = re.compile(r"[^A-Za-z0-9_.-]")
_JOB_ID: Final = re.compile(rf"[0-9a-f]{{{JOB_ID_CHARS}}}")


class PodKey(NamedTuple):
    """One run of one pod of a job. `pod` is its position in the job."""

    job: str
    epoch: int
    pod: int
    attempt: int


def selector(cell: str) -> str:
    """The label selector of every pod of a cell."""
    return f"{CELL}={cell}"


def pod_name(job_id: str, job_name: str, group: str, group_number: int, key: tuple[int, int, int]) -> str:
    """`<job>-<8 digits of the id>-<group>-<index>-<epoch>-<attempt>`; `key` is (index, epoch, attempt).

    A name that would be longer than a DNS label gets the group's number for its name (after a second dash, so that no
    group can be called that) and as much of the job's name as there is room for.
    """
    run = "-".join(map(str, key))
    short_id = job_id[:ID_CHARS_IN_NAME]
    name = f"{job_name}-{short_id}-{group}-{run}"
    if len(name) <= NAME_CHARS_MAX:
        return name
    tail = f"-{short_id}--{group_number}-{run}"
    return job_name[: NAME_CHARS_MAX - len(tail)].rstrip("-.") + tail


def label_value(text: str) -> str:
    """`text` as a legal label value; what does not fit is cut and told apart by a hash."""
    value = _NOT_LABEL.sub("_", text).strip("_.-")
    if len(value) <= LABEL_CHARS_MAX:
        return value
    digest = sha256(text.encode()).hexdigest()[:8]
    return f"{value[: LABEL_CHARS_MAX - 9]}.{digest}"


def key_of(labels: Mapping[str, str] | None) -> PodKey | None:
    """Which run of which pod the labels name; None if they are not (all) ours."""
    if not labels:
        return None
    job = labels.get(JOB, "")
    if not _JOB_ID.fullmatch(job):
        return None
    try:
        return PodKey(job, int(labels[EPOCH]), int(labels[POD]), int(labels[ATTEMPT]))
    except (KeyError, ValueError):
        return None
