"""Node and pod objects as amounts."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.core.model import Taint
from muster.runtime.kube_objects import NODES, POD_REQUESTS, Node, PodRequests
from muster_topology_updater.nodes import OthersUse, amounts_of, node_spec, pod_use

GI = 1 << 30


def node(**status: Any) -> Node:
    obj = {
        "metadata": {"name": "n1", "labels": {"zone": "b", "arch": "amd64"}, "resourceVersion": "7"},
        "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}], "unschedulable": True},
        "status": {
            "allocatable": {"cpu": "63500m", "memory": "250Gi", "nvidia.com/gpu": "8", "pods": "110"},
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
        }
        | status,
    }
    return NODES.decoder.decode(msgspec.json.encode(obj))


def pod(uid: str = "u", *, node: str = "n1", phase: str = "Running", **spec: Any) -> PodRequests:
    obj = {
        "metadata": {"name": uid, "uid": uid},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]}
        | spec,
        "status": {"phase": phase},
    }
    return POD_REQUESTS.decoder.decode(msgspec.json.encode(obj))


def test_a_node_in_canonical_units() -> None:
    spec = node_spec("sim", node())
    assert spec.allocatable == (("cpu", 63_500), ("memory", 250 * GI), ("nvidia.com/gpu", 8000), ("pods", 110))
    assert (spec.device_resource, spec.devices) == ("nvidia.com/gpu", 8)
    assert spec.labels == (("arch", "amd64"), ("zone", "b"))
    assert spec.taints == (Taint("gpu", "", "NoSchedule"),)
    assert (spec.ready, spec.cordoned) == (True, True)


def test_a_heartbeat_is_no_change_and_an_unready_node_is() -> None:
    beat = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "now"}]
    assert node_spec("sim", node(conditions=beat)) == node_spec("sim", node())
    assert not node_spec("sim", node(conditions=[{"type": "Ready", "status": "Unknown"}])).ready
    assert not node_spec("sim", node(conditions=[])).ready


def test_what_cannot_be_read_is_left_out() -> None:
    assert amounts_of({"cpu": "two", "memory": "0", "pods": 10}) == (("pods", 10),)


def test_a_pod_takes_what_kubernetes_counts() -> None:
    use = pod_use(
        pod(
            initContainers=[
                {"resources": {"requests": {"cpu": "2"}}},
                {"restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
            ],
            overhead={"memory": "128Mi"},
        )
    )
    assert use == (("cpu", 2000), ("memory", GI + (128 << 20)), ("pods", 1))


def test_pods_without_a_node_and_finished_ones_take_nothing() -> None:
    assert pod_use(pod(node="")) == ()
    assert pod_use(pod(phase="Succeeded")) == ()


def test_the_use_of_others_is_kept_pod_by_pod() -> None:
    others = OthersUse()
    assert others.put(pod("a")) == ("n1",)
    assert others.put(pod("a")) == ()
    others.put(pod("b"))
    assert others.of("n1") == (("cpu", 1000), ("memory", 2 * GI), ("pods", 2))
    assert others.put(pod("a", node="n2")) == ("n1", "n2")
    assert others.put(pod("b", phase="Failed")) == ("n1",)
    assert others.of("n1") == ()
    assert others.remove("a") == ("n2",)
    assert others.remove("a") == ()
    assert others.of("n2") == ()
