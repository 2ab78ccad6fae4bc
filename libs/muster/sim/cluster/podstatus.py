"""The status a kubelet writes for a pod at each step of its life. Pure: pod in, status out."""

from __future__ import annotations

from typing import Any

KUBELET_VERSION = "v1.36.2"


def _conditions(now: str, scheduled: str, *, ready: bool, reason: str = "") -> list[dict[str, Any]]:
    value = "True" if ready else "False"
    unready: dict[str, Any] = {"reason": reason} if reason and not ready else {}
    initialized_reason = {"reason": "PodCompleted"} if reason == "PodCompleted" else {}
    return [
        {"type": "PodReadyToStartContainers", "status": value, "lastProbeTime": None, "lastTransitionTime": now},
        {
            "type": "Initialized",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": scheduled,
            **initialized_reason,
        },
        {"type": "Ready", "status": value, "lastProbeTime": None, "lastTransitionTime": now, **unready},
        {"type": "ContainersReady", "status": value, "lastProbeTime": None, "lastTransitionTime": now, **unready},
        {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": scheduled},
    ]


def _container_statuses(
    pod: dict[str, Any], state: dict[str, Any], *, running: bool, restarts: int, last_state: dict[str, Any] | None
) -> list[dict[str, Any]]:
    uid = pod["metadata"]["uid"]
    return [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": f"sim://{container['image']}",
            "containerID": f"sim://{uid}/{container['name']}/{restarts}",
            "ready": running,
            "started": running,
            "restartCount": restarts,
            "state": state,
            "lastState": last_state or {},
        }
        for container in pod["spec"]["containers"]
    ]


def _base(pod: dict[str, Any], phase: str) -> dict[str, Any]:
    return {"phase": phase, "qosClass": pod["status"].get("qosClass", "BestEffort")}


def waiting(
    pod: dict[str, Any], now: str, reason: str, *, restarts: int = 0, last_state: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Admitted; containers are being made, or wait for their next restart (then the phase stays Running)."""
    status = _base(pod, "Running" if restarts else "Pending")
    status["conditions"] = _conditions(now, now, ready=False, reason="ContainersNotReady")
    status["startTime"] = pod["status"].get("startTime", now)
    state = {"waiting": {"reason": reason}}
    status["containerStatuses"] = _container_statuses(
        pod, state, running=False, restarts=restarts, last_state=last_state
    )
    return status


def running(pod: dict[str, Any], now: str, addresses: tuple[str, str], restarts: int) -> dict[str, Any]:
    """`addresses` are (pod IP, host IP)."""
    pod_ip, host_ip = addresses
    status = _base(pod, "Running")
    status["conditions"] = _conditions(now, now, ready=True)
    status["hostIP"], status["hostIPs"] = host_ip, [{"ip": host_ip}]
    status["podIP"], status["podIPs"] = pod_ip, [{"ip": pod_ip}]
    status["startTime"] = pod["status"].get("startTime", now)
    state = {"running": {"startedAt": now}}
    status["containerStatuses"] = _container_statuses(pod, state, running=True, restarts=restarts, last_state=None)
    return status


def terminated_state(exit_code: int, reason: str, started: str, finished: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": started, "finishedAt": finished}}


def finished(pod: dict[str, Any], now: str, phase: str, state: dict[str, Any], restarts: int) -> dict[str, Any]:
    """The containers have ended for good. `state` is theirs, from `terminated_state`."""
    before = pod["status"]
    status = _base(pod, phase)
    completed = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    status["conditions"] = _conditions(now, before.get("startTime", now), ready=False, reason=completed)
    for field in ("hostIP", "hostIPs", "podIP", "podIPs"):
        if field in before:
            status[field] = before[field]
    status["startTime"] = before.get("startTime", now)
    status["containerStatuses"] = _container_statuses(pod, state, running=False, restarts=restarts, last_state=None)
    return status


def rejected(pod: dict[str, Any], now: str, reason: str, message: str) -> dict[str, Any]:
    return {**_base(pod, "Failed"), "reason": reason, "message": message, "startTime": now}
