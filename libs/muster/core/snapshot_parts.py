"""What a snapshot is made of: the structs that are stored. `snapshot` writes and reads them.

Like the ledger's, they are encoded by position: fields are only ever appended, with a default; anything else is a new
version, and decoders of old ones stay (LOG-10).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from muster.core.attempts import Attempt, Resize
from muster.core.model import (
    Amounts,
    GroupPlacement,
    InboxPosition,
    JobSpec,
    NodeSpec,
    PriorityClass,
    QueueSpec,
    TaskGroup,
    Zone,
)
from muster.core.order import OrderKey
from muster.core.state import Ask, Forgotten, Hold
from muster.core.timers import StartEntry, TimerEntry
from muster.core.tree_log import TreeChange

SNAPSHOT_VERSION: Final = 1


class Part(Struct, array_like=True, frozen=True, tag_field="kind"):
    """Base of the parts. The first field of each is its version (LOG-10)."""


class ClusterRecord(Struct, array_like=True, frozen=True):
    name: str
    synced: bool
    unseen: tuple[int, ...] | None


class HistoryRecord(Struct, array_like=True, frozen=True):
    """What a queue has used (rule F4). Sums are too large for 64 bits: as bytes, the most significant first."""

    queue: str
    since_ms: int
    sums: tuple[tuple[str, bytes], ...]


class HeadPart(Part, tag="Head", frozen=True):
    """Comes first: what is not a list, and how much of the lists there is."""

    version: int
    cell: str
    ledger_seq: int
    position: InboxPosition
    now_ms: int
    epoch: int
    leader: str
    cycle_after: OrderKey | None
    cycle_owed: bool
    changes: int
    requests: int
    next_queue_number: int
    queues: tuple[QueueSpec, ...]  # parents before children
    entitled: tuple[tuple[str, Amounts], ...]
    entitled_seq: int
    clusters: tuple[ClusterRecord, ...]
    vanished: tuple[tuple[int, tuple[str, ...]], ...]
    holds: tuple[Hold, ...]
    asks: tuple[tuple[str, Ask], ...]
    nodes: int
    jobs: int
    forgotten: int
    tallies: int = 0
    histories: tuple[HistoryRecord, ...] = ()
    classes: tuple[PriorityClass, ...] = ()
    tree_revision: int = 0
    tree_changes: tuple[TreeChange, ...] = ()


class NodeRecord(Struct, array_like=True, frozen=True):
    spec: NodeSpec
    removed: bool
    zones: tuple[Zone, ...]


class NodesPart(Part, tag="Nodes", frozen=True):
    """Nodes in the order of their indices."""

    version: int
    nodes: tuple[NodeRecord, ...]


class GangsPart(Part, tag="Gangs", frozen=True):
    """Task groups; jobs refer to them by their number."""

    version: int
    gangs: tuple[tuple[TaskGroup, ...], ...]


class JobRecord(Struct, array_like=True, frozen=True):
    """A job; `spec` is without its task groups."""

    spec: JobSpec
    gang: int
    queue: str
    submit_position: InboxPosition
    submit_ms: int
    state: str
    reason: str
    message: str
    epoch: int
    placement: tuple[GroupPlacement, ...]
    phases: bytes
    unplaced: int
    not_before_ms: int
    placed_ms: int
    started_ms: int
    finished_ms: int
    exit_code: int
    next_state: str
    suspects: tuple[int, ...]
    requeues: int
    preemptions: int
    attempts: tuple[Attempt, ...]
    leaving: tuple[int, ...] = ()
    regrown: tuple[tuple[int, int], ...] = ()
    victim: bool = False
    grow_after_ms: int = 0
    grown_ms: int = 0
    exits: tuple[tuple[int, int], ...] = ()
    asks: int = -1  # the gang it asks for, if it is not `gang`
    saved_ms: int = 0
    began: tuple[tuple[int, int], ...] = ()
    suspects_until_ms: int = 0
    resizes: tuple[Resize, ...] = ()


class JobsPart(Part, tag="Jobs", frozen=True):
    """Jobs in the order of submission."""

    version: int
    jobs: tuple[JobRecord, ...]


class TallyRecord(Struct, array_like=True, frozen=True):
    """A tally of `accounting`. Totals are too large for 64 bits: (resource, high, low) with low < 2**62."""

    account: tuple[str, str, str, int]
    usage: tuple[tuple[str, int, int], ...] = ()
    lost: tuple[tuple[str, int, int], ...] = ()
    submitted: int = 0
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    preempted: int = 0
    shrunk_pods: int = 0
    waits: int = 0
    waited_ms: int = 0
    waited_max_ms: int = 0


class AccountsPart(Part, tag="Accounts", frozen=True):
    """Tallies of one period of `accounting`, oldest period first; a long period takes several parts. `gone`: the last
    paths of removed queues, in the first part."""

    version: int
    start_ms: int
    end_ms: int
    tallies: tuple[TallyRecord, ...]
    gone: tuple[tuple[str, str], ...] = ()


class ForgottenPart(Part, tag="Forgotten", frozen=True):
    """Request ids of jobs that left the state, oldest first."""

    version: int
    forgotten: tuple[tuple[str, Forgotten], ...]


class TailPart(Part, tag="Tail", frozen=True):
    """Comes last: timers, and which pending classes the cycle looks at, each by the id of one of its jobs."""

    version: int
    starts: tuple[StartEntry, ...]
    finished: tuple[str, ...]
    others: tuple[TimerEntry, ...]
    all_open: bool
    opened: tuple[str, ...]
    opened_since: tuple[str, ...]
    reopened: tuple[str, ...]
    again: bool
    paused: bool = False
    growing_opened: tuple[str, ...] = ()


AnyPart = HeadPart | NodesPart | GangsPart | JobsPart | ForgottenPart | TailPart | AccountsPart
