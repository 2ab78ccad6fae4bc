"""Kueue: Cohorts and ClusterQueues become queues, LocalQueues and flavors become notes.

A cohort is a parent queue, a ClusterQueue a leaf below it. Nominal quota is the guarantee, summed over flavors; nominal
quota plus borrowing limit is the limit. A cohort's own quota is a pool for all below it, on top of theirs, so its
guarantee is its own quota and theirs together, and what it may borrow from outside comes on top of that. Who has
nothing above can borrow from nobody: a ClusterQueue without cohort and a cohort without parent end at their quota.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from muster.api.v1 import queue_pb2
from muster.cli.errors import CliError, Exit
from muster.cli.imports.tree import (
    PRIORITY_CLASSES,
    WEIGHTS,
    Imported,
    Totals,
    amounts,
    beside_queues,
    documents,
    entries,
    fail,
    name_of,
    one_of,
    put,
    section,
    spec_of,
    whole,
)

GROUP: Final = "kueue.x-k8s.io/"
STATES: Final = {
    "None": queue_pb2.QUEUE_STATE_OPEN,
    "Hold": queue_pb2.QUEUE_STATE_STOPPED,
    "HoldAndDrain": queue_pb2.QUEUE_STATE_DRAINING,
}
PREEMPTIONS: Final = {
    "Never": queue_pb2.QUEUE_PREEMPTION_NEVER,
    "LowerPriority": queue_pb2.QUEUE_PREEMPTION_LOWER_PRIORITY,
    "LowerOrNewerEqualPriority": queue_pb2.QUEUE_PREEMPTION_ANY,
    "Any": queue_pb2.QUEUE_PREEMPTION_ANY,
}
BY_USAGE: Final = "UsageBasedAdmissionFairSharing"
QUEUE_KEYS: Final = ("admissionScope", "cohort", "cohortName", "resourceGroups", "fairSharing", "preemption",
                     "queueingStrategy", "stopPolicy")  # fmt: skip
COHORT_KEYS: Final = ("parent", "parentName", "resourceGroups", "fairSharing")
LOCAL_KEYS: Final = ("clusterQueue",)

Quota = dict[tuple[str, str], int]  # (flavor, resource) -> canonical units


@dataclass
class Node:
    """A ClusterQueue or a cohort. A cohort that is only named has an empty spec."""

    subject: str
    parent: str  # the name of a cohort, or ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    nominal: Quota = field(default_factory=dict)
    borrowing: Quota = field(default_factory=dict)
    lending: Quota = field(default_factory=dict)
    together: Quota = field(default_factory=dict)  # nominal, and all of it below


def read(text: str, source: str) -> Imported:
    """Raises CliError."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for document in documents(text, source):
        ours = str(document.get("apiVersion", "")).startswith(GROUP)
        if ours or document.get("kind") in PRIORITY_CLASSES:
            by_kind.setdefault(str(document.get("kind")), []).append(document)
    if not by_kind.get("ClusterQueue") and not by_kind.get("Cohort"):
        raise CliError(f"{source} holds no Kueue ClusterQueue and no Cohort", Exit.USAGE)
    imported = Imported()
    cohorts = _nodes(by_kind.get("Cohort", []), source)
    queues = _nodes(by_kind.get("ClusterQueue", []), source)
    for node in [*cohorts.values(), *queues.values()]:
        if node.parent:
            cohorts.setdefault(node.parent, Node(f"Cohort {node.parent}", ""))
    paths = _tree(imported, cohorts, queues)
    for local in by_kind.get("LocalQueue", []):
        _local(imported, local, paths, source)
    for kind in sorted(by_kind.keys() - {"ClusterQueue", "Cohort", "LocalQueue"}):
        for document in by_kind[kind]:
            beside_queues(imported, document, source)
    imported.finish()
    return imported


def _nodes(found: list[dict[str, Any]], source: str) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for document in found:
        name, spec = name_of(document, source), spec_of(document)
        node = Node(f"{document['kind']} {name}", _parent(spec), spec)
        _read_quota(node)
        if name in nodes:
            fail(source, f"two definitions are named {node.subject}")
        nodes[name] = node
    return nodes


def _tree(imported: Imported, cohorts: dict[str, Node], queues: dict[str, Node]) -> dict[str, str]:
    """Add all queues; the paths of the ClusterQueues by name."""
    chains = {name: _chain(cohorts, name) for name in cohorts}
    for node in [*cohorts.values(), *queues.values()]:
        for each in [node, *(cohorts[name] for name in chains.get(node.parent, []))]:
            for key, amount in node.nominal.items():
                each.together[key] = each.together.get(key, 0) + amount
    scale = _scale(imported, [*cohorts.values(), *queues.values()])
    places = {
        name: "/".join(imported.name(cohorts[each].subject, each) for each in reversed(chain))
        for name, chain in chains.items()
    }
    for name, node in cohorts.items():
        _shares(imported, imported.add(places[name]), node, scale)
        imported.unknown(node.subject, node.spec, COHORT_KEYS)
    paths = {}
    for name, node in queues.items():
        own = imported.name(node.subject, name)
        paths[name] = f"{places[node.parent]}/{own}" if node.parent else own
        queue = imported.add(paths[name])
        _shares(imported, queue, node, scale)
        _policies(imported, queue, node)
    return paths


def _chain(cohorts: Mapping[str, Node], name: str) -> list[str]:
    """The cohort and all above it."""
    names = [name]
    while above := cohorts[names[-1]].parent:
        if above in names:
            raise CliError(f'cohort "{name}" is above itself', Exit.USAGE)
        names.append(above)
    return names


def _parent(spec: Mapping[str, Any]) -> str:
    return str(next((spec[key] for key in ("cohortName", "cohort", "parentName", "parent") if spec.get(key)), ""))


def _read_quota(node: Node) -> None:
    for group in entries(node.spec.get("resourceGroups"), f"{node.subject}: resourceGroups"):
        for flavor in entries(group.get("flavors"), f"{node.subject}: flavors"):
            where = f"{node.subject}: flavor {flavor.get('name')}"
            for entry in entries(flavor.get("resources"), f"{where}: resources"):
                name = entry.get("name")
                if not name:
                    fail(where, "a resource has no name")
                key = (str(flavor.get("name")), str(name))
                node.nominal[key] = _amount(entry.get("nominalQuota", 0), name, where)
                for table, stated in ((node.borrowing, "borrowingLimit"), (node.lending, "lendingLimit")):
                    if entry.get(stated) is not None:
                        table[key] = _amount(entry[stated], name, where)


def _amount(value: Any, resource: str, where: str) -> int:
    return amounts({resource: value}, where)[resource]


def _shares(imported: Imported, queue: queue_pb2.Queue, node: Node, scale: int) -> None:
    """Guarantee, limit, lending limit and weight."""
    flavors = {flavor: None for flavor, _ in node.nominal}
    if len(flavors) > 1:
        named = ", ".join(flavors)
        have = f"quotas of the flavors {named} are added up; pick nodes with node selectors in the jobs"
        imported.note(node.subject, have)
    quota: Totals = {}
    most: dict[str, int | None] = {}
    lent: Totals = {}
    for key, amount in node.together.items():
        resource = key[1]
        more = node.borrowing.get(key, None if node.parent else 0)
        before = most.get(resource, 0)
        quota[resource] = quota.get(resource, 0) + amount
        most[resource] = None if before is None or more is None else before + amount + more
        lent[resource] = lent.get(resource, 0) + min(amount, node.lending.get(key, amount))
    put(queue.guaranteed, {resource: amount for resource, amount in quota.items() if amount})
    put(queue.limit, {resource: amount for resource, amount in most.items() if amount is not None})
    put(queue.lending_limit, {resource: amount for resource, amount in lent.items() if amount != quota[resource]})
    if not node.parent and node.borrowing:
        imported.note(node.subject, "borrowingLimit: there is nobody above to borrow from, it is added to the limit")
    weight = _weight(node)
    if weight is not None or scale != 1:
        scaled = int((Decimal(1) if weight is None else weight) * scale)
        queue.weight = whole(max(scaled, 1 if weight else 0), f"{node.subject}: fairSharing.weight", WEIGHTS)


def _policies(imported: Imported, queue: queue_pb2.Queue, node: Node) -> None:
    """State, order and preemption of a ClusterQueue."""
    spec, subject = node.spec, node.subject
    imported.unknown(subject, spec, QUEUE_KEYS)
    state = one_of(STATES, spec.get("stopPolicy") or "None", f"{subject}: stopPolicy")
    if state != queue_pb2.QUEUE_STATE_OPEN:
        queue.state = state
    if spec.get("queueingStrategy") == "StrictFIFO":
        imported.note(subject, "queueingStrategy StrictFIFO: a blocked first job does not stop the jobs behind it here")
    mode = section(spec.get("admissionScope"), f"{subject}: admissionScope").get("admissionMode")
    if mode == BY_USAGE:
        queue.ordering = queue_pb2.QUEUE_ORDERING_FAIR
        imported.note(
            subject,
            f"admissionMode {mode}: fair between namespaces by what they use now; past usage (half_life) "
            "counts between queues",
        )
    elif mode:
        imported.note(subject, f"admissionMode {mode} has no counterpart and is left out")
    given = section(spec.get("preemption"), f"{subject}: preemption")
    within, reclaim = (given.get(key) or "Never" for key in ("withinClusterQueue", "reclaimWithinCohort"))
    inside = one_of(PREEMPTIONS, within, f"{subject}: preemption.withinClusterQueue")
    across = one_of(PREEMPTIONS, reclaim, f"{subject}: preemption.reclaimWithinCohort")
    queue.preemption = max(inside, across)
    if inside != across:
        chosen = queue_pb2.QueuePreemption.Name(queue.preemption).removeprefix("QUEUE_PREEMPTION_")
        imported.note(subject, f"preemption within ({within}) and reclaim ({reclaim}) are one setting here: {chosen}")
    imported.unknown(subject, given, ("withinClusterQueue", "reclaimWithinCohort"))


def _local(imported: Imported, local: Mapping[str, Any], paths: Mapping[str, str], source: str) -> None:
    """A LocalQueue is what a namespace calls a ClusterQueue: its jobs name the queue itself here."""
    spec = spec_of(local)
    target = str(spec.get("clusterQueue", ""))
    namespace = section(local.get("metadata"), "metadata").get("namespace", "default")
    subject = f"LocalQueue {namespace}/{name_of(local, source)}"
    imported.note(subject, f'needs none: jobs of the namespace name queue "{paths.get(target, target)}"')
    if spec.get("stopPolicy", "None") != "None":
        have = f"stopPolicy {spec['stopPolicy']} is left out: a queue stops for all namespaces (state STOPPED)"
        imported.note(subject, have)
    if weight := section(spec.get("fairSharing"), f"{subject}: fairSharing").get("weight"):
        imported.note(subject, f"fairSharing.weight {weight} is left out: with ordering FAIR all namespaces are alike")
    imported.unknown(subject, spec, (*LOCAL_KEYS, "stopPolicy", "fairSharing"))


def _weight(node: Node) -> Decimal | None:
    where = f"{node.subject}: fairSharing"
    stated = section(node.spec.get("fairSharing"), where).get("weight")
    if stated is None:
        return None
    text = str(stated)
    try:
        weight = Decimal(text[:-1]) / 1000 if text.endswith("m") else Decimal(text)
    except InvalidOperation:
        fail(f"{where}.weight", f"{text!r} is not a number")
    if not weight.is_finite() or weight < 0:
        fail(f"{where}.weight", f"{text!r} is not a number from 0 on")
    return weight


def _scale(imported: Imported, nodes: list[Node]) -> int:
    """By what all weights are multiplied so that they are whole."""
    weights = [_weight(node) for node in nodes]
    if all(weight is None or weight == int(weight) for weight in weights):
        return 1
    imported.note("weights", "are multiplied by 1000: they are whole numbers here")
    return 1000
