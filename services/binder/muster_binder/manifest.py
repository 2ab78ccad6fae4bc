"""From a placement to the pods to create: names, nodes and manifests.

`Gang` expands one placement of one job. What the pods of a group share (the template, the common labels, the
environment of the job) is encoded once; a pod's manifest is then four byte strings around its own name, labels,
annotations and node, which is what makes a pod cost microseconds here and not a walk through its template.

A template is passed through as it is. Added are: the labels and annotations of `names`, the node, the scheduler's name,
`restartPolicy: Never` where it says nothing, and what the task group states and the template does not: requests on the
first container (else the kubelet would not account for them), node selector, required node affinity and tolerations
(else a NoExecute taint that the job tolerates would evict the pod at once, rule G4). A pod of an array job finds its
index where an indexed Job of Kubernetes has it: in the environment as JOB_COMPLETION_INDEX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from muster.core import layout, resources
from muster.core.model import EVERY_INDEX, Amounts, GroupPlacement, JobSpec, NodeSpec, Requirement, TaskGroup
from muster.wire import quantities
from muster_binder import names

EXISTING_POD: Final = "existingPod"  # in a template: bind this pod instead of creating one
DEFAULT_CONTAINER: Final = "main"
INDEX_VARIABLE: Final = "JOB_COMPLETION_INDEX"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
NOT_GROWN: Final[Mapping[int, int]] = MappingProxyType({})

NodeOf = Callable[[int], NodeSpec]

_encode = msgspec.json.encode


class BadTemplate(ValueError):
    """A template that cannot become a pod; admission should have refused it."""


class Slot:
    """One pod of a gang: which it is and where it goes."""

    __slots__ = ("cluster", "devices", "group", "index", "name", "node", "position")

    def __init__(self, pod: layout.Pod, node: NodeSpec, name: str) -> None:
        self.position, self.group, self.index, _, self.devices = pod
        self.node = node.name
        self.cluster = node.cluster
        self.name = name


class Gang:
    """The pods of one placement (job, epoch)."""

    def __init__(
        self,
        cell: str,
        spec: JobSpec,
        epoch: int,
        placement: tuple[GroupPlacement, ...],
        node_of: NodeOf,
        *,
        attempt_of: Mapping[int, int] = NOT_GROWN,
        default_image: str,
    ) -> None:
        """`attempt_of`: by position, where it is not the first one."""
        self.spec = spec
        self.epoch = epoch
        self.placement = placement
        self.creates = 0  # operations that still need this object
        self._cell = cell
        self._default_image = default_image
        self._parts: dict[int, _Parts] = {}
        self.slots: dict[int, Slot] = {}
        for pod in layout.each_pod(spec.tasks, placement):
            position, group, index, node, _ = pod
            task = spec.tasks[group]
            existing = _existing(task)
            if existing:
                name = existing if task.replicas == 1 else f"{existing}-{index}"
            else:
                name = names.pod_name(spec.id, spec.name, task.name, group, (index, epoch, attempt_of.get(position, 0)))
            self.slots[position] = Slot(pod, node_of(node), name)

    def binds_existing(self, slot: Slot) -> bool:
        return _existing(self.spec.tasks[slot.group]) != ""

    def manifest(self, slot: Slot, attempt: int = 0) -> bytes:
        """The pod as JSON, bound to its node. Raises BadTemplate."""
        parts = self._parts.get(slot.group)
        if parts is None:
            parts = self._parts[slot.group] = _Parts(self._cell, self.spec, slot.group, self.epoch, self._default_image)
        return parts.pod(slot, attempt)

    def adoption(self, slot: Slot, attempt: int = 0) -> bytes:
        """The merge patch that labels an existing pod as this one."""
        labels = _group_labels(self._cell, self.spec, slot.group, self.epoch) | _own_labels(slot, attempt)
        return _encode({"metadata": {"labels": labels, "annotations": _own_annotations(self.spec, slot)}})


class _Parts:
    """What the pods of one group share, encoded up to the places where a pod's own values go."""

    def __init__(self, cell: str, spec: JobSpec, group: int, epoch: int, default_image: str) -> None:
        task = spec.tasks[group]
        template = _template(task, default_image)
        metadata = dict(_object(template, "metadata"))
        labels = {str(k): str(v) for k, v in _object(metadata, "labels").items()}
        annotations = {str(k): str(v) for k, v in _object(metadata, "annotations").items()}
        for own in ("name", "generateName", "namespace", "labels", "annotations", "uid", "resourceVersion"):
            metadata.pop(own, None)
        metadata["namespace"] = spec.namespace
        pod_spec = dict(_object(template, "spec"))
        pod_spec.pop("nodeName", None)
        pod_spec["schedulerName"] = names.SCHEDULER
        pod_spec.setdefault("restartPolicy", "Never")
        _constrain(pod_spec, task)
        if spec.completion == EVERY_INDEX:
            _tell_index(pod_spec)
        self._spec = spec
        head = b'{"apiVersion":"v1","kind":"Pod","metadata":' + _encode(metadata)[:-1]
        self._to_name = head + b',"name":'
        self._to_labels = b',"labels":' + _encode(labels | _group_labels(cell, spec, group, epoch))[:-1]
        self._annotations = annotations
        self._to_node = b'},"spec":' + _encode(pod_spec)[:-1] + b',"nodeName":'

    def pod(self, slot: Slot, attempt: int) -> bytes:
        return b"".join(
            (
                self._to_name,
                _encode(slot.name),
                self._to_labels,
                b",",
                _encode(_own_labels(slot, attempt))[1:],
                b',"annotations":',
                _encode(self._annotations | _own_annotations(self._spec, slot)),
                self._to_node,
                _encode(slot.node),
                b"}}",
            )
        )


def _group_labels(cell: str, spec: JobSpec, group: int, epoch: int) -> dict[str, str]:
    return {
        names.CELL: names.label_value(cell),
        names.JOB: spec.id,
        names.JOB_NAME: names.label_value(spec.name),
        names.GROUP: names.label_value(spec.tasks[group].name),
        names.EPOCH: str(epoch),
        names.QUEUE: names.label_value(spec.queue.replace("/", ".")),
    }


def _own_labels(slot: Slot, attempt: int) -> dict[str, str]:
    return {names.POD: str(slot.position), names.INDEX: str(slot.index), names.ATTEMPT: str(attempt)}


def _own_annotations(spec: JobSpec, slot: Slot) -> dict[str, str]:
    own: dict[str, str] = {}
    if slot.devices:
        own[names.DEVICES] = ",".join(map(str, slot.devices))
    if spec.trace:
        own[names.TRACE] = spec.trace
    return own


def _existing(task: TaskGroup) -> str:
    """The name of the pod to bind; "" for a template to create from (also for one that `manifest` will refuse)."""
    if EXISTING_POD.encode() not in task.template:  # the usual case, without decoding
        return ""
    try:
        name = _decode(task).get(EXISTING_POD, "")
    except BadTemplate:
        return ""
    return name if isinstance(name, str) else ""


def _decode(task: TaskGroup) -> dict[str, Any]:
    if not task.template:
        return {}
    try:
        return msgspec.json.decode(task.template, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise BadTemplate(f"the template of group {task.name} is not a JSON object: {error}") from error


def _template(task: TaskGroup, default_image: str) -> dict[str, Any]:
    template = _decode(task)
    pod_spec = dict(_object(template, "spec"))
    containers = [dict(c) for c in pod_spec.get("containers") or () if isinstance(c, dict)]
    if not containers:
        containers = [{"name": DEFAULT_CONTAINER, "image": default_image}]
    if not any(_asks(container) for container in containers):
        containers[0]["resources"] = _requirements(task.requests)
    pod_spec["containers"] = containers
    return {**template, "spec": pod_spec}


def _asks(container: dict[str, Any]) -> bool:
    wanted = container.get("resources")
    return isinstance(wanted, dict) and bool(wanted.get("requests") or wanted.get("limits"))


def _requirements(requests: Amounts) -> dict[str, dict[str, str]]:
    """Requests as quantities. Devices and other extended resources need an equal limit."""
    asked = {name: text for name, text in quantities.requests(requests).items() if name != resources.PODS}
    limits = {name: text for name, text in asked.items() if "/" in name or name.startswith("hugepages-")}
    return {"requests": asked, "limits": limits} if limits else {"requests": asked}


def _constrain(pod_spec: dict[str, Any], task: TaskGroup) -> None:
    """Add what the group asks of nodes. Admission refused a template that says something else (rule G4)."""
    if task.node_selector and not pod_spec.get("nodeSelector"):
        pod_spec["nodeSelector"] = dict(task.node_selector)
    if task.tolerations and not pod_spec.get("tolerations"):
        # As in Kubernetes, what is empty is left out; an absent operator is Equal, an absent effect means all.
        pod_spec["tolerations"] = [
            {name: value for name, value in msgspec.structs.asdict(toleration).items() if value}
            for toleration in task.tolerations
        ]
    if task.affinity:
        affinity = dict(_object(pod_spec, "affinity"))
        of_nodes = dict(_object(affinity, "nodeAffinity"))
        if not of_nodes.get(REQUIRED):
            of_nodes[REQUIRED] = {"nodeSelectorTerms": [_term(term) for term in task.affinity]}
            pod_spec["affinity"] = affinity | {"nodeAffinity": of_nodes}


def _tell_index(pod_spec: dict[str, Any]) -> None:
    """From the pod's own label, so that the pods of a group still share all of this."""
    index = {"name": INDEX_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.INDEX}']"}}}
    for kind in ("initContainers", "containers"):
        containers = [dict(c) for c in pod_spec.get(kind) or () if isinstance(c, dict)]
        for container in containers:
            stated = [variable for variable in container.get("env") or () if isinstance(variable, dict)]
            if all(variable.get("name") != INDEX_VARIABLE for variable in stated):
                container["env"] = [*stated, index]
        if containers:
            pod_spec[kind] = containers


def _term(requirements: tuple[Requirement, ...]) -> dict[str, Any]:
    expressions: list[dict[str, Any]] = []
    for requirement in requirements:
        expression: dict[str, Any] = {"key": requirement.key, "operator": requirement.operator}
        if requirement.values:
            expression["values"] = list(requirement.values)
        expressions.append(expression)
    return {"matchExpressions": expressions}


def _object(parent: dict[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}
