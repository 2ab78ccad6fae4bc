"""What enters the cell: commands (imperative) and facts (past tense), the items of the INBOX.

An inbox message is a batch of items (LOG-7). Every item is a tagged struct; the tag is its name on the wire and never
changes meaning. The core decides each item into transitions or a `CommandRefused`.
"""

from __future__ import annotations

from msgspec import Struct

from muster.core.model import (
    Amounts,
    GroupPlacement,
    JobSpec,
    NodeSpec,
    Pairs,
    QueueSpec,
    Shrinks,
    Zone,
)


class Item(Struct, array_like=True, frozen=True, tag_field="kind"):
    """Base of everything in the inbox."""


# --- commands -------------------------------------------------------------------------------------------------------


class SubmitJob(Item, tag="SubmitJob", frozen=True):
    """One job of a SubmitJobs request. Idempotent by (namespace, request_id, digest), LOG-11."""

    spec: JobSpec


class CancelJob(Item, tag="CancelJob", frozen=True):
    job: str
    actor: str = ""
    reason: str = ""
    request_id: str = ""


class UpsertQueue(Item, tag="UpsertQueue", frozen=True):
    """Create (expected_revision 0) or change a queue. `path` names it; the spec's id, parent, revision are ignored."""

    path: str
    spec: QueueSpec
    expected_revision: int = -1  # 0: must not exist; -1: whatever; else must match
    request_id: str = ""
    new_path: str = ""  # not empty: the queue moves there, with all below it (rule Q4)


class DeleteQueue(Item, tag="DeleteQueue", frozen=True):
    path: str
    expected_revision: int = -1
    request_id: str = ""


class ChangeQueues(Item, tag="ChangeQueues", frozen=True):
    """Many changes of the tree, in this order, as one (rule Q4): all of them or none."""

    changes: tuple[UpsertQueue | DeleteQueue, ...]
    request_id: str = ""
    expected_revision: int = -1  # of the whole tree (`tree_log`); -1: whatever

    @property
    def path(self) -> str:
        """What it is about, for a refusal."""
        return self.changes[0].path if self.changes else ""


class UpsertPriorityClass(Item, tag="UpsertPriorityClass", frozen=True):
    """Create or change a class. Jobs that are queued already keep what they have."""

    name: str
    value: int = 0
    labels: Pairs = ()
    request_id: str = ""
    min_runtime_ms: int = 0


class DeletePriorityClass(Item, tag="DeletePriorityClass", frozen=True):
    name: str
    request_id: str = ""


class CordonNode(Item, tag="CordonNode", frozen=True):
    """Reserved: refused with UNIMPLEMENTED until its rule is built. So are all below it."""

    cluster: str
    node: str
    cordoned: bool = True
    request_id: str = ""


class UpdateJob(Item, tag="UpdateJob", frozen=True):
    job: str
    mask: tuple[str, ...] = ()
    spec: JobSpec | None = None
    expected_revision: int = -1
    request_id: str = ""


class SuspendJob(Item, tag="SuspendJob", frozen=True):
    job: str
    request_id: str = ""


class ResumeJob(Item, tag="ResumeJob", frozen=True):
    job: str
    request_id: str = ""


class RequeueJob(Item, tag="RequeueJob", frozen=True):
    job: str
    request_id: str = ""


class ReportCheckpoint(Item, tag="ReportCheckpoint", frozen=True):
    job: str
    epoch: int = 0
    at_ms: int = 0
    request_id: str = ""


class UpsertReservation(Item, tag="UpsertReservation", frozen=True):
    name: str
    request_id: str = ""


class DeleteReservation(Item, tag="DeleteReservation", frozen=True):
    name: str
    request_id: str = ""


# --- facts ----------------------------------------------------------------------------------------------------------


class NodesReported(Item, tag="NodesReported", frozen=True):
    """Nodes of a cluster as its API server lists them. `complete`: this message ends the first full list, and any
    node of the cluster that no report named since `first` was set is gone (a relist)."""

    cluster: str
    nodes: tuple[NodeSpec, ...] = ()
    removed: tuple[str, ...] = ()
    first: bool = False  # this message starts a full list
    complete: bool = False


class NodeTopologyReported(Item, tag="NodeTopologyReported", frozen=True):
    """Zones and devices of one node as its kubelet's pod-resources API shows them."""

    cluster: str
    node: str
    zones: tuple[Zone, ...] = ()
    device_resource: str = ""
    devices: int = 0


class PodFact(Struct, array_like=True, frozen=True, gc=False):
    """What the cluster shows of one pod (LOG-15)."""

    job: str
    epoch: int
    pod: int
    phase: int
    attempt: int = 0
    uid: str = ""
    exit_code: int = 0
    reason: str = ""


class PodsObserved(Item, tag="PodsObserved", frozen=True):
    cluster: str
    pods: tuple[PodFact, ...]


class PlacementRejected(Item, tag="PlacementRejected", frozen=True):
    """The cluster will not have this placement (API server said no for good, or the kubelet refused admission)."""

    cluster: str
    job: str
    epoch: int
    pod: int
    code: str = ""
    message: str = ""
    attempt: int = 0
    by_node: bool = True  # False: the API server would not have the pod, on whatever node


class Entitlement(Struct, array_like=True, frozen=True):
    queue: str  # id
    amounts: Amounts


class EntitlementsComputed(Item, tag="EntitlementsComputed", frozen=True):
    """Only changed values; `ledger_seq` is the state they were computed from."""

    ledger_seq: int
    entitlements: tuple[Entitlement, ...]


class PreemptionPlanned(Item, tag="PreemptionPlanned", frozen=True):
    """A plan for a job that is entitled but does not fit: who leaves and where the job goes then, or if it is placed
    already, its further replicas (P3)."""

    job: str
    request: int  # the PreemptionRequested it answers
    victims: tuple[tuple[str, int], ...] = ()  # (job, epoch); empty: no plan exists
    placement: tuple[GroupPlacement, ...] = ()
    ledger_seq: int = 0
    shrinks: Shrinks = ()
    again_at_ms: int = 0  # without a plan: when somebody who is protected now no longer is (rule P4); 0: unknown
    reason: str = ""  # without a plan: why


AnyItem = (
    SubmitJob
    | CancelJob
    | UpsertQueue
    | DeleteQueue
    | ChangeQueues
    | CordonNode
    | UpdateJob
    | SuspendJob
    | ResumeJob
    | RequeueJob
    | ReportCheckpoint
    | UpsertPriorityClass
    | DeletePriorityClass
    | UpsertReservation
    | DeleteReservation
    | NodesReported
    | NodeTopologyReported
    | PodsObserved
    | PlacementRejected
    | EntitlementsComputed
    | PreemptionPlanned
)

FACTS = (
    NodesReported,
    NodeTopologyReported,
    PodsObserved,
    PlacementRejected,
    EntitlementsComputed,
    PreemptionPlanned,
)


class Undecodable(Struct, frozen=True):
    """Stands for an item whose bytes do not decode; never on the wire. Deciding it refuses it (LOG-9)."""

    reason: str


class InboxMessage(Struct, array_like=True, frozen=True):
    """What one message of the INBOX holds."""

    version: int
    items: tuple[AnyItem, ...]
