"""Volcano: Queues become queues.

`deserved` is what a queue gets back from others, so it is the guarantee; `guarantee` is kept free for the queue and
never lent, so it is the part of the guarantee above the lending limit; `capability` is the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from muster.api.v1 import queue_pb2
from muster.cli.errors import CliError, Exit
from muster.cli.imports.tree import (
    PRIORITIES,
    PRIORITY_CLASSES,
    WEIGHTS,
    Imported,
    amounts,
    beside_queues,
    documents,
    fail,
    name_of,
    put,
    section,
    spec_of,
    whole,
)

GROUP: Final = "scheduling.volcano.sh/"
ROOT: Final = "root"  # above all queues; here the tree itself
STATES: Final = {"Closed": queue_pb2.QUEUE_STATE_CLOSED, "Closing": queue_pb2.QUEUE_STATE_CLOSED}
KEYS: Final = ("weight", "capability", "deserved", "guarantee", "reclaimable", "parent", "priority", "state",
               "dequeueStrategy")  # fmt: skip
HIERARCHY: Final = ("volcano.sh/hierarchy", "volcano.sh/hierarchy-weights")  # annotations, the tree of older versions


def read(text: str, source: str) -> Imported:
    """Raises CliError."""
    imported = Imported()
    found: dict[str, Mapping[str, Any]] = {}
    closed: dict[str, str] = {}
    for document in documents(text, source):
        ours = str(document.get("apiVersion", "")).startswith(GROUP)
        if not ours or document.get("kind") != "Queue":
            if ours or document.get("kind") in PRIORITY_CLASSES:
                beside_queues(imported, document, source)
            continue
        name = name_of(document, source)
        if name in found:
            fail(source, f'two queues are named "{name}"')
        found[name] = spec_of(document)
        closed[name] = str(section(document.get("status"), f"Queue {name}: status").get("state") or "")
        _annotations(imported, name, document)
    if not found:
        raise CliError(f"{source} holds no Volcano Queue", Exit.USAGE)
    for name, spec in found.items():
        if name != ROOT:
            _queue(imported, _path(imported, found, name), {"state": closed[name]} | dict(spec), f"Queue {name}")
        elif set(spec) - {"weight", "reclaimable"}:
            imported.note("Queue root", "is the tree itself here: its settings are left out")
    imported.finish()
    return imported


def _annotations(imported: Imported, name: str, document: Mapping[str, Any]) -> None:
    given = section(section(document.get("metadata"), "metadata").get("annotations"), f"Queue {name}: annotations")
    for key in HIERARCHY:
        if given.get(key):
            imported.note(f"Queue {name}", f"annotation {key} {given[key]} is left out: its place is spec.parent")


def _path(imported: Imported, found: Mapping[str, Mapping[str, Any]], name: str) -> str:
    names = [name]
    above = str(found[name].get("parent") or ROOT)
    while above != ROOT:
        if above in names:
            raise CliError(f'queue "{name}" is above itself', Exit.USAGE)
        if above not in found:
            raise CliError(f'queue "{names[-1]}" has the parent "{above}", which is not in the file', Exit.USAGE)
        names.append(above)
        above = str(found[above].get("parent") or ROOT)
    return "/".join(imported.name(f"Queue {each}", each) for each in reversed(names))


def _queue(imported: Imported, path: str, spec: Mapping[str, Any], subject: str) -> None:
    queue = imported.add(path)
    imported.unknown(subject, spec, KEYS)
    if spec.get("weight") is not None:
        queue.weight = whole(spec["weight"], f"{subject}: weight", WEIGHTS)
    queue.priority = whole(spec.get("priority") or 0, f"{subject}: priority", PRIORITIES)
    if spec["state"] in STATES:
        queue.state = STATES[spec["state"]]
    elif spec["state"] not in ("", "Open"):
        imported.note(subject, f"state {spec['state']} has no counterpart: it is open here")
    deserved = amounts(spec.get("deserved"), f"{subject}.deserved")
    kept = amounts(section(spec.get("guarantee"), f"{subject}.guarantee").get("resource"), f"{subject}.guarantee")
    guaranteed = {r: max(deserved.get(r, 0), kept.get(r, 0)) for r in {*deserved, *kept}}
    put(queue.guaranteed, {r: amount for r, amount in guaranteed.items() if amount})
    put(queue.lending_limit, {r: guaranteed[r] - amount for r, amount in kept.items() if amount})
    put(queue.limit, amounts(spec.get("capability"), f"{subject}.capability"))
    if spec.get("reclaimable") is False:
        imported.note(
            subject, "reclaimable false: what is borrowed can always be reclaimed; mark jobs preemptible: false"
        )
    if spec.get("dequeueStrategy") == "fifo":
        imported.note(subject, "dequeueStrategy fifo: a blocked first job does not stop the jobs behind it here")
    queue.preemption = queue_pb2.QUEUE_PREEMPTION_ANY  # Volcano's reclaim asks for no difference in priority
