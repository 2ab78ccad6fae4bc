"""The tree of queues: specs, paths, usage along the path (rules Q1, Q3).

A queue has an immutable id ("q1", "q2", ... from a counter that never goes back), a name and a parent; its path is
derived, so moving a queue renames nothing and touches no job. Usage is kept on every queue of the path to the root,
so a limit is one comparison. What a command may do to the tree is checked in `queue_rules`; `apply` changes the tree
here, `decide` works on a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from muster.core import resources
from muster.core.claims import below, claim, spread
from muster.core.history import History
from muster.core.members import Members, are_kept
from muster.core.model import Amounts, JobSpec, QueueSpec
from muster.core.promises import forget

Usage = dict[str, int]


class Newest(NamedTuple):
    """By priority and member (of a fair queue), the newest of the jobs that run there, as of so many starts."""

    starts: int
    jobs: dict[tuple[int, str], tuple[int, str]]  # (submit time, id)


class Queue:
    """One queue and what is derived from its place in the tree."""

    __slots__ = (
        "_demand",
        "chain",
        "children",
        "claimed",
        "fifo",
        "flows",
        "held",
        "history",
        "leaving",
        "limits",
        "live",
        "members",
        "newest",
        "path",
        "placed",
        "promised",
        "running",
        "spec",
        "starts",
        "starts_jobs",
        "takes_jobs",
        "tracked",
        "usage",
    )

    def __init__(self, spec: QueueSpec) -> None:
        self.spec = spec
        self.path = spec.name
        self.chain: tuple[Queue, ...] = (self,)  # from here up to the root
        self.limits: tuple[tuple[Queue, Amounts], ...] = ()  # the queues of the chain that have a limit
        self.children: dict[str, str] = {}  # name -> id
        self.usage: Usage = {}  # charged, of the whole subtree; no zeros
        self.leaving: Usage = {}  # of it: pods of victims, that a committed plan counts as gone (rule Q3)
        self.held: Usage = {}  # placements of holders, that a committed plan counts as made
        self.claimed: Usage = {}  # claims below it; of a leaf what its protected jobs use (`claims`); no zeros
        self.live: dict[str, None] = {}  # jobs submitted here (leaf) that have not ended
        self.running: dict[str, None] = {}  # jobs here that are Placed, Starting or Running
        self.starts = 0  # how often a job began to
        self.newest: Newest | None = None  # of `running`, made and followed by `requests`, never stored
        self.placed: dict[int, int] = {}  # priority -> how many of these may be preempted (rule P2)
        self.flows: dict[tuple[str, ...], Usage] = {}  # by set of resources, what live jobs ask for at most (rule F3)
        self._demand: tuple[Amounts, ...] | None = None  # the same, as `demand` gives it
        self.promised: Amounts | None = None  # as `promises` found it, until the tree changes below
        self.members: Members | None = Members() if are_kept(spec) else None
        self.tracked: tuple[Queue, ...] = ()  # the queues of the chain that keep their members
        self.history: History | None = None  # of charged usage, where past usage counts (rule F4)
        self.fifo = spec.ordering == "FIFO"
        self.starts_jobs = True  # this queue and all above it start new jobs (rule Q1)
        self.takes_jobs = True  # this queue and all above it accept new jobs

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def committed(self) -> Usage:
        """Committed usage (rule Q3): charged, with the victims of committed plans gone and their preemptors placed."""
        if not self.leaving and not self.held:
            return self.usage
        names = {**self.usage, **self.leaving, **self.held}
        left = {r: self.usage.get(r, 0) - self.leaving.get(r, 0) + self.held.get(r, 0) for r in names}
        return {resource: amount for resource, amount in left.items() if amount}

    def runs(self, job: str, priority: int, preemptible: bool) -> None:
        """A job of the queue is Placed, Starting or Running from now on."""
        self.running[job] = None
        self.starts += 1
        if preemptible:
            self.placed[priority] = self.placed.get(priority, 0) + 1

    def ran(self, job: str, priority: int, preemptible: bool) -> None:
        """It no longer is."""
        del self.running[job]
        if preemptible:
            self.placed[priority] -= 1
            if not self.placed[priority]:
                del self.placed[priority]

    @property
    def asked(self) -> Usage:
        """What live jobs submitted here ask for at their maximum, in all."""
        totals: Usage = {}
        for asked in self.flows.values():
            resources.count(totals, asked.items(), 1)
        return totals

    def demands(self, amounts: Amounts, times: int) -> None:
        """So many live jobs come, or end when it is below zero."""
        flow = tuple([resource for resource, _ in amounts])
        asked = self.flows.setdefault(flow, {})
        resources.count(asked, amounts, times)
        if not asked:
            del self.flows[flow]
        self._demand = None

    def demand(self) -> tuple[Amounts, ...]:
        """What live jobs submitted here ask for, by the set of resources; the same object until that changes."""
        if self._demand is None:
            self._demand = tuple(resources.amounts(asked) for _, asked in sorted(self.flows.items()))
        return self._demand

    def states(self) -> str:
        """For people: the queues of the path that are not open."""
        return ", ".join(f'"{q.path}" is {q.spec.state.lower()}' for q in self.chain if q.spec.state != "OPEN")

    @property
    def preempts(self) -> bool:
        """Whether its jobs may preempt at all (rule P2). In FIFO order priority means nothing."""
        return self.spec.preemption != "NEVER" and not self.fifo


class Over(NamedTuple):
    """A limit that would be exceeded."""

    queue: Queue
    resource: str
    amount: int  # by so much


def over_limit(
    queue: Queue, need: Mapping[str, int], usage_of: Callable[[Queue], Usage], held: Mapping[str, Usage]
) -> Over | None:
    """The first limit on the path that a job with `need` would exceed (rule F6), with what holds keep counted as used.

    A resource the job does not ask for never stops it.
    """
    for q, limit in queue.limits:
        usage = usage_of(q)
        kept = held.get(q.spec.id)
        for resource, most in limit:
            asked = need.get(resource)
            if asked:
                over = usage.get(resource, 0) + asked - most + (kept.get(resource, 0) if kept else 0)
                if over > 0:
                    return Over(q, resource, over)
    return None


def room_below(
    queue: Queue, need: Mapping[str, int], usage_of: Callable[[Queue], Usage], held: Mapping[str, Usage], wanted: int
) -> int:
    """How many of `wanted` jobs with `need` each fit below every limit on the path."""
    for q, limit in queue.limits:
        usage = usage_of(q)
        kept = held.get(q.spec.id, {})
        for resource, most in limit:
            asked = need.get(resource)
            if asked:
                left = most - usage.get(resource, 0) - kept.get(resource, 0)
                wanted = min(wanted, max(left // asked, 0))
    return wanted


class QueueTree:
    """All queues of a cell."""

    def __init__(self) -> None:
        self.by_id: dict[str, Queue] = {}
        self.by_path: dict[str, str] = {}
        self.roots: dict[str, str] = {}  # name -> id
        self.draining: dict[str, None] = {}  # ids of queues in state DRAINING
        self.next_number = 1
        self.lending = 0  # how many queues have a lending limit
        self.fading = 0  # in how many trees past usage counts (rule F4)
        self.claimed: Usage = {}  # sum of the roots' claims (rule P4); no zeros
        self.revision = 0  # of the tree; counts its changes

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, queue: str) -> bool:
        return queue in self.by_id

    def get(self, queue: str) -> Queue:
        """By id."""
        return self.by_id[queue]

    def find(self, path: str) -> Queue | None:
        """By path."""
        queue = self.by_path.get(path)
        return self.by_id[queue] if queue is not None else None

    def path(self, queue: str) -> str:
        """The path of an id; the id itself when the queue is gone."""
        found = self.by_id.get(queue)
        return found.path if found is not None else queue

    def children_of(self, queue: str) -> dict[str, str]:
        """Name -> id; "" for the roots."""
        return self.by_id[queue].children if queue else self.roots

    def subtree(self, root: str = "") -> Iterator[Queue]:
        """Parents before children, siblings by name; of one queue (by id) or of the whole tree."""
        stack = [root] if root else [self.roots[name] for name in sorted(self.roots, reverse=True)]
        while stack:
            queue = self.by_id[stack.pop()]
            yield queue
            if queue.children:
                stack.extend([queue.children[name] for name in sorted(queue.children, reverse=True)])

    def put(self, spec: QueueSpec) -> None:
        """Add or replace. Who shares a queue that begins to keep count, or moves, is for the caller to count."""
        old = self.by_id.get(spec.id)
        self.revision += 1
        forget(old.chain if old else ())
        self.lending += bool(spec.lending_limit) - bool(old and old.spec.lending_limit)
        self.fading += bool(spec.half_life_ms) - bool(old and old.spec.half_life_ms)
        if spec.state == "DRAINING":
            self.draining[spec.id] = None
        else:
            self.draining.pop(spec.id, None)
        if old is None:
            queue = self.by_id[spec.id] = Queue(spec)
            self.children_of(spec.parent)[spec.name] = spec.id
            self.next_number = max(self.next_number, int(spec.id[1:]) + 1)
            self._derive(queue)
            self._claim(queue, 1)
            forget(queue.chain)
            return
        before = old.spec
        self._claim(old, -1)
        old.spec = spec
        old.fifo = spec.ordering == "FIFO"
        if (before.ordering, before.fair_by) != (spec.ordering, spec.fair_by):
            old.newest = None
        moved = (before.parent, before.name) != (spec.parent, spec.name)
        totals = [(of, dict(of(old))) for of in (_usage, _leaving, _held)] if moved else []
        if moved:
            for of, amounts in totals:
                _count(old.chain[1:], of, amounts.items(), -1)
            del self.children_of(before.parent)[before.name]
            self.children_of(spec.parent)[spec.name] = spec.id
        kept = are_kept(before) != are_kept(spec)
        if kept:
            old.members = Members() if are_kept(spec) else None
        if moved or kept or (before.limit, before.state) != (spec.limit, spec.state):
            for below in list(self.subtree(spec.id)):
                self._derive(below)
        forget(old.chain)
        for of, amounts in totals:
            _count(old.chain[1:], of, amounts.items(), 1)
        self._claim(old, 1)

    def remove(self, queue: str) -> None:
        """Of a queue without children and jobs."""
        gone = self.by_id.pop(queue)
        self.revision += 1
        self._claim(gone, -1)
        forget(gone.chain)
        self.lending -= bool(gone.spec.lending_limit)
        self.fading -= bool(gone.spec.half_life_ms)
        del self.children_of(gone.spec.parent)[gone.spec.name]
        self.by_path.pop(gone.path, None)
        self.draining.pop(queue, None)

    def charge(self, queue: str, amounts: Amounts, times: int = 1) -> None:
        """Usage goes up along the whole path (rule Q3), or down when `times` is below zero (rule L5)."""
        _count(self.by_id[queue].chain, _usage, amounts, times)

    def remember(self, queue: str, now_ms: int) -> None:
        """What the path has used counts up to now (rule F4); before its usage changes."""
        for above in self.by_id[queue].chain:
            if above.history is not None:
                above.history.count(above.usage, now_ms)

    def keep_histories(self, root: str, now_ms: int) -> None:
        """Begin, tune or drop the histories of a subtree after a change of the tree. Its usage is counted up to now."""
        for queue in self.subtree(root):
            half_life_ms, kept = queue.chain[-1].spec.half_life_ms, queue.history
            if not half_life_ms:
                queue.history = None
            elif kept is None:
                queue.history = History.beginning(half_life_ms, queue.usage, now_ms)
            elif kept.half_life_ms != half_life_ms:
                kept.count(queue.usage, now_ms)
                queue.history = kept.tuned(half_life_ms)

    def leave(self, queue: str, amounts: Amounts, sign: int = 1) -> None:
        """Charged amounts count as gone from now on (-1: no longer, because they are released)."""
        _count(self.by_id[queue].chain, _leaving, amounts, sign)

    def hold(self, queue: str, amounts: Amounts, sign: int = 1) -> None:
        """A holder counts as placed (-1: no longer)."""
        _count(self.by_id[queue].chain, _held, amounts, sign)

    def protect(self, queue: str, amounts: Amounts, times: int = 1) -> None:
        """Jobs of the leaf that nobody can reclaim from use so many times the amounts more (or less): rule P4."""
        spread(self.by_id[queue].chain, below, self.claimed, amounts, times)

    def _claim(self, queue: Queue, sign: int) -> None:
        """The queue's claim counts for those above it, or no longer."""
        spread(queue.chain[1:], below, self.claimed, claim(queue), sign)

    def copy(self) -> QueueTree:
        """A tree with the same content, for decisions that change it. What jobs count in a queue is shared, because
        decisions leave that alone, but for the totals that move with a queue."""
        twin = QueueTree()
        for queue in self.subtree():
            copied = twin.by_id[queue.id] = Queue(queue.spec)
            copied.children = dict(queue.children)
            copied.usage = dict(queue.usage)
            copied.leaving = dict(queue.leaving)
            copied.held = dict(queue.held)
            copied.claimed = dict(queue.claimed)
            copied.live = queue.live
            copied.flows = queue.flows
            copied.members = queue.members
            copied.running = queue.running
            copied.placed = queue.placed
            copied.promised = queue.promised
            copied.history = queue.history  # decisions only read it
            twin._derive(copied)
        twin.roots = dict(self.roots)
        twin.draining = dict(self.draining)
        twin.lending = self.lending
        twin.fading = self.fading
        twin.claimed = dict(self.claimed)
        twin.revision = self.revision
        twin.next_number = self.next_number
        return twin

    def count_members(self, spec: JobSpec, queue: str, pending: int, running: int) -> None:
        """A job of the queue begins or ceases to wait or to run."""
        for q in self.by_id[queue].tracked:
            if q.members is not None:
                q.members.count(spec, pending, running)

    def charge_members(self, spec: JobSpec, queue: str, amounts: Amounts, times: int) -> None:
        """Who submitted the job holds so many times the amounts more (or less) in the queue."""
        for q in self.by_id[queue].tracked:
            if q.members is not None:
                q.members.count(spec, 0, 0, amounts, times)

    def _derive(self, queue: Queue) -> None:
        """Path, chain and limits from the parent's, which are right already."""
        parent = self.by_id[queue.spec.parent] if queue.spec.parent else None
        if self.by_path.get(queue.path) == queue.id:
            del self.by_path[queue.path]
        queue.path = f"{parent.path}/{queue.spec.name}" if parent else queue.spec.name
        self.by_path[queue.path] = queue.id
        queue.chain = (queue, *parent.chain) if parent else (queue,)
        states = {q.spec.state for q in queue.chain}
        queue.starts_jobs = not states & {"STOPPED", "DRAINING"}
        queue.takes_jobs = not states & {"CLOSED", "DRAINING"}
        queue.limits = tuple((q, q.spec.limit) for q in queue.chain if q.spec.limit)
        queue.tracked = tuple(q for q in queue.chain if q.members is not None)


def _usage(queue: Queue) -> Usage:
    return queue.usage


def _leaving(queue: Queue) -> Usage:
    return queue.leaving


def _held(queue: Queue) -> Usage:
    return queue.held


def _count(
    chain: Iterable[Queue], of: Callable[[Queue], Usage], amounts: Iterable[tuple[str, int]], times: int
) -> None:
    """Add to one of the totals of every queue; what becomes zero is dropped."""
    for queue in chain:
        resources.count(of(queue), amounts, times)
