"""What a pod in a cluster means for its job: phase, exit code, and whether the kubelet refused it (rule G5, LOG-15).

A pod that was asked to leave and then fails is leaving, not failing: it counts as running until it is gone. A pod that
the kubelet refused to admit never ran: that is the placement's fault, not the job's, and is told apart here.
"""

from __future__ import annotations

from typing import Final

from muster.core.model import PodPhase
from muster.runtime.kube_objects import ContainerStatus, ContainerTerminated, Pod
from muster_binder import names
from muster_binder.names import PodKey

REASON_CHARS_MAX: Final = 128
# Reasons of a kubelet that refuses a pod at admission. Those that name a resource begin with OutOf.
ADMISSION_REASONS: Final = frozenset(
    {
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
        "SMTAlignmentError",
        "NodeAffinity",
        "NodeName",
        "NodePorts",
        "NodeUnschedulable",
        "PodOSNotSupported",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "InvalidNodeInfo",
    }
)
OUT_OF: Final = "OutOf"
_PHASES: Final = {
    "Pending": PodPhase.CREATED,
    "Running": PodPhase.RUNNING,
    "Succeeded": PodPhase.SUCCEEDED,
    "Failed": PodPhase.FAILED,
}


class Observed:
    """One pod as the cluster last showed it."""

    __slots__ = (
        "cluster",
        "confirmed",
        "exit_code",
        "first_ms",
        "key",
        "leaving",
        "message",
        "name",
        "namespace",
        "phase",
        "reason",
        "refused",
        "seen_ms",
        "uid",
    )

    def __init__(self, cluster: str, pod: Pod, key: PodKey, now_ms: int, *, confirmed: bool = True) -> None:
        self.cluster = cluster
        self.key = key
        self.namespace = pod.metadata.namespace
        self.name = pod.metadata.name
        self.uid = pod.metadata.uid
        self.leaving = pod.metadata.deletion_timestamp is not None
        self.phase = _PHASES.get(pod.status.phase, PodPhase.CREATED)
        self.refused = self.phase == PodPhase.FAILED and _refused(pod)
        self.exit_code = 0
        self.reason = ""
        self.message = ""
        self.seen_ms = now_ms
        self.first_ms = now_ms  # the cache keeps the earliest
        self.confirmed = confirmed  # the watch has shown it; else only the answer to our own request
        if self.phase == PodPhase.FAILED:
            self._explain(pod)
            if self.leaving:
                self.phase = PodPhase.RUNNING

    @property
    def finished(self) -> bool:
        """Nothing of it runs any more."""
        return self.phase >= PodPhase.SUCCEEDED

    def _explain(self, pod: Pod) -> None:
        failed = _first_failed(pod)
        self.exit_code = failed.exit_code if failed else 0
        self.reason = (pod.status.reason or (failed.reason if failed else "") or "Failed")[:REASON_CHARS_MAX]
        self.message = pod.status.message or (failed.message if failed else "")


def observe(cluster: str, pod: Pod, now_ms: int, *, confirmed: bool = True) -> Observed | None:
    """None when the labels do not say which pod of which job it is."""
    key = names.key_of(pod.metadata.labels)
    return None if key is None else Observed(cluster, pod, key, now_ms, confirmed=confirmed)


def _refused(pod: Pod) -> bool:
    reason = pod.status.reason
    if reason not in ADMISSION_REASONS and not reason.startswith(OUT_OF):
        return False
    statuses = [*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())]
    return not any(status.state.running or status.state.terminated for status in statuses)


def _first_failed(pod: Pod) -> ContainerTerminated | None:
    statuses: list[ContainerStatus] = [*(pod.status.init_container_statuses or ())]
    statuses += pod.status.container_statuses or ()
    for status in statuses:
        ended = status.state.terminated
        if ended and ended.exit_code != 0:
            return ended
    return None
