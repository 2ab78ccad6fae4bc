"""Upper bounds of the encoded size of transitions, so that `decide` can close a transaction in time (LOG-8).

Cheap enough for every transition, and tight where thousands of one kind come together. Whoever adds a transition looks
here; a test holds the bounds against the encoder.
"""

from __future__ import annotations

from typing import Final

from muster.core import transitions as tr
from muster.core.model import Allowance, Amounts, GroupPlacement, JobSpec, Pairs, PodChange, QueueSpec, TaskGroup

QUEUED_BYTES: Final = 128  # of a JobQueued, beside its spec
_SMALL: Final[dict[type[tr.Transition], int]] = {  # upper bounds for kinds that come in thousands
    tr.NodeRemoved: 40,
    tr.QueueRemoved: 40,
    tr.CyclePaused: 80,
    tr.PreemptionRequested: 80,
    tr.JobStarting: 64,
    tr.JobRunning: 64,
    tr.JobSucceeded: 64,
    tr.CheckpointReported: 80,
    tr.JobForgotten: 64,
    tr.JobRequeued: 128,
    tr.JobPreempted: 128,
}
_QUEUE_BYTES: Final = 24  # of a QueueUpserted, beside what is in its fields
_TEXT_BYTES: Final = 192  # of transitions with texts, beside these


def size_of(transition: tr.Transition) -> int:
    """An upper bound of the encoded size of any transition."""
    small = _SMALL.get(type(transition))
    if small is not None:
        return small
    if isinstance(transition, (tr.JobStopping, tr.JobFailed, tr.JobCancelled)):
        suspects = transition.suspects if isinstance(transition, tr.JobStopping) else ()
        return _TEXT_BYTES + len(transition.message.encode()) + 5 * len(suspects)
    if isinstance(transition, tr.CommandRefused):
        texts = [transition.subject, transition.request_id, transition.field, transition.message]
        texts += [transition.namespace, transition.name, transition.queue]
        return _TEXT_BYTES + sum(len(text.encode()) for text in texts)
    if isinstance(transition, tr.HoldReleased):
        return _TEXT_BYTES + len(transition.reason.encode())
    if isinstance(transition, tr.JobQueued):
        return spec_bytes(transition.spec) + QUEUED_BYTES
    if isinstance(transition, (tr.JobPlaced, tr.JobGrown)):
        return placed_bytes(transition.groups)
    if isinstance(transition, tr.HoldMade):
        return placed_bytes(transition.placement) + _victims_bytes(transition)
    if isinstance(transition, tr.JobShrunk):
        return 256 + 5 * (len(transition.pods) + len(transition.suspects)) + 4 * len(transition.message)
    if isinstance(transition, tr.PodsChanged):
        return pods_changed_bytes(transition.pods)
    if isinstance(transition, tr.NodeUpserted):
        s = transition.spec
        pairs = sum(len(k) + len(v) + 8 for k, v in s.labels)
        return (
            256
            + len(s.name)
            + len(s.cluster)
            + pairs
            + 64 * (len(s.allocatable) + len(s.used_by_others) + len(s.taints))
        )
    if isinstance(transition, tr.NodeZonesUpdated):
        return 64 + sum(64 + 64 * (len(z.allocatable) + len(z.used)) + 3 * len(z.devices) for z in transition.zones)
    if isinstance(transition, tr.QueueUpserted):
        return queue_bytes(transition.spec)
    if isinstance(transition, tr.PriorityClassUpserted):
        c = transition.spec
        return _TEXT_BYTES + sum(len(k.encode()) + len(v.encode()) + 10 for k, v in c.labels)
    if isinstance(transition, tr.EntitlementsSet):
        return 64 + sum(64 + 64 * len(e.amounts) for e in transition.entitlements)
    return 512 + len(getattr(transition, "message", ""))


def queue_bytes(spec: QueueSpec) -> int:
    """An upper bound of the encoded size of a QueueUpserted: tight, because whole trees come in one transaction."""
    texts = (spec.id, spec.name, spec.parent, spec.ordering, spec.preemption, spec.state, spec.fair_by)
    times = (spec.min_runtime_ms, spec.half_life_ms, spec.preemption_backoff_ms, spec.preemption_backoff_max_ms)
    return (
        _QUEUE_BYTES
        + sum(_text_bytes(text) for text in texts)
        + sum(_whole_bytes(number) for number in (spec.revision, spec.weight, spec.priority, *times))
        + sum(_amounts_bytes(amounts) for amounts in (spec.guaranteed, spec.limit, spec.lending_limit))
        + _labels_bytes(spec.labels)
        + _allowance_bytes(spec.per_namespace)
        + _allowance_bytes(spec.per_user)
    )


def _allowance_bytes(allowance: Allowance) -> int:
    counts = _whole_bytes(allowance.pending_jobs) + _whole_bytes(allowance.running_jobs)
    return 1 + counts + _amounts_bytes(allowance.resources)


def _amounts_bytes(amounts: Amounts) -> int:
    return 5 + sum(1 + _text_bytes(resource) + _whole_bytes(amount) for resource, amount in amounts)


def _labels_bytes(labels: Pairs) -> int:
    return 5 + sum(1 + _text_bytes(key) + _text_bytes(value) for key, value in labels)


def _text_bytes(text: str) -> int:
    size = len(text.encode())
    return size + (1 if size < 32 else 5)


def _whole_bytes(number: int) -> int:
    return 1 if 0 <= number < 128 else 5 if abs(number) < 1 << 31 else 9


def placed_bytes(placement: tuple[GroupPlacement, ...]) -> int:
    """An upper bound of the encoded size of a JobPlaced or JobGrown."""
    size = 160
    for group in placement:
        size += 32 + 12 * (len(group.runs) + len(group.skipped)) + len(group.devices)
    return size


def pods_changed_bytes(pods: tuple[PodChange, ...]) -> int:
    """An upper bound of the encoded size of a PodsChanged."""
    size = 64
    for pod in pods:
        size += 24 + len(pod.reason)
    return size


def _victims_bytes(hold: tr.HoldMade) -> int:
    return 48 * len(hold.victims) + sum(56 + 5 * len(pods) for _, _, pods in hold.shrinks)


def spec_bytes(spec: JobSpec, groups: int | None = None) -> int:
    """Upper bound of the encoded size of a job spec. `groups`: of its task groups, if known (`tasks_bytes`)."""
    text = 0
    for pairs in (spec.labels, spec.annotations):
        for key, value in pairs:
            text += len(key) + len(value) + 10
    if groups is None:
        groups = tasks_bytes(spec.tasks)
    return (
        352
        + len(spec.priority_class)
        + len(spec.name)
        + len(spec.queue)
        + len(spec.namespace)
        + 4 * (text + groups) // 3
    )


def tasks_bytes(tasks: tuple[TaskGroup, ...]) -> int:
    """What the task groups add to `spec_bytes`."""
    groups = 0
    for t in tasks:
        groups += 64 + len(t.name) + len(t.template) + 24 * len(t.requests)
        groups += sum(len(r) for r, _ in t.requests) + sum(len(k) + len(v) + 10 for k, v in t.node_selector)
        groups += sum(24 + len(r.key) + sum(len(v) + 5 for v in r.values) for term in t.affinity for r in term)
        groups += sum(40 + len(x.key) + len(x.value) for x in t.tolerations)
    return groups
