"""The state as it will be after the transaction that is being decided.

`decide` never changes the state. It writes transitions here, and what they will do is visible at once to whatever is
decided next in the same transaction: jobs as changed copies, queue usage, names, and free nodes through an overlay
that is thrown away. Only what a decision reads is kept up to date; the rest is left to `apply`.

Bytes and work units are counted here, so that a transaction closes in time (LOG-1, LOG-8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from muster.core import arrays, commands
from muster.core import transitions as tr
from muster.core.apply import STRUCTURAL
from muster.core.asks import claimants, opened_by
from muster.core.commands import Entitlement
from muster.core.draft_nodes import DraftNodes
from muster.core.draft_usage import DraftUsage
from muster.core.errors import Rejected
from muster.core.gangs import Gang, GangShape, shape_key
from muster.core.jobs import OVER, Job, advance, is_over, may_grow
from muster.core.limits import MESSAGE_CHARS_MAX, SUBJECT_CHARS_MAX, TRANSACTION_BYTES_MAX
from muster.core.model import (
    Amounts,
    GroupPlacement,
    InboxPosition,
    JobSpec,
    JobState,
    PodChange,
    PriorityClass,
    TaskGroup,
)
from muster.core.order import ClassKey, OrderKey, PendingIndex, class_key, order_key, protected
from muster.core.overlay import Overlay
from muster.core.potential import staying
from muster.core.queues import Queue, QueueTree, Usage
from muster.core.shortfall import Never, never_fits
from muster.core.sizes import QUEUED_BYTES, pods_changed_bytes, size_of
from muster.core.state import CellState, Hold

Release = tuple[tuple[TaskGroup, ...], tuple[GroupPlacement, ...], Sequence[int] | None]


def _about(item: commands.AnyItem | commands.Undecodable) -> tuple[str, str, str, str, str]:
    """What a command was about (job id, queue path, name), its request id, and a job's namespace, name and queue."""
    if isinstance(item, commands.SubmitJob):
        spec = item.spec
        return spec.id, spec.request_id, spec.namespace, spec.name, spec.queue
    for field in ("job", "path", "node", "name", "cluster"):
        subject = getattr(item, field, None)
        if subject is not None:
            return subject, getattr(item, "request_id", ""), "", "", ""
    return "", "", "", "", ""


class Draft:
    """One transaction in the making."""

    def __init__(self, state: CellState, now_ms: int, work_limit: int) -> None:
        self.state = state
        self.now_ms = now_ms
        self.work_limit = work_limit
        self.work = 0
        self.bytes = 0
        self.transitions: list[tr.Transition] = []
        self.tree: QueueTree = state.queues
        self.nodes = DraftNodes(state)
        self.replanted = False  # many queues changed as one: no other change of the tree comes with it
        self.structural = False  # nodes or queues changed: the cycle waits for the next transaction
        self.loosened = False  # something became free
        self.fresh = PendingIndex()  # jobs that became pending in this transaction
        self.holds: dict[str, Hold] = state.holds
        self.entitled: Mapping[str, Amounts] = state.entitled  # queue id -> E, as far as it is published
        self.classes: Mapping[str, PriorityClass] = state.classes  # replaced, never changed in place
        self.reopened: dict[str, None] = {}  # queues that may have or take more now
        self.asked_now: dict[str, None] = {}  # jobs a preemption plan is asked for
        self.answered_now: dict[str, None] = {}
        self.changed: dict[str, Job] = {}  # jobs that differ from the state's
        self.releases: list[Release] = []
        self._taken_names: dict[tuple[str, str], str] = {}
        self._freed_names: dict[tuple[str, str], None] = {}
        self.usages = DraftUsage(self.tree)
        self._job_counts: dict[str, int] = {}
        self._gangs: dict[tuple[TaskGroup, ...], Gang] = {}
        self._shapes: dict[tuple[tuple[object, ...], ...], GangShape] = {}
        self._never: dict[tuple[GangShape, str], Never | None] = {}
        self._overlay: Overlay | None = None

    # --- budget -----------------------------------------------------------------------------------------------------

    def spend(self, units: int) -> None:
        self.work += units

    @property
    def exhausted(self) -> bool:
        return self.work >= self.work_limit or self.bytes >= TRANSACTION_BYTES_MAX

    def fits(self, more_bytes: int) -> bool:
        """Whether so much more still goes into this transaction; the first thing always does (LOG-8)."""
        return not self.transitions or self.bytes + more_bytes <= TRANSACTION_BYTES_MAX

    # --- writing ----------------------------------------------------------------------------------------------------

    def emit(self, transition: tr.Transition) -> None:
        """Write a transition that changes no job."""
        self.transitions.append(transition)
        self.bytes += size_of(transition)
        if type(transition) in STRUCTURAL:
            self.structural = True

    def refuse(self, position: InboxPosition, item: commands.AnyItem | commands.Undecodable, why: Rejected) -> None:
        subject, request_id, *names = _about(item)
        namespace, name, queue = (text[:SUBJECT_CHARS_MAX] for text in names)
        self.emit(
            tr.CommandRefused(
                position=position,
                command=type(item).__name__,
                subject=subject[:SUBJECT_CHARS_MAX],
                request_id=request_id[:SUBJECT_CHARS_MAX],
                code=str(why.code),
                field=why.field[:SUBJECT_CHARS_MAX],
                message=why.message[:MESSAGE_CHARS_MAX],
                rule=why.rule,
                namespace=namespace,
                name=name,
                queue=queue,
            )
        )

    def change(self, job: Job, transition: tr.Transition) -> Job:
        """Write a transition of an existing job; returns the job as it is then."""
        job = self.edit(job)
        tracked = self.tree.by_id[job.queue].tracked
        if tracked:
            self._counts_as(job, -1)
        if isinstance(transition, tr.JobPreempted):
            self._leaves(job, staying(job))
        elif isinstance(transition, tr.JobShrunk):
            self._leaves(job, [position for position in transition.pods if not is_over(job.phases[position])])
        advance(job, transition, self.now_ms)
        self._gives_back(job, shrunk=isinstance(transition, tr.JobShrunk))
        if tracked:
            self._counts_as(job, 1)
        self.transitions.append(transition)
        self.bytes += size_of(transition)
        return job

    def _leaves(self, job: Job, positions: Sequence[int]) -> None:
        """These pods count as gone; who may start because of that is looked at, as `apply` says."""
        amounts = job.gang.of_positions(positions)
        self.usages.shift(job.queue, amounts, -1)
        if job.queue in self.state.pending.protected or self.tree.lending:
            self.reopened[job.queue] = None  # less of its E is used up
        if protected(job):
            self._claims(job, amounts, -1)
            self.reopened.update(dict.fromkeys(claimants(self.state)))

    def pods_changed(self, job: Job, changes: tuple[PodChange, ...]) -> Job:
        """Phases move forward; what is over frees its node and its quota (rule L5)."""
        job = self.edit(job)
        phases, leaving = job.phases, job.leaving
        over = [change.pod for change in changes if change.phase >= OVER and phases[change.pod] < OVER]
        gone = over if job.victim else [position for position in over if position in leaving] if leaving else []
        transition = tr.PodsChanged(job.spec.id, job.epoch, changes)
        advance(job, transition, self.now_ms)
        self._gives_back(job)
        self.transitions.append(transition)
        self.bytes += pods_changed_bytes(changes)
        if over:
            self.loosened = True
            self._release(job, job.gang.of_positions(over))
            if gone:
                self.usages.shift(job.queue, job.gang.of_positions(gone), 1)
            if len(gone) < len(over):
                self._claims(job, job.gang.of_positions([p for p in over if p not in gone]), -1)
            freed = (job.gang.tasks, job.placement, over if len(over) < job.gang.pods else None)
            self.releases.append(freed)
            if self._overlay is not None:
                self._overlay.release(*freed)
        return job

    def queued(self, job: Job, transition: tr.JobQueued, size: int) -> None:
        """A job enters; `size` is an upper bound of its spec's bytes."""
        spec = job.spec
        self.transitions.append(transition)
        self.bytes += size + QUEUED_BYTES
        self.changed[spec.id] = job
        self._taken_names[spec.namespace, spec.name] = spec.id
        self._job_counts[job.queue] = self._job_counts.get(job.queue, 0) + 1
        queue = self.tree.by_id[job.queue]
        if queue.tracked:
            self._counts_as(job, 1)
        self.fresh.add(class_key(queue, job, held=spec.id in self.holds, now_ms=self.now_ms), order_key(queue, job))

    def requeued(self, job: Job) -> None:
        """The job waits again; if it has no backoff, the cycle of this transaction looks at it."""
        job.asks = self.asks(job.gang, job.spec, job.phases)
        if job.not_before_ms <= self.now_ms:
            self.fresh.add(self.class_key(job), self.order_key(job))

    def finished(self, job: Job) -> None:
        """The job has just become terminal: its name and its place in the queue are free."""
        name = (job.spec.namespace, job.spec.name)
        self._freed_names[name] = None
        self._taken_names.pop(name, None)
        self._job_counts[job.queue] = self._job_counts.get(job.queue, 0) - 1
        self.drop_hold(job.spec.id)

    def placed(self, job: Job, transition: tr.JobPlaced, size: int, amounts: Amounts) -> None:
        """The cycle has found a place; the overlay is charged already. Without `amounts`, the caller charges."""
        self.transitions.append(transition)
        self.bytes += size
        if job.gang.minimum_tasks is not None:
            advance(self.edit(job), transition, self.now_ms)  # it may grow at once
        if amounts:
            self.usages.charge(job.queue, amounts)
            self._claims(job, amounts, 1)
        if self.tree.by_id[job.queue].tracked:
            self.usages.count_member(job.queue, job.spec, pending=-1, running=1, amounts=amounts)

    def grown(self, job: Job, groups: tuple[GroupPlacement, ...]) -> None:
        """More replicas have a place; overlay and usage are charged already."""
        self.change(job, tr.JobGrown(job.spec.id, job.epoch, groups))

    # --- jobs -------------------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Job | None:
        """The job as it is now; not to be changed."""
        return self.changed.get(job_id) or self.state.jobs.get(job_id)

    def edit(self, job: Job) -> Job:
        """A copy that this transaction may change."""
        found = self.changed.get(job.spec.id)
        if found is None:
            found = self.changed[job.spec.id] = job.copy()
        return found

    def holder_of(self, namespace: str, name: str) -> str | None:
        """Id of the live job of that name."""
        key = (namespace, name)
        if key in self._taken_names:
            return self._taken_names[key]
        return None if key in self._freed_names else self.state.find_by_name(namespace, name)

    def gang(self, tasks: tuple[TaskGroup, ...]) -> Gang | None:
        """Known from another job, so already validated."""
        return self.state.gangs.find(tasks) or self._gangs.get(tasks)

    def new_gang(self, tasks: tuple[TaskGroup, ...]) -> Gang:
        key = shape_key(tasks)
        shape = self.state.gangs.find_shape(key) or self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = GangShape(key)
        gang = self._gangs[tasks] = Gang(tasks, shape)
        return gang

    def asks(self, gang: Gang, spec: JobSpec, phases: bytes | bytearray = b"") -> Gang:
        """What a queued job asks for (`Job.asks`)."""
        tasks = arrays.rest(spec, phases) if spec.completion else spec.tasks
        return gang if tasks is spec.tasks else self.gang(tasks) or self.new_gang(tasks)

    def never_fits(self, gang: Gang, cluster: str) -> Never | None:
        """Why such a gang could not run on what the clusters have, even if nothing else ran (rule Q2)."""
        key = (gang.shape, cluster)
        if key not in self._never:
            # Only clusters whose first complete report was applied count.
            counted = [c.name for c in self.state.clusters.values() if c.synced and cluster in ("", c.name)]
            self._never[key] = never_fits(self.state.nodes, gang.tasks, cluster_mask=counted) if counted else None
        return self._never[key]

    def class_key(self, job: Job) -> ClassKey:
        return class_key(self.tree.by_id[job.queue], job, held=job.spec.id in self.holds, now_ms=self.now_ms)

    def order_key(self, job: Job) -> OrderKey:
        return order_key(self.tree.by_id[job.queue], job)

    # --- queues -----------------------------------------------------------------------------------------------------

    def editable_tree(self) -> QueueTree:
        """The tree, as a copy that this transaction may change."""
        if self.tree is self.state.queues:
            self.tree = self.tree.copy()
            self.usages.replant(self.tree)
        return self.tree

    def entitle(self, published: tuple[Entitlement, ...]) -> None:
        """What these queues are entitled to from now on."""
        self.entitled = {**self.entitled, **{of.queue: of.amounts for of in published}}
        self.reopened.update(dict.fromkeys(opened_by(self.state, published)))
        if self.tree.lending:
            self.loosened = True  # less may be withheld from borrowers

    def live_jobs(self, queue: Queue) -> int:
        return len(queue.live) + self._job_counts.get(queue.spec.id, 0)

    def usage(self, queue: Queue) -> Usage:
        """Charged usage, with what this transaction placed and released."""
        return self.usages.charged(queue)

    def charge(self, job: Job, amounts: Amounts) -> None:
        """The job holds so much more."""
        self.usages.charge(job.queue, amounts)
        self._claims(job, amounts, 1)
        if self.tree.by_id[job.queue].tracked:
            self.usages.count_member(job.queue, job.spec, amounts=amounts)

    def _claims(self, job: Job, amounts: Amounts, sign: int) -> None:
        """What nobody can take back from the job counts against what others are guaranteed (rule P4)."""
        if protected(job):
            self.usages.claims.count(job.queue, amounts, sign)

    def _release(self, job: Job, amounts: Amounts) -> None:
        self.usages.charge(job.queue, amounts, -1)
        if self.tree.by_id[job.queue].tracked:
            self.usages.count_member(job.queue, job.spec, amounts=amounts, sign=-1)

    def _counts_as(self, job: Job, sign: int) -> None:
        """Count the job as pending or running, as it is now, for those who share its queue."""
        if job.live and self.tree.by_id[job.queue].tracked:
            running = sign if job.charged else 0
            self.usages.count_member(job.queue, job.spec, pending=sign - running, running=running)

    # --- places -----------------------------------------------------------------------------------------------------

    @property
    def overlay(self) -> Overlay:
        """The nodes as this transaction leaves them."""
        if self._overlay is None:
            self._overlay = self.fresh_overlay()
        return self._overlay

    def fresh_overlay(self) -> Overlay:
        """Another one like it, to try something on. Only before anything was placed."""
        overlay = Overlay(self.state.nodes)
        for freed in self.releases:
            overlay.release(*freed)
        return overlay

    def ask(self, job_id: str) -> None:
        """Ask the preemptors for a plan."""
        self.asked_now[job_id] = None
        self.emit(tr.PreemptionRequested(job_id, self.state.requests + len(self.asked_now)))

    def make_hold(self, hold: Hold) -> None:
        self.emit(tr.HoldMade(hold.job, hold.placement, hold.victims, hold.expires_ms, hold.shrinks))
        self.holds = {**self.holds, hold.job: hold}
        self._hold_counts(hold, 1)

    def extend_hold(self, job_id: str, expires_ms: int) -> None:
        self.emit(tr.HoldExtended(job_id, expires_ms))
        self.holds = {**self.holds, job_id: replace(self.holds[job_id], expires_ms=expires_ms)}

    def release_hold(self, job_id: str, reason: str) -> None:
        """What was kept for the job is free for all."""
        self.emit(tr.HoldReleased(job_id, reason))
        self.answered_now[job_id] = None  # the plan came to nothing: the next one is asked for later
        self.drop_hold(job_id)

    def _gives_back(self, job: Job, *, shrunk: bool = False) -> None:
        """What a placed job holds for further replicas is free when it wants them no more, as `apply` has it."""
        if job.spec.id not in self.holds or job.state is JobState.QUEUED:
            return
        if shrunk or not may_grow(job, self.now_ms):
            self.drop_hold(job.spec.id)

    def use_hold(self, job_id: str) -> None:
        """The job has got what it held room for; the hold was lifted before."""
        if job_id in self.holds:
            self.holds = {job: hold for job, hold in self.holds.items() if job != job_id}

    def drop_hold(self, job_id: str) -> None:
        if job_id in self.holds:
            self._hold_counts(self.holds[job_id], -1)
            self.holds = {job: hold for job, hold in self.holds.items() if job != job_id}
            self.loosened = True

    def _hold_counts(self, hold: Hold, sign: int) -> None:
        """The holder counts as placed (rule Q3), or no longer."""
        job = self.job(hold.job)
        if job is not None:
            amounts = job.gang.of_groups(hold.placement)
            self.usages.shift(job.queue, amounts, sign)
            self._claims(job, amounts, sign)

    def lift_hold(self, job_id: str, sign: int = -1) -> None:
        """While the holder is tried it does not count as placed (1: it does again)."""
        self._hold_counts(self.holds[job_id], sign)
