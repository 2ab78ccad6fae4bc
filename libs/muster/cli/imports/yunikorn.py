"""YuniKorn: the queues of one partition become queues; `root` is the tree itself.

Reads `queues.yaml`, by itself or in the ConfigMap `yunikorn-configs`. YuniKorn has no weights: its queues share by how
far they are above their guarantees, which is what equal weights above guarantees give here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from muster.api.v1 import queue_pb2
from muster.cli.errors import CliError, Exit
from muster.cli.imports.tree import Imported, amounts, documents, put

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
            for inner in documents(str((document.get("data") or {}).get("queues.yaml", "")), source):
                partitions += inner.get("partitions") or []
        else:
            partitions += document.get("partitions") or []
    if not partitions:
        raise CliError(f"{source} holds no YuniKorn partitions", Exit.USAGE)
    imported = Imported()
    if len(partitions) > 1:
        imported.note("partitions", "are separate cells here: only the first is read")
    partition = partitions[0]
    imported.unknown(f"partition {partition.get('name')}", partition, ("name", "queues"))
    for queue in partition.get("queues") or []:
        _queue(imported, queue, "", source)
    imported.sort()
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
    for child in given.get("queues") or []:
        _queue(imported, child, path, source)


def _settings(imported: Imported, queue: queue_pb2.Queue, given: Mapping[str, Any], subject: str) -> None:
    imported.unknown(subject, given, KEYS)
    stated = given.get("resources") or {}
    guaranteed = amounts(stated.get("guaranteed"), f"{subject}.guaranteed", RESOURCES)
    put(queue.guaranteed, {resource: amount for resource, amount in guaranteed.items() if amount})
    put(queue.limit, amounts(stated.get("max"), f"{subject}.max", RESOURCES))
    for acl in ("submitacl", "adminacl"):
        if given.get(acl) and str(given[acl]).strip() not in ("*", ""):
            imported.note(subject, f"{acl} has no counterpart and is left out")
    properties = {str(key): str(value) for key, value in (given.get("properties") or {}).items()}
    imported.unknown(subject, properties, PROPERTIES)
    sort = properties.get("application.sort.policy", "fifo")
    if sort in ORDERINGS:
        queue.ordering = ORDERINGS[sort]
    else:
        imported.note(subject, f"application.sort.policy {sort} has no counterpart: jobs go by priority, then age")
    queue.priority = int(properties.get("priority.offset", 0))
    if properties.get("preemption.policy") == "disabled":
        queue.preemption = queue_pb2.QUEUE_PREEMPTION_NEVER
    else:
        queue.preemption = queue_pb2.QUEUE_PREEMPTION_ANY
        if properties.get("preemption.policy") == "fence":
            imported.note(subject, "preemption.policy fence has no counterpart and is left out")
    for limit in given.get("limits") or []:
        _limit(imported, queue, limit, subject)


def _limit(imported: Imported, queue: queue_pb2.Queue, limit: Mapping[str, Any], subject: str) -> None:
    """A limit for every user is `per_user`; one for named users or groups has no counterpart."""
    users, groups = list(limit.get("users") or []), list(limit.get("groups") or [])
    if users != ["*"] or groups not in ([], ["*"]):
        who = ", ".join(str(name) for name in (*users, *groups))
        imported.note(subject, f"the limit for {who} has no counterpart: limits are for every user alike")
        return
    if limit.get("maxapplications"):
        queue.per_user.running_jobs = int(limit["maxapplications"])
    put(queue.per_user.resources, amounts(limit.get("maxresources"), f"{subject}.limits", RESOURCES))
