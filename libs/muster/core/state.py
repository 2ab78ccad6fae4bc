"""The state of a cell: what the fold of the ledger is.

`CellState` is data and the lookups that derive from it; `apply` is the only code that changes it, one transition at a
time, so every replica has the same state after the same ledger sequence. Everything here is either in the snapshot or
rebuilt from it (`snapshot`). Readers (explain, the API, the binder) may look at anything and change nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec import Struct

from muster.core import transitions as tr
from muster.core.accounting import Accounts
from muster.core.attempts import Attempt
from muster.core.gangs import GangTable
from muster.core.jobs import Job
from muster.core.lifecycle import QUEUED
from muster.core.model import GroupPlacement, InboxPosition, PriorityClass, Shrinks
from muster.core.nodes import NodeTable
from muster.core.order import ClassKey, OrderKey, PendingIndex, class_key, order_key
from muster.core.potential import Potential
from muster.core.queues import QueueTree
from muster.core.sums import Sums
from muster.core.timers import Timers
from muster.core.tree_log import TreeLog

__all__ = ["FIRST_POSITION", "Ask", "Attempt", "CellState", "Cluster", "Forgotten", "Hold", "Job"]

FIRST_POSITION: Final = InboxPosition(seq=1, item=0)


class Cluster:
    """What is known of a cluster's node list."""

    __slots__ = ("name", "synced", "unseen")

    def __init__(self, name: str) -> None:
        self.name = name
        self.synced = False  # a complete list was applied (rule Q2)
        self.unseen: dict[int, None] | None = None  # during a full list: nodes it has not named yet


class Hold(Struct, array_like=True, frozen=True):
    """What the victims of a plan free is kept for `job` (rule P5): to start, or to grow by if it is placed."""

    job: str
    placement: tuple[GroupPlacement, ...]
    victims: tuple[tuple[str, int], ...]  # (job, epoch)
    expires_ms: int
    shrinks: Shrinks = ()  # elastic replicas that leave (rule P2c)
    made_ms: int = 0

    def givers(self) -> int:
        """How many jobs leave, or lose replicas, for it."""
        return len({victim for victim, *_ in (*self.victims, *self.shrinks)})


class Ask(Struct, array_like=True, frozen=True, gc=False):
    """The last PreemptionRequested of a pending job, or of a placed one that could grow."""

    request: int
    tries: int
    answered: bool = False
    retry_at_ms: int = 0
    changes: int = 0  # CellState.changes when it was answered: asked again only after it moved. -1: anyway
    reason: str = ""  # why the answer was no plan, for explanations


class Forgotten(Struct, array_like=True, frozen=True, gc=False):
    """A job that left the state; its request id still counts (LOG-11)."""

    digest: str
    at_ms: int


class CellState:
    """All of a cell. Mutable, but only `apply` may."""

    def __init__(self, cell: str) -> None:
        self.cell = cell
        self.ledger_seq = 0  # of the last applied transaction
        self.position = FIRST_POSITION  # next inbox item to consume
        self.now_ms = 0
        self.epoch = 0  # of the leader
        self.leader = ""

        self.nodes = NodeTable()
        self.node_jobs: dict[int, dict[str, None]] = {}  # node -> jobs with pods placed there
        self.vanished: dict[int, dict[str, None]] = {}  # removed nodes -> jobs with live pods there (LOG-15)
        self.clusters: dict[str, Cluster] = {}
        self.clusters_synced = 0

        self.queues = QueueTree()
        self.tree_log = TreeLog()
        self.entitled: dict[str, tuple[tuple[str, int], ...]] = {}  # queue id -> amounts
        self.entitled_seq = 0  # ledger sequence they were computed from
        self.classes: dict[str, PriorityClass] = {}  # by name; jobs keep what they took from theirs

        self.jobs: dict[str, Job] = {}  # by id, in the order of submission
        self.gangs = GangTable()
        self.by_name: dict[str, dict[str, str]] = {}  # namespace -> name -> id, of live jobs
        self.forgotten: dict[str, Forgotten] = {}  # oldest first
        self.forgotten_order: deque[str] = deque()
        self.pending = PendingIndex()
        self.timers = Timers()
        self.accounts = Accounts()
        self.potential = Potential()
        self.sums = Sums()  # what the transaction being folded adds to queues, accounts and potential

        self.cycle_owed = False  # the last transaction changed nodes or queues and left the cycle to the next
        self.changes = 0  # counts what may make a preemption plan possible
        self.holds: dict[str, Hold] = {}
        self.asks: dict[str, Ask] = {}
        self.requests = 0  # PreemptionRequested so far

        # Not part of the state proper: what admission tells callers that wait for a decision. Not in snapshots.
        self.refusals: dict[InboxPosition, tr.CommandRefused] = {}
        self.refusal_order: deque[InboxPosition] = deque()

    def loosened(self) -> None:
        """Something became free, or a rule changed: every pending job may fit again."""
        self.changes += 1
        self.pending.loosen()

    def find_by_name(self, namespace: str, name: str) -> str | None:
        """Id of the live job of that name."""
        return self.by_name.get(namespace, {}).get(name)

    def order_key(self, job: Job) -> OrderKey:
        """Where the job stands in the order of its queue (rule F5)."""
        return order_key(self.queues.by_id[job.queue], job)

    def class_key(self, job: Job) -> ClassKey:
        """Which pending jobs fit or do not fit together with it."""
        return class_key(self.queues.by_id[job.queue], job, held=job.spec.id in self.holds, now_ms=self.now_ms)

    def is_pending(self, job: Job) -> bool:
        """Whether the cycle may start it: queued and not in backoff."""
        return job.state is QUEUED and job.not_before_ms <= self.now_ms
