"""What happened: the transitions of the LEDGER. State is the fold of these, nothing else.

One ledger message is one transaction: a header and a list of transitions, all or nothing (LOG-1).
"""

from __future__ import annotations

from msgspec import Struct

from muster.core.commands import Entitlement
from muster.core.model import (
    GroupPlacement,
    InboxPosition,
    JobSpec,
    NodeSpec,
    PodChange,
    PriorityClass,
    QueueSpec,
    Shrinks,
    Zone,
)

LEDGER_VERSION = 1


class Transition(Struct, array_like=True, frozen=True, tag_field="kind"):
    """Base of everything in the ledger."""


# --- the cell -------------------------------------------------------------------------------------------------------


class LeaderElected(Transition, tag="LeaderElected", frozen=True):
    """Starts a term (LOG-5)."""

    epoch: int
    leader: str


class InboxItemQuarantined(Transition, tag="InboxItemQuarantined", frozen=True):
    position: InboxPosition
    reason: str


class CommandRefused(Transition, tag="CommandRefused", frozen=True):
    """A command broke a rule (LOG-9). `subject` is the job id or queue path it was about.

    A job that was never taken is in no state: what it was called stands here, for those who watch a queue or namespace.
    """

    position: InboxPosition
    command: str
    subject: str
    request_id: str
    code: str
    field: str
    message: str
    rule: str = ""
    namespace: str = ""
    name: str = ""
    queue: str = ""


class CyclePaused(Transition, tag="CyclePaused", frozen=True):
    """The scheduling cycle ended; or, `paused`, it ran out of work units and goes on without the classes of `blocked`.

    `after` is how older ledgers said that it was paused.
    """

    after: tuple[int, int, str] | None = None
    paused: bool = False
    blocked: tuple[str, ...] = ()  # jobs: the one that was looked at of each class, elastic ones that could not grow


# --- nodes ----------------------------------------------------------------------------------------------------------


class NodeUpserted(Transition, tag="NodeUpserted", frozen=True):
    index: int
    spec: NodeSpec


class NodeRemoved(Transition, tag="NodeRemoved", frozen=True):
    index: int


class NodeZonesUpdated(Transition, tag="NodeZonesUpdated", frozen=True):
    index: int
    zones: tuple[Zone, ...]


class ClusterListStarted(Transition, tag="ClusterListStarted", frozen=True):
    """A full list of a cluster's nodes begins: nodes not named until it is complete are gone."""

    cluster: str


class NodesSeen(Transition, tag="NodesSeen", frozen=True):
    """During a full list: these nodes were named and are as they were."""

    cluster: str
    nodes: tuple[int, ...]  # indices


class ClusterSynced(Transition, tag="ClusterSynced", frozen=True):
    """A complete report of the cluster's nodes was applied (rule Q2)."""

    cluster: str


# --- queues ---------------------------------------------------------------------------------------------------------


class QueueUpserted(Transition, tag="QueueUpserted", frozen=True):
    spec: QueueSpec


class QueueRemoved(Transition, tag="QueueRemoved", frozen=True):
    queue: str


class EntitlementsSet(Transition, tag="EntitlementsSet", frozen=True):
    entitlements: tuple[Entitlement, ...]
    ledger_seq: int


class PriorityClassUpserted(Transition, tag="PriorityClassUpserted", frozen=True):
    spec: PriorityClass


class PriorityClassRemoved(Transition, tag="PriorityClassRemoved", frozen=True):
    name: str


# --- jobs -----------------------------------------------------------------------------------------------------------


class JobQueued(Transition, tag="JobQueued", frozen=True):
    spec: JobSpec
    queue: str  # id
    position: InboxPosition


class JobPlaced(Transition, tag="JobPlaced", frozen=True):
    """The gang has its nodes; quota is charged from here on (rule Q3)."""

    job: str
    epoch: int
    groups: tuple[GroupPlacement, ...]


class JobGrown(Transition, tag="JobGrown", frozen=True):
    """More replicas of a placed elastic job have their nodes (rule G1); charged from here on.

    The new pods of a group take its lowest vacant positions (never placed, or gone and not leaving), in ascending
    order along the runs. A position that was used before in this epoch gets the next attempt (LOG-15).
    """

    job: str
    epoch: int
    groups: tuple[GroupPlacement, ...]  # only what is added


class JobShrunk(Transition, tag="JobShrunk", frozen=True):
    """These pods leave a job that goes on without them; it keeps its minimum (rules G1, P2c).

    Pods that are not over yet stay charged until they are (rule L5) and are in `Job.leaving` meanwhile. `by` is the job
    they make room for; empty: nobody (they were lost, rejected or did not start).
    """

    job: str
    epoch: int
    pods: tuple[int, ...]  # positions, ascending
    by: str = ""
    reason: str = "Shrunk"
    message: str = ""
    suspects: tuple[int, ...] = ()  # nodes that this job avoids from now on
    not_before_ms: int = 0  # it does not grow before
    suspects_until_ms: int = 0  # so long on other nodes only; then those it avoids come last


class PodsChanged(Transition, tag="PodsChanged", frozen=True):
    job: str
    epoch: int
    pods: tuple[PodChange, ...]


class JobStarting(Transition, tag="JobStarting", frozen=True):
    """The first pod exists in the cluster."""

    job: str
    epoch: int


class JobRunning(Transition, tag="JobRunning", frozen=True):
    """Every group has its minimum running (or already succeeded)."""

    job: str
    epoch: int


class CheckpointReported(Transition, tag="CheckpointReported", frozen=True):
    """The work of the job up to then is safe: an eviction loses what came after it (rule P3)."""

    job: str
    epoch: int
    at_ms: int


class JobStopping(Transition, tag="JobStopping", frozen=True):
    """Deletion of the pods is asked for; quota stays charged until they are gone (rule L5). `next` is the state the
    job goes to then: Queued, Failed, Cancelled or Succeeded."""

    job: str
    epoch: int
    next: str
    reason: str
    message: str = ""
    not_before_ms: int = 0  # backoff when next is Queued
    suspects: tuple[int, ...] = ()  # nodes that this job avoids from now on (rule L3)
    exit_code: int = 0  # of the pod that failed, when next is Failed
    suspects_until_ms: int = 0  # so long on other nodes only; then those it avoids come last


class JobPreempted(Transition, tag="JobPreempted", frozen=True):
    """As JobStopping with next Queued, and who took its place (rules P3, P5)."""

    job: str
    epoch: int
    by: str
    not_before_ms: int


class JobRequeued(Transition, tag="JobRequeued", frozen=True):
    """All pods are gone; it waits again with its original submit time."""

    job: str
    reason: str
    not_before_ms: int = 0


class JobSucceeded(Transition, tag="JobSucceeded", frozen=True):
    job: str
    epoch: int


class JobFailed(Transition, tag="JobFailed", frozen=True):
    job: str
    reason: str
    message: str = ""
    exit_code: int = 0


class JobCancelled(Transition, tag="JobCancelled", frozen=True):
    job: str
    reason: str
    message: str = ""


class JobForgotten(Transition, tag="JobForgotten", frozen=True):
    """A finished job leaves the state (LOG-16)."""

    job: str


class RequestIdsDropped(Transition, tag="RequestIdsDropped", frozen=True):
    """The oldest `count` remembered request ids are forgotten (LOG-11)."""

    count: int


# --- preemption -----------------------------------------------------------------------------------------------------


class PreemptionRequested(Transition, tag="PreemptionRequested", frozen=True):
    """This job may preempt and does not fit, or is placed and finds no room for replicas that it is entitled to:
    preemptors, look for victims. `request` counts per cell."""

    job: str
    request: int


class HoldMade(Transition, tag="HoldMade", frozen=True):
    """What the victims free is kept for this job until it is placed or the hold expires (rule P5). Of a job that is
    placed already: `placement` is what it grows by."""

    job: str
    placement: tuple[GroupPlacement, ...]
    victims: tuple[tuple[str, int], ...]
    expires_ms: int
    shrinks: Shrinks = ()  # (job, epoch, positions): elastic replicas that leave (rule P2c)


class HoldReleased(Transition, tag="HoldReleased", frozen=True):
    job: str
    reason: str


class HoldExtended(Transition, tag="HoldExtended", frozen=True):
    """The hold waits longer, because pods of its victims are still there (rule P5)."""

    job: str
    expires_ms: int


class PreemptionAnswered(Transition, tag="PreemptionAnswered", frozen=True):
    """A request was answered without effect (no plan, or the plan no longer holds, P6)."""

    job: str
    request: int
    reason: str
    retry_after_ms: int
    repeat: bool = False  # ask again after that time even if nothing has changed


AnyTransition = (
    LeaderElected
    | InboxItemQuarantined
    | CommandRefused
    | CyclePaused
    | NodeUpserted
    | NodeRemoved
    | NodeZonesUpdated
    | ClusterListStarted
    | NodesSeen
    | ClusterSynced
    | QueueUpserted
    | QueueRemoved
    | EntitlementsSet
    | JobQueued
    | JobPlaced
    | PodsChanged
    | JobStarting
    | JobRunning
    | JobStopping
    | JobPreempted
    | JobRequeued
    | JobSucceeded
    | JobFailed
    | JobCancelled
    | JobForgotten
    | RequestIdsDropped
    | PreemptionRequested
    | HoldMade
    | HoldReleased
    | PreemptionAnswered
    | JobGrown
    | JobShrunk
    | CheckpointReported
    | HoldExtended
    | PriorityClassUpserted
    | PriorityClassRemoved
)


class Header(Struct, array_like=True, frozen=True):
    """What makes a transaction replayable (LOG-1)."""

    version: int
    id: str  # "<epoch>-<n>", n counts transactions of the term
    prev: int  # ledger sequence this builds on
    epoch: int
    now_ms: int
    inbox_from: InboxPosition  # first item not yet consumed before this transaction
    inbox_to: InboxPosition  # first item not yet consumed after it
    work_limit: int
    work_spent: int
    policy: int = 1


class Transaction(Struct, array_like=True, frozen=True):
    header: Header
    transitions: tuple[AnyTransition, ...]
