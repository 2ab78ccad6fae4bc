"""A `batch/v1` Job as a Muster job: one task group of `parallelism` pods, placed as a gang.

What has a counterpart in Muster's API goes there, also where the rule is still to be built (the server then says which
field it was): `backoffLimit` restarts, `suspend` a suspended job. More `completions` than `parallelism` make an array
job: so many indices, `parallelism` of them at once, each started as soon as there is room for it; completion mode
Indexed means that an index that has succeeded is not run again. What has no counterpart is an error with its line. The
queue is the annotation `muster.io/queue`, or the label of that name with dots for slashes; the annotation
`muster.io/priority` is the priority; without it the template's `priorityClassName` names the priority class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import yaml

from muster.api.v1 import job_pb2

if TYPE_CHECKING:
    from muster.client.jobfile import Reader

QUEUE_KEY: Final = "muster.io/queue"
PRIORITY_KEY: Final = "muster.io/priority"
TOP_KEYS: Final = ["apiVersion", "kind", "metadata", "spec", "status"]
METADATA_KEYS: Final = ["name", "namespace", "labels", "annotations"]
METADATA_IGNORED: Final = frozenset(
    {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"}
)
SPEC_KEYS: Final = [
    "parallelism",
    "completions",
    "completionMode",
    "activeDeadlineSeconds",
    "backoffLimit",
    "suspend",
    "template",
    "ttlSecondsAfterFinished",
]


def read(reader: Reader, node: yaml.MappingNode) -> job_pb2.JobSpec:
    """The job of one document. Raises JobFileError."""
    top = _mapping(reader, node, TOP_KEYS, "the document")
    version, kind = (top[key].value if key in top else "" for key in ("apiVersion", "kind"))
    if (version, kind) != ("batch/v1", "Job"):
        reader.fail(node, f"{version or '?'} {kind or '?'} is not understood: write a Muster job or a batch/v1 Job")
    if "metadata" not in top or "spec" not in top:
        reader.fail(node, "a batch/v1 Job needs metadata and spec")
    spec = job_pb2.JobSpec()
    _metadata(reader, top["metadata"], spec)
    _spec(reader, top["spec"], spec)
    return spec


def _metadata(reader: Reader, node: yaml.Node, spec: job_pb2.JobSpec) -> None:
    values = _mapping(reader, node, METADATA_KEYS, "metadata", METADATA_IGNORED)
    if "name" not in values:
        reader.fail(node, "metadata needs a name")
    spec.name = str(values["name"].value)
    if "namespace" in values:
        spec.namespace = str(values["namespace"].value)
    for key, target in (("labels", spec.labels), ("annotations", spec.annotations)):
        if key in values:
            target.update({k: str(v.value) for k, _, v in reader.pairs(values[key], f"metadata.{key}")})
    spec.queue = spec.annotations.get(QUEUE_KEY) or spec.labels.get(QUEUE_KEY, "").replace(".", "/")
    priority = spec.annotations.get(PRIORITY_KEY)
    if priority is not None:
        try:
            spec.priority = int(priority)
        except ValueError:
            reader.fail(values["annotations"], f"{PRIORITY_KEY} must be a whole number, not {priority!r}")


def _spec(reader: Reader, node: yaml.Node, spec: job_pb2.JobSpec) -> None:
    values = _mapping(reader, node, SPEC_KEYS, "spec")
    numbers: dict[str, int] = {}
    for key in ("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"):
        if key in values:
            numbers[key] = reader.integer(values[key], f"spec.{key}")
    parallelism = numbers.get("parallelism", 1)
    completions = numbers.get("completions", parallelism)
    array = completions > parallelism
    if array:
        spec.array.size, spec.array.max_parallel = completions, parallelism
    if "completionMode" in values and values["completionMode"].value == "Indexed":
        spec.completion = job_pb2.COMPLETION_EVERY_INDEX
    if "activeDeadlineSeconds" in numbers:
        spec.max_runtime.FromSeconds(numbers["activeDeadlineSeconds"])
    if "ttlSecondsAfterFinished" in numbers:
        spec.ttl_after_finished.FromSeconds(numbers["ttlSecondsAfterFinished"])
    spec.max_retries = max(0, numbers.get("backoffLimit", 0))
    if "suspend" in values:
        spec.suspend = bool(reader.plain(values["suspend"]))
    if "template" not in values:
        reader.fail(node, "spec needs a template")
    if PRIORITY_KEY not in spec.annotations:
        spec.priority_class = _priority_class(reader, values["template"])
    replicas = completions if array else parallelism
    spec.tasks.add(name="main", replicas=replicas, template=reader.json_text(values["template"], "spec.template"))


def _priority_class(reader: Reader, template: yaml.Node) -> str:
    """What the pods of the template name, or nothing."""
    plain = reader.plain(template)
    pods = plain.get("spec") if isinstance(plain, dict) else None
    return str(pods.get("priorityClassName") or "") if isinstance(pods, dict) else ""


def _mapping(
    reader: Reader, node: yaml.Node, known: list[str], where: str, ignored: frozenset[str] = frozenset()
) -> dict[str, yaml.Node]:
    values: dict[str, yaml.Node] = {}
    for key, key_node, value in reader.pairs(node, where):
        if key in known:
            values[key] = value
        elif key not in ignored:
            reader.unknown(key_node, key, known, where)
    return values
