"""Node lists for a simulated cluster: shaped like OpenB's GPU cluster, read from its csv, or uniform.

A spec is `openb`, `openb-csv:PATH` or `uniform:1000x32cpu128Gi[+8gpu]`. Nodes of one model stand together, as racks are
bought; the topology labels (zone, block, rack) follow from the position, so the same spec always gives the same nodes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import podstatus

NODES_PER_RACK = 16
RACKS_PER_BLOCK = 8
BLOCKS_PER_ZONE = 4
PODS_PER_NODE = 110
MAX_NODES = 20_000
_EPHEMERAL_STORAGE = "1Ti"

# (nodes, model, GPUs, cpu in milli-cores, memory in MiB): the GPU nodes of the OpenB trace, counted
OPENB = (
    (549, "G2", 8, 96_000, 393_216),
    (387, "T4", 2, 104_000, 524_288),
    (107, "P100", 2, 16_000, 122_880),
    (39, "G3", 8, 128_000, 786_432),
    (28, "V100M16", 4, 32_000, 131_072),
    (22, "P100", 2, 64_000, 262_144),
    (21, "V100M32", 8, 96_000, 786_432),
    (19, "V100M16", 1, 8_000, 32_768),
    (17, "T4", 4, 96_000, 393_216),
    (9, "V100M32", 4, 48_000, 376_832),
    (7, "V100M16", 8, 64_000, 262_144),
    (3, "P100", 1, 8_000, 61_440),
    (2, "P100", 2, 8_000, 61_440),
    (2, "A10", 1, 128_000, 1_048_576),
    (1, "V100M16", 8, 82_000, 344_064),
)

_UNIFORM = re.compile(r"(\d+)x(\d+)cpu(\d+)(Mi|Gi)(?:\+(\d+)gpu)?")


class NodeSpecError(ValueError):
    """The node specification cannot be read."""


@dataclass(frozen=True)
class NodeShape:
    name: str
    cpu_millis: int
    memory_mib: int
    gpus: int = 0
    gpu_model: str = ""


def parse_nodes(spec: str, prefix: str = "") -> list[NodeShape]:
    """The nodes of a spec, in order. `prefix` goes before generated names, so that clusters do not share them."""
    source, _, argument = spec.partition(":")
    if source == "openb":
        shapes = list(_openb(prefix))
    elif source == "openb-csv" and argument:
        shapes = list(_openb_csv(Path(argument), prefix))
    elif source == "uniform" and (match := _UNIFORM.fullmatch(argument)):
        count, cpus, memory, unit, gpus = match.groups()
        memory_mib = int(memory) * (1024 if unit == "Gi" else 1)
        model = "SIM" if gpus else ""
        shapes = [
            NodeShape(f"{prefix}node-{i:04d}", int(cpus) * 1000, memory_mib, int(gpus or 0), model)
            for i in range(min(int(count), MAX_NODES + 1))
        ]
    else:
        raise NodeSpecError(f"{spec!r} is none of openb, openb-csv:PATH, uniform:1000x32cpu128Gi[+8gpu]")
    if len(shapes) > MAX_NODES:
        raise NodeSpecError(f"{spec!r} has more than {MAX_NODES} nodes")
    return shapes


def _openb(prefix: str) -> Iterator[NodeShape]:
    index = 0
    for count, model, gpus, cpu_millis, memory_mib in OPENB:
        for _ in range(count):
            yield NodeShape(f"{prefix}openb-node-{index:04d}", cpu_millis, memory_mib, gpus, model)
            index += 1


def _openb_csv(path: Path, prefix: str) -> Iterator[NodeShape]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield NodeShape(
                    prefix + row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"]
                )
    except (OSError, KeyError, ValueError) as error:
        raise NodeSpecError(f"{path}: {error!r}") from error


def topology_labels(index: int) -> dict[str, str]:
    rack = index // NODES_PER_RACK
    block = rack // RACKS_PER_BLOCK
    return {
        "topology.kubernetes.io/region": "sim",
        "topology.kubernetes.io/zone": f"zone-{block // BLOCKS_PER_ZONE}",
        "muster.io/block": f"block-{block:02d}",
        "muster.io/rack": f"rack-{rack:03d}",
    }


def node_object(shape: NodeShape, index: int, now: str) -> dict[str, Any]:
    """The Node as a kubelet would have registered it, Ready."""
    labels = {
        "kubernetes.io/hostname": shape.name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        **topology_labels(index),
    }
    resources = {
        "cpu": f"{shape.cpu_millis}m" if shape.cpu_millis % 1000 else str(shape.cpu_millis // 1000),
        "memory": f"{shape.memory_mib}Mi",
        "ephemeral-storage": _EPHEMERAL_STORAGE,
        "pods": str(PODS_PER_NODE),
    }
    if shape.gpus:
        labels["nvidia.com/gpu.product"] = shape.gpu_model
        labels["nvidia.com/gpu.count"] = str(shape.gpus)
        resources["nvidia.com/gpu"] = str(shape.gpus)
    address = f"10.{64 + index // 65536}.{index // 256 % 256}.{index % 256}"
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": shape.name, "labels": labels, "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
        "spec": {"providerID": f"sim://{shape.name}"},
        "status": {
            "capacity": dict(resources),
            "allocatable": resources,
            "conditions": _conditions(now),
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": shape.name},
            ],
            "nodeInfo": _node_info(shape.name),
        },
    }


def _conditions(now: str) -> list[dict[str, Any]]:
    calm = (
        ("MemoryPressure", "Sufficient memory"),
        ("DiskPressure", "No disk pressure"),
        ("PIDPressure", "Sufficient PID"),
    )
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    conditions = [
        {"type": type_, "status": "False", "reason": f"KubeletHasNo{type_}", "message": message, **times}
        for type_, message in calm
    ]
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    return [*conditions, {**ready, **times}]


def _node_info(name: str) -> dict[str, str]:
    return {
        "architecture": "amd64",
        "bootID": f"boot-{name}",
        "containerRuntimeVersion": "sim://1",
        "kernelVersion": "simulated",
        "kubeProxyVersion": "",
        "kubeletVersion": podstatus.KUBELET_VERSION,
        "machineID": name,
        "operatingSystem": "linux",
        "osImage": "Simulated node",
        "systemUUID": name,
    }
