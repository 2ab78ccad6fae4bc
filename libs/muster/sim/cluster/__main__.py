"""`python -m muster.sim.cluster`: serve one or more simulated clusters until told to stop.

    python -m muster.sim.cluster --cluster sim-a --port 8001 --nodes openb
    python -m muster.sim.cluster --cluster sim-a --port 8001 --cluster sim-b --port 8002 --nodes uniform:100x32cpu128Gi

Options that may differ per cluster (`--port`, `--nodes`) are given once for all, or once per `--cluster`, in order.
When everything listens, one line of JSON is printed; SIGTERM and SIGINT end the process cleanly.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import uvloop

from .allocation import TOPOLOGY_POLICIES
from .cluster import SimCluster
from .nodes import NodeShape, NodeSpecError, parse_nodes
from .server import ClusterServer, serve
from .settings import ClusterSettings

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """One cluster to serve."""

    settings: ClusterSettings
    port: int
    nodes: list[NodeShape]
    audit: Path | None
    pod_resources: Path | None
    pod_resources_nodes: int
    topology_policy: str


def _parser() -> argparse.ArgumentParser:
    defaults = ClusterSettings()
    parser = argparse.ArgumentParser(prog="python -m muster.sim.cluster", description="Serve simulated clusters.")
    add = parser.add_argument
    add("--cluster", action="append", metavar="NAME", help="name of a cluster; repeat for several (default: sim-a)")
    add("--port", action="append", type=int, help="port of each cluster (default: a free one)")
    add("--nodes", action="append", help="openb | openb-csv:PATH | uniform:1000x32cpu128Gi[+8gpu] (default: openb)")
    add("--seed", type=int, default=0)
    add("--time-scale", type=float, default=1.0, help="annotated run times are divided by this")
    add("--start-latency-ms", type=int, default=defaults.start_latency_ms)
    add("--node-grace-ms", type=int, default=defaults.node_grace_ms, help="silence before a node is NotReady")
    add("--pod-gc-ms", type=int, default=defaults.pod_gc_ms)
    add("--pod-gc-quarantine-ms", type=int, default=defaults.pod_gc_quarantine_ms)
    add("--bookmark-ms", type=int, default=defaults.bookmark_ms)
    add("--history-events", type=int, default=defaults.history_events)
    add("--namespaces", default="", help="namespaces to make besides the usual ones, comma separated")
    add("--audit", type=Path, help="write the audit log here, as JSON lines ({cluster} is replaced by the name)")
    add("--pod-resources-dir", type=Path, help="open pod-resources sockets at DIR/<node>/kubelet.sock")
    add("--pod-resources-nodes", type=int, default=16, help="how many nodes of each cluster get a socket")
    add("--topology-policy", choices=TOPOLOGY_POLICIES, default="none", help="of the nodes with a socket")
    return parser


def _plans(arguments: Sequence[str]) -> list[Plan]:
    parser = _parser()
    options = parser.parse_args(arguments)
    names: list[str] = options.cluster or ["sim-a"]
    ports = _per_cluster(parser, "--port", options.port or [0], names)
    specs = _per_cluster(parser, "--nodes", options.nodes or ["openb"], names)
    if len(set(names)) < len(names):
        parser.error("cluster names must differ")
    if len(names) > 1 and len(set(ports)) == 1 and ports[0]:
        parser.error("clusters need a port each")
    if options.time_scale <= 0:
        parser.error("--time-scale must be positive")
    base = ClusterSettings(
        seed=options.seed,
        time_scale=options.time_scale,
        start_latency_ms=options.start_latency_ms,
        node_grace_ms=options.node_grace_ms,
        pod_gc_ms=options.pod_gc_ms,
        pod_gc_quarantine_ms=options.pod_gc_quarantine_ms,
        bookmark_ms=options.bookmark_ms,
        history_events=options.history_events,
    )
    extra = tuple(filter(None, options.namespaces.split(",")))
    plans = []
    for name, port, spec in zip(names, ports, specs, strict=True):
        try:
            shapes = parse_nodes(spec, prefix=f"{name}-" if len(names) > 1 else "")
        except NodeSpecError as error:
            parser.error(str(error))
        audit = None if options.audit is None else Path(str(options.audit).replace("{cluster}", name))
        plans.append(
            Plan(
                settings=replace(base, name=name, namespaces=base.namespaces + extra),
                port=port,
                nodes=shapes,
                audit=audit,
                pod_resources=options.pod_resources_dir,
                pod_resources_nodes=options.pod_resources_nodes if options.pod_resources_dir else 0,
                topology_policy=options.topology_policy,
            )
        )
    return plans


def _per_cluster(parser: argparse.ArgumentParser, option: str, values: list[T], names: list[str]) -> list[T]:
    if len(values) == 1:
        return values * len(names)
    if len(values) != len(names):
        parser.error(f"give {option} once, or once per --cluster")
    return values


async def _run(plans: list[Plan]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    servers: list[ClusterServer] = []
    sockets = []
    ready = []
    try:
        for plan in plans:
            cluster = SimCluster(plan.settings, audit_path=plan.audit)
            static = cluster.add_nodes(
                plan.nodes, pod_resources_nodes=plan.pod_resources_nodes, topology_policy=plan.topology_policy
            )
            paths: list[Path] = []
            if plan.pod_resources is not None:
                from .podresources import PodResourcesSockets  # grpc is not loaded unless asked for

                opened = PodResourcesSockets(cluster.kubelets, plan.pod_resources, cluster.timers.now_ms)
                sockets.append(opened)
                paths = await opened.start(static)
            server = await serve(cluster, plan.port)
            servers.append(server)
            ready.append(
                {
                    "cluster": plan.settings.name,
                    "port": server.port,
                    "url": f"http://127.0.0.1:{server.port}",
                    "nodes": len(plan.nodes),
                    "gpus": sum(shape.gpus for shape in plan.nodes),
                    "pod_resources": [str(path) for path in paths],
                }
            )
        # Nodes and their history live as long as the process: keep the collector from walking them again and again.
        gc.collect()
        gc.freeze()
        print(json.dumps({"event": "ready", "clusters": ready}), flush=True)  # noqa: T201 - the contract with the parent
        await stop.wait()
    finally:
        for opened in sockets:
            await opened.stop()
        for server in servers:
            await server.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    plans = _plans(sys.argv[1:] if arguments is None else arguments)
    uvloop.run(_run(plans))
    return 0


if __name__ == "__main__":
    sys.exit(main())
