"""The kinds of object the simulated API serves, and how a request's path names one.

Pods, nodes, namespaces, bindings and evictions have behaviour (`pods`, `api`, `kubelets`); every other kind is plain
storage with metadata, selectors and watches. A kind that is added at run time (a CustomResourceDefinition) is storage
too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class Kind:
    """One resource: `plural` is its path segment, `name` its `kind`."""

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    api_version: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "api_version", f"{self.group}/{self.version}" if self.group else self.version)

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


_STATUS = ("status",)

NAMESPACES = Kind("", "v1", "namespaces", "Namespace", False, ("ns",), ("status", "finalize"))
NODES = Kind("", "v1", "nodes", "Node", False, ("no",), _STATUS)
PODS = Kind("", "v1", "pods", "Pod", True, ("po",), ("status", "binding", "eviction", "log"), ("all",))
EVENTS = Kind("", "v1", "events", "Event", True, ("ev",))
DISRUPTION_BUDGETS = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",), _STATUS)
DEFINITIONS = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, ("crd",), _STATUS
)

BUILT_IN = (
    NAMESPACES,
    NODES,
    PODS,
    EVENTS,
    Kind("", "v1", "configmaps", "ConfigMap", True, ("cm",)),
    Kind("", "v1", "secrets", "Secret", True),
    Kind("", "v1", "services", "Service", True, ("svc",), _STATUS, ("all",)),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", True, ("sa",)),
    Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("pvc",), _STATUS),
    Kind("", "v1", "persistentvolumes", "PersistentVolume", False, ("pv",), _STATUS),
    Kind("", "v1", "resourcequotas", "ResourceQuota", True, ("quota",), _STATUS),
    Kind("", "v1", "limitranges", "LimitRange", True, ("limits",)),
    Kind("apps", "v1", "deployments", "Deployment", True, ("deploy",), _STATUS, ("all",)),
    Kind("apps", "v1", "replicasets", "ReplicaSet", True, ("rs",), _STATUS, ("all",)),
    Kind("apps", "v1", "statefulsets", "StatefulSet", True, ("sts",), _STATUS, ("all",)),
    Kind("apps", "v1", "daemonsets", "DaemonSet", True, ("ds",), _STATUS, ("all",)),
    Kind("batch", "v1", "jobs", "Job", True, (), _STATUS, ("all",)),
    Kind("batch", "v1", "cronjobs", "CronJob", True, ("cj",), _STATUS, ("all",)),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", True),
    Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, ("pc",)),
    DISRUPTION_BUDGETS,
    DEFINITIONS,
    Kind("rbac.authorization.k8s.io", "v1", "roles", "Role", True),
    Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True),
    Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False),
    Kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Kind(
        "topology.node.k8s.io", "v1alpha2", "noderesourcetopologies", "NodeResourceTopology", False, ("node-res-topo",)
    ),
)


class Kinds:
    """The kinds a cluster serves now."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, str, str], Kind] = {}
        for kind in BUILT_IN:
            self.add(kind)

    def add(self, kind: Kind) -> None:
        self._by_path[kind.group, kind.version, kind.plural] = kind

    def remove(self, kind: Kind) -> None:
        self._by_path.pop((kind.group, kind.version, kind.plural), None)

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        return self._by_path.get((group, version, plural))

    def groups(self) -> list[tuple[str, str]]:
        """Every (group, version) served except the core group, in order of first appearance."""
        seen = dict.fromkeys((kind.group, kind.version) for kind in self if kind.group)
        return list(seen)

    def __iter__(self) -> Iterator[Kind]:
        return iter(tuple(self._by_path.values()))
