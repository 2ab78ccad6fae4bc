"""What is kept for a preemptor while its victims leave (rule P5).

A hold is the placement that a plan made possible. As long as a victim's pod is there it occupies what will be held; the
rest of the hold is charged to the overlay as if somebody ran there, and to the queues' usage, so nobody else takes it.
The holder itself is tried without its own hold and so gets the nodes the moment they are free.
"""

from __future__ import annotations

from collections.abc import Callable

from muster.core import layout, resources
from muster.core.jobs import Job, is_over
from muster.core.model import Amounts, GroupPlacement, TaskGroup
from muster.core.overlay import Overlay
from muster.core.queues import QueueTree, Usage
from muster.core.state import Hold

Kept = tuple[tuple[TaskGroup, ...], tuple[GroupPlacement, ...]]  # stand-ins for the pods of the holder
FindJob = Callable[[str], Job | None]


class _NodeShare:
    """What of one node is held: amounts without devices, devices in thousandths."""

    __slots__ = ("amounts", "devices", "kind")

    def __init__(self) -> None:
        self.amounts: dict[str, int] = {}
        self.devices: dict[int, int] = {}
        self.kind = ""

    def add(self, one: Amounts, devices: bytes, sign: int) -> None:
        for resource, amount in one:
            if not resources.is_device(resource):
                self.amounts[resource] = self.amounts.get(resource, 0) + sign * amount
            else:
                self.kind = resource
                for device in devices:
                    millis = min(amount, resources.DEVICE_MILLIS)
                    self.devices[device] = self.devices.get(device, 0) + sign * millis


def kept_on_nodes(hold: Hold, find: FindJob) -> Kept:
    """The part of the hold that no victim occupies any more, as stand-in pods for an overlay."""
    holder = find(hold.job)
    if holder is None:
        return (), ()
    shares: dict[int, _NodeShare] = {}
    for pod in layout.each_pod(holder.gang.tasks, hold.placement):
        shares.setdefault(pod.node, _NodeShare()).add(holder.gang.per_pod[pod.group], pod.devices, 1)
    for victim in _victims(hold, find):
        for pod in layout.each_pod(victim.gang.tasks, victim.placement):
            if pod.node in shares and not is_over(victim.phases[pod.position]):
                shares[pod.node].add(victim.gang.per_pod[pod.group], pod.devices, -1)
    groups: list[TaskGroup] = []
    placement: list[GroupPlacement] = []
    for node in sorted(shares):
        for requests, devices in _stand_ins(shares[node]):
            placement.append(GroupPlacement(len(groups), ((node, 1),), devices))
            groups.append(TaskGroup("hold", 1, 1, requests))
    return tuple(groups), tuple(placement)


def _stand_ins(share: _NodeShare) -> list[tuple[Amounts, bytes]]:
    """Pods that together use what is held: one for whole devices and the rest, one for each part of a device."""
    whole = sorted(d for d, millis in share.devices.items() if millis == resources.DEVICE_MILLIS)
    parts = sorted((d, millis) for d, millis in share.devices.items() if 0 < millis < resources.DEVICE_MILLIS)
    amounts = {resource: amount for resource, amount in share.amounts.items() if amount > 0}
    if not amounts and not whole and not parts:
        return []
    stand_ins: list[tuple[Amounts, bytes]] = [(((share.kind, millis),), bytes((d,))) for d, millis in parts]
    pods = amounts.pop(resources.PODS, 0) - len(stand_ins) - 1  # every pod counts as one already
    if pods > 0:
        amounts[resources.PODS] = pods
    if whole:
        amounts[share.kind] = len(whole) * resources.DEVICE_MILLIS
    return [(resources.amounts(amounts), bytes(whole)), *stand_ins]


def kept_of_quota(hold: Hold, find: FindJob) -> Usage:
    """What the holder will use beyond what its victims still use (committed usage, rule Q3)."""
    holder = find(hold.job)
    if holder is None:
        return {}
    counts = {group.group: layout.pods_placed(group) for group in hold.placement}
    kept = dict(holder.gang.of_counts(counts))
    for victim in _victims(hold, find):
        live = [
            pod.position
            for pod in layout.each_pod(victim.gang.tasks, victim.placement)
            if not is_over(victim.phases[pod.position])
        ]
        for resource, amount in victim.gang.of_positions(live):
            kept[resource] = kept.get(resource, 0) - amount
    return {resource: amount for resource, amount in kept.items() if amount > 0}


def _victims(hold: Hold, find: FindJob) -> list[Job]:
    """Those that still hold something."""
    jobs = [(find(job_id), epoch) for job_id, epoch in hold.victims]
    return [job for job, epoch in jobs if job is not None and job.epoch == epoch and job.charged]


class Kepts:
    """All holds of a moment, charged to an overlay."""

    def __init__(self, holds: dict[str, Hold], find: FindJob, overlay: Overlay, tree: QueueTree) -> None:
        self._overlay = overlay
        self._tree = tree
        self._on_nodes: dict[str, Kept] = {}
        self._of_quota: dict[str, tuple[str, Usage]] = {}
        self.usage: dict[str, Usage] = {}  # queue id -> held, along the paths
        for job_id in sorted(holds):
            holder = find(job_id)
            if holder is None:
                continue
            kept = self._on_nodes[job_id] = kept_on_nodes(holds[job_id], find)
            overlay.charge(*kept)
            quota = kept_of_quota(holds[job_id], find)
            self._of_quota[job_id] = (holder.queue, quota)
            self._count(holder.queue, quota, 1)

    def lift(self, job_id: str) -> None:
        """Without this job's hold: it is being tried."""
        if job_id in self._on_nodes:
            self._overlay.release(*self._on_nodes[job_id])
            self._count(*self._of_quota[job_id], -1)

    def restore(self, job_id: str) -> None:
        """It did not fit."""
        if job_id in self._on_nodes:
            self._overlay.charge(*self._on_nodes[job_id])
            self._count(*self._of_quota[job_id], 1)

    def drop(self, job_id: str) -> None:
        """It was placed; its hold was lifted before."""
        self._on_nodes.pop(job_id, None)
        self._of_quota.pop(job_id, None)

    def _count(self, queue: str, quota: Usage, sign: int) -> None:
        for q in self._tree.by_id[queue].chain:
            usage = self.usage.setdefault(q.id, {})
            for resource, amount in quota.items():
                usage[resource] = usage.get(resource, 0) + sign * amount
