"""The pods of this cell as the clusters show them, found by job and by cluster.

Every replica keeps the pods of all partitions: a watch has no selector for a partition, and a replica that takes one
over has the pods at hand. An entry made from the answer to our own create is unconfirmed until the watch shows it.
"""

from __future__ import annotations

from collections.abc import Collection

from muster_binder.names import PodKey
from muster_binder.observed import Observed


class PodCache:
    """Not thread-safe, not persistent; filled again from a list."""

    def __init__(self) -> None:
        self._by_job: dict[str, dict[PodKey, Observed]] = {}
        self._by_cluster: dict[str, dict[PodKey, Observed]] = {}
        self._unconfirmed: dict[PodKey, Observed] = {}  # oldest first
        self._epochs: dict[str, dict[int, int]] = {}  # job -> epoch -> pods

    def get(self, key: PodKey) -> Observed | None:
        pods = self._by_job.get(key.job)
        return None if pods is None else pods.get(key)

    def of_job(self, job: str) -> Collection[Observed]:
        """A copy: the caller may change the cache while it looks."""
        pods = self._by_job.get(job)
        return () if pods is None else tuple(pods.values())

    def any_before(self, job: str, epoch: int) -> bool:
        """Whether a pod of an earlier epoch is still there."""
        epochs = self._epochs.get(job)
        return epochs is not None and any(earlier < epoch for earlier in epochs)

    def of_cluster(self, cluster: str) -> dict[PodKey, Observed]:
        return self._by_cluster.setdefault(cluster, {})

    def jobs(self) -> Collection[str]:
        return tuple(self._by_job)

    def unconfirmed_before(self, ms: int) -> Collection[Observed]:
        """Entries that the watch should have shown by now."""
        late: list[Observed] = []
        for pod in self._unconfirmed.values():
            if pod.seen_ms > ms:
                break
            late.append(pod)
        return late

    def put(self, pod: Observed) -> Observed | None:
        """Keep the newest view of a pod; returns the one before."""
        pods = self._by_job.setdefault(pod.key.job, {})
        before = pods.get(pod.key)
        if before is not None:
            pod.first_ms = before.first_ms
        else:
            epochs = self._epochs.setdefault(pod.key.job, {})
            epochs[pod.key.epoch] = epochs.get(pod.key.epoch, 0) + 1
        pods[pod.key] = pod
        self.of_cluster(pod.cluster)[pod.key] = pod
        if pod.confirmed:
            self._unconfirmed.pop(pod.key, None)
        else:
            self._unconfirmed[pod.key] = pod
        return before

    def remove(self, pod: Observed) -> bool:
        """False if the entry is another pod's (or none) by now."""
        pods = self._by_job.get(pod.key.job)
        current = None if pods is None else pods.get(pod.key)
        if pods is None or current is None or current.uid != pod.uid:
            return False
        del pods[pod.key]
        if not pods:
            del self._by_job[pod.key.job]
        self._count_out(pod.key)
        self.of_cluster(pod.cluster).pop(pod.key, None)
        self._unconfirmed.pop(pod.key, None)
        return True

    def _count_out(self, key: PodKey) -> None:
        epochs = self._epochs[key.job]
        epochs[key.epoch] -= 1
        if not epochs[key.epoch]:
            del epochs[key.epoch]
        if not epochs:
            del self._epochs[key.job]
