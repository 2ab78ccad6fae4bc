"""Devices, shares of devices and exclusive CPUs: what a kubelet hands out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from muster.sim.cluster.allocation import Grant, NodeAllocation, Rejection
from muster.sim.cluster.pods import apply_defaults, pod_requests, qos_class

DEVICES = "muster.io/devices"
SHARE = "muster.io/gpu-milli"


def node(*, static: bool = False, policy: str = "none", cpus: int = 16, gpus: int = 4) -> NodeAllocation:
    allocation = NodeAllocation("n", random.Random(1), static_cpus=static, topology_policy=policy)
    allocatable = {"cpu": str(cpus), "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    allocation.set_node({"metadata": {}, "status": {"allocatable": allocatable}})
    return allocation


def ask(devices: str | None = None, **limits: str) -> dict[str, Any]:
    named = {"gpu": "nvidia.com/gpu", "share": SHARE}
    resources = {named.get(name, name): value for name, value in limits.items()}
    annotations = {} if devices is None else {DEVICES: devices}
    container = {"name": "main", "image": "x", "resources": {"limits": resources}}
    pod: dict[str, Any] = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    apply_defaults(pod)
    return pod


def devices_of(granted: Grant | Rejection) -> tuple[int, ...]:
    assert isinstance(granted, Grant), granted
    return granted.containers[0].devices


def cpus_of(granted: Grant | Rejection) -> tuple[int, ...]:
    assert isinstance(granted, Grant), granted
    return granted.containers[0].cpus


def reason_of(granted: Grant | Rejection) -> str:
    assert isinstance(granted, Rejection), granted
    return granted.reason


def test_named_devices_are_given() -> None:
    allocation = node()
    assert devices_of(allocation.admit(ask("0,3", gpu="2"))) == (0, 3)
    assert reason_of(allocation.admit(ask("3", gpu="1"))) == "UnexpectedAdmissionError"
    assert reason_of(allocation.admit(ask("1", gpu="2"))) == "UnexpectedAdmissionError"
    assert reason_of(allocation.admit(ask("1,1", gpu="2"))) == "UnexpectedAdmissionError"
    assert reason_of(allocation.admit(ask("7", gpu="1"))) == "UnexpectedAdmissionError"
    assert reason_of(allocation.admit(ask("x", gpu="1"))) == "UnexpectedAdmissionError"
    assert devices_of(allocation.admit(ask("1,2", gpu="2"))) == (1, 2)
    assert reason_of(allocation.admit(ask(gpu="1"))) == "OutOfnvidia.com/gpu"


def test_unnamed_devices_come_from_the_fullest_zone_that_fits() -> None:
    allocation = node()
    allocation.admit(ask("0", gpu="1"))
    assert devices_of(allocation.admit(ask(gpu="1"))) == (1,)
    assert devices_of(allocation.admit(ask(gpu="2"))) == (2, 3)


def test_a_share_never_overfills_its_device() -> None:
    allocation = node()
    assert devices_of(allocation.admit(ask("2", share="460"))) == (2,)
    held = allocation.admit(ask("2", share="500"))
    assert devices_of(held) == (2,)
    assert reason_of(allocation.admit(ask("2", share="50"))) == "UnexpectedAdmissionError"
    assert isinstance(held, Grant)
    allocation.release(held)
    assert devices_of(allocation.admit(ask("2", share="540"))) == (2,)


def test_whole_devices_and_shares_do_not_mix_on_a_device() -> None:
    allocation = node(gpus=2)
    allocation.admit(ask("0", share="100"))
    assert reason_of(allocation.admit(ask("0", gpu="1"))) == "UnexpectedAdmissionError"
    assert reason_of(allocation.admit(ask(gpu="2"))) == "UnexpectedAdmissionError"  # two exist, one is whole
    assert devices_of(allocation.admit(ask(gpu="1"))) == (1,)
    assert reason_of(allocation.admit(ask("1", share="100"))) == "UnexpectedAdmissionError"


def test_a_share_needs_a_device_that_exists() -> None:
    allocation = node()
    assert reason_of(allocation.admit(ask(share="100"))) == "UnexpectedAdmissionError"
    assert reason_of(allocation.admit(ask("9", share="100"))) == "UnexpectedAdmissionError"


def test_a_rejection_leaves_nothing_charged() -> None:
    allocation = node()
    two = ask("0", gpu="1")
    two["spec"]["containers"].append({"name": "b", "image": "x", "resources": {"limits": {SHARE: "100"}}})
    assert reason_of(allocation.admit(two)) == "UnexpectedAdmissionError"
    assert allocation.device_free_millis == [1000] * 4
    assert not any(allocation.used.values())


def test_release_gives_everything_back() -> None:
    allocation = node(static=True)
    held = allocation.admit(ask("0,1", gpu="2", cpu="4", memory="8Gi"))
    assert isinstance(held, Grant)
    allocation.release(held)
    assert not any(allocation.used.values())
    assert allocation.device_free_millis == [1000] * 4
    assert all(allocation.cpu_owner_free)


def test_exclusive_cpus_are_for_guaranteed_pods_with_whole_cpus() -> None:
    allocation = node(static=True)
    assert len(cpus_of(allocation.admit(ask(cpu="3", memory="1Gi")))) == 3
    assert cpus_of(allocation.admit(ask(cpu="1500m", memory="1Gi"))) == ()
    assert cpus_of(allocation.admit(ask(cpu="2"))) == ()  # burstable: no memory limit
    assert cpus_of(node().admit(ask(cpu="2", memory="1Gi"))) == ()  # no static policy


def test_exclusive_cpus_are_packed_per_zone() -> None:
    allocation = node(static=True)
    first = cpus_of(allocation.admit(ask(cpu="5", memory="1Gi")))
    second = cpus_of(allocation.admit(ask(cpu="4", memory="1Gi")))
    third = cpus_of(allocation.admit(ask(cpu="3", memory="1Gi")))
    zones = [{allocation.cpu_zone(cpu) for cpu in cpus} for cpus in (first, second, third)]
    assert zones == [{0}, {1}, {0}]  # the third fills the zone it fits best
    assert not set(first) & set(second) | set(first) & set(third)
    spilled = cpus_of(allocation.admit(ask(cpu="4", memory="1Gi")))
    assert {allocation.cpu_zone(cpu) for cpu in spilled} == {1}


def test_cpus_spill_over_zones_only_when_they_must() -> None:
    allocation = node(static=True)
    assert len(cpus_of(allocation.admit(ask(cpu="12", memory="1Gi")))) == 12


@pytest.mark.parametrize(("policy", "zone"), [("best-effort", 1), ("single-numa-node", 1)])
def test_a_topology_policy_aligns_cpus_with_devices(policy: str, zone: int) -> None:
    allocation = node(static=True, policy=policy)
    granted = allocation.admit(ask("2", gpu="1", cpu="4", memory="1Gi"))
    assert {allocation.cpu_zone(cpu) for cpu in cpus_of(granted)} == {zone}


def test_single_numa_node_rejects_what_spans_zones() -> None:
    allocation = node(static=True, policy="single-numa-node")
    assert reason_of(allocation.admit(ask(cpu="12", memory="1Gi"))) == "TopologyAffinityError"
    assert reason_of(allocation.admit(ask("0,3", gpu="2"))) == "TopologyAffinityError"
    assert devices_of(allocation.admit(ask("2,3", gpu="2"))) == (2, 3)


def test_requests_of_a_pod_count_init_containers_sidecars_and_overhead() -> None:
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("1"), container("500m")],
        "initContainers": [container("3"), container("200m", restartPolicy="Always"), container("2")],
        "overhead": {"cpu": "100m"},
    }
    assert pod_requests(spec) == {"cpu": 3100}
    spec["initContainers"] = [container("200m", restartPolicy="Always"), container("3")]
    assert pod_requests(spec) == {"cpu": 3300}
    spec["initContainers"] = [container("200m", restartPolicy="Always")]
    assert pod_requests(spec) == {"cpu": 1800}


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}}, "Guaranteed"),
        ({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}, "Burstable"),
    ],
)
def test_quality_of_service(resources: dict[str, Any], expected: str) -> None:
    assert qos_class({"containers": [{"name": "a", "image": "x", "resources": resources}]}) == expected
