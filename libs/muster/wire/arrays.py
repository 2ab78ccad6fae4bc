"""Array jobs as they are submitted: `completion`, and `array` as the short way to say it (rule G1).

array: {size: 100, max_parallel: 8}    one task group of 100 replicas, at least one of them, EVERY_INDEX, 8 at once
completion: EVERY_INDEX                 the task groups as they are, several are fine; min_replicas as ever
array: {max_parallel: 8}                how many pods of such a job run at once
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from muster.api.v1 import job_pb2
from muster.core.errors import Code, Rejected
from muster.core.limits import GANG_PODS_MAX
from muster.core.model import EVERY_INDEX, TaskGroup

FIELDS: Final = frozenset({"array", "completion"})
COMPLETIONS: Final = {
    job_pb2.COMPLETION_UNSPECIFIED: "",
    job_pb2.COMPLETION_ALL_PLACED: "",
    job_pb2.COMPLETION_EVERY_INDEX: EVERY_INDEX,
}


class Array(Struct, frozen=True):
    """What these fields come to. No `tasks`: they stay as they are."""

    completion: str = ""
    max_parallel: int = 0
    tasks: tuple[TaskGroup, ...] = ()


NONE: Final = Array()


def read(spec: job_pb2.JobSpec, tasks: tuple[TaskGroup, ...]) -> Array:
    """Of a job that sets one of `FIELDS`. Raises Rejected."""
    completion = COMPLETIONS.get(spec.completion)
    if completion is None:
        raise _invalid("completion", "is neither ALL_PLACED nor EVERY_INDEX")
    size, max_parallel = spec.array.size, spec.array.max_parallel
    if not size:
        return _checked(Array(completion, max_parallel), tasks)
    if spec.completion == job_pb2.COMPLETION_ALL_PLACED:
        raise _invalid("completion", "is ALL_PLACED, and an array is EVERY_INDEX: leave one of them out")
    if len(tasks) != 1:
        message = "is for jobs of one task group: give each group its replicas, and completion EVERY_INDEX"
        raise _invalid("array.size", message)
    (task,) = tasks
    if task.replicas not in (1, size):
        have = (
            f"{task.replicas}, and the array has {size} indices: leave replicas out, or make a gang of each index a job"
        )
        raise _invalid("tasks[0].replicas", have)
    if size > GANG_PODS_MAX:
        raise _invalid("array.size", f"{size} is more than {GANG_PODS_MAX}: split the job", "LOG-8")
    stated = spec.tasks[0]
    minimum = stated.min_replicas if stated.HasField("min_replicas") else 1
    grown = (replace(task, replicas=size, min_replicas=minimum),)
    return _checked(Array(EVERY_INDEX, max_parallel, grown), grown)


def _checked(array: Array, tasks: tuple[TaskGroup, ...]) -> Array:
    if array.max_parallel:
        if not array.completion:
            raise _invalid("array.max_parallel", "is for array jobs: give array.size, or completion EVERY_INDEX")
        minimum = sum(task.min_replicas for task in tasks)
        if array.max_parallel < minimum:
            message = f"{array.max_parallel} at once are less than the {minimum} pods that start together"
            raise _invalid("array.max_parallel", message)
        return replace(array, max_parallel=min(array.max_parallel, GANG_PODS_MAX))
    return array


def _invalid(field: str, message: str, rule: str = "G1") -> Rejected:
    return Rejected(Code.INVALID_ARGUMENT, field, message, rule)
