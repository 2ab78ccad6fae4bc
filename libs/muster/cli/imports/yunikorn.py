"""YuniKorn: the queues of one partition become queues; `root` is the tree itself.

Reads `queues.yaml`, by itself or in the ConfigMap `yunikorn-configs`. Properties are handed down as YuniKorn does it:
what a queue does not state it has from above, but of `preemption.policy` only `disabled`, and of priorities nothing.
How jobs are put in order, and what they preempt, is a matter of the leaves, so that is where it is written. YuniKorn
has no weights: its queues share in proportion to what they are guaranteed, so where that differs a note says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from muster.api.v1 import queue_pb2
from muster.cli.errors import CliError, Exit
from muster.cli.imports.reading import (
    Each,
    Fields,
    Known,
    Lost,
    documents,
    entries,
    fail,
    one_of,
    section,
    whole,
    words,
)
from muster.cli.imports.tree import COUNTS, PRIORITIES, Imported, put

ROOT: Final = "root"
RESOURCES: Final = {"vcore": "cpu"}
SORTS: Final = {"fifo": False, "fair": True, "stateaware": False}
SWITCH: Final = {"enabled": True, "disabled": False}
PRIORITY_POLICIES: Final = {"default": False, "fence": True}
PREEMPTION_POLICIES: Final = {"default": False, "fence": False, "disabled": True}  # whether it is handed down
VALUES: Final[Mapping[str, Mapping[str, bool]]] = {
    "application.sort.policy": SORTS,
    "application.sort.priority": SWITCH,
    "priority.policy": PRIORITY_POLICIES,
    "preemption.policy": PREEMPTION_POLICIES,
}

BACKOFF: Final = "a job that does not fit keeps nobody else from starting"
NO_RULES: Final = "a job names its queue"
PROPERTIES: Final[Fields] = {
    "application.sort.policy": None,
    "application.sort.priority": None,
    "priority.offset": None,
    "priority.policy": None,
    "preemption.policy": None,
    "preemption.delay": Lost("who may preempt does so at once; min_runtime protects what has just started"),
    "quota.preemption.delay": Lost("nobody is preempted because a limit was lowered"),
    "application.unschedasks.backoff": Lost(BACKOFF),
    "application.unschedasks.backoff.delay": Lost(BACKOFF),
}
AMOUNTS: Final[Fields] = {"guaranteed": None, "max": None}
LIMIT: Final[Fields] = {"limit": None, "users": None, "groups": None, "maxapplications": None, "maxresources": None}
BY_TEMPLATE: Final = "no queues are made by rules here"
TEMPLATE: Final[Fields] = {
    "maxapplications": Lost(BY_TEMPLATE),
    "properties": Lost(BY_TEMPLATE, inner=dict.fromkeys(PROPERTIES)),
    "resources": {"guaranteed": Lost(BY_TEMPLATE), "max": Lost(BY_TEMPLATE)},
}
ACL: Final = Lost("who may submit is not a matter of queues here", usual=("*", " "))
QUEUE: Final[Fields] = {
    "name": None,
    "parent": None,
    "queues": None,
    "resources": AMOUNTS,
    "properties": PROPERTIES,
    "limits": Each(LIMIT),
    "maxapplications": Lost("per_user and per_namespace have running_jobs, a queue has not"),
    "submitacl": ACL,
    "adminacl": ACL,
    "childtemplate": TEMPLATE,
    "preemption": {"delay": Lost("nobody is preempted because a limit was lowered")},
}
OF_THE_TREE: Final = "the root is the tree itself here"
ROOT_QUEUE: Final[Fields] = dict(QUEUE) | {
    "resources": {"guaranteed": Lost(OF_THE_TREE), "max": Lost(OF_THE_TREE)},
    "maxapplications": Lost(OF_THE_TREE),
    "limits": Lost(OF_THE_TREE, inner=Each(LIMIT)),
}
RULE: Final[dict[str, Known]] = {
    "name": None,
    "create": None,
    "value": None,
    "filter": Lost(inner={"type": None, "users": None, "groups": None}),
}
RULE["parent"] = Lost(inner=RULE)
PARTITION: Final[Fields] = {
    "name": None,
    "queues": None,
    "placementrules": Lost(NO_RULES, inner=Each(RULE)),
    "limits": Lost(OF_THE_TREE, inner=Each(LIMIT)),
    "preemption": {
        "enabled": Lost("whether jobs preempt is their queue's (preemption)", usual=(True,)),
        "quotapreemptionenabled": Lost("nobody is preempted because a limit was lowered", usual=(False,)),
    },
    "nodesortpolicy": Lost(
        "how nodes are filled is not a matter of queues", inner=dict.fromkeys(("type", "resourceweights"))
    ),
    "statedumpfilepath": Lost(),
}
FILE: Final[Fields] = {"partitions": None, "checksum": None}

Properties = Mapping[str, str]


def read(text: str, source: str) -> Imported:
    """Raises CliError."""
    imported = Imported()
    partitions: list[Mapping[str, Any]] = []
    for document in documents(text, source):
        data = section(document.get("data"), f"{source}: data") if document.get("kind") == "ConfigMap" else {}
        if "queues.yaml" in data:
            for inner in documents(str(data["queues.yaml"]), f"{source}: data.queues.yaml"):
                partitions += _partitions(imported, inner, source)
            fields: Fields = {**dict.fromkeys(data, Lost()), "queues.yaml": None}
            imported.settings("ConfigMap", data, fields, "data")
        elif "kind" in document:
            imported.beside(document, source)
        else:
            partitions += _partitions(imported, document, source)
    if not partitions:
        raise CliError(f"{source} holds no YuniKorn partitions", Exit.USAGE)
    for other in partitions[1:]:
        imported.note(f"partition {other.get('name')}", "is left out: partitions are separate cells here")
    partition = partitions[0]
    imported.settings(f"partition {partition.get('name')}", partition, PARTITION)
    tops = entries(partition.get("queues"), f"{source}: queues")
    if len(tops) == 1 and str(tops[0].get("name")).lower() == ROOT:
        properties = _settings(imported, tops[0], "queue root", ROOT_QUEUE)
        tops = entries(tops[0].get("queues"), "queue root: queues")
    else:
        properties = {}
    _queues(imported, tops, ("", "queue root"), properties)
    imported.finish()
    return imported


def _partitions(imported: Imported, document: Mapping[str, Any], source: str) -> list[Mapping[str, Any]]:
    imported.settings(source, document, FILE)
    return entries(document.get("partitions"), f"{source}: partitions")


def _settings(imported: Imported, given: Mapping[str, Any], subject: str, fields: Fields) -> dict[str, str]:
    """Tell what is lost of a queue; its own properties."""
    imported.settings(subject, given, fields)
    own = section(given.get("properties"), f"{subject}: properties")
    properties = {str(key): str(value).lower() for key, value in own.items()}
    for key, known in VALUES.items():
        if key in properties:
            one_of(known, properties[key], f"{subject}: properties.{key}")
    return properties


def _queues(imported: Imported, found: list[Mapping[str, Any]], above: tuple[str, str], inherited: Properties) -> None:
    """Siblings and all below them. `above`: path and subject of what they are below."""
    guarantees = set()
    for given in found:
        name = str(given.get("name") or "")
        if not name:
            raise CliError(f"{above[1]}: a queue below it has no name", Exit.USAGE)
        subject = f"{above[1]}.{name}"
        own = imported.name(subject, name)
        path = f"{above[0]}/{own}" if above[0] else own
        properties = _handed_down(inherited) | _settings(imported, given, subject, QUEUE)
        queue = imported.add(path, subject)
        below = entries(given.get("queues"), f"{subject}: queues")
        _amounts(imported, queue, given, subject)
        _priority(imported, queue, properties, subject)
        if not below:
            _leaf(imported, queue, properties, subject)
            if given.get("parent") in (True, "true"):
                imported.note(subject, "parent true: its queues were made by rules; here it takes the jobs itself")
        elif not _priorities(properties) and any(_stated(child, "priority.offset") not in ("", "0") for child in below):
            imported.note(subject, "application.sort.priority disabled: priorities of the queues below it count here")
        _queues(imported, below, (path, subject), properties)
        guarantees.add(tuple(sorted(queue.guaranteed.items())))
    if len(guarantees) > 1:
        have = "YuniKorn shares the rest in proportion to guarantees, here all have the weight 1"
        imported.note(f'weights below "{above[0]}"' if above[0] else "weights at the top", have)


def _handed_down(properties: Properties) -> dict[str, str]:
    """What the queues below have of the properties, unless they state them."""
    found = {key: value for key, value in properties.items() if not key.startswith("priority.")}
    if not PREEMPTION_POLICIES[found.get("preemption.policy", "default")]:
        found.pop("preemption.policy", None)
    return found


def _stated(given: Mapping[str, Any], key: str) -> str:
    properties = given.get("properties")
    return str(properties.get(key, "")) if isinstance(properties, Mapping) else ""


def _priorities(properties: Properties) -> bool:
    """Whether they count in the order."""
    return SWITCH[properties.get("application.sort.priority", "enabled")]


def _amounts(imported: Imported, queue: queue_pb2.Queue, given: Mapping[str, Any], subject: str) -> None:
    """Guarantee, limit, and what each user may have."""
    stated = section(given.get("resources"), f"{subject}: resources")
    guaranteed = imported.amounts(subject, "resources.guaranteed", stated.get("guaranteed"), RESOURCES)
    put(queue.guaranteed, {resource: own for resource, own in guaranteed.items() if own})
    most = imported.amounts(subject, "resources.max", stated.get("max"), RESOURCES)
    if any(most.values()):
        put(queue.limit, most)
    elif most:
        imported.note(subject, "resources.max is left out: where all of it is 0, YuniKorn takes none for set")
    for at, limit in enumerate(entries(given.get("limits"), f"{subject}: limits")):
        _limit(imported, queue, limit, (subject, f"limits[{at}]"))


def _limit(imported: Imported, queue: queue_pb2.Queue, limit: Mapping[str, Any], place: tuple[str, str]) -> None:
    """A limit for every user is `per_user`; one for named users or groups has no counterpart."""
    subject, path = place
    users, groups = (words(limit.get(who), f"{subject}: {path}.{who}") for who in ("users", "groups"))
    every = "*" in users
    others = [f"user {name}" for name in users if name != "*"] + [f"group {name}" for name in groups]
    if others:
        have = "limits are for every user alike"
        imported.note(subject, f"{path} for {', '.join(others)} has no counterpart and is left out: {have}")
    if every and queue.HasField("per_user"):
        fail(f"{subject}: {path}", "is a second limit for every user")
    if not every:
        return
    if limit.get("maxapplications"):
        most = whole(limit["maxapplications"], f"{subject}: {path}.maxapplications", COUNTS)
        queue.per_user.running_jobs = most
    resources = imported.amounts(subject, f"{path}.maxresources", limit.get("maxresources"), RESOURCES)
    put(queue.per_user.resources, resources)


def _priority(imported: Imported, queue: queue_pb2.Queue, properties: Properties, subject: str) -> None:
    offset = properties.get("priority.offset", 0)
    queue.priority = whole(offset, f"{subject}: properties.priority.offset", PRIORITIES)
    if queue.priority and not PRIORITY_POLICIES[properties.get("priority.policy", "default")]:
        have = "is the queue's own priority here and comes before those of jobs, as with priority.policy fence"
        imported.note(subject, f"properties.priority.offset {queue.priority} {have}")
    if properties.get("preemption.policy") == "fence":
        have = "jobs below it take back from queues outside as well"
        imported.note(subject, f"properties.preemption.policy fence has no counterpart and is left out: {have}")


def _leaf(imported: Imported, queue: queue_pb2.Queue, properties: Properties, subject: str) -> None:
    """Order and preemption of the jobs, by the queue's own properties and what it has from above."""
    policy = properties.get("application.sort.policy", "fifo")
    if policy == "stateaware":
        imported.note(subject, "application.sort.policy stateaware has no counterpart: jobs go by priority, then age")
    if SORTS[policy]:
        queue.ordering = queue_pb2.QUEUE_ORDERING_FAIR
        imported.note(subject, "application.sort.policy fair: fair between namespaces (fair_by) here, not between jobs")
        if not _priorities(properties):
            imported.note(subject, "application.sort.priority disabled: priorities count within a namespace here")
    elif _priorities(properties):
        queue.ordering = queue_pb2.QUEUE_ORDERING_PRIORITY  # by priority, then submit time
    else:
        queue.ordering = queue_pb2.QUEUE_ORDERING_FIFO
    queue.preemption = queue_pb2.QUEUE_PREEMPTION_ANY  # no difference in priority is asked for
    if properties.get("preemption.policy") == "disabled":
        have = "others take back from it here as well; mark its jobs preemptible: false"
        imported.note(subject, f"preemption.policy disabled has no counterpart and is left out: {have}")
