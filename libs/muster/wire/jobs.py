"""A submitted job: from the API's message to the core's `JobSpec`, in one pass.

Admission calls `to_core` once per job, after the declared rules of the proto were checked; here are the rules that the
proto cannot say: what belongs together, what must agree with the pod template, what is reserved. Every mistake is a
`Rejected` with the path of the field in the job. Jobs of one template differ in little, so task groups are remembered
by their bytes, and so are whole jobs but for their names: a thousand equal groups are read and stored once.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from google.protobuf import duration_pb2
from msgspec.structs import replace

from muster.api.v1 import job_pb2
from muster.core import resources
from muster.core.errors import Code, Rejected
from muster.core.limits import GANG_PODS_MAX, JOB_BYTES_MAX, PREEMPTIONS_MAX
from muster.core.model import Amounts, JobSpec, Pairs, TaskGroup, Toleration
from muster.core.sizes import spec_bytes
from muster.core.submission import two_priorities
from muster.wire import arrays, ids, podtemplate, reserved

POLICIES: Final = {
    job_pb2.PLACEMENT_POLICY_UNSPECIFIED: "",
    job_pb2.PLACEMENT_POLICY_PACK: "PACK",
    job_pb2.PLACEMENT_POLICY_SPREAD: "SPREAD",
}
DURATION_SECONDS_MAX: Final = 10 * 366 * 24 * 3600
T = TypeVar("T")

LABEL_KEY: Final = re.compile(
    r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
TRACE_CONTEXT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
REMEMBERED_MAX: Final = 4096  # groups, and jobs
REMEMBERED_BYTES_MAX: Final = 4096  # of a job, or of a group with its template; larger ones are read each time


class Origin(msgspec.Struct, frozen=True):
    """Where a submission comes from: what the server knows and the job does not say."""

    cell: str
    request_id: str
    submitter: str
    trace: str = ""


class JobReader:
    """Reads jobs. Keeps what it has read of task groups and of whole jobs, so one per process."""

    def __init__(self) -> None:
        self._groups: OrderedDict[bytes, TaskGroup] = OrderedDict()
        self._jobs: OrderedDict[bytes, JobSpec] = OrderedDict()

    def to_core(self, spec: job_pb2.JobSpec, index: int, origin: Origin, body: bytes | None = None) -> JobSpec:
        """Job number `index` of its request. Raises Rejected. `body`: its bytes `without_name`, if they are known.

        A job that differs from an earlier one in its name only is not read again: thousands come from one template.
        """
        if body is None:
            body = without_name(spec)
        known = self._jobs.get(body)
        if known is None:
            job = self._read(spec, index, origin)
            if len(body) <= REMEMBERED_BYTES_MAX and not spec.trace_context:
                _remember(self._jobs, body, job)
            return job
        return replace(
            known,
            id=ids.job_id(origin.cell, known.namespace, origin.request_id, index),
            name=spec.name,
            submitter=origin.submitter,
            request_id=origin.request_id,
            digest=ids.body_digest(spec, traced=False),
            trace=origin.trace,
        )

    def _read(self, spec: job_pb2.JobSpec, index: int, origin: Origin) -> JobSpec:
        stated = {field.name: value for field, value in spec.ListFields()}  # reading only these is twice as fast
        if not reserved.JOB_FIELDS.isdisjoint(stated):
            raise reserved.refusal(next(name for name in stated if name in reserved.JOB_FIELDS))
        if "submitter" in stated:
            raise Rejected(Code.INVALID_ARGUMENT, "submitter", "is set by the server: leave it out")
        if "priority_class" in stated and "priority" in stated:
            raise two_priorities(stated["priority_class"], stated["priority"])
        namespace = stated.get("namespace", ids.DEFAULT_NAMESPACE)
        _check_size(spec)
        if "trace_context" in stated and not TRACE_CONTEXT.fullmatch(stated["trace_context"]):
            message = "is not a W3C traceparent: 00-, 32 hexadecimal digits, -, 16 of them, -, 2 of them"
            raise Rejected(Code.INVALID_ARGUMENT, "trace_context", message, "string.pattern")
        template = stated.get("template", "")
        tasks = tuple([self._group(task, at, template) for at, task in enumerate(stated.get("tasks", ()))])
        array = arrays.NONE if arrays.FIELDS.isdisjoint(stated) else arrays.read(spec, tasks)
        tasks = array.tasks or tasks
        _check_groups(tasks)
        job = JobSpec(
            id=ids.job_id(origin.cell, namespace, origin.request_id, index),
            namespace=namespace,
            name=stated.get("name", ""),
            queue=stated.get("queue", "").strip("/"),
            tasks=tasks,
            priority=stated.get("priority", 0),
            submitter=origin.submitter,
            request_id=origin.request_id,
            digest=ids.body_digest(spec, traced="trace_context" in stated),
            labels=labels_of(stated["labels"]) if "labels" in stated else (),
            annotations=tuple(sorted(stated["annotations"].items())) if "annotations" in stated else (),
            max_runtime_ms=_milliseconds(stated["max_runtime"], "max_runtime") if "max_runtime" in stated else 0,
            max_wait_ms=_milliseconds(stated["max_wait"], "max_wait") if "max_wait" in stated else 0,
            cluster_selector=tuple(sorted(stated["cluster_selector"].items())) if "cluster_selector" in stated else (),
            preemptible=stated.get("preemptible", True),
            trace=stated.get("trace_context") or origin.trace,
            completion=array.completion,
            max_parallel=array.max_parallel,
            checkpoint_ms=_checkpoint_ms(stated["checkpoint"]) if "checkpoint" in stated else 0,
            max_preemptions=stated.get("max_preemptions", PREEMPTIONS_MAX),
            priority_class=stated.get("priority_class", ""),
        )
        if len(tasks) > 1 and spec_bytes(job) > JOB_BYTES_MAX:  # a template of the job counts once per group
            _check_encoded_size(job)
        return job

    def _group(self, task: job_pb2.TaskGroup, at: int, job_template: str) -> TaskGroup:
        template = task.template or job_template
        if len(template) > REMEMBERED_BYTES_MAX:
            return _read_group(task, template, f"tasks[{at}]")
        key = task.SerializeToString() + b"\0" + template.encode()
        group = self._groups.get(key)
        if group is None:
            group = _read_group(task, template, f"tasks[{at}]")
            if len(key) <= REMEMBERED_BYTES_MAX:
                _remember(self._groups, key, group)
        return group


def _remember(known: OrderedDict[bytes, T], key: bytes, value: T) -> None:
    known[key] = value
    if len(known) > REMEMBERED_MAX:
        known.popitem(last=False)


def without_name(spec: job_pb2.JobSpec) -> bytes:
    """The bytes of a job without its name: what the jobs of one template have in common."""
    name = spec.name
    spec.ClearField("name")  # a copy would cost more than the rest
    data = spec.SerializeToString()
    spec.name = name
    return data


def _read_group(task: job_pb2.TaskGroup, template: str, where: str) -> TaskGroup:
    for field, _ in task.ListFields():
        if field.name in reserved.TASK_FIELDS:
            raise reserved.refusal(f"{where}.{field.name}")
    minimum = task.min_replicas if task.HasField("min_replicas") else task.replicas
    if minimum > task.replicas:
        message = f"{minimum} is more than replicas ({task.replicas})"
        raise Rejected(Code.INVALID_ARGUMENT, f"{where}.min_replicas", message, "G1")
    needs = podtemplate.read(template, "template" if not task.template else f"{where}.template")
    return TaskGroup(
        name=task.name,
        replicas=task.replicas,
        min_replicas=minimum,
        requests=_requests(task, needs, where),
        node_selector=_agree(tuple(sorted(task.node_selector.items())), needs.node_selector, f"{where}.node_selector"),
        affinity=_agree(_affinity(task, where), needs.affinity, f"{where}.affinity"),
        tolerations=_agree(_tolerations(task, where), needs.tolerations, f"{where}.tolerations"),
        policy=POLICIES[task.policy],
        template=template.encode(),
    )


def _requests(task: job_pb2.TaskGroup, needs: podtemplate.PodNeeds, where: str) -> Amounts:
    field = f"{where}.resources"
    stated = resources.parse_requests(task.resources, field)
    resources.check_devices(stated, field)
    if stated and needs.requests and stated != needs.requests:
        message = (
            f"{resources.format_amounts(stated)} differs from the template's containers, which ask for "
            f"{resources.format_amounts(needs.requests)}: give one of the two"
        )
        raise Rejected(Code.INVALID_ARGUMENT, field, message)
    return stated or needs.requests


def _affinity(task: job_pb2.TaskGroup, where: str) -> podtemplate.Affinity:
    terms = []
    for at, term in enumerate(task.affinity):
        place = f"{where}.affinity[{at}]"
        if not term.requirements:
            raise Rejected(Code.INVALID_ARGUMENT, place, "selects nothing: give it requirements")
        terms.append(
            tuple(
                podtemplate.requirement(r.key, r.operator, r.values, f"{place}.requirements[{i}]")
                for i, r in enumerate(term.requirements)
            )
        )
    return tuple(terms)


def _tolerations(task: job_pb2.TaskGroup, where: str) -> tuple[Toleration, ...]:
    return tuple(
        podtemplate.toleration(
            key=t.key, operator=t.operator, value=t.value, effect=t.effect, field=f"{where}.tolerations[{at}]"
        )
        for at, t in enumerate(task.tolerations)
    )


def _agree(stated: T, from_template: T, field: str) -> T:
    """The one that is there. Raises Rejected when both are and differ."""
    if stated and from_template and stated != from_template:
        raise Rejected(Code.INVALID_ARGUMENT, field, "differs from what the pod template says: give one of the two")
    return stated or from_template


def _check_groups(tasks: tuple[TaskGroup, ...]) -> None:
    pods = 0
    names: set[str] = set()
    for at, task in enumerate(tasks):
        pods += task.replicas
        if task.name in names:
            raise Rejected(Code.INVALID_ARGUMENT, f"tasks[{at}].name", f'"{task.name}" is there twice', "G1")
        names.add(task.name)
    if pods > GANG_PODS_MAX:
        message = f"{pods} pods in one job, at most {GANG_PODS_MAX} are possible: split it"
        raise Rejected(Code.INVALID_ARGUMENT, "tasks", message, "LOG-8")


def _check_size(spec: job_pb2.JobSpec) -> None:
    size = spec.ByteSize()
    if size > JOB_BYTES_MAX:
        raise _too_large(size, _largest(spec))


def _largest(spec: job_pb2.JobSpec) -> str:
    """The field that takes most of the job's bytes; of its task groups, the template of one if that does."""
    rest, sizes = job_pb2.JobSpec(), {}
    rest.CopyFrom(spec)
    for field, _ in spec.ListFields():
        before = rest.ByteSize()
        rest.ClearField(field.name)  # type: ignore[arg-type]  # a field name of the message
        sizes[field.name] = before - rest.ByteSize()
    name = max(sizes, key=lambda name: sizes[name])
    if name != "tasks":
        return name
    templates = [len(task.template) for task in spec.tasks]
    return f"tasks[{templates.index(max(templates))}].template" if sum(templates) * 2 > sizes[name] else name


def _check_encoded_size(job: JobSpec) -> None:
    size = len(msgspec.msgpack.encode(job))
    if size > JOB_BYTES_MAX:
        raise _too_large(size, "template")


def _too_large(size: int, field: str) -> Rejected:
    message = f"the job has {size // 1024} KiB, at most {JOB_BYTES_MAX // 1024} KiB are possible: mount large data"
    return Rejected(Code.INVALID_ARGUMENT, field, message, "LOG-8")


def labels_of(labels: Mapping[str, str]) -> Pairs:
    """Raises Rejected for what Kubernetes would not take as a label."""
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            raise Rejected(Code.INVALID_ARGUMENT, f"labels.{key[:80]}", "is not a label key as Kubernetes wants it")
        if not LABEL_VALUE.fullmatch(value):
            message = f'"{value[:80]}" is not a label value: at most 63 letters, digits, "-", "_", "."'
            raise Rejected(Code.INVALID_ARGUMENT, f"labels.{key}", message)
    return tuple(sorted(labels.items()))


def _checkpoint_ms(checkpoint: job_pb2.CheckpointSpec) -> int:
    for field, _ in checkpoint.ListFields():
        if field.name in reserved.CHECKPOINT_FIELDS:
            raise reserved.refusal(f"checkpoint.{field.name}")
    return _milliseconds(checkpoint.interval, "checkpoint.interval")


def _milliseconds(duration: duration_pb2.Duration, field: str) -> int:
    if duration.seconds < 0 or duration.nanos < 0 or not (duration.seconds or duration.nanos):
        raise Rejected(Code.INVALID_ARGUMENT, field, "must be more than nothing")
    if duration.seconds > DURATION_SECONDS_MAX:
        raise Rejected(Code.INVALID_ARGUMENT, field, "is more than ten years")
    return duration.seconds * 1000 + -(-duration.nanos // 1_000_000)
