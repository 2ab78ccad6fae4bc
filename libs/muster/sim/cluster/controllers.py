"""The controllers a real control plane runs beside the API server, as far as a scheduler can notice them.

Node lifecycle (a silent node becomes NotReady and tainted, its pods not ready), eviction by NoExecute taints, pod
garbage collection (pods of nodes that no longer exist, or that were declared out of service), namespace deletion,
expiry of events, definitions of custom resources. Each is a periodic call on the cluster's timer heap.
"""

from __future__ import annotations

from typing import Any

from . import pods
from .api import Api, DeleteOptions
from .audit import AuditLog
from .kinds import DEFINITIONS, EVENTS, NAMESPACES, NODES, PODS, Kind
from .kubelets import Agent, Kubelets
from .settings import ClusterSettings
from .store import DELETED, Event, Version
from .timers import parse_timestamp_ms

UNREACHABLE = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_SWEEP_MS = 1_000
_GRACEFUL = DeleteOptions()
_FORCE = DeleteOptions(gracePeriodSeconds=0)


class Controllers:
    """Starts with `start`; then driven by the timers alone."""

    def __init__(self, api: Api, kubelets: Kubelets, settings: ClusterSettings) -> None:
        self._api = api
        self._kubelets = kubelets
        self._settings = settings
        self._timers = api.timers
        self._no_execute: dict[str, None] = {}  # nodes with a NoExecute taint
        self._terminating: dict[str, None] = {}  # namespaces
        self._missing_since_ms: dict[str, int] = {}  # nodes that pods name but that do not exist
        self._heartbeat_at = 0  # the next agent to renew
        self._heartbeat_credit = 0  # what is due of the next renewal, in node-milliseconds
        api.store.listeners.append(self._on_event)

    def start(self) -> None:
        self._every(self._settings.node_check_ms, self._check_nodes)
        self._every(self._settings.pod_gc_ms, self._collect_pods)
        self._every(_SWEEP_MS, self._heartbeat)
        self._every(60_000, self._expire_events)

    def _every(self, period_ms: int, call: Any) -> None:
        def tick() -> None:
            call()
            self._timers.after(period_ms, tick)

        self._timers.after(period_ms, tick)

    def _on_event(self, kind: Kind, event: Event) -> None:
        if kind is NODES:
            name = event.version.obj["metadata"]["name"]
            taints = (event.version.obj.get("spec") or {}).get("taints") or ()
            if event.type != DELETED and any(taint["effect"] == "NoExecute" for taint in taints):
                self._no_execute[name] = None
            else:
                self._no_execute.pop(name, None)
        elif kind is NAMESPACES and event.type != DELETED and "deletionTimestamp" in event.version.obj["metadata"]:
            name = event.version.obj["metadata"]["name"]
            if name not in self._terminating:
                self._terminating[name] = None
                self._timers.after(0, self._empty_namespace, name)
        elif kind is DEFINITIONS:
            self._define(event)

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        """Renew the status of a slice of the nodes, so that each is renewed once per heartbeat period."""
        agents = list(self._kubelets.agents.values())
        self._heartbeat_credit += len(agents) * _SWEEP_MS
        count, self._heartbeat_credit = divmod(self._heartbeat_credit, self._settings.node_heartbeat_ms)
        for agent in agents[self._heartbeat_at : self._heartbeat_at + count]:
            if agent.alive:
                self.renew(agent)
        self._heartbeat_at = self._heartbeat_at + count if self._heartbeat_at + count < len(agents) else 0

    def renew(self, agent: Agent) -> None:
        """A live kubelet reports its node Ready; the node controller then lifts its own taints."""
        node = self._api.store.get(NODES, "", agent.name)
        if node is None:
            return
        ready = self._ready("True", "KubeletReady", "kubelet is posting ready status")
        spec = node.obj.get("spec") or {}
        taints = spec.get("taints") or []
        kept = [taint for taint in taints if taint["key"] != UNREACHABLE]
        spec = spec if len(kept) == len(taints) else {**spec, "taints": kept}
        self._put_ready({**node.obj, "spec": spec}, ready)

    def _ready(self, status: str, reason: str, message: str) -> dict[str, Any]:
        now = self._api.now()
        return {
            "type": "Ready",
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }

    def _put_ready(self, node: dict[str, Any], ready: dict[str, Any]) -> None:
        status = node.get("status") or {}
        conditions = pods.with_condition(status.get("conditions") or [], ready)
        status = {**status, "conditions": conditions}
        self._api.store.put(NODES, {**node, "metadata": dict(node["metadata"]), "status": status})

    def _check_nodes(self) -> None:
        now_ms = self._timers.now_ms()
        for agent in list(self._kubelets.agents.values()):
            if agent.silent_since_ms is None or now_ms - agent.silent_since_ms < self._settings.node_grace_ms:
                continue
            node = self._api.store.get(NODES, "", agent.name)
            if node is not None and not _has_taint(node.obj, UNREACHABLE):
                self._mark_unreachable(node)
        for name in list(self._no_execute):
            self._evict_from(name, now_ms)

    def _mark_unreachable(self, node: Version) -> None:
        spec = node.obj.get("spec") or {}
        added = [
            {"key": UNREACHABLE, "effect": effect, "timeAdded": self._api.now()}
            for effect in ("NoSchedule", "NoExecute")
        ]
        spec = {**spec, "taints": [*(spec.get("taints") or ()), *added]}
        unknown = self._ready("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
        self._put_ready({**node.obj, "spec": spec}, unknown)
        for version in self._pods_of(node.obj["metadata"]["name"]):
            if not pods.is_terminal(version.obj) and pods.is_ready(version.obj):
                condition = {"type": "Ready", "status": "False", "lastTransitionTime": self._api.now()}
                status = version.obj["status"]
                status = {**status, "conditions": pods.with_condition(status["conditions"], condition)}
                self._api.put_status(PODS, version, status)

    def _pods_of(self, node: str) -> list[Version]:
        table = self._api.store.table(PODS)
        return [table[key] for key in self._kubelets.bound.get(node, ())]

    def _evict_from(self, node: str, now_ms: int) -> None:
        version = self._api.store.get(NODES, "", node)
        taints = [t for t in (version.obj["spec"].get("taints") or ()) if t["effect"] == "NoExecute"] if version else []
        for pod in self._pods_of(node):
            if "deletionTimestamp" in pod.obj["metadata"] or pods.is_terminal(pod.obj):
                continue
            for taint in taints:
                tolerated, seconds = pods.tolerates(pod.obj["spec"], taint)
                since_ms = parse_timestamp_ms(taint["timeAdded"]) if "timeAdded" in taint else 0
                if tolerated and (seconds is None or now_ms - since_ms < seconds * 1000):
                    continue
                self._delete(PODS, pod, _GRACEFUL, "taint-eviction-controller")
                break

    # -- garbage -----------------------------------------------------------------------------------------------------

    def _collect_pods(self) -> None:
        now_ms = self._timers.now_ms()
        nodes = self._api.store.table(NODES)
        missing = [name for name in self._kubelets.bound if name not in nodes]
        self._missing_since_ms = {name: self._missing_since_ms.get(name, now_ms) for name in missing}
        for name, since_ms in self._missing_since_ms.items():
            if now_ms - since_ms >= self._settings.pod_gc_quarantine_ms:
                for pod in self._pods_of(name):
                    self._fail_and_remove(pod, "node no longer exists")
        for name, version in list(nodes.items()):
            if _has_taint(version.obj, OUT_OF_SERVICE) and not pods.is_ready(version.obj):
                for pod in self._pods_of(name):
                    if "deletionTimestamp" in pod.obj["metadata"]:
                        self._fail_and_remove(pod, "node is out of service")

    def _fail_and_remove(self, pod: Version, why: str) -> None:
        if not pods.is_terminal(pod.obj):
            target = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByPodGC",
                "message": f"PodGC: {why}",
                "lastTransitionTime": self._api.now(),
            }
            status = pod.obj["status"]
            conditions = pods.with_condition(status.get("conditions") or [], target)
            pod = self._api.put_status(PODS, pod, {**status, "phase": "Failed", "conditions": conditions})
        self._delete(PODS, pod, _FORCE, "pod-garbage-collector")

    def _delete(self, kind: Kind, version: Version, options: DeleteOptions, actor: str) -> None:
        metadata = version.obj["metadata"]
        self._api.delete(kind, metadata.get("namespace", ""), metadata["name"], options, actor=actor)
        self._audit.add(self._timers.now_ms(), "delete", kind.plural, version.obj, user_agent=actor, code=200)

    @property
    def _audit(self) -> AuditLog:
        return self._api.audit

    def _empty_namespace(self, namespace: str) -> None:
        """Delete what the namespace holds; the namespace itself goes when the last of it is gone."""
        left = 0
        for kind in self._api.kinds:
            if not kind.namespaced:
                continue
            for key, version in list(self._api.store.table(kind).items()):
                if key.startswith(namespace + "/"):
                    left += 1
                    if "deletionTimestamp" not in version.obj["metadata"]:
                        self._delete(kind, version, _GRACEFUL, "namespace-controller")
        if left:
            self._timers.after(_SWEEP_MS, self._empty_namespace, namespace)
        else:
            del self._terminating[namespace]
            self._api.remove(NAMESPACES, namespace, actor="namespace-controller")

    def _expire_events(self) -> None:
        oldest_ms = self._timers.now_ms() - self._settings.event_ttl_ms
        for key, version in list(self._api.store.table(EVENTS).items()):
            if parse_timestamp_ms(version.obj["metadata"]["creationTimestamp"]) < oldest_ms:
                self._api.remove(EVENTS, key, actor="event-ttl")

    # -- custom resources --------------------------------------------------------------------------------------------

    def _define(self, event: Event) -> None:
        """Serve (or stop serving) what a CustomResourceDefinition defines, as plain storage."""
        spec = event.version.obj["spec"]
        names = spec["names"]
        for version in spec["versions"]:
            kind = self._api.kinds.find(spec["group"], version["name"], names["plural"])
            if event.type == DELETED:
                if kind is not None:
                    for key in list(self._api.store.table(kind)):
                        self._api.remove(kind, key, actor="definition-controller")
                    self._api.kinds.remove(kind)
            elif kind is None and version.get("served"):
                self._api.kinds.add(
                    Kind(
                        spec["group"],
                        version["name"],
                        names["plural"],
                        names["kind"],
                        spec.get("scope") == "Namespaced",
                        tuple(names.get("shortNames") or ()),
                        tuple(version.get("subresources") or ()),
                    )
                )


def _has_taint(node: dict[str, Any], key: str) -> bool:
    return any(taint["key"] == key for taint in (node.get("spec") or {}).get("taints") or ())
