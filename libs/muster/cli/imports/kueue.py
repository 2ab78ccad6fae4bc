"""Kueue: Cohorts and ClusterQueues become queues, LocalQueues and flavors become notes.

A cohort is a parent queue, a ClusterQueue a leaf below it. Nominal quota is the guarantee, summed over flavors; nominal
quota plus borrowing limit is the limit. A cohort's own quota is a pool for all below it, on top of theirs, so its
guarantee is its own quota and theirs together, and what it may borrow from outside comes on top of that. Who has
nothing above can borrow from nobody: a ClusterQueue without cohort and a cohort without parent end at their quota.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
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
    fraction,
    name_of,
    one_of,
    section,
    spec_of,
)
from muster.cli.imports.tree import OBJECT, Imported, Totals, amount, put

GROUP: Final = "kueue.x-k8s.io/"
STATES: Final = {
    "None": queue_pb2.QUEUE_STATE_OPEN,
    "Hold": queue_pb2.QUEUE_STATE_STOPPED,
    "HoldAndDrain": queue_pb2.QUEUE_STATE_DRAINING,
}
ACROSS: Final = {
    "Never": queue_pb2.QUEUE_PREEMPTION_NEVER,
    "LowerPriority": queue_pb2.QUEUE_PREEMPTION_LOWER_PRIORITY,
    "Any": queue_pb2.QUEUE_PREEMPTION_ANY,
}
WITHIN: Final = {
    "Never": queue_pb2.QUEUE_PREEMPTION_NEVER,
    "LowerPriority": queue_pb2.QUEUE_PREEMPTION_LOWER_PRIORITY,
    "LowerOrNewerEqualPriority": queue_pb2.QUEUE_PREEMPTION_ANY,
}
STRATEGIES: Final = {"BestEffortFIFO": False, "StrictFIFO": True}  # whether a blocked first job blocks
BY_USAGE: Final = "UsageBasedAdmissionFairSharing"
MODES: Final = {BY_USAGE: True, "NoAdmissionFairSharing": False}

NO_FLAVORS: Final = "quotas here are not by flavor"
QUOTA: Final[Fields] = {"name": None, "nominalQuota": None, "borrowingLimit": None, "lendingLimit": None}
GROUPS: Final = Each({"coveredResources": None, "flavors": Each({"name": None, "resources": Each(QUOTA)})})
FAIR: Final[Fields] = {"weight": None}
COHORT: Final[Fields] = {"parent": None, "parentName": None, "resourceGroups": GROUPS, "fairSharing": FAIR}
CLUSTER_QUEUE: Final[Fields] = {
    "cohort": None,
    "cohortName": None,
    "resourceGroups": GROUPS,
    "fairSharing": FAIR,
    "queueingStrategy": None,
    "stopPolicy": None,
    "admissionScope": {"admissionMode": None},
    "namespaceSelector": Lost("jobs of every namespace can name the queue"),
    "preemption": {
        "withinClusterQueue": None,
        "reclaimWithinCohort": None,
        "borrowWithinCohort": {
            "policy": Lost("who borrows takes back what the queue is entitled to, nothing else", usual=("Never",)),
            "maxPriorityThreshold": Lost(),
        },
    },
    "flavorFungibility": {
        "whenCanBorrow": Lost(NO_FLAVORS, usual=("MayStopSearch", "Borrow")),
        "whenCanPreempt": Lost(NO_FLAVORS, usual=("TryNextFlavor",)),
        "preference": Lost(NO_FLAVORS, usual=("BorrowingOverPreemption",)),
    },
    "admissionChecks": Lost("a job starts as soon as it has its place"),
    "admissionChecksStrategy": Lost("a job starts as soon as it has its place"),
    "concurrentAdmissionPolicy": Lost(NO_FLAVORS),
}
LOCAL_QUEUE: Final[Fields] = {"clusterQueue": None, "stopPolicy": None, "fairSharing": FAIR}
FLAVOR: Final[Fields] = {
    "nodeLabels": Lost("a job that needs such nodes selects them (nodeSelector)"),
    "nodeTaints": Lost("the taints of the nodes themselves count"),
    "tolerations": Lost("a job states what it tolerates"),
    "topologyName": Lost("the levels are labels of the nodes, and a job says what it needs (topology)"),
}
SPECS: Final = {"ResourceFlavor": FLAVOR, "LocalQueue": LOCAL_QUEUE, "ClusterQueue": CLUSTER_QUEUE, "Cohort": COHORT}

Quota = dict[tuple[str, str], int]  # (flavor, resource) -> canonical units


@dataclass
class Node:
    """A ClusterQueue or a cohort. A cohort that is only named has an empty spec."""

    subject: str
    parent: str  # the name of a cohort, or ""
    document: Mapping[str, Any] = field(default_factory=dict)
    nominal: Quota = field(default_factory=dict)
    borrowing: Quota = field(default_factory=dict)
    lending: Quota = field(default_factory=dict)
    together: Quota = field(default_factory=dict)  # nominal, and all of it below

    @property
    def spec(self) -> Mapping[str, Any]:
        return spec_of(self.document)


def read(text: str, source: str) -> Imported:
    """Raises CliError."""
    imported = Imported()
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for document in documents(text, source):
        kind = str(document.get("kind"))
        ours = str(document.get("apiVersion", "")).startswith(GROUP) or kind not in SPECS
        by_kind.setdefault(kind if ours else "", []).append(document)
    if not by_kind.get("ClusterQueue") and not by_kind.get("Cohort"):
        raise CliError(f"{source} holds no Kueue ClusterQueue and no Cohort", Exit.USAGE)
    cohorts = _nodes(imported, by_kind.pop("Cohort", []), source)
    queues = _nodes(imported, by_kind.pop("ClusterQueue", []), source)
    for node in [*cohorts.values(), *queues.values()]:
        if node.parent:
            cohorts.setdefault(node.parent, Node(f"Cohort {node.parent}", ""))
    paths = _tree(imported, cohorts, queues)
    for local in by_kind.pop("LocalQueue", []):
        _local(imported, local, paths, source)
    for kind in sorted(by_kind):
        for document in by_kind[kind]:
            imported.beside(document, source)
            if kind in SPECS:
                _settings(imported, f"{kind} {name_of(document, source)}", document, SPECS[kind])
    imported.finish()
    return imported


def _settings(imported: Imported, subject: str, document: Mapping[str, Any], spec: Fields) -> None:
    imported.settings(subject, document, OBJECT)
    imported.settings(subject, spec_of(document), spec, "spec")


def _nodes(imported: Imported, found: list[dict[str, Any]], source: str) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for document in found:
        name, spec, kind = name_of(document, source), spec_of(document), document["kind"]
        node = Node(f"{kind} {name}", _parent(spec), document)
        if name in nodes:
            fail(source, f"two definitions are named {node.subject}")
        _settings(imported, node.subject, document, SPECS[kind])
        _read_quota(imported, node)
        nodes[name] = node
    return nodes


def _tree(imported: Imported, cohorts: dict[str, Node], queues: dict[str, Node]) -> dict[str, str]:
    """Add all queues; the paths of the ClusterQueues by name."""
    chains = {name: _chain(cohorts, name) for name in cohorts}
    for node in [*cohorts.values(), *queues.values()]:
        for each in [node, *(cohorts[name] for name in chains.get(node.parent, []))]:
            for key, most in node.nominal.items():
                each.together[key] = each.together.get(key, 0) + most
    places = {
        name: "/".join(imported.name(cohorts[each].subject, each) for each in reversed(chain))
        for name, chain in chains.items()
    }
    siblings: dict[str, list[weights.Sibling]] = {}
    for name, node in cohorts.items():
        siblings.setdefault(node.parent, []).append(_queue(imported, places[name], node))
    paths = {}
    covered = {resource for node in queues.values() for _, resource in node.nominal}
    for name, node in queues.items():
        own = imported.name(node.subject, name)
        paths[name] = f"{places[node.parent]}/{own}" if node.parent else own
        made = _queue(imported, paths[name], node)
        siblings.setdefault(node.parent, []).append(made)
        _policies(imported, made[1], node)
        if missing := sorted(covered - {resource for _, resource in node.nominal}):
            have = f"has no quota for {', '.join(missing)}: Kueue lets it use none, here only a limit of 0 would"
            imported.note(node.subject, have)
    for group in siblings.values():
        weights.settle(imported, group)
    return paths


def _queue(imported: Imported, path: str, node: Node) -> weights.Sibling:
    queue = imported.add(path, node.subject)
    imported.labels(queue, node.document, node.subject)
    _shares(imported, queue, node)
    where = f"{node.subject}: spec.fairSharing"
    weight = section(node.spec.get("fairSharing"), where).get("weight")
    return node.subject, queue, None if weight is None else fraction(weight, f"{where}.weight")


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


def _read_quota(imported: Imported, node: Node) -> None:
    for at_group, group in enumerate(entries(node.spec.get("resourceGroups"), f"{node.subject}: spec.resourceGroups")):
        path = f"spec.resourceGroups[{at_group}].flavors"
        for at_flavor, flavor in enumerate(entries(group.get("flavors"), f"{node.subject}: {path}")):
            inner = f"{path}[{at_flavor}].resources"
            for at, entry in enumerate(entries(flavor.get("resources"), f"{node.subject}: {inner}")):
                _read_entry(imported, node, str(flavor.get("name")), entry, f"{inner}[{at}]")


def _read_entry(imported: Imported, node: Node, flavor: str, entry: Mapping[str, Any], path: str) -> None:
    """The quota of one resource of one flavor. One that states none is a mistake: 0 would stop its queue."""
    where = f"{node.subject}: {path}"
    for needed in ("name", "nominalQuota"):
        if entry.get(needed) in (None, ""):
            near = get_close_matches(needed, [str(key) for key in entry if key not in QUOTA], 1)
            fail(where, f"has no {needed}" + (f' (is "{near[0]}" meant to be it?)' if near else ""))
    name = str(entry["name"])
    if not imported.resource(node.subject, path, name):
        return
    key = (flavor, name)
    if key in node.nominal:
        fail(where, f"{name} of flavor {flavor} is there twice")
    node.nominal[key] = amount(name, entry["nominalQuota"], f"{where}.nominalQuota")
    for table, stated in ((node.borrowing, "borrowingLimit"), (node.lending, "lendingLimit")):
        if entry.get(stated) is not None:
            table[key] = amount(name, entry[stated], f"{where}.{stated}")


def _shares(imported: Imported, queue: queue_pb2.Queue, node: Node) -> None:
    """Guarantee, limit and lending limit."""
    flavors = {flavor: None for flavor, _ in node.nominal}
    if len(flavors) > 1:
        named = ", ".join(flavors)
        have = f"quotas of the flavors {named} are added up; pick nodes with node selectors in the jobs"
        imported.note(node.subject, have)
    quota: Totals = {}
    most: dict[str, int | None] = {}
    lent: Totals = {}
    for key, nominal in node.together.items():
        resource = key[1]
        more = node.borrowing.get(key, None if node.parent else 0)
        before = most.get(resource, 0)
        quota[resource] = quota.get(resource, 0) + nominal
        most[resource] = None if before is None or more is None else before + nominal + more
        lent[resource] = lent.get(resource, 0) + min(nominal, node.lending.get(key, nominal))
    put(queue.guaranteed, {resource: own for resource, own in quota.items() if own})
    put(queue.limit, {resource: own for resource, own in most.items() if own is not None})
    put(queue.lending_limit, {resource: own for resource, own in lent.items() if own != quota[resource]})
    if not node.parent and node.borrowing:
        imported.note(node.subject, "borrowingLimit: there is nobody above to borrow from, it is added to the limit")


def _policies(imported: Imported, queue: queue_pb2.Queue, node: Node) -> None:
    """State, order and preemption of a ClusterQueue."""
    spec, subject = node.spec, node.subject
    state = one_of(STATES, spec.get("stopPolicy") or "None", f"{subject}: spec.stopPolicy")
    if state != queue_pb2.QUEUE_STATE_OPEN:
        queue.state = state
    if one_of(STRATEGIES, spec.get("queueingStrategy") or "BestEffortFIFO", f"{subject}: spec.queueingStrategy"):
        imported.note(subject, "queueingStrategy StrictFIFO: a blocked first job does not stop the jobs behind it here")
    mode = section(spec.get("admissionScope"), f"{subject}: spec.admissionScope").get("admissionMode")
    if mode and one_of(MODES, mode, f"{subject}: spec.admissionScope.admissionMode"):
        queue.ordering = queue_pb2.QUEUE_ORDERING_FAIR
        imported.note(
            subject,
            f"admissionMode {mode}: fair between namespaces by what they use now; past usage (half_life) "
            "counts between queues",
        )
    given = section(spec.get("preemption"), f"{subject}: spec.preemption")
    within, reclaim = (given.get(key) or "Never" for key in ("withinClusterQueue", "reclaimWithinCohort"))
    inside = one_of(WITHIN, within, f"{subject}: spec.preemption.withinClusterQueue")
    across = one_of(ACROSS, reclaim, f"{subject}: spec.preemption.reclaimWithinCohort")
    queue.preemption = max(inside, across)
    if inside != across:
        chosen = queue_pb2.QueuePreemption.Name(queue.preemption).removeprefix("QUEUE_PREEMPTION_")
        imported.note(subject, f"preemption within ({within}) and reclaim ({reclaim}) are one setting here: {chosen}")
    if spec.get("namespaceSelector") is None:
        imported.note(subject, "namespaceSelector is absent, so no namespace could use it; here all can (state CLOSED)")


def _local(imported: Imported, local: Mapping[str, Any], paths: Mapping[str, str], source: str) -> None:
    """A LocalQueue is what a namespace calls a ClusterQueue: its jobs name the queue itself here."""
    spec = spec_of(local)
    target = str(spec.get("clusterQueue", ""))
    namespace = section(local.get("metadata"), "metadata").get("namespace", "default")
    subject = f"LocalQueue {namespace}/{name_of(local, source)}"
    _settings(imported, subject, local, LOCAL_QUEUE)
    if target in paths:
        imported.note(subject, f'needs none: jobs of the namespace name queue "{paths[target]}"')
    else:
        imported.note(subject, f'is left out: its ClusterQueue "{target}" is not in the file')
    if one_of(STATES, spec.get("stopPolicy") or "None", f"{subject}: spec.stopPolicy") != queue_pb2.QUEUE_STATE_OPEN:
        have = f"stopPolicy {spec['stopPolicy']} is left out: a queue stops for all namespaces (state STOPPED)"
        imported.note(subject, have)
    if weight := section(spec.get("fairSharing"), f"{subject}: spec.fairSharing").get("weight"):
        imported.note(subject, f"fairSharing.weight {weight} is left out: with ordering FAIR all namespaces are alike")
