"""Volcano: Queues become queues.

`deserved` is what a queue gets back from others, so it is the guarantee; `guarantee` is kept free for the queue and
never lent, so it is the part of the guarantee above the lending limit; `capability` is the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from muster.api.v1 import queue_pb2
from muster.cli.errors import CliError, Exit
from muster.cli.imports.tree import Imported, amounts, documents, name_of, put

GROUP: Final = "scheduling.volcano.sh/"
ROOT: Final = "root"  # above all queues; here the tree itself
STATES: Final = {"Closed": queue_pb2.QUEUE_STATE_CLOSED, "Closing": queue_pb2.QUEUE_STATE_CLOSED}
KEYS: Final = ("weight", "capability", "deserved", "guarantee", "reclaimable", "parent", "priority", "state", "type",
               "dequeueStrategy")  # fmt: skip


def read(text: str, source: str) -> Imported:
    """Raises CliError."""
    found = {
        name_of(document, source): document.get("spec") or {}
        for document in documents(text, source)
        if str(document.get("apiVersion", "")).startswith(GROUP) and document.get("kind") == "Queue"
    }
    if not found:
        raise CliError(f"{source} holds no Volcano Queue", Exit.USAGE)
    imported = Imported()
    for name, spec in found.items():
        if name != ROOT:
            _queue(imported, _path(imported, found, name), spec, f"Queue {name}")
        elif set(spec) - {"weight", "reclaimable"}:
            imported.note("Queue root", "is the tree itself here: its settings are left out")
    imported.sort()
    return imported


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
    if "weight" in spec:
        queue.weight = int(spec["weight"])
    queue.priority = int(spec.get("priority") or 0)
    if spec.get("state") in STATES:
        queue.state = STATES[spec["state"]]
    deserved = amounts(spec.get("deserved"), f"{subject}.deserved")
    kept = amounts((spec.get("guarantee") or {}).get("resource"), f"{subject}.guarantee")
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
