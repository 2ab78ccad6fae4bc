"""Volcano: Queues become queues.

`deserved` is what a queue gets back from others, so it is the guarantee; `guarantee` is kept free for the queue and
never lent, so it is the part of the guarantee above the lending limit; `capability` is the limit. Whether queues take
anything back is said by the scheduler's configuration: if that is in the file, `preemption` goes by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from muster.api.v1 import queue_pb2
from muster.cli.errors import CliError, Exit
from muster.cli.imports import weights
from muster.cli.imports.reading import (
    Each,
    Fields,
    Lost,
    documents,
    entries,
    fail,
    name_of,
    one_of,
    section,
    spec_of,
    whole,
)
from muster.cli.imports.tree import OBJECT, PRIORITIES, Imported, put

GROUP: Final = "scheduling.volcano.sh/"
ROOT: Final = "root"  # above all queues; here the tree itself
STATES: Final = {"Open": False, "Closed": True, "Closing": True, "Unknown": False}
WEIGHTS: Final = (0, (1 << 31) - 1)
DEQUEUE: Final = {"traverse": False, "fifo": True}  # whether a blocked first job blocks
HIERARCHY: Final = ("volcano.sh/hierarchy", "volcano.sh/hierarchy-weights")  # annotations, the tree of older versions
RECLAIMS: Final = frozenset({"reclaim", "gangreclaim"})
PREEMPTS: Final = frozenset({"preempt", "gangpreempt"})

BY_NODES: Final = "a job says which nodes it needs or avoids"
TERMS: Final[Fields] = {
    "requiredDuringSchedulingIgnoredDuringExecution": Lost(BY_NODES),
    "preferredDuringSchedulingIgnoredDuringExecution": Lost(BY_NODES),
}
CLUSTER: Final[Fields] = {"name": None, "weight": None, "capacity": None}
SPEC: Final[Fields] = {
    "weight": None,
    "capability": None,
    "deserved": None,
    "guarantee": {"resource": None},
    "reclaimable": None,
    "parent": None,
    "priority": None,
    "state": None,
    "dequeueStrategy": None,
    "affinity": {"nodeGroupAffinity": TERMS, "nodeGroupAntiAffinity": TERMS},
    "type": Lost(),
    "extendClusters": Lost("all clusters of the cell take jobs of all queues", inner=Each(CLUSTER)),
}
OF_THE_TREE: Final = Lost("the root is the tree itself here", usual=(1, True))
ROOT_SPEC: Final[Fields] = dict.fromkeys(SPEC, OF_THE_TREE)
NO_PODGROUP: Final = "a job says itself what must start together (tasks, min_replicas)"


@dataclass
class Scheduler:
    """What the configuration of the scheduler says, if it is in the file."""

    subject: str = ""
    actions: list[str] = field(default_factory=list)
    plugins: list[str] = field(default_factory=list)

    @property
    def preemption(self) -> queue_pb2.QueuePreemption.ValueType:
        if not self.subject or RECLAIMS & set(self.actions):
            return queue_pb2.QUEUE_PREEMPTION_ANY  # reclaim asks for no difference in priority
        if PREEMPTS & set(self.actions):
            return queue_pb2.QUEUE_PREEMPTION_LOWER_PRIORITY
        return queue_pb2.QUEUE_PREEMPTION_NEVER


def read(text: str, source: str) -> Imported:
    """Raises CliError."""
    imported = Imported()
    found: dict[str, dict[str, Any]] = {}
    scheduler = Scheduler()
    for document in documents(text, source):
        ours = str(document.get("apiVersion", "")).startswith(GROUP)
        if ours and document.get("kind") == "Queue":
            name = name_of(document, source)
            if name in found:
                fail(source, f'two queues are named "{name}"')
            found[name] = document
        elif document.get("kind") == "ConfigMap" and (stated := _configuration(document, source)) is not None:
            scheduler = stated
        else:
            imported.beside(document, source, NO_PODGROUP if document.get("kind") == "PodGroup" else "")
    if not found:
        raise CliError(f"{source} holds no Volcano Queue", Exit.USAGE)
    siblings: dict[str, list[weights.Sibling]] = {}
    for name, document in found.items():
        subject = f"Queue {name}"
        imported.settings(subject, document, OBJECT)
        imported.settings(subject, spec_of(document), ROOT_SPEC if name == ROOT else SPEC, "spec")
        _annotations(imported, subject, document)
        if name != ROOT:
            path = _path(imported, found, name)
            made = _queue(imported, path, document, scheduler)
            siblings.setdefault(path.rpartition("/")[0], []).append(made)
    for group in siblings.values():
        weights.settle(imported, group)
    if scheduler.subject:
        _tell(imported, scheduler, [spec_of(document) for name, document in found.items() if name != ROOT])
    imported.finish()
    return imported


def _configuration(document: Mapping[str, Any], source: str) -> Scheduler | None:
    """The scheduler's configuration, if this ConfigMap holds it. Other programs keep theirs in ConfigMaps as well."""
    subject = f"ConfigMap {name_of(document, source)}"
    for key, text in section(document.get("data"), f"{subject}: data").items():
        if not str(key).endswith(".conf") or not isinstance(text, str):
            continue
        try:
            for inner in documents(text, subject):
                tiers = [entries(tier.get("plugins"), subject) for tier in entries(inner.get("tiers"), subject)]
                plugins = [str(plugin.get("name")) for tier in tiers for plugin in tier]
                actions = [word.strip() for word in str(inner.get("actions") or "").split(",") if word.strip()]
                if actions or plugins:
                    return Scheduler(subject, actions, plugins)
        except CliError:
            continue
    return None


def _tell(imported: Imported, scheduler: Scheduler, specs: list[Mapping[str, Any]]) -> None:
    """What of the scheduler's configuration is followed, and what is not."""
    chosen = queue_pb2.QueuePreemption.Name(scheduler.preemption).removeprefix("QUEUE_PREEMPTION_")
    actions, plugins = (", ".join(names) or "none" for names in (scheduler.actions, scheduler.plugins))
    imported.note(scheduler.subject, f"with the actions {actions} the queues have preemption {chosen} here")
    imported.note(scheduler.subject, f"has no counterpart otherwise and is left out: plugins {plugins}")
    capacity, proportion = ("capacity" in scheduler.plugins, "proportion" in scheduler.plugins)
    if capacity and not proportion and any(spec.get("weight") not in (None, 0, 1) for spec in specs):
        imported.note(scheduler.subject, "plugin capacity reads no weight; here it shares what nobody is guaranteed")
    if proportion and not capacity and any(spec.get("deserved") for spec in specs):
        imported.note(scheduler.subject, "plugin proportion reads no deserved; here it is the guarantee")


def _annotations(imported: Imported, subject: str, document: Mapping[str, Any]) -> None:
    given = section(section(document.get("metadata"), "metadata").get("annotations"), f"{subject}: annotations")
    for key in HIERARCHY:
        if given.get(key):
            imported.note(subject, f"annotation {key} {given[key]} is left out: its place is spec.parent")


def _path(imported: Imported, found: Mapping[str, Mapping[str, Any]], name: str) -> str:
    names = [name]
    above = str(spec_of(found[name]).get("parent") or ROOT)
    while above != ROOT:
        if above in names:
            raise CliError(f'queue "{name}" is above itself', Exit.USAGE)
        if above not in found:
            raise CliError(f'queue "{names[-1]}" has the parent "{above}", which is not in the file', Exit.USAGE)
        names.append(above)
        above = str(spec_of(found[above]).get("parent") or ROOT)
    return "/".join(imported.name(f"Queue {each}", each) for each in reversed(names))


def _queue(imported: Imported, path: str, document: Mapping[str, Any], scheduler: Scheduler) -> weights.Sibling:
    spec, subject = spec_of(document), f"Queue {document['metadata']['name']}"
    queue = imported.add(path, subject)
    imported.labels(queue, document, subject)
    queue.priority = whole(spec.get("priority") or 0, f"{subject}: spec.priority", PRIORITIES)
    queue.preemption = scheduler.preemption
    _state(imported, queue, document, subject)
    deserved = imported.amounts(subject, "spec.deserved", spec.get("deserved"))
    guarantee = section(spec.get("guarantee"), f"{subject}: spec.guarantee").get("resource")
    kept = imported.amounts(subject, "spec.guarantee.resource", guarantee)
    guaranteed = {r: max(deserved.get(r, 0), kept.get(r, 0)) for r in {*deserved, *kept}}
    put(queue.guaranteed, {r: own for r, own in guaranteed.items() if own})
    put(queue.lending_limit, {r: guaranteed[r] - own for r, own in kept.items() if own})
    put(queue.limit, imported.amounts(subject, "spec.capability", spec.get("capability")))
    if spec.get("reclaimable") is False:
        have = "what is borrowed can always be reclaimed; mark jobs preemptible: false"
        imported.note(subject, f"reclaimable false has no counterpart and is left out: {have}")
    if one_of(DEQUEUE, spec.get("dequeueStrategy") or "traverse", f"{subject}: spec.dequeueStrategy"):
        imported.note(subject, "dequeueStrategy fifo: a blocked first job does not stop the jobs behind it here")
    weight = whole(spec.get("weight") or 1, f"{subject}: spec.weight", WEIGHTS)  # 0 is 1 there as well
    return subject, queue, Fraction(weight)


def _state(imported: Imported, queue: queue_pb2.Queue, document: Mapping[str, Any], subject: str) -> None:
    """The status says it; the spec did in older versions."""
    status = section(document.get("status"), f"{subject}: status").get("state")
    state = spec_of(document).get("state") or status or "Open"
    if one_of(STATES, state, f"{subject}: state"):
        queue.state = queue_pb2.QUEUE_STATE_CLOSED
        imported.note(subject, f"state {state}: jobs that are queued already start here (state STOPPED keeps them)")
    elif state != "Open":
        imported.note(subject, f"state {state} has no counterpart: it is open here")
