"""What the API server itself knows about pods: defaults, quality of service, resource requests, readiness.

Pure functions over pod objects. Who runs pods is `kubelets`; who stores them is `api`.
"""

from __future__ import annotations

from typing import Any

from . import quantities

TERMINAL_PHASES = ("Succeeded", "Failed")
_DEFAULT_TOLERATION_S = 300
_DEFAULT_TOLERATIONS = tuple(
    {
        "key": f"node.kubernetes.io/{state}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": _DEFAULT_TOLERATION_S,
    }
    for state in ("not-ready", "unreachable")
)


def apply_defaults(pod: dict[str, Any]) -> None:
    """What admission and defaulting add to a new pod, in place. Tolerates wrong shapes: validation follows."""
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("priority", 0)
    for field in ("containers", "initContainers"):
        containers = spec.get(field)
        for container in containers if isinstance(containers, list) else ():
            container.setdefault("imagePullPolicy", "IfNotPresent")
            resources = container.setdefault("resources", {})
            if limits := resources.get("limits"):
                resources["requests"] = {**limits, **(resources.get("requests") or {})}
    tolerations = spec.setdefault("tolerations", [])
    for default in _DEFAULT_TOLERATIONS:
        if not any(_tolerates_key(toleration, default["key"]) for toleration in tolerations):
            tolerations.append(default)
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}


def _tolerates_key(toleration: dict[str, Any], key: object) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


def tolerates(spec: dict[str, Any], taint: dict[str, Any]) -> tuple[bool, int | None]:
    """(is the taint tolerated, for how many seconds: None = for ever)."""
    longest: int | None = -1
    for toleration in spec.get("tolerations") or ():
        if toleration.get("effect", "") not in ("", taint["effect"]) or toleration.get("key", "") not in (
            "",
            taint["key"],
        ):
            continue
        if toleration.get("operator", "Equal") == "Equal" and toleration.get("value", "") != taint.get("value", ""):
            continue
        seconds = toleration.get("tolerationSeconds")
        if seconds is None:
            return True, None
        longest = max(longest or 0, seconds)
    return longest != -1, longest


def qos_class(spec: dict[str, Any]) -> str:
    """Guaranteed: every container has cpu and memory limits equal to its requests. BestEffort: none has any."""
    guaranteed, best_effort = True, True
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for resource in ("cpu", "memory"):
            request, limit = requests.get(resource), limits.get(resource)
            if request is not None or limit is not None:
                best_effort = False
            if limit is None or (request is not None and str(request) != str(limit) and not _equal(request, limit)):
                guaranteed = False
    if best_effort:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _equal(left: object, right: object) -> bool:
    try:
        return quantities.parse(str(left)) == quantities.parse(str(right))
    except ValueError:
        return False  # validation names it


def container_requests(container: dict[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {resource: quantities.amount(resource, str(text)) for resource, text in requests.items()}


def pod_requests(spec: dict[str, Any]) -> dict[str, int]:
    """What the pod holds on a node: the larger of any init step and the sum of what runs together, plus overhead.

    A sidecar (an init container that restarts always) runs on, so it counts in the sum and in every init step after it.
    """
    running: dict[str, int] = {}
    for container in spec["containers"]:
        _add(running, container_requests(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        requests = container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, requests)
            step = dict(sidecars)
        else:
            step = dict(sidecars)
            _add(step, requests)
        for resource, value in step.items():
            peak[resource] = max(peak.get(resource, 0), value)
    _add(running, sidecars)
    for resource, value in peak.items():
        running[resource] = max(running.get(resource, 0), value)
    _add(running, {name: quantities.amount(name, str(text)) for name, text in (spec.get("overhead") or {}).items()})
    return running


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for resource, value in more.items():
        total[resource] = total.get(resource, 0) + value


def is_terminal(pod: dict[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in TERMINAL_PHASES


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def with_condition(conditions: list[dict[str, Any]], condition: dict[str, Any]) -> list[dict[str, Any]]:
    """A new list in which the condition of that type is replaced or appended; unchanged status keeps its time."""
    result = []
    found = False
    for present in conditions:
        if present["type"] != condition["type"]:
            result.append(present)
            continue
        found = True
        same = present.get("status") == condition["status"] and "lastTransitionTime" in present
        result.append({**condition, "lastTransitionTime": present["lastTransitionTime"]} if same else condition)
    return result if found else [*result, condition]
