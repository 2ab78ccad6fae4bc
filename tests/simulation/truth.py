"""What the ledger says of pods, held against what the cluster knows of them (rules L5, LOG-15).

The ledger learns of pods by facts that are late, doubled and lost on the way, so most of the time it lags behind. One
thing it must never do is to be ahead: a pod that it counts as over has stopped, and is never created afterwards. Quota,
nodes and devices are given to others on its word, and the next epoch of a gang starts on it. The cluster says whether
it was true. Pods of a node that was removed are over by that alone.
"""

from __future__ import annotations

import asyncio

from muster.core import transitions as tr
from muster.core.jobs import is_over
from muster.sim.kube import SimKube
from muster_binder import names
from muster_binder.names import PodKey

ENDED = ("Succeeded", "Failed")


class Truth:
    """Told every transaction as the witness applies it, which is never before it was stored."""

    def __init__(self, kubes: dict[str, SimKube]) -> None:
        self._kubes = kubes
        self._over_ms: dict[PodKey, int] = {}  # when the ledger, at the latest, said that the pod was over

    def applied(self, tx: tr.Transaction) -> None:
        for transition in tx.transitions:
            if isinstance(transition, tr.PodsChanged):
                self._pods_changed(transition)

    def _pods_changed(self, t: tr.PodsChanged) -> None:
        said = {PodKey(t.job, t.epoch, pod.pod, pod.attempt): pod.phase for pod in t.pods if is_over(pod.phase)}
        for key in said:
            self._over_ms.setdefault(key, _now_ms())
        for kube in self._kubes.values() if said else ():
            for pod in kube.pods.values():
                key = names.key_of(pod["metadata"].get("labels"))
                alive = pod["status"]["phase"] not in ENDED and pod["spec"]["nodeName"] in kube.nodes
                assert not (key in said and alive), (
                    f"L5: pod {pod['metadata']['name']} is {pod['status']['phase']}, the ledger counts it as over"
                )

    def came_after_their_end(self) -> list[str]:
        """Pods that were created when the ledger had counted them as over."""
        found = []
        for kube in self._kubes.values():
            for record in kube.audit.records:
                if record.verb != "create" or record.resource != "pods" or record.code != 201:
                    continue
                if record.node not in kube.nodes:
                    continue
                key = PodKey(record.job, int(record.epoch), int(record.pod), int(record.attempt))
                over_ms = self._over_ms.get(key)
                if over_ms is not None and over_ms < record.time_ms:
                    found.append(f"{record.name} was created at {record.time_ms}, the ledger said over at {over_ms}")
        return found


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
