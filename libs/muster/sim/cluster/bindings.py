"""The pod subresources with a will of their own: binding to a node, and eviction under disruption budgets."""

from __future__ import annotations

from typing import Any

import msgspec

from . import pods, quantities
from .api import Api, DeleteOptions
from .kinds import DISRUPTION_BUDGETS, PODS
from .selectors import label_selector_predicate
from .status import StatusError, bad_request, conflict
from .store import Version

_EVICTION_RETRY_S = 10


def bind(api: Api, namespace: str, name: str, binding: dict[str, Any], *, dry_run: bool = False) -> Version:
    """Assign a pod to a node, once. The node need not exist: the pod then waits for the pod garbage collector."""
    target = binding.get("target")
    if not isinstance(target, dict) or not target.get("name"):
        raise bad_request("Binding is invalid: target.name: Required value")
    if target.get("kind", "Node") not in ("Node", ""):
        raise bad_request("Binding is invalid: target.kind: must be Node")
    old = api.require(PODS, namespace, name)
    metadata, spec = old.obj["metadata"], old.obj["spec"]
    wanted = binding.get("metadata") or {}
    if wanted.get("uid", "") not in ("", metadata["uid"]):
        why = f"Precondition failed: UID in precondition: {wanted['uid']}, UID in object meta: {metadata['uid']}"
        raise conflict("pods/binding", name, why)
    if "deletionTimestamp" in metadata:
        raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise conflict("pods/binding", name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    marked = dict(metadata)
    for field in ("annotations", "labels"):
        if wanted.get(field):
            marked[field] = {**(metadata.get(field) or {}), **wanted[field]}
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": api.now()}
    status = old.obj["status"]
    status = {**status, "conditions": pods.with_condition(status.get("conditions") or [], scheduled)}
    new = {**old.obj, "metadata": marked, "spec": {**spec, "nodeName": target["name"]}, "status": status}
    return old if dry_run else api.store.put(PODS, new)


def evict(
    api: Api, namespace: str, name: str, eviction: dict[str, Any], *, actor: str, dry_run: bool = False
) -> Version:
    """Delete a pod if every disruption budget that covers it allows; 429 otherwise."""
    old = api.require(PODS, namespace, name)
    if not pods.is_terminal(old.obj) and "deletionTimestamp" not in old.obj["metadata"]:
        _check_budgets(api, namespace, old.obj)
    try:
        options = msgspec.convert(eviction.get("deleteOptions") or {}, DeleteOptions)
    except msgspec.ValidationError as error:
        raise bad_request(f"deleteOptions: {error}") from error
    return api.delete(PODS, namespace, name, options, actor=actor, dry_run=dry_run)


def _check_budgets(api: Api, namespace: str, pod: dict[str, Any]) -> None:
    for key, budget in api.store.table(DISRUPTION_BUDGETS).items():
        if not key.startswith(namespace + "/"):
            continue
        spec = budget.obj.get("spec") or {}
        covers = label_selector_predicate(spec.get("selector") or {})
        if not covers(pod):
            continue
        prefix = namespace + "/"
        members = [v.obj for k, v in api.store.table(PODS).items() if k.startswith(prefix) and covers(v.obj)]
        expected = [member for member in members if not pods.is_terminal(member)]
        healthy = sum(pods.is_ready(member) and "deletionTimestamp" not in member["metadata"] for member in expected)
        needed = _needed(spec, len(expected))
        if healthy - 1 < needed and pods.is_ready(pod):
            name = budget.obj["metadata"]["name"]
            message = f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
            raise StatusError(
                429,
                "Cannot evict pod as it would violate the pod's disruption budget.",
                details={"causes": [{"reason": "DisruptionBudget", "message": message}]},
                retry_after_s=_EVICTION_RETRY_S,
            )


def _needed(spec: dict[str, Any], expected: int) -> int:
    """How many pods must stay healthy; percentages are rounded up, as Kubernetes does for both fields."""
    if spec.get("minAvailable") is not None:
        return _scaled(spec["minAvailable"], expected)
    if spec.get("maxUnavailable") is not None:
        return expected - _scaled(spec["maxUnavailable"], expected)
    return 0


def _scaled(value: int | str, total: int) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return -(-int(value[:-1]) * total // 100)
    return quantities.amount("count", str(value))
