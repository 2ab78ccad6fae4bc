"""A cluster in memory and in virtual time: what `KubeApi` talks to in the deterministic simulation.

`SimKube` is the API server with its kubelets, `SimKube.client` one process's connection to it. The semantics are those
the binder depends on: names are unique until the object is really removed, a delete takes its grace period, phases are
written by kubelets only, a watch resumes from a version that is still known. Requests fail as they do in life: lost
before they are carried out, answered by nobody after they were, throttled, or by a watch that ends. Everything written
goes through the same audit log as the HTTP simulator's, so `audit.judge` is the witness in both.

Not modelled here (the HTTP simulator does): finalizers, eviction, field validation, several namespaces' quotas.
"""

from __future__ import annotations

import asyncio
import copy
from random import Random
from typing import Any, Final, TypeVar

from msgspec import Struct

from muster.runtime import kube
from muster.sim.cluster import audit
from muster.sim.kube_client import SimKubeApi

T = TypeVar("T")
HISTORY_EVENTS_MAX: Final = 2_000  # older versions are Gone
GRACE_S: Final = 0.5
Object = dict[str, Any]


class KubeFaults(Struct):
    """Chances are per request; everything may be changed while running."""

    delay_max_s: float = 0.0
    request_lost_chance: float = 0.0
    answer_lost_chance: float = 0.0
    late_chance: float = 0.0  # a write is carried out when its sender has given up on it
    throttled_chance: float = 0.0
    watch_cut_chance: float = 0.0  # per batch
    admission_refused_chance: float = 0.0  # the kubelet says no
    refusing: tuple[str, ...] = ()  # nodes whose kubelets always do
    hanging: tuple[str, ...] = ()  # nodes on which no pod ever starts
    vanish_chance: float = 0.0  # a running pod is deleted by somebody else
    stuck_chance: float = 0.0  # a kubelet cannot end a pod that is deleted, and does not hear from it either, for
    stuck_s: float = 330.0


class SimKube:
    """The server and the kubelets of one cluster."""

    def __init__(self, cluster: str, rng: Random, faults: KubeFaults | None = None) -> None:
        self.cluster = cluster
        self.rng = rng
        self.faults = faults or KubeFaults()
        self.audit = audit.AuditLog(cluster)
        self.nodes: dict[str, Object] = {}
        self.pods: dict[tuple[str, str], Object] = {}
        self.version = 1
        self._history: list[tuple[int, str, str, Object]] = []  # (version, plural, event type, object)
        self._changed = asyncio.Event()
        self._uids = 0
        self._dead: dict[str, bool] = {}
        self._stuck: dict[str, None] = {}  # uids
        self._held: dict[str, list[str]] = {}  # deletions a dead node has not carried out: node -> pod uids

    def client(self, name: str) -> SimKubeApi:
        return SimKubeApi(self, name)

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    # --- what operators and hardware do ---

    def add_node(self, name: str, allocatable: dict[str, str], labels: dict[str, str] | None = None) -> None:
        self.nodes[name] = {
            "metadata": {"name": name, "uid": self._uid(), "labels": labels or {}},
            "spec": {},
            "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        self._record("nodes", "ADDED", self.nodes[name])

    def set_node_ready(self, name: str, ready: bool) -> None:
        """A node that is not ready runs on unseen: no status comes from it and no deletion is carried out."""
        self._dead[name] = not ready
        node = self.nodes[name]
        node["status"]["conditions"] = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
        self._record("nodes", "MODIFIED", node)
        if ready:
            for uid in self._held.pop(name, []):
                self._later(GRACE_S, self._remove, uid)

    def label_node(self, name: str, labels: dict[str, str]) -> None:
        """Somebody labels the node; the other labels stay."""
        node = self.nodes[name]
        node["metadata"]["labels"] = {**node["metadata"]["labels"], **labels}
        self._record("nodes", "MODIFIED", node)

    def cordon_node(self, name: str, cordoned: bool) -> None:
        """Nothing new may be put there; what runs there stays."""
        node = self.nodes[name]
        node["spec"]["unschedulable"] = cordoned
        self._record("nodes", "MODIFIED", node)

    def remove_node(self, name: str) -> None:
        """The machine is gone for good, and its pods with it (as the pod garbage collector does)."""
        node = self.nodes.pop(name)
        self._record("nodes", "DELETED", node)
        self._dead.pop(name, None)
        for pod in [p for p in self.pods.values() if p["spec"].get("nodeName") == name]:
            self._remove(pod["metadata"]["uid"])

    def delete_unasked(self, namespace: str, name: str) -> None:
        """Somebody else deletes a pod."""
        self.delete(namespace, name, "", "kubectl")

    # --- requests, after the faults ---

    def create(self, namespace: str, body: Object, agent: str) -> Object:
        name = body["metadata"]["name"]
        key = (namespace, name)
        if key in self.pods:
            self.audit.add(self.now_ms(), "create", "pods", body, user_agent=agent, code=409)
            raise kube.Conflict(f'pods "{name}" already exists', status=409, reason="AlreadyExists")
        pod = copy.deepcopy(body)
        pod["metadata"] |= {"namespace": namespace, "uid": self._uid()}
        pod["status"] = {"phase": "Pending"}
        self.pods[key] = pod
        self._record("pods", "ADDED", pod)
        self.audit.add(self.now_ms(), "create", "pods", pod, user_agent=agent, code=201)
        if pod["spec"].get("nodeName"):
            self._admit(pod)
        return pod

    def bind(self, namespace: str, name: str, node: str, uid: str, agent: str) -> None:
        pod = self._get(namespace, name)
        if pod["spec"].get("nodeName") or (uid and pod["metadata"]["uid"] != uid):
            raise kube.Conflict(f'pod "{name}" is already assigned to a node', status=409, reason="Conflict")
        pod["spec"]["nodeName"] = node
        self._record("pods", "MODIFIED", pod)
        self.audit.add(self.now_ms(), "create", "pods/binding", pod, user_agent=agent, code=201)
        self._admit(pod)

    def patch(self, namespace: str, name: str, body: Object, agent: str) -> Object:
        pod = self._get(namespace, name)
        _merge(pod, body)
        self._record("pods", "MODIFIED", pod)
        self.audit.add(self.now_ms(), "patch", "pods", pod, user_agent=agent, code=200)
        return pod

    def delete(self, namespace: str, name: str, uid: str, agent: str, *, at_once: bool = False) -> None:
        pod = self._get(namespace, name)
        if uid and pod["metadata"]["uid"] != uid:
            raise kube.Conflict(f"uid {uid} is not {pod['metadata']['uid']}", status=409, reason="Conflict")
        self.audit.add(self.now_ms(), "delete", "pods", pod, user_agent=agent, code=200)
        if at_once:  # grace period 0: no kubelet is asked
            self._remove(pod["metadata"]["uid"])
            return
        if pod["metadata"].get("deletionTimestamp"):
            return
        pod["metadata"]["deletionTimestamp"] = str(self.now_ms())
        self._record("pods", "MODIFIED", pod)
        node = pod["spec"].get("nodeName", "")
        if self._dead.get(node):
            self._held.setdefault(node, []).append(pod["metadata"]["uid"])
        elif not _ended(pod) and 0.0 < self.faults.stuck_chance > self.rng.random():
            self._stuck[pod["metadata"]["uid"]] = None
            self._later(self.faults.stuck_s, self._remove, pod["metadata"]["uid"])
        else:
            self._later(0.0 if _ended(pod) else GRACE_S, self._remove, pod["metadata"]["uid"])

    def get(self, namespace: str, name: str) -> Object:
        return self._get(namespace, name)

    def listing(self, plural: str) -> list[Object]:
        objects = self.pods if plural == "pods" else self.nodes
        return [objects[key] for key in sorted(objects)]  # type: ignore[index]

    # --- watches ---

    def events_after(self, plural: str, version: int) -> list[tuple[int, str, str, Object]]:
        if self._history and version < self._history[0][0] - 1:
            raise kube.Gone(f"version {version} is too old", status=410, reason="Expired")
        return [event for event in self._history if event[0] > version and event[1] == plural]

    async def wait_changed(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass  # the watch ends, or sends a bookmark

    # --- kubelets ---

    def _admit(self, pod: Object) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        if node not in self.nodes:
            self._later(5.0, self._remove, uid)  # the pod garbage collector
        elif self.rng.random() < self.faults.admission_refused_chance or node in self.faults.refusing:
            self._later(0.01, self._refuse, uid)
        elif node not in self.faults.hanging:
            annotations = pod["metadata"].get("annotations") or {}
            self._later(float(annotations.get("sim.muster.io/start-seconds", "0.05")), self._start, uid)

    def _refuse(self, uid: str) -> None:
        pod = self._alive(uid)
        if pod is not None:
            pod["status"] = {
                "phase": "Failed",
                "reason": "OutOfcpu",
                "message": "Node didn't have enough resource: cpu",
            }
            self._record("pods", "MODIFIED", pod)
            self.audit.add(self.now_ms(), audit.REJECT, "pods", pod, user_agent="kubelet")

    def _start(self, uid: str) -> None:
        pod = self._alive(uid)
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return
        if self._unreachable(pod):
            self._later(0.5, self._start, uid)
            return
        pod["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
        self._record("pods", "MODIFIED", pod)
        self.audit.add(self.now_ms(), audit.RUN, "pods", pod, user_agent="kubelet")
        annotations = pod["metadata"].get("annotations") or {}
        if "sim.muster.io/run-seconds" in annotations:
            run_s = float(annotations["sim.muster.io/run-seconds"])
            if self.rng.random() < self.faults.vanish_chance:
                self._later(run_s / 2, self._vanish, uid)
            self._later(run_s, self._finish, uid)

    def _vanish(self, uid: str) -> None:
        pod = self._alive(uid)
        if pod is not None and not _ended(pod):
            self.delete_unasked(pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _finish(self, uid: str) -> None:
        pod = self._alive(uid)
        if pod is None or _ended(pod):
            return
        if self._unreachable(pod):
            self._later(0.5, self._finish, uid)  # it has ended; the status comes when the node does
            return
        code = int((pod["metadata"].get("annotations") or {}).get("sim.muster.io/exit-code", "0"))
        pod["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": code}}}],
        }
        self._record("pods", "MODIFIED", pod)
        self.audit.add(self.now_ms(), audit.STOP, "pods", pod, user_agent="kubelet")

    def _remove(self, uid: str) -> None:
        self._stuck.pop(uid, None)
        pod = self._alive(uid)
        if pod is None:
            return
        if pod["status"]["phase"] == "Running":
            self.audit.add(self.now_ms(), audit.STOP, "pods", pod, user_agent="kubelet")
        del self.pods[(pod["metadata"]["namespace"], pod["metadata"]["name"])]
        self._record("pods", "DELETED", pod)
        self.audit.add(self.now_ms(), audit.REMOVE, "pods", pod, user_agent="kubelet")

    # --- helpers ---

    def _get(self, namespace: str, name: str) -> Object:
        pod = self.pods.get((namespace, name))
        if pod is None:
            raise kube.NotFound(f'pods "{name}" not found', status=404, reason="NotFound")
        return pod

    def _alive(self, uid: str) -> Object | None:
        return next((pod for pod in self.pods.values() if pod["metadata"]["uid"] == uid), None)

    def _unreachable(self, pod: Object) -> bool:
        return self._dead.get(pod["spec"].get("nodeName", ""), False) or pod["metadata"]["uid"] in self._stuck

    def _uid(self) -> str:
        self._uids += 1
        return f"{self.cluster}-uid-{self._uids}"

    def _later(self, delay_s: float, call: Any, uid: str) -> None:
        asyncio.get_running_loop().call_later(delay_s, call, uid)

    def _record(self, plural: str, kind: str, obj: Object) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._history.append((self.version, plural, kind, copy.deepcopy(obj)))
        if len(self._history) > 2 * HISTORY_EVENTS_MAX:
            del self._history[:HISTORY_EVENTS_MAX]
        self._changed.set()
        self._changed = asyncio.Event()


def _ended(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def _merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = value
