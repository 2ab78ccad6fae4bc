"""What is kept for a preemptor while its victims leave (rule P5).

A hold is the placement that a plan made possible; of a placed job, what it will grow by. As long as a victim's pod is
there it occupies what will be held; the rest of the hold is charged to the overlay as if somebody ran there, and to the
queues' usage, so nobody else takes it. The holder itself is tried without its own hold and so gets the nodes the moment
they are free.
"""

from __future__ import annotations

from collections.abc import Callable

from muster.core import layout, resources
from muster.core.jobs import Job, is_over
from muster.core.members import Key, Member, keys_of
from muster.core.model import Amounts, GroupPlacement, JobState, TaskGroup
from muster.core.overlay import Overlay
from muster.core.queues import Queue, QueueTree, Usage
from muster.core.state import Hold

Kept = tuple[tuple[TaskGroup, ...], tuple[GroupPlacement, ...]]  # stand-ins for the pods of the holder
FindJob = Callable[[str], Job | None]
Age = tuple[int, int, str]  # orders holds; of those made before `made_ms` was kept, by when they expire
Freed = dict[tuple[str, int, int], Age]  # (job, epoch, position) -> the last hold that it left for


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


def freed_for(holds: dict[str, Hold]) -> Freed:
    """For whom replicas leave. One that left, grew again and leaves again does so for the later hold."""
    freed: Freed = {}
    for hold in holds.values():
        for job_id, epoch, positions in hold.shrinks:
            for position in positions:
                key, made = (job_id, epoch, position), age(hold)
                freed[key] = max(made, freed.get(key, made))
    return freed


def age(hold: Hold) -> Age:
    return hold.made_ms, hold.expires_ms, hold.job


def kept_on_nodes(hold: Hold, find: FindJob, freed: Freed) -> Kept:
    """The part of the hold that no victim occupies any more, as stand-in pods for an overlay."""
    holder = find(hold.job)
    if holder is None:
        return (), ()
    shares: dict[int, _NodeShare] = {}
    for pod in layout.each_pod(holder.gang.tasks, hold.placement):
        shares.setdefault(pod.node, _NodeShare()).add(holder.gang.per_pod[pod.group], pod.devices, 1)
    for victim, live in still_there(hold, find, freed):
        positions = dict.fromkeys(live)
        for pod in layout.each_pod(victim.gang.tasks, victim.placement):
            if pod.node in shares and pod.position in positions:
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


def kept_of_quota(hold: Hold, find: FindJob, freed: Freed, tree: QueueTree) -> dict[str, Usage]:
    """By queue of the holder's path: what the holder will use beyond what its victims there still use."""
    holder = find(hold.job)
    if holder is None:
        return {}
    need = holder.gang.of_groups(hold.placement)
    kept = {queue.id: dict(need) for queue in tree.by_id[holder.queue].chain}
    for victim, live in still_there(hold, find, freed):
        amounts = victim.gang.of_positions(live)
        for queue in tree.by_id[victim.queue].chain:
            if queue.id in kept:
                usage = kept[queue.id]
                for resource, amount in amounts:
                    usage[resource] = usage.get(resource, 0) - amount
    return {queue: {r: amount for r, amount in usage.items() if amount > 0} for queue, usage in kept.items()}


def kept_of_members(hold: Hold, find: FindJob, freed: Freed, tree: QueueTree) -> dict[tuple[str, Key], Member]:
    """The same for those whose job the holder is, in the queues of its path that keep their members (rule Q1)."""
    holder = find(hold.job)
    tracked = tree.by_id[holder.queue].tracked if holder is not None else ()
    if holder is None or not tracked:
        return {}
    kept = {(queue.id, key): Member() for queue in tracked for key in keys_of(holder.spec)}
    for member in kept.values():
        member.count(0, int(not holder.charged), holder.gang.of_groups(hold.placement))
    for victim, live in still_there(hold, find, freed):
        for queue in tree.by_id[victim.queue].tracked:
            for key in keys_of(victim.spec):
                if (queue.id, key) in kept:
                    whole = victim.state is JobState.STOPPING
                    kept[queue.id, key].count(0, -int(whole), victim.gang.of_positions(live), -1)
    for member in kept.values():
        member.running = max(member.running, 0)
        member.usage = {resource: amount for resource, amount in member.usage.items() if amount > 0}
    return kept


def still_there(hold: Hold, find: FindJob, freed: Freed) -> list[tuple[Job, list[int]]]:
    """Jobs that make room for the holder, with the positions that were to go and are not over yet.

    What of a victim was asked to leave before makes room for somebody else, and is not counted twice.
    """
    found = []
    for job_id, epoch in hold.victims:
        job = find(job_id)
        if job is not None and job.epoch == epoch and job.charged:
            found.append(
                (job, [p for p, phase in enumerate(job.phases) if not is_over(phase) and p not in job.leaving])
            )
    for job_id, epoch, positions in hold.shrinks:
        job = find(job_id)
        if job is not None and job.epoch == epoch and job.charged:
            mine = [p for p in positions if freed[job_id, epoch, p] == age(hold)]
            found.append((job, [p for p in mine if p in job.leaving]))
    return found


class Kepts:
    """All holds of a moment, charged to an overlay."""

    def __init__(self, holds: dict[str, Hold], find: FindJob, overlay: Overlay, tree: QueueTree) -> None:
        self._overlay = overlay
        self._on_nodes: dict[str, Kept] = {}
        self._of_quota: dict[str, dict[str, Usage]] = {}  # job -> queue id -> held
        self._of_members: dict[str, dict[tuple[str, Key], Member]] = {}
        self._members: dict[tuple[str, Key], Member] = {}  # (queue id, member) -> held
        self.usage: dict[str, Usage] = {}  # queue id -> held, along the paths
        freed = freed_for(holds)
        for job_id in sorted(holds):
            holder = find(job_id)
            if holder is None:
                continue
            kept = self._on_nodes[job_id] = kept_on_nodes(holds[job_id], find, freed)
            overlay.charge(*kept)
            quota = self._of_quota[job_id] = kept_of_quota(holds[job_id], find, freed, tree)
            self._count(quota, 1)
            members = self._of_members[job_id] = kept_of_members(holds[job_id], find, freed, tree)
            self._count_members(members, 1)

    def member(self, queue: Queue, key: Key, member: Member) -> Member:
        """What somebody has in the queue, with what is held for their jobs."""
        kept = self._members.get((queue.id, key))
        if kept is None:
            return member
        both = member.copy()
        both.count(0, kept.running, kept.usage.items())
        return both

    def lift(self, job_id: str) -> None:
        """Without this job's hold: it is being tried."""
        if job_id in self._on_nodes:
            self._overlay.release(*self._on_nodes[job_id])
            self._count(self._of_quota[job_id], -1)
            self._count_members(self._of_members[job_id], -1)

    def restore(self, job_id: str) -> None:
        """It did not fit."""
        if job_id in self._on_nodes:
            self._overlay.charge(*self._on_nodes[job_id])
            self._count(self._of_quota[job_id], 1)
            self._count_members(self._of_members[job_id], 1)

    def drop(self, job_id: str) -> None:
        """It was placed; its hold was lifted before."""
        self._on_nodes.pop(job_id, None)
        self._of_quota.pop(job_id, None)
        self._of_members.pop(job_id, None)

    def _count_members(self, members: dict[tuple[str, Key], Member], sign: int) -> None:
        for of, kept in members.items():
            self._members.setdefault(of, Member()).count(0, sign * kept.running, kept.usage.items(), sign)

    def _count(self, quota: dict[str, Usage], sign: int) -> None:
        for queue, kept in quota.items():
            usage = self.usage.setdefault(queue, {})
            for resource, amount in kept.items():
                usage[resource] = usage.get(resource, 0) + sign * amount
