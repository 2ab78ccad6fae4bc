"""The kubelets of a cluster: one light object a node, no task and no thread of its own.

A pod bound to a node is admitted, started, run for its annotated time and finished; a deleted one is stopped and then
removed from the API; all by entries on the cluster's timer heap. What *runs* is kept apart from what the API *shows*,
because that difference is what a scheduler must survive: a node that is cut off runs its pods on and reports later, a
node that lost power forgets them, a force-deleted pod keeps running until its kubelet hears of it.

The audit log gets what really happened (run, stop, reject), the API what a kubelet could report.
"""

from __future__ import annotations

import random
from enum import IntEnum
from typing import Any

from . import podstatus
from .allocation import Grant, NodeAllocation, Rejection
from .api import Api, DeleteOptions
from .audit import REJECT, RUN, STOP
from .kinds import NODES, PODS, Kind
from .pods import is_terminal
from .runplan import PlanError, RunPlan, run_plan
from .settings import ClusterSettings
from .store import ADDED, DELETED, Event, Version
from .timers import timestamp

EXIT_SIGTERM = 143  # 128 + 15: asked to stop and did
EXIT_SIGKILL = 137  # did not stop within its grace
EXIT_LOST = 255  # the node went down under it
_MAX_BACKOFF_MS = 300_000
_FORCE = DeleteOptions(gracePeriodSeconds=0)


class PodState(IntEnum):
    ADMITTED = 0
    RUNNING = 1
    BACKOFF = 2  # between restarts
    DONE = 3  # nothing runs; the outcome is in `status`


class LocalPod:
    """A pod as its kubelet knows it."""

    __slots__ = (
        "exit_code",
        "grant",
        "ip",
        "key",
        "obj",
        "outcome",
        "plan",
        "restarts",
        "run_ends_ms",
        "started_ms",
        "state",
        "stopping",
    )

    def __init__(self, key: str, obj: dict[str, Any], grant: Grant, plan: RunPlan) -> None:
        self.key = key
        self.obj = obj  # as last seen; for identity, labels and spec
        self.grant: Grant | None = grant  # None once released
        self.plan = plan
        self.state = PodState.ADMITTED
        self.restarts = 0
        self.started_ms = 0
        self.run_ends_ms: int | None = None
        self.exit_code = 0
        self.stopping = False
        self.ip = ""
        self.outcome: tuple[str, str] | None = None  # (phase, reason) once done


class Agent:
    """One node's kubelet."""

    __slots__ = ("alive", "allocation", "host_ip", "name", "pods", "silent_since_ms")

    def __init__(self, name: str, allocation: NodeAllocation, host_ip: str) -> None:
        self.name = name
        self.allocation = allocation
        self.host_ip = host_ip
        self.alive = True
        self.silent_since_ms: int | None = None
        self.pods: dict[str, LocalPod] = {}  # by uid


class Kubelets:
    """All of a cluster's kubelets. Listens to the store; writes through the API."""

    def __init__(self, api: Api, settings: ClusterSettings, rng: random.Random) -> None:
        self.agents: dict[str, Agent] = {}
        self.bound: dict[str, dict[str, None]] = {}  # node name -> keys of pods assigned to it, in order
        self.static_nodes: set[str] = set()  # nodes with a static CPU manager (those with a pod-resources socket)
        self.topology_policy = "none"
        self._api = api
        self._settings = settings
        self._rng = rng
        self._timers = api.timers
        self._ips = 0
        api.store.listeners.append(self._on_event)

    # -- what the API server tells -----------------------------------------------------------------------------------

    def _on_event(self, kind: Kind, event: Event) -> None:
        if kind is PODS:
            self._on_pod(event)
        elif kind is NODES:
            self._on_node(event)

    def _on_pod(self, event: Event) -> None:
        obj, key = event.version.obj, event.version.key
        node = obj["spec"].get("nodeName")
        if not node:
            return
        if event.type == DELETED:
            bound = self.bound.get(node)
            if bound is not None:
                bound.pop(key, None)
                if not bound:
                    del self.bound[node]
            self._timers.after(self._settings.stop_latency_ms, self._forget, node, obj["metadata"]["uid"])
            return
        old = event.old
        if old is None or not old.obj["spec"].get("nodeName"):
            self.bound.setdefault(node, {})[key] = None
            self._timers.after(self._settings.start_latency_ms, self._sync, node, key)
        elif _deletion(obj) != _deletion(old.obj):
            self._timers.after(self._settings.stop_latency_ms, self._sync, node, key)

    def _on_node(self, event: Event) -> None:
        name = event.version.obj["metadata"]["name"]
        agent = self.agents.get(name)
        if event.type == DELETED:
            if agent is not None:
                self._lose_containers(agent)
                del self.agents[name]
            return
        if agent is not None:
            agent.allocation.set_node(event.version.obj)
            return
        allocation = NodeAllocation(
            name,
            self._rng,
            static_cpus=name in self.static_nodes,
            topology_policy=self.topology_policy if name in self.static_nodes else "none",
        )
        allocation.set_node(event.version.obj)
        index = len(self.agents)
        agent = self.agents[name] = Agent(
            name, allocation, f"10.{64 + index // 65536}.{index // 256 % 256}.{index % 256}"
        )
        if event.type == ADDED:
            for key in self.bound.get(name, ()):
                self._timers.after(self._settings.start_latency_ms, self._sync, name, key)

    # -- the life of a pod -------------------------------------------------------------------------------------------

    def _sync(self, node: str, key: str) -> None:
        """Bring one pod to what the API asks for. A kubelet that is cut off hears nothing; `revive` syncs again."""
        agent = self.agents.get(node)
        version = self._api.store.table(PODS).get(key)
        if agent is None or not agent.alive or version is None or version.obj["spec"].get("nodeName") != node:
            return
        metadata = version.obj["metadata"]
        local = agent.pods.get(metadata["uid"])
        deleting = "deletionTimestamp" in metadata
        if local is None:
            if deleting:
                self._remove(version)
            elif not is_terminal(version.obj):
                self._admit(agent, version)
        else:
            local.obj = version.obj
            if deleting:
                self._stop(agent, local)

    def _admit(self, agent: Agent, version: Version) -> None:
        now = self._api.now()
        try:
            plan = run_plan(version.obj, self._settings.time_scale)
        except PlanError as error:
            self._reject(agent, version, Rejection("SimulationAnnotationInvalid", str(error)))
            return
        granted = agent.allocation.admit(version.obj)
        if isinstance(granted, Rejection):
            self._reject(agent, version, granted)
            return
        local = LocalPod(version.key, version.obj, granted, plan)
        agent.pods[version.obj["metadata"]["uid"]] = local
        if plan.start_ms:
            status = podstatus.waiting(version.obj, now, "ContainerCreating")
            local.obj = self._api.put_status(PODS, version, status).obj
            self._timers.after(plan.start_ms, self._start, agent, local)
        else:
            self._start(agent, local)
        if plan.deadline_ms is not None:
            self._timers.after(plan.deadline_ms, self._deadline, agent, local)

    def _reject(self, agent: Agent, version: Version, rejection: Rejection) -> None:
        status = podstatus.rejected(version.obj, self._api.now(), rejection.reason, rejection.message)
        stored = self._api.put_status(PODS, version, status)
        self._record(agent, REJECT, stored.obj, "Failed")

    def _start(self, agent: Agent, local: LocalPod) -> None:
        if local.state not in (PodState.ADMITTED, PodState.BACKOFF):
            return
        now_ms = self._timers.now_ms()
        if local.restarts == 0:
            self._ips += 1
            local.ip = f"10.{128 + self._ips // 65536 % 64}.{self._ips // 256 % 256}.{self._ips % 256}"
            self._record(agent, RUN, local.obj, "Running")
        local.state = PodState.RUNNING
        local.started_ms = now_ms
        if local.plan.run_ms is not None:
            local.run_ends_ms = now_ms + local.plan.run_ms
            self._timers.at(local.run_ends_ms, self._exit, agent, local, local.plan.exit_code)
        self._report(agent, local)

    def _exit(self, agent: Agent, local: LocalPod, exit_code: int) -> None:
        """The containers ended, by themselves or because they were stopped."""
        if local.state is not PodState.RUNNING:
            return  # it has ended otherwise meanwhile
        local.exit_code = exit_code
        policy = local.obj["spec"]["restartPolicy"]
        if not local.stopping and (policy == "Always" or (policy == "OnFailure" and exit_code)):
            local.state = PodState.BACKOFF
            backoff_ms = min(self._settings.restart_backoff_ms << min(local.restarts, 10), _MAX_BACKOFF_MS)
            local.restarts += 1
            scaled_ms = int(backoff_ms / self._settings.time_scale)
            self._timers.after(scaled_ms, self._start, agent, local)
            self._report(agent, local)
            return
        self._end(agent, local, "Failed" if exit_code else "Succeeded")

    def _end(self, agent: Agent, local: LocalPod, phase: str, reason: str = "") -> None:
        """Nothing of the pod runs any more: give back what it held, report, and remove it if that was asked for."""
        was_running = local.started_ms > 0
        local.state = PodState.DONE
        local.outcome = (phase, reason)
        if was_running:
            self._record(agent, STOP, local.obj, phase)
        if local.grant is not None:
            agent.allocation.release(local.grant)
            local.grant = None
        self._report(agent, local)
        if local.stopping and agent.alive:
            current = self._current(local)
            if current is not None:
                self._remove(current)

    def _deadline(self, agent: Agent, local: LocalPod) -> None:
        if local.state is not PodState.DONE:
            local.exit_code = EXIT_SIGKILL
            self._end(agent, local, "Failed", "DeadlineExceeded")

    def _stop(self, agent: Agent, local: LocalPod) -> None:
        """Deletion was asked for: end within the grace. Called again when the grace was shortened."""
        metadata = local.obj["metadata"]
        if local.state is PodState.DONE:
            local.stopping = True
            self._remove_if_current(local)
            return
        local.stopping = True
        if local.state in (PodState.ADMITTED, PodState.BACKOFF):
            local.exit_code = EXIT_SIGTERM
            self._end(agent, local, "Failed")
            return
        grace_ms = metadata.get("deletionGracePeriodSeconds", 0) * 1000
        stop_ms = local.plan.stop_ms
        exit_code = EXIT_SIGTERM if stop_ms <= grace_ms else EXIT_SIGKILL
        stops_at_ms = self._timers.now_ms() + min(stop_ms, grace_ms)
        self._timers.at(stops_at_ms, self._exit, agent, local, exit_code)

    def _forget(self, node: str, uid: str) -> None:
        """The object is gone: whatever still runs of it is killed, once the kubelet hears of it."""
        agent = self.agents.get(node)
        if agent is None or not agent.alive:
            return
        local = agent.pods.pop(uid, None)
        if local is not None and local.state is not PodState.DONE:
            local.stopping = True
            local.exit_code = EXIT_SIGKILL
            self._end(agent, local, "Failed")

    # -- reports -----------------------------------------------------------------------------------------------------

    def _current(self, local: LocalPod) -> Version | None:
        version = self._api.store.table(PODS).get(local.key)
        if version is None or version.obj["metadata"]["uid"] != local.obj["metadata"]["uid"]:
            return None
        return version

    def _report(self, agent: Agent, local: LocalPod) -> None:
        version = self._current(local) if agent.alive else None
        if version is None:
            return
        status = self._status(agent, local, version.obj)
        local.obj = self._api.put_status(PODS, version, status).obj

    def _status(self, agent: Agent, local: LocalPod, obj: dict[str, Any]) -> dict[str, Any]:
        now = self._api.now()
        if local.state is PodState.RUNNING:
            return podstatus.running(obj, now, (local.ip, agent.host_ip), local.restarts)
        started = timestamp(local.started_ms) if local.started_ms else now
        reason = "Completed" if local.exit_code == 0 else "Error"
        state = podstatus.terminated_state(local.exit_code, reason, started, now)
        if local.state is PodState.DONE and local.outcome is not None:
            phase, why = local.outcome
            status = podstatus.finished(obj, now, phase, state, local.restarts)
            return {**status, "reason": why} if why else status
        if local.state is PodState.BACKOFF:
            return podstatus.waiting(obj, now, "CrashLoopBackOff", restarts=local.restarts, last_state=state)
        return podstatus.waiting(obj, now, "ContainerCreating")

    def _remove_if_current(self, local: LocalPod) -> None:
        version = self._current(local)
        if version is not None:
            self._remove(version)

    def _remove(self, version: Version) -> None:
        """The kubelet's last word on a deleted pod: delete with no grace left (finalizers may still hold it)."""
        metadata = version.obj["metadata"]
        actor = f"kubelet/{version.obj['spec']['nodeName']}"
        self._api.delete(PODS, metadata["namespace"], metadata["name"], _FORCE, actor=actor)

    def _record(self, agent: Agent, verb: str, obj: dict[str, Any], phase: str) -> None:
        shown = {"metadata": obj["metadata"], "spec": obj["spec"], "status": {"phase": phase}}
        self._api.audit.add(self._timers.now_ms(), verb, "pods", shown, user_agent=f"kubelet/{agent.name}")

    # -- death and return --------------------------------------------------------------------------------------------

    def silence(self, name: str, *, lose_containers: bool) -> None:
        """The node stops reporting. Its containers run on unseen (cut off), or are lost with it (power failure)."""
        agent = self.agents[name]
        if agent.alive:
            agent.alive = False
            agent.silent_since_ms = self._timers.now_ms()
        if lose_containers:
            self._lose_containers(agent)

    def _lose_containers(self, agent: Agent) -> None:
        agent.alive = False
        for local in agent.pods.values():
            if local.state is not PodState.DONE:
                local.exit_code = EXIT_LOST
                self._end(agent, local, "Failed")

    def revive(self, name: str) -> None:
        """The node reports again: first what became of its pods, then it hears what was asked of it meanwhile."""
        agent = self.agents[name]
        if agent.alive:
            return
        agent.alive = True
        agent.silent_since_ms = None
        for uid, local in list(agent.pods.items()):
            if self._current(local) is None:
                self._forget(name, uid)
            else:
                self._report(agent, local)
        for key in list(self.bound.get(name, ())):
            self._sync(name, key)


def _deletion(obj: dict[str, Any]) -> tuple[Any, Any]:
    metadata = obj["metadata"]
    return metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds")
