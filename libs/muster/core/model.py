"""What a job, a queue and a node are, as values.

These structs are both the core's own types and what is stored in the inbox, the ledger and snapshots (array-encoded
msgspec; the encoding is positional, so fields are only ever appended, with a default). They are frozen: change happens
by transitions. Quantities are integers in canonical units (see `resources`): cpu in milli-cores, memory in bytes,
devices (GPUs) in thousandths of one device, anything else in units. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from msgspec import Struct

from muster.core.limits import PREEMPTIONS_MAX

type_ = type  # `type` reads as a field name elsewhere

Amounts = tuple[tuple[str, int], ...]  # (resource, amount), sorted by resource, amounts > 0
Pairs = tuple[tuple[str, str], ...]  # labels, selectors: sorted by key
Shrinks = tuple[tuple[str, int, tuple[int, ...]], ...]  # (job, epoch, positions): elastic replicas that leave


class JobState(StrEnum):
    """States of rule L1. The table of what leads where is in `lifecycle`."""

    QUEUED = "Queued"
    RESERVED = "Reserved"
    PLACED = "Placed"
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


class PodPhase(IntEnum):
    """Phases of a pod of a placement; they only move forward (LOG-15)."""

    PLACED = 0  # decided, not seen in the cluster yet
    CREATED = 1  # the API server has it
    RUNNING = 2
    SUCCEEDED = 3
    FAILED = 4
    GONE = 5  # deleted; whatever it ran has stopped


class Reason(StrEnum):
    """Why something happened to a job, for people and programs. Shown in status, events and metrics."""

    NONE = ""
    SUBMITTED = "Submitted"
    PLACED = "Placed"
    ALL_SUCCEEDED = "AllPodsSucceeded"
    POD_FAILED = "PodFailed"
    CANCELLED_BY_USER = "CancelledByUser"
    MAX_RUNTIME = "MaxRuntimeExceeded"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    PLACEMENT_REJECTED = "PlacementRejected"
    START_TIMEOUT = "StartTimeout"
    POD_GONE = "PodDeletedByOthers"
    QUEUE_DRAINED = "QueueDrained"
    SHRUNK = "Shrunk"  # replicas beyond the minimum were taken away for another job (rule P2c)
    WAITS_FOR_ROOM = "WaitsForRoom"  # of an array job nothing runs any more and the rest has no room yet (rule G1)


class Toleration(Struct, array_like=True, frozen=True, gc=False):
    """As in Kubernetes; an empty key with operator Exists tolerates everything."""

    key: str = ""
    operator: str = "Equal"  # Equal | Exists
    value: str = ""
    effect: str = ""  # empty: every effect


class Taint(Struct, array_like=True, frozen=True, gc=False):
    key: str
    value: str = ""
    effect: str = "NoSchedule"  # NoSchedule | NoExecute | PreferNoSchedule


class Requirement(Struct, array_like=True, frozen=True):
    """One expression of a required node affinity term."""

    key: str
    operator: str  # In | NotIn | Exists | DoesNotExist | Gt | Lt
    values: tuple[str, ...] = ()


class TaskGroup(Struct, array_like=True, frozen=True):
    """A role of a job (rule G1): `replicas` equal pods, at least `min_replicas` of them or none."""

    name: str
    replicas: int
    min_replicas: int
    requests: Amounts  # per pod
    node_selector: Pairs = ()
    affinity: tuple[tuple[Requirement, ...], ...] = ()  # OR of ANDs; empty: no constraint
    tolerations: tuple[Toleration, ...] = ()
    policy: str = ""  # "PACK" | "SPREAD" | "" (PACK)
    template: bytes = b""  # the Kubernetes pod template as JSON; opaque to the core


EVERY_INDEX = "EVERY_INDEX"  # JobSpec.completion of array jobs


class JobOptions(Struct, array_like=True, frozen=True):
    """Parts of the API that are reserved: carried, but refused until their rule is built (`submission.UNBUILT`)."""

    fields: tuple[str, ...] = ()  # names of the reserved fields that were set, in proto order


class JobSpec(Struct, array_like=True, frozen=True):
    """What was submitted. `queue` is the path as the user wrote it; the state knows the queue by id."""

    id: str  # 32 hex digits, LOG-11
    namespace: str
    name: str
    queue: str
    tasks: tuple[TaskGroup, ...]
    priority: int = 0
    submitter: str = ""
    request_id: str = ""
    digest: str = ""  # of the item's body, LOG-11
    labels: Pairs = ()
    annotations: Pairs = ()
    max_runtime_ms: int = 0  # 0: none; enforced (rule B1)
    max_wait_ms: int = 0  # 0: the default of rule B3
    cluster_selector: Pairs = ()
    preemptible: bool = True
    trace: str = ""  # W3C traceparent of the submission
    options: JobOptions | None = None
    completion: str = ""  # rule G1: "" (ALL_PLACED) or EVERY_INDEX, which makes it an array job
    max_parallel: int = 0  # of an array job: so many pods at once; 0: all
    checkpoint_ms: int = 0  # rule P3: its work is safe at every multiple of this after it began; 0: never by itself
    max_preemptions: int = PREEMPTIONS_MAX  # rule P4: after so many it is preempted only by higher priority
    priority_class: str = ""  # where priority and min_runtime come from; they are settled when the job is queued
    min_runtime_ms: int = 0  # rule P4, of its class: not preempted before it has run that long, nor before its queue's


class PriorityClass(Struct, array_like=True, frozen=True):
    """A priority with a name, and how long jobs of the class are left alone (rule P4)."""

    name: str
    value: int = 0
    labels: Pairs = ()
    min_runtime_ms: int = 0


class Allowance(Struct, array_like=True, frozen=True):
    """What each namespace, or each user, may have in a queue at most (rule Q1). -1 and absent resources: no limit."""

    pending_jobs: int = -1  # live jobs that are not placed
    running_jobs: int = -1  # jobs that are charged
    resources: Amounts = ()  # charged usage


class QueueSpec(Struct, array_like=True, frozen=True):
    """A queue as stored (rule Q1): the path is derived from the parents' names, so a move renames nothing."""

    id: str
    name: str
    parent: str  # id of the parent, "" for a root queue
    revision: int = 1
    weight: int = 1
    priority: int = 0
    ordering: str = "PRIORITY"  # FIFO | PRIORITY | FAIR
    preemption: str = "LOWER_PRIORITY"  # NEVER | LOWER_PRIORITY | ANY
    state: str = "OPEN"  # OPEN | CLOSED | STOPPED | DRAINING
    guaranteed: Amounts = ()
    limit: Amounts = ()
    lending_limit: Amounts = ()
    labels: Pairs = ()
    per_namespace: Allowance = Allowance()
    per_user: Allowance = Allowance()
    fair_by: str = "NAMESPACE"  # NAMESPACE | USER: between whom a queue with ordering FAIR is fair (rule F5)
    min_runtime_ms: int = 0  # rule P4: its jobs are not preempted before they have run that long
    half_life_ms: int = 0  # rule F4, of a root queue for its tree: how fast past usage fades; 0: it does not count
    preemption_backoff_ms: int = 0  # rule P5: how long a preempted job waits first, then doubled; 0: as the queue above
    preemption_backoff_max_ms: int = 0  # and at most; 0: as the queue above, in the end what `limits` says


class Zone(Struct, array_like=True, frozen=True):
    """A NUMA zone of a node as its kubelet reports it."""

    id: int
    allocatable: Amounts = ()
    used: Amounts = ()
    devices: tuple[int, ...] = ()  # indices of the node's devices that sit in this zone


class NodeSpec(Struct, array_like=True, frozen=True):
    """A node as the cluster describes it. `devices` devices of `device_resource` are state of their own (rule G4)."""

    cluster: str
    name: str
    allocatable: Amounts
    labels: Pairs = ()
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    cordoned: bool = False
    device_resource: str = ""
    devices: int = 0
    used_by_others: Amounts = ()  # pods that are not Muster's


class GroupPlacement(Struct, array_like=True, frozen=True):
    """Where the pods of one task group go, in runs: pods are numbered 0.. along the runs (LOG-8).

    `runs` are (node index, pod count). `devices` lists, pod after pod, the device indices each pod gets: k bytes a pod
    that asked for k whole devices, one byte for a share, nothing where the group asks for no device.

    `skipped` are (first replica, count) that the runs pass over, ascending and apart: indices of an array job that had
    succeeded before it was placed (rule G1).
    """

    group: int
    runs: tuple[tuple[int, int], ...]
    devices: bytes = b""
    skipped: tuple[tuple[int, int], ...] = ()


class PodChange(Struct, array_like=True, frozen=True, gc=False):
    """A pod's phase moved forward. `pod` is its position in the job: groups in order, indices within a group."""

    pod: int
    phase: int
    attempt: int = 0
    exit_code: int = 0
    reason: str = ""


class InboxPosition(Struct, array_like=True, frozen=True, gc=False, order=True):
    """An item of the inbox: stream sequence and index within the message (LOG-1)."""

    seq: int
    item: int
