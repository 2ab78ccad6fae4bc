"""What is promised to those who run arrays, change the tree of queues, drain queues and save their work.

Told every transaction after it was applied, with an account of its own that is kept from the transitions alone:

- an index of an array job that succeeded is never placed again, and the job ends well when each has succeeded (G1);
- a queue that is stopped starts nothing, takes nobody's place, holds no room and does not grow; one that drains has
  nothing running after the transaction that says so (Q1), and only its jobs leave for that reason;
- a change of the tree touches no job (Q4): who is not named in a transaction is as it was before;
- nothing is put on a node that is cordoned, not ready or gone (G4);
- the work that counts as saved is never of the future, and never less than it was in the same placement (P3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from muster.core import layout
from muster.core import transitions as tr
from muster.core.jobs import Job
from muster.core.lifecycle import TERMINAL
from muster.core.model import EVERY_INDEX, GroupPlacement, JobState, PodPhase, Reason
from muster.core.state import CellState

SUCCEEDED = int(PodPhase.SUCCEEDED)
GONE = int(PodPhase.GONE)
NOT_STARTING = ("STOPPED", "DRAINING")
Look = tuple[object, ...]


class Promises:
    """See the module's text. `succeeded`: of array jobs, when the ledger said of each index that it succeeded."""

    def __init__(self) -> None:
        self.succeeded: dict[str, dict[int, int]] = {}
        self._queues: dict[str, tuple[str, str]] = {}  # id -> (parent, state)
        self._open: dict[int, bool] = {}  # nodes by index: ready, not cordoned, not removed
        self._queue_of: dict[str, str] = {}
        self._arrays: dict[str, int] = {}  # job -> indices
        self._saved: dict[str, tuple[int, int]] = {}  # job -> (epoch, saved up to)
        self._looks: dict[str, Look] = {}

    def applied(self, state: CellState, tx: tr.Transaction) -> None:
        named: dict[str, None] = {}
        lost: dict[str, None] = {}  # jobs with pods that are gone in this transaction
        for t in tx.transitions:
            named |= dict.fromkeys(_named(t))
            if isinstance(t, tr.PodsChanged) and any(pod.phase > SUCCEEDED for pod in t.pods):
                lost[t.job] = None
            self._follow(state, t, lost)
        self._untouched(state, named)
        if tx.header.work_spent < tx.header.work_limit:
            self._drained(state)

    # --- one transition ---------------------------------------------------------------------------------------------

    def _follow(self, state: CellState, t: tr.AnyTransition, lost: dict[str, None]) -> None:
        if isinstance(t, tr.QueueUpserted):
            self._queues[t.spec.id] = (t.spec.parent, t.spec.state)
        elif isinstance(t, tr.QueueRemoved):
            del self._queues[t.queue]
        elif isinstance(t, tr.NodeUpserted):
            self._open[t.index] = t.spec.ready and not t.spec.cordoned
        elif isinstance(t, tr.NodeRemoved):
            self._open[t.index] = False
        elif isinstance(t, tr.JobQueued):
            self._queue_of[t.spec.id] = t.queue
            if t.spec.completion == EVERY_INDEX:
                self._arrays[t.spec.id] = sum(task.replicas for task in t.spec.tasks)
        elif isinstance(t, (tr.JobPlaced, tr.JobGrown)):
            self._starts(t.job, type(t).__name__)
            self._only_open_nodes(t.job, t.groups)
            if t.job in self._arrays:
                self._no_index_again(state.jobs[t.job], t)
        elif isinstance(t, tr.HoldMade):
            self._starts(t.job, "HoldMade")
            self._only_open_nodes(t.job, t.placement)
        elif isinstance(t, tr.PodsChanged) and t.job in self._arrays:
            self._indices(t)
        elif isinstance(t, tr.JobSucceeded) and t.job in self._arrays:
            have, wanted = len(self.succeeded.get(t.job, ())), self._arrays[t.job]
            assert have == wanted, f"G1: job {t.job} succeeded with {have} of {wanted} indices"
        elif isinstance(t, tr.JobStopping):
            self._stops(t, lost)
        elif isinstance(t, tr.CheckpointReported):
            self._saves(state, t)

    def _starts(self, job: str, what: str) -> None:
        states = [state for state in self._states(self._queue_of[job]) if state in NOT_STARTING]
        assert not states, f"Q1: {what} of job {job} although its queue is {states[0]}"

    def _only_open_nodes(self, job: str, groups: Iterable[GroupPlacement]) -> None:
        shut = [node for group in groups for node, _ in group.runs if not self._open[node]]
        assert not shut, f"G4: job {job} is placed on node {shut[0]}, which takes nothing"

    def _states(self, queue: str) -> Iterable[str]:
        while queue:
            parent, state = self._queues[queue]
            yield state
            queue = parent

    def _no_index_again(self, job: Job, t: tr.JobPlaced | tr.JobGrown) -> None:
        done = self.succeeded.get(t.job, {})
        again = [index for index in done if job.phases[index] != SUCCEEDED]
        again += [p.position for p in layout.each_pod(job.spec.tasks, t.groups) if _is_start(t) and p.position in done]
        assert not again, f"G1: {type(t).__name__} runs index {again[0]} of job {t.job} again, which succeeded"

    def _indices(self, t: tr.PodsChanged) -> None:
        done = self.succeeded.setdefault(t.job, {})
        for pod in t.pods:
            assert pod.pod not in done, f"G1: index {pod.pod} of job {t.job} changes to {pod.phase} after it succeeded"
            if pod.phase == SUCCEEDED:
                done[pod.pod] = _now_ms()

    def _stops(self, t: tr.JobStopping, lost: dict[str, None]) -> None:
        """Only for a reason: a tree that changes is none (rule Q4)."""
        if t.reason == Reason.QUEUE_DRAINED:
            states = list(self._states(self._queue_of[t.job]))
            assert "DRAINING" in states, f"Q1: job {t.job} is drained, its queues are {states}"
        elif t.reason in (Reason.POD_GONE, Reason.NODE_LOST, Reason.POD_FAILED):
            assert t.job in lost, f"L2: job {t.job} is taken down for {t.reason}, none of its pods ended"
        elif t.reason == Reason.WAITS_FOR_ROOM:
            assert t.job in self._arrays, f"G1: job {t.job} waits for room"

    def _saves(self, state: CellState, t: tr.CheckpointReported) -> None:
        before = self._saved.get(t.job, (0, 0))
        assert before < (t.epoch, t.at_ms), f"P3: job {t.job} saved {t.at_ms} in epoch {t.epoch} after {before}"
        assert t.at_ms <= state.now_ms, f"P3: job {t.job} saved {t.at_ms}, it is {state.now_ms}"
        self._saved[t.job] = (t.epoch, t.at_ms)

    # --- the whole --------------------------------------------------------------------------------------------------

    def _untouched(self, state: CellState, named: dict[str, None]) -> None:
        """Whom no transition names is as before: no change of the tree loses or restarts a job (rule Q4)."""
        looks = {job.id: _look(job) for job in state.jobs.values()}
        for job_id, look in self._looks.items():
            if job_id not in named:
                assert looks.get(job_id) == look, f"Q4: job {job_id} was {look}, is {looks.get(job_id)}"
        for job_id, queue in self._queue_of.items():
            job = state.jobs.get(job_id)
            assert job is None or job.queue == queue, f"Q4: job {job_id} came to another queue"
            assert job is None or job.state in TERMINAL or queue in self._queues, f"Q4: the queue of {job_id} is gone"
        self._looks = looks

    def _drained(self, state: CellState) -> None:
        for job in state.jobs.values():
            if job.state in (JobState.PLACED, JobState.STARTING, JobState.RUNNING):
                assert "DRAINING" not in self._states(job.queue), f"Q1: job {job.id} is {job.state}, its queue drains"
        for job_id in state.holds:
            states = list(self._states(self._queue_of[job_id]))
            assert not set(states) & set(NOT_STARTING), f"Q1: room is held for job {job_id}, its queues are {states}"


def _named(t: tr.AnyTransition) -> tuple[str, ...]:
    """Jobs that a transition is about."""
    if isinstance(t, tr.JobQueued):
        return (t.spec.id,)
    job = getattr(t, "job", "")
    return (job,) if job else ()


def _is_start(t: tr.JobPlaced | tr.JobGrown) -> bool:
    """Positions of a growth are counted otherwise: along the vacant ones."""
    return isinstance(t, tr.JobPlaced)


def _look(job: Job) -> Look:
    return (job.state, job.epoch, bytes(job.phases), job.placement, job.leaving)


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
