"""From Kubernetes objects to what the core knows of a node: amounts in canonical units, labels, taints, devices.

A quantity that cannot be read, or a resource nobody can ask for, is left out and counted, never guessed. Everything
that changes without meaning anything here (heartbeats, images, conditions other than Ready) disappears in the
conversion, so "did the node change" is the comparison of two `NodeSpec`s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.core import resources
from muster.core.errors import Rejected
from muster.core.limits import DEVICES_PER_NODE_MAX
from muster.core.model import Amounts, NodeSpec, Taint
from muster.runtime.kube_objects import Node, PodRequests
from muster.wire import podtemplate

FINISHED: Final = frozenset({"Succeeded", "Failed"})
ONE_POD: Final[Amounts] = ((resources.PODS, 1),)


def node_spec(cluster: str, node: Node, used_by_others: Amounts = ()) -> NodeSpec:
    """The node as the core stores it."""
    allocatable = amounts_of(node.status.allocatable or {})
    device_resource, devices = _devices(allocatable)
    return NodeSpec(
        cluster=cluster,
        name=node.metadata.name,
        allocatable=allocatable,
        labels=tuple(sorted((node.metadata.labels or {}).items())),
        taints=tuple(Taint(t.key, t.value, t.effect) for t in node.spec.taints or ()),
        ready=any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ()),
        cordoned=node.spec.unschedulable,
        device_resource=device_resource,
        devices=devices,
        used_by_others=used_by_others,
    )


def amounts_of(quantities: Mapping[str, Any]) -> Amounts:
    """Quantities in canonical units; zeros and what cannot be read are left out."""
    found: dict[str, int] = {}
    for resource, text in quantities.items():
        try:
            found[resource] = resources.parse_quantity(resource, str(text))
        except Rejected:
            continue
    return resources.amounts(found)


def pod_use(pod: PodRequests) -> Amounts:
    """What a pod takes from its node; nothing while it has none, and once it is over."""
    if not pod.spec.node_name or pod.status.phase in FINISHED:
        return ()
    try:
        requests = podtemplate.pod_requests(msgspec.to_builtins(pod.spec), "spec")
    except Rejected:
        return ONE_POD  # nothing that Muster could place either; its slot is taken all the same
    return resources.add(requests, ONE_POD)


def _devices(allocatable: Amounts) -> tuple[str, int]:
    """The kind and number of the node's devices; of two kinds the one there is more of."""
    kinds = [(amount, name) for name, amount in allocatable if resources.is_device(name)]
    if not kinds:
        return "", 0
    amount, name = max(kinds)
    return name, min(amount // resources.DEVICE_MILLIS, DEVICES_PER_NODE_MAX)


class OthersUse:
    """What pods that are not Muster's take from each node, kept pod by pod."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, Amounts]] = {}  # uid -> (node, amounts)
        self._nodes: dict[str, dict[str, int]] = {}

    def of(self, node: str) -> Amounts:
        return resources.amounts(self._nodes.get(node, {}))

    def put(self, pod: PodRequests) -> tuple[str, ...]:
        """Take over a pod's newest state; returns the nodes whose use changed."""
        use = pod_use(pod)
        new = (pod.spec.node_name, use) if use else None
        old = self._pods.get(pod.metadata.uid)
        if new == old:
            return ()
        changed = self.remove(pod.metadata.uid)
        if new is None:
            return changed
        self._pods[pod.metadata.uid] = new
        self._add(*new, 1)
        return (*changed, new[0])

    def remove(self, uid: str) -> tuple[str, ...]:
        old = self._pods.pop(uid, None)
        if old is None:
            return ()
        self._add(*old, -1)
        return (old[0],)

    def uids(self) -> set[str]:
        return set(self._pods)

    def _add(self, node: str, use: Amounts, sign: int) -> None:
        total = self._nodes.setdefault(node, {})
        for resource, amount in use:
            total[resource] = total.get(resource, 0) + sign * amount
