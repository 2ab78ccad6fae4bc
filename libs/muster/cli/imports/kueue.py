"""Kueue: Cohorts and ClusterQueues become queues, LocalQueues and flavors become notes.

A cohort is a parent queue, a ClusterQueue a leaf below it. Nominal quota is the guarantee, summed over flavors; nominal
quota plus borrowing limit is the limit; a ClusterQueue without cohort cannot borrow, so its nominal quota is its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from muster.api.v1 import queue_pb2
from muster.cli.errors import CliError, Exit
from muster.cli.imports.tree import Imported, Totals, amounts, documents, name_of, put

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


def read(text: str, source: str) -> Imported:
    """Raises CliError."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for document in documents(text, source):
        if str(document.get("apiVersion", "")).startswith(GROUP):
            by_kind.setdefault(str(document.get("kind")), []).append(document)
    queues, cohorts = by_kind.get("ClusterQueue", []), by_kind.get("Cohort", [])
    if not queues and not cohorts:
        raise CliError(f"{source} holds no Kueue ClusterQueue and no Cohort", Exit.USAGE)
    imported = Imported()
    scale = _scale(imported, [*queues, *cohorts])
    parents = {name_of(cohort, source): _parent(cohort.get("spec") or {}) for cohort in cohorts}
    for cohort in cohorts:
        name = name_of(cohort, source)
        _queue(imported, cohort, _path(imported, parents, name), f"Cohort {name}", scale)
    paths: dict[str, str] = {}
    for queue in queues:
        name = name_of(queue, source)
        cohort_name = _parent(queue.get("spec") or {})
        above = _path(imported, parents, cohort_name) + "/" if cohort_name else ""
        paths[name] = above + imported.name(f"ClusterQueue {name}", name)
        _queue(imported, queue, paths[name], f"ClusterQueue {name}", scale)
    for local in by_kind.get("LocalQueue", []):
        target = str((local.get("spec") or {}).get("clusterQueue", ""))
        namespace = (local.get("metadata") or {}).get("namespace", "default")
        where = f"LocalQueue {namespace}/{name_of(local, source)}"
        imported.note(where, f'needs none: jobs of the namespace name queue "{paths.get(target, target)}"')
    for kind in sorted(by_kind.keys() - {"ClusterQueue", "Cohort", "LocalQueue"}):
        for document in by_kind[kind]:
            imported.note(f"{kind} {name_of(document, source)}", "has no counterpart and is left out")
    imported.sort()
    return imported


def _parent(spec: Mapping[str, Any]) -> str:
    return str(next((spec[key] for key in ("cohortName", "cohort", "parentName", "parent") if spec.get(key)), ""))


def _path(imported: Imported, parents: Mapping[str, str], cohort: str) -> str:
    names, above = [cohort], parents.get(cohort, "")
    while above:
        if above in names:
            raise CliError(f'cohort "{cohort}" is above itself', Exit.USAGE)
        names.append(above)
        above = parents.get(above, "")
    return "/".join(imported.name(f"Cohort {name}", name) for name in reversed(names))


def _queue(imported: Imported, document: Mapping[str, Any], path: str, subject: str, scale: int) -> None:
    spec: Mapping[str, Any] = document.get("spec") or {}
    cohort = document.get("kind") == "Cohort"
    queue = imported.add(path)
    imported.unknown(subject, spec, COHORT_KEYS if cohort else QUEUE_KEYS)
    _quota(imported, queue, spec, subject, alone=not cohort and not _parent(spec))
    weight = _weight(spec)
    if weight is not None or scale != 1:
        queue.weight = int((Decimal(1) if weight is None else weight) * scale)
    if cohort:
        return
    stop = str(spec.get("stopPolicy") or "None")
    if STATES[stop] != queue_pb2.QUEUE_STATE_OPEN:
        queue.state = STATES[stop]
    if spec.get("queueingStrategy") == "StrictFIFO":
        imported.note(subject, "queueingStrategy StrictFIFO: a blocked first job does not stop the jobs behind it here")
    mode = (spec.get("admissionScope") or {}).get("admissionMode")
    if mode == BY_USAGE:
        queue.ordering = queue_pb2.QUEUE_ORDERING_FAIR
        imported.note(
            subject,
            f"admissionMode {mode}: fair between namespaces by what they use now; past usage (half_life) "
            "counts between queues",
        )
    elif mode:
        imported.note(subject, f"admissionMode {mode} has no counterpart and is left out")
    _preemption(imported, queue, spec.get("preemption") or {}, subject)


def _quota(imported: Imported, queue: queue_pb2.Queue, spec: Mapping[str, Any], subject: str, *, alone: bool) -> None:
    nominal: Totals = {}
    borrowing: dict[str, int | None] = {}
    lending: dict[str, int | None] = {}
    flavors: dict[str, None] = {}
    for group in spec.get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            flavors[str(flavor.get("name"))] = None
            for entry in flavor.get("resources") or []:
                name = str(entry["name"])
                quota = amounts({name: entry.get("nominalQuota", 0)}, subject)[name]
                nominal[name] = nominal.get(name, 0) + quota
                for sums, key, default in ((borrowing, "borrowingLimit", None), (lending, "lendingLimit", quota)):
                    stated = entry.get(key)
                    amount = default if stated is None else amounts({name: stated}, subject)[name]
                    before = sums.get(name, 0)
                    sums[name] = None if before is None or amount is None else before + amount
    if len(flavors) > 1:
        named = ", ".join(flavors)
        imported.note(
            subject, f"quotas of the flavors {named} are added up; pick nodes with node selectors in the jobs"
        )
    put(queue.guaranteed, {name: amount for name, amount in nominal.items() if amount})
    limits = {name: nominal[name] + more for name, more in borrowing.items() if more is not None}
    put(queue.limit, nominal if alone else limits)
    put(queue.lending_limit, {n: most for n, most in lending.items() if most is not None and most != nominal[n]})


def _preemption(imported: Imported, queue: queue_pb2.Queue, given: Mapping[str, Any], subject: str) -> None:
    within = str(given.get("withinClusterQueue") or "Never")
    reclaim = str(given.get("reclaimWithinCohort") or "Never")
    queue.preemption = max(PREEMPTIONS[within], PREEMPTIONS[reclaim])
    if PREEMPTIONS[within] != PREEMPTIONS[reclaim]:
        chosen = queue_pb2.QueuePreemption.Name(queue.preemption).removeprefix("QUEUE_PREEMPTION_")
        imported.note(subject, f"preemption within ({within}) and reclaim ({reclaim}) are one setting here: {chosen}")
    imported.unknown(subject, given, ("withinClusterQueue", "reclaimWithinCohort"))


def _weight(spec: Mapping[str, Any]) -> Decimal | None:
    stated = (spec.get("fairSharing") or {}).get("weight")
    if stated is None:
        return None
    text = str(stated)
    try:
        return Decimal(text[:-1]) / 1000 if text.endswith("m") else Decimal(text)
    except InvalidOperation:
        raise CliError(f"fairSharing.weight {text!r} is not a number", Exit.USAGE) from None


def _scale(imported: Imported, found: list[dict[str, Any]]) -> int:
    """By what all weights are multiplied so that they are whole."""
    weights = [_weight(document.get("spec") or {}) for document in found]
    if all(weight is None or weight == int(weight) for weight in weights):
        return 1
    imported.note("weights", "are multiplied by 1000: they are whole numbers here")
    return 1000
