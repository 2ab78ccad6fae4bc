"""Settings of the topology-updater: the common ones, its clusters, and its kubelet sockets."""

from __future__ import annotations

from dataclasses import dataclass

from muster.runtime.settings import CommonSettings, setting


@dataclass(frozen=True, kw_only=True)
class TopologySettings(CommonSettings):
    """Read from the environment by `muster_topology_updater`."""

    clusters: str = setting(
        "clusters whose Node objects are watched: name=address by commas; an address is a URL, a kubeconfig[#context] "
        "or in-cluster; unset: the current context of KUBECONFIG, if any",
        "",
    )
    sockets: str = setting(
        "pod-resources sockets by commas: cluster=folder (holds <node>/kubelet.sock), cluster=pattern, "
        "or cluster=path#node",
        "",
    )
    sysfs: str = setting("where the CPUs of this machine are described (only for path#node)", "/sys")
    poll_ms: int = setting(
        "time between two polls of a kubelet", 5_000, minimum=100, variable="MUSTER_TOPOLOGY_POLL_MS"
    )
    audit_ms: int = setting(
        "how often all nodes are compared with the ledger", 30_000, minimum=1000, variable="MUSTER_TOPOLOGY_AUDIT_MS"
    )
