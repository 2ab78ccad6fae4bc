"""YuniKorn: the queues of one partition become queues; `root` is the tree itself.

Reads `queues.yaml`, by itself or in the ConfigMap `yunikorn-configs`. YuniKorn has no weights: its queues share by how
far they are above their guarantees, which is what equal weights above guarantees give here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from muster.api.v1 import queue_pb2
from muster.cli.errors import CliError, Exit
from muster.cli.imports.tree import (
    COUNTS,
    PRIORITIES,
    PRIORITY_CLASSES,
    Imported,
    amounts,
    beside_queues,
    documents,
    entries,
    put,
    section,
    whole,
    words,
)

ROOT: Final = "root"
RESOURCES: Final = {"vcore": "cpu"}
ORDERINGS: Final = {
    "fifo": queue_pb2.QUEUE_ORDERING_PRIORITY,  # by priority, then submit time
    "fair": queue_pb2.QUEUE_ORDERING_FAIR,
}
KEYS: Final = ("name", "parent", "queues", "resources", "limits", "properties", "submitacl", "adminacl")
PROPERTIES: Final = ("application.sort.policy", "priority.offset", "preemption.policy")


def read(text: str, source: str) -> Imported:
    """Raises CliError."""
    partitions: list[Mapping[str, Any]] = []
    for document in documents(text, source):
        if document.get("kind") == "ConfigMap":
            data = section(document.get("data"), f"{source}: data")
            for inner in documents(str(data.get("queues.yaml", "")), source):
                partitions += entries(inner.get("partitions"), f"{source}: partitions")
        else:
            partitions += entries(document.get("partitions"), f"{source}: partitions")
    if not partitions:
        raise CliError(f"{source} holds no YuniKorn partitions", Exit.USAGE)
    imported = Imported()
    for document in documents(text, source):
        if document.get("kind") in PRIORITY_CLASSES:
            beside_queues(imported, document, source)
    if len(partitions) > 1:
        imported.note("partitions", "are separate cells here: only the first is read")
    partition = partitions[0]
    imported.unknown(f"partition {partition.get('name')}", partition, ("name", "queues"))
    for queue in entries(partition.get("queues"), f"{source}: queues"):
        _queue(imported, queue, "", source)
    imported.finish()
    return imported


def _queue(imported: Imported, given: Mapping[str, Any], above: str, source: str) -> None:
    name = str(given.get("name") or "")
    if not name:
        raise CliError(f"{source}: a queue below {above or 'the partition'} has no name", Exit.USAGE)
    subject = f"queue {above.replace('/', '.') + '.' if above else ''}{name}"
    if not above and name == ROOT:
        path = ""
        if set(given) - {"name", "queues", "submitacl", "adminacl", "parent"}:
            imported.note("queue root", "is the tree itself here: its settings are left out")
    else:
        path = f"{above}/{imported.name(subject, name)}" if above else imported.name(subject, name)
        _settings(imported, imported.add(path), given, subject)
    for child in entries(given.get("queues"), f"{subject}: queues"):
        _queue(imported, child, path, source)


def _settings(imported: Imported, queue: queue_pb2.Queue, given: Mapping[str, Any], subject: str) -> None:
    imported.unknown(subject, given, KEYS)
    stated = section(given.get("resources"), f"{subject}: resources")
    guaranteed = amounts(stated.get("guaranteed"), f"{subject}.guaranteed", RESOURCES)
    put(queue.guaranteed, {resource: amount for resource, amount in guaranteed.items() if amount})
    put(queue.limit, amounts(stated.get("max"), f"{subject}.max", RESOURCES))
    for acl in ("submitacl", "adminacl"):
        if given.get(acl) and str(given[acl]).strip() not in ("*", ""):
            imported.note(subject, f"{acl} has no counterpart and is left out")
    own = section(given.get("properties"), f"{subject}: properties")
    properties = {str(key): str(value) for key, value in own.items()}
    imported.unknown(subject, properties, PROPERTIES)
    sort = properties.get("application.sort.policy", "fifo")
    if sort in ORDERINGS:
        queue.ordering = ORDERINGS[sort]
    else:
        imported.note(subject, f"application.sort.policy {sort} has no counterpart: jobs go by priority, then age")
    queue.priority = whole(properties.get("priority.offset", 0), f"{subject}: priority.offset", PRIORITIES)
    if properties.get("preemption.policy") == "disabled":
        queue.preemption = queue_pb2.QUEUE_PREEMPTION_NEVER
    else:
        queue.preemption = queue_pb2.QUEUE_PREEMPTION_ANY
        if properties.get("preemption.policy") == "fence":
            imported.note(subject, "preemption.policy fence has no counterpart and is left out")
    for limit in entries(given.get("limits"), f"{subject}: limits"):
        _limit(imported, queue, limit, subject)


def _limit(imported: Imported, queue: queue_pb2.Queue, limit: Mapping[str, Any], subject: str) -> None:
    """A limit for every user is `per_user`; one for named users or groups has no counterpart."""
    users, groups = (words(limit.get(who), f"{subject}: limits.{who}") for who in ("users", "groups"))
    if users != ["*"] or groups not in ([], ["*"]):
        who = ", ".join((*users, *groups))
        imported.note(subject, f"the limit for {who} has no counterpart: limits are for every user alike")
        return
    if limit.get("maxapplications"):
        most = whole(limit["maxapplications"], f"{subject}: limits.maxapplications", COUNTS)
        queue.per_user.running_jobs = most
    put(queue.per_user.resources, amounts(limit.get("maxresources"), f"{subject}.limits", RESOURCES))
