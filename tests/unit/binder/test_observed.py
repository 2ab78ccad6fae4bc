"""What a pod object means."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.core.model import PodPhase
from muster.runtime.kube_objects import PODS
from muster_binder import names
from muster_binder.observed import Observed, observe

LABELS = {names.JOB: "ab" * 16, names.EPOCH: "1", names.POD: "0", names.ATTEMPT: "0"}


def seen(phase: str, *, leaving: bool = False, **status: Any) -> Observed:
    metadata: dict[str, Any] = {"name": "p", "namespace": "ns", "uid": "u", "labels": LABELS}
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    obj = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": phase} | status}
    found = observe("sim", PODS.decoder.decode(msgspec.json.encode(obj)), 0)
    assert found is not None
    return found


def terminated(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"name": "c", "state": {"terminated": {"exitCode": code, "reason": reason}}}


@pytest.mark.parametrize(
    ("phase", "means"),
    [
        ("Pending", PodPhase.CREATED),
        ("Running", PodPhase.RUNNING),
        ("Succeeded", PodPhase.SUCCEEDED),
        ("Failed", PodPhase.FAILED),
        ("Unknown", PodPhase.CREATED),
    ],
)
def test_phases(phase: str, means: PodPhase) -> None:
    assert seen(phase).phase == means


def test_the_first_failed_container_gives_code_and_reason() -> None:
    pod = seen("Failed", containerStatuses=[terminated(0, "Completed"), terminated(137, "OOMKilled"), terminated(1)])
    assert (pod.exit_code, pod.reason) == (137, "OOMKilled")
    init = seen("Failed", initContainerStatuses=[terminated(2)], containerStatuses=[terminated(3)])
    assert init.exit_code == 2


def test_an_evicted_pod_says_so_and_is_not_refused() -> None:
    pod = seen("Failed", reason="Evicted", message="low on memory", containerStatuses=[terminated(137)])
    assert (pod.reason, pod.message, pod.refused) == ("Evicted", "low on memory", False)


@pytest.mark.parametrize("reason", ["OutOfcpu", "OutOfnvidia.com/gpu", "TopologyAffinityError", "NodeAffinity"])
def test_a_pod_the_kubelet_did_not_admit_is_refused(reason: str) -> None:
    assert seen("Failed", reason=reason).refused
    waiting = {"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}
    assert seen("Failed", reason=reason, containerStatuses=[waiting]).refused
    assert not seen("Failed", reason=reason, containerStatuses=[terminated(1)]).refused  # it ran


def test_a_leaving_pod_that_fails_is_leaving_not_failing() -> None:
    assert seen("Failed", leaving=True).phase == PodPhase.RUNNING
    assert not seen("Failed", leaving=True).finished
    assert seen("Succeeded", leaving=True).phase == PodPhase.SUCCEEDED


def test_strangers_are_not_observed() -> None:
    obj = {"metadata": {"name": "p", "labels": {"app": "x"}}, "status": {"phase": "Running"}}
    assert observe("sim", PODS.decoder.decode(msgspec.json.encode(obj)), 0) is None
