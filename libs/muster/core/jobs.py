"""One job as the cell knows it, and what each transition does to the job itself.

`advance` is the only code that changes a job. `apply` calls it on the job in the state and then keeps the indexes and
charges right; `decide` calls it on a copy, so that what it decides next in the same transaction builds on what it has
decided before. The table of `lifecycle` is asked first, always (rule L1).

A pod that has reached SUCCEEDED, FAILED or GONE stays what it is: a finished pod that is cleaned away later has still
succeeded. Positions that the placement leaves out (elastic replicas above the minimum) are GONE from the start, and
become GONE again when the job is shrunk; in a job that is not stopping, GONE means vacant. An index of an array job
that has succeeded stays so over all epochs, also while the job is queued (`arrays`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from muster.core import arrays, layout, lifecycle
from muster.core import transitions as tr
from muster.core.attempts import Attempt, Resize, ends, resized, shrinking
from muster.core.gangs import Gang
from muster.core.limits import ATTEMPT_PODS_KEPT_MAX, ATTEMPTS_KEPT_MAX, SUSPECTS_MAX
from muster.core.model import Amounts, GroupPlacement, InboxPosition, JobSpec, JobState, PodPhase, Reason

SUCCEEDED: Final = int(PodPhase.SUCCEEDED)  # as plain integers: a bytearray counts those ten times faster
FAILED: Final = int(PodPhase.FAILED)
GONE: Final = int(PodPhase.GONE)
RUNNING: Final = int(PodPhase.RUNNING)
OVER: Final = SUCCEEDED  # from here on a pod has stopped for good
PLACED: Final = Reason.PLACED  # a member of an enumeration is slow to name
ALL_SUCCEEDED: Final = Reason.ALL_SUCCEEDED
RUNNING_STATES: Final = frozenset({JobState.PLACED, JobState.STARTING, JobState.RUNNING})  # charged, not stopping


class Job(Struct, gc=False):
    """Mutable, changed only by `advance`. Not tracked by the garbage collector: it is in no reference cycle."""

    spec: JobSpec
    queue: str  # id
    submit_position: InboxPosition
    submit_ms: int
    gang: Gang
    asks: Gang  # what it needs to start and may have at most: its gang, or what is left of an array job when queued
    state: JobState = JobState.QUEUED
    reason: str = Reason.SUBMITTED
    message: str = ""
    epoch: int = 0
    placement: tuple[GroupPlacement, ...] = ()
    # A PodPhase for each position; empty while Queued, except of an array job that has succeeded in part.
    phases: bytearray = msgspec.field(default_factory=bytearray)
    unplaced: int = 0  # positions of the current placement that are left out
    not_before_ms: int = 0
    placed_ms: int = 0
    started_ms: int = 0
    finished_ms: int = 0
    exit_code: int = 0
    next_state: str = ""  # while Stopping: where it goes when all pods are over
    suspects: tuple[int, ...] = ()  # nodes it avoids
    requeues: int = 0  # by trouble, for the backoff
    preemptions: int = 0  # rule P4
    attempts: tuple[Attempt, ...] = ()
    leaving: tuple[int, ...] = ()  # positions that were asked to leave a job that goes on (JobShrunk), not over yet
    regrown: dict[int, int] = msgspec.field(default_factory=dict)  # position -> attempt, of those used again
    grow_after_ms: int = 0  # it does not grow before: replicas were lost or refused
    grown_ms: int = 0  # when it grew last
    victim: bool = False  # stopping because another job takes its place: not in committed usage (rule Q3)
    exits: tuple[tuple[int, int], ...] = ()  # (position, exit code) of pods that failed, the first ones
    began: dict[int, int] | None = None  # of an array job: position -> since when its pod runs
    saved_ms: int = 0  # its work up to then is safe: the last checkpoint that it has reported in this epoch (rule P3)
    suspects_until_ms: int = 0  # its suspects are closed to it so long; then they come last
    resizes: tuple[Resize, ...] = ()  # the last ones; of array jobs shrinks only, their indices take turns all the time

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def charged(self) -> bool:
        """Whether its pods hold quota and nodes (rule Q3)."""
        return self.state in lifecycle.CHARGED

    @property
    def live(self) -> bool:
        return self.state not in lifecycle.TERMINAL

    def copy(self) -> Job:
        """An independent job to try things on."""
        twin = msgspec.structs.replace(self)
        twin.phases = bytearray(self.phases)
        twin.regrown = dict(self.regrown)
        if self.began is not None:
            twin.began = dict(self.began)
        return twin

    def attempt_of(self, position: int) -> int:
        """Which run of the pod this is within the epoch (LOG-15)."""
        return self.regrown.get(position, 0)

    def holding(self) -> list[int]:
        """Positions that are not over: they hold quota and nodes while the job is charged (rule L5)."""
        return [position for position, phase in enumerate(self.phases) if phase < OVER]

    def held(self) -> Amounts:
        """What those hold."""
        return self.gang.of_positions(self.holding())

    def vacant(self) -> list[int]:
        """Positions that growth may use, ascending. Of a job that is placed and not stopping."""
        if not self.unplaced:
            return []
        return [position for position, phase in enumerate(self.phases) if phase == GONE]

    def vacant_in(self, group: int) -> int:
        """How many replicas of a group are vacant. Of a job that is placed and not stopping."""
        first = self.gang.firsts[group]
        return self.phases.count(GONE, first, first + self.gang.tasks[group].replicas)

    def spare(self) -> dict[int, list[int]]:
        """By group: placed positions that run or will, if there are more of them than the minimum needs (rule G1).

        A pod that succeeded counts towards the minimum. Any `spare_count` of these may leave.
        """
        found = {}
        for number in range(len(self.gang.tasks)):
            if self.spare_count(number) > 0:
                found[number] = self.staying(number)
        return found

    def staying(self, group: int) -> list[int]:
        """Placed positions of a group that are neither over nor leaving."""
        first = self.gang.firsts[group]
        end = first + self.gang.tasks[group].replicas
        return [p for p in range(first, end) if self.phases[p] < SUCCEEDED and p not in self.leaving]

    def spare_count(self, group: int) -> int:
        """How many of the group may leave so that it keeps its minimum; negative: so many are missing."""
        task, first = self.gang.tasks[group], self.gang.firsts[group]
        succeeded = self.phases.count(SUCCEEDED, first, first + task.replicas)
        return len(self.staying(group)) + succeeded - task.min_replicas

    def pods_over(self) -> bool:
        """Whether nothing of the placement runs or may still run."""
        phases = self.phases
        return phases.count(SUCCEEDED) + phases.count(FAILED) + phases.count(GONE) == len(phases)

    def all_succeeded(self) -> bool:
        """Everything that is placed; of an array job every index (rule G1)."""
        left_out = 0 if self.spec.completion else self.unplaced
        return self.phases.count(SUCCEEDED) == len(self.phases) - left_out

    def live_pods(self) -> int:
        """How many pods are placed and not over."""
        phases = self.phases
        return len(phases) - phases.count(SUCCEEDED) - phases.count(FAILED) - phases.count(GONE)

    def wanted(self) -> Amounts:
        """What it asks for at its maximum (rule F1); of an array job what has not succeeded, as far as it may run at
        once."""
        if not self.spec.completion:
            return self.gang.full
        most, _ = arrays.counts(self.spec, self.phases)
        return self.gang.of_counts(dict(enumerate(most)))

    def minimum_running(self) -> bool:
        """Whether every group has its minimum running or already succeeded, and something of this epoch has."""
        phases, firsts = self.phases, self.gang.firsts
        fresh = not self.spec.completion or phases.count(RUNNING)
        if not fresh and phases.count(SUCCEEDED) == arrays.skipped(self.placement):
            return False
        for task, first in zip(self.gang.tasks, firsts, strict=True):
            end = first + task.replicas
            if phases.count(RUNNING, first, end) + phases.count(SUCCEEDED, first, end) < task.min_replicas:
                return False
        return True


def may_grow(job: Job, now_ms: int) -> bool:
    """Whether an elastic job could use more replicas (rule G1).

    One whose pods begin to end is ending; an array job goes on, `max_parallel` at a time, until every index is done.
    """
    if job.unplaced <= 0 or job.state not in RUNNING_STATES or job.grow_after_ms > now_ms:
        return False
    if job.spec.completion:
        return not job.spec.max_parallel or job.live_pods() < job.spec.max_parallel
    return not job.phases.count(SUCCEEDED)


def shunned(job: Job, now_ms: int) -> tuple[int, ...]:
    """The nodes that are closed to it now, because it failed to start there. Later they come last (rule L3)."""
    return job.suspects if job.suspects_until_ms > now_ms else ()


def late_positions(job: Job) -> list[int]:
    """Positions that should run and do not yet."""
    return [p for p, phase in enumerate(job.phases) if phase < RUNNING and p not in job.leaving]


def is_over(phase: int) -> bool:
    """Whether a pod in this phase has stopped for good, so that it holds nothing any more (rule L5)."""
    return phase >= OVER


def advance(job: Job, transition: tr.Transition, now_ms: int) -> None:
    """What `transition` does to `job`. Raises InvariantBroken if it is not possible in the job's state."""
    if isinstance(transition, tr.PodsChanged):
        _pods_changed(job, transition)
        if job.spec.completion:
            _indices_changed(job, transition, now_ms)
        return
    job.state = lifecycle.after(job.state, type(transition), job.spec.id)
    _EFFECTS[type(transition)](job, transition, now_ms)


def _pods_changed(job: Job, t: tr.PodsChanged) -> None:
    for change in t.pods:
        job.phases[change.pod] = change.phase
        if change.phase == FAILED and len(job.exits) < ATTEMPT_PODS_KEPT_MAX:
            job.exits = (*job.exits, (change.pod, change.exit_code))
        if job.leaving and is_over(change.phase) and change.pod in job.leaving:
            job.leaving = tuple(position for position in job.leaving if position != change.pod)
            job.unplaced += change.phase == GONE


def _indices_changed(job: Job, t: tr.PodsChanged, now_ms: int) -> None:
    """When each index began: what an eviction would lose of it (rule P3)."""
    began = job.began or {}
    for change in t.pods:
        if change.phase == RUNNING:
            began[change.pod] = now_ms
        elif is_over(change.phase):
            began.pop(change.pod, None)
    job.began = began or None


def _grown(job: Job, t: tr.JobGrown, now_ms: int) -> None:
    job.grown_ms = now_ms
    before = {group.group: group for group in job.placement}
    job.placement, positions = layout.grown(job.gang.tasks, job.placement, t.groups, job.vacant())
    for position in positions:
        number = job.gang.group_of(position)
        group = before.get(number)
        replica = position - job.gang.firsts[number]
        if group is not None and layout.place_in_runs(group, replica) < layout.pods_placed(group):
            job.regrown[position] = job.attempt_of(position) + 1
        job.phases[position] = 0
    job.unplaced -= len(positions)
    if not job.spec.completion:
        job.resizes = resized(job.resizes, Resize(t.epoch, now_ms, grown=len(positions)))


def _shrunk(job: Job, t: tr.JobShrunk, now_ms: int) -> None:
    over = [position for position in t.pods if is_over(job.phases[position])]
    job.unplaced += len(over)
    job.leaving = tuple(sorted({*job.leaving, *t.pods} - set(over)))
    job.grow_after_ms = max(job.grow_after_ms, t.not_before_ms)
    _avoid(job, t)
    job.resizes = resized(job.resizes, shrinking(t, now_ms))


def _avoid(job: Job, t: tr.JobShrunk | tr.JobStopping) -> None:
    """These nodes, too; the oldest are forgotten."""
    if t.suspects:
        older = tuple(node for node in job.suspects if node not in t.suspects)
        job.suspects = (*older, *t.suspects)[-SUSPECTS_MAX:]
        job.suspects_until_ms = max(job.suspects_until_ms, t.suspects_until_ms)


def _placed(job: Job, t: tr.JobPlaced, now_ms: int) -> None:
    job.epoch = t.epoch
    job.placement = t.groups
    job.placed_ms = now_ms
    job.started_ms = 0
    job.not_before_ms = 0
    job.reason = PLACED
    job.message = ""
    job.exit_code = 0
    job.saved_ms = 0
    placed = sum([count for group in t.groups for _, count in group.runs])
    total = job.gang.pods
    job.unplaced = total - placed
    if job.phases:  # of an array job: what has succeeded stays so
        job.unplaced -= job.phases.count(SUCCEEDED)
        for position in layout.placed_positions(job.gang.tasks, t.groups):
            job.phases[position] = 0
    elif placed == total:
        job.phases = bytearray(total)
    else:
        job.phases = bytearray([GONE]) * total
        for position in layout.placed_positions(job.gang.tasks, t.groups):
            job.phases[position] = 0


def _saved(job: Job, t: tr.CheckpointReported, _now_ms: int) -> None:
    job.saved_ms = t.at_ms


def _running(job: Job, _t: tr.JobRunning, now_ms: int) -> None:
    job.started_ms = now_ms


def _stopping(job: Job, t: tr.JobStopping, _now_ms: int) -> None:
    job.next_state = t.next
    job.reason = t.reason
    job.message = t.message
    job.not_before_ms = t.not_before_ms
    job.exit_code = t.exit_code
    if t.next == JobState.QUEUED and t.reason != Reason.WAITS_FOR_ROOM:
        job.requeues += 1
    _avoid(job, t)


def _preempted(job: Job, t: tr.JobPreempted, _now_ms: int) -> None:
    job.next_state = JobState.QUEUED
    job.reason = Reason.PREEMPTED
    job.message = f"preempted by job {t.by}"
    job.not_before_ms = t.not_before_ms
    job.preemptions += 1
    job.victim = True


def _requeued(job: Job, t: tr.JobRequeued, now_ms: int) -> None:
    _end_attempt(job, t.reason, now_ms)
    job.phases = arrays.vacated(job.phases) if job.spec.completion else bytearray()
    job.unplaced = 0
    job.reason = t.reason
    job.not_before_ms = t.not_before_ms
    job.next_state = ""


def _succeeded(job: Job, _t: tr.JobSucceeded, now_ms: int) -> None:
    job.reason = ALL_SUCCEEDED
    job.message = ""
    job.exit_code = 0
    _finish(job, now_ms)


def _failed(job: Job, t: tr.JobFailed, now_ms: int) -> None:
    job.reason = t.reason
    job.message = t.message
    job.exit_code = t.exit_code
    _finish(job, now_ms)


def _cancelled(job: Job, t: tr.JobCancelled, now_ms: int) -> None:
    job.reason = t.reason
    job.message = t.message
    _finish(job, now_ms)


def _finish(job: Job, now_ms: int) -> None:
    if job.placement:
        _end_attempt(job, job.reason, now_ms)
    job.finished_ms = now_ms
    job.next_state = ""
    job.not_before_ms = 0


def _end_attempt(job: Job, reason: str, now_ms: int) -> None:
    attempt = Attempt(
        epoch=job.epoch,
        placed_ms=job.placed_ms,
        started_ms=job.started_ms,
        ended_ms=now_ms,
        reason=reason,
        message=job.message,
        exit_code=job.exit_code,
        placement=job.placement,
        pods=ends(job.gang.tasks, job.placement, job.phases, job.exits),
    )
    job.attempts = (*job.attempts, attempt)[-ATTEMPTS_KEPT_MAX:]
    job.placement = ()
    job.exits = ()
    job.leaving = ()
    job.regrown = {}
    job.began = None
    job.grow_after_ms = job.grown_ms = 0
    job.victim = False


_EFFECTS: Final[dict[type[tr.Transition], Callable[[Job, Any, int], None]]] = {
    tr.JobPlaced: _placed,
    tr.JobGrown: _grown,
    tr.JobShrunk: _shrunk,
    tr.JobStarting: lambda _job, _t, _now_ms: None,
    tr.JobRunning: _running,
    tr.JobStopping: _stopping,
    tr.JobPreempted: _preempted,
    tr.JobRequeued: _requeued,
    tr.JobSucceeded: _succeeded,
    tr.JobFailed: _failed,
    tr.JobCancelled: _cancelled,
    tr.CheckpointReported: _saved,
}
