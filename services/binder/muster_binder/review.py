"""What should happen to each pod, from what the ledger wants and what the clusters show.

Level-triggered: every decision is made anew from the state, the cache of pods and what is being done already, so it
does not matter which change led here, whether one was missed, or who acted before (LOG-15). Nothing here waits; what is
to be done becomes an `Op`, what is to be told a fact.

    the job is      the pod is       then                    (a pod that a job was shrunk by: as if stopping)
    placed          nowhere          create it; or, if the ledger has seen it, get it to be sure, then tell GONE
    placed          there            tell its phase, exit code; a refusal by the kubelet takes the placement back
    stopping        there            delete it (its own grace, its uid), unless it is finished
    stopping        nowhere          tell GONE, once no create can be on its way any more
    anything else   there            delete it: at once, or, finished pods of finished jobs, after a while
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, Protocol

from muster.core.commands import PlacementRejected, PodFact
from muster.core.lifecycle import CHARGED, TERMINAL
from muster.core.model import JobState, PodPhase
from muster.core.state import CellState, Job
from muster.runtime.ports import Clock
from muster_binder.cache import PodCache
from muster_binder.doing import Doing
from muster_binder.facts import Outbox
from muster_binder.manifest import Gang, Slot
from muster_binder.metrics import BinderMetrics
from muster_binder.names import PodKey
from muster_binder.observed import Observed
from muster_binder.work import Kind, Op

ACTIVE: Final = CHARGED - {JobState.STOPPING}
PLACED: Final = int(PodPhase.PLACED)
SUCCEEDED: Final = int(PodPhase.SUCCEEDED)
GONE: Final = int(PodPhase.GONE)
MESSAGE_CHARS_MAX: Final = 512


@dataclass(frozen=True)
class ReviewSettings:
    finished_pod_ttl_ms: int = 600_000
    orphan_grace_ms: int = 60_000
    settle_s: float = 6.0  # a write that was not answered has happened by then, or never will
    default_image: str = "pause:3.10"


class Owner(Protocol):
    """Which jobs are this replica's business."""

    def owns(self, job: str, cluster: str) -> bool:
        """Whether it may act on and speak for the job's pods in this cluster, now."""

    def owns_job(self, job: str) -> bool: ...

    def fence_s(self, job: str) -> float:
        """Seconds until nothing that a previous owner began can still take effect."""


class Reviewer:
    """Decides; see the module's text. `submit(op, delay_s)` hands work to the cluster's queue."""

    def __init__(
        self,
        *,
        state: Callable[[], CellState],
        cache: PodCache,
        outbox: Outbox,
        owner: Owner,
        submit: Callable[[Op, float], None],
        clock: Clock,
        settings: ReviewSettings,
        metrics: BinderMetrics,
    ) -> None:
        self._state = state
        self._cache = cache
        self._outbox = outbox
        self._owner = owner
        self._submit = submit
        self._clock = clock
        self._settings = settings
        self._metrics = metrics
        self._doing = Doing()
        self._gangs: dict[str, Gang] = {}  # of jobs whose pods are being created
        self._due: list[tuple[int, str]] = []  # when to look at a job again: a heap
        self._due_jobs: set[str] = set()

    @property
    def settle_s(self) -> float:
        return self._settings.settle_s

    # --- looking ----------------------------------------------------------------------------------------------------

    def review_job(self, job_id: str, *, fresh: bool = False) -> None:
        """Look at all pods of a job. `fresh`: it was placed just now, while this replica owned it."""
        job = self._state().jobs.get(job_id)
        if job is not None and job.state in CHARGED:
            self._review_missing(job, fresh=fresh)
        for pod in self._cache.of_job(job_id):
            self.review_pod(pod)

    def review_pod(self, pod: Observed) -> None:
        """Look at a pod that exists."""
        if not self._owner.owns(pod.key.job, pod.cluster):
            return
        job = self._state().jobs.get(pod.key.job)
        if job is None or not self._is_current(job, pod.key):
            self._clean_up(job, pod)
            return
        self._report(job, pod)
        if self.unwanted(pod):
            self._delete(pod)

    def review_due(self) -> None:
        """Look at the jobs whose time has come (finished pods, orphans)."""
        now_ms = self._clock.now_ms()
        while self._due and self._due[0][0] <= now_ms:
            _, job_id = heappop(self._due)
            self._due_jobs.discard(job_id)
            self.review_job(job_id)

    def gone(self, pod: Observed) -> None:
        """`pod` was removed from its cluster; what it last showed, if it was final, wins."""
        job = self._state().jobs.get(pod.key.job)
        if job is None or not self._owner.owns(pod.key.job, pod.cluster):
            return
        if not self._is_current(job, pod.key):
            self._next_epoch(job)
            return
        if pod.finished:
            self._report(job, pod)
        else:
            self._tell(job, pod.key, pod.cluster, PodPhase.GONE)

    def absent(self, op: Op, before: Observed | None) -> None:
        """The API server says there is no such pod, where `before` was what we knew."""
        if before is not None:
            self._cache.remove(before)
        job = self._state().jobs.get(op.key.job)
        if job is not None and before is not None and not self._is_current(job, op.key):
            self._next_epoch(job)
            return
        if job is None or not self._is_current(job, op.key) or self._known_phase(job, op.key) >= SUCCEEDED:
            return
        phase = job.phases[op.key.pod]
        if _leaves(job, op.key) and phase == PLACED:
            wait_s = 0.0 if op.fresh else self._owner.fence_s(op.key.job)
            if wait_s > 0:
                self._start(Op(Kind.CONFIRM, op.key, op.cluster, op.namespace, op.name), wait_s)
                return
        elif phase == PLACED and before is None:
            self._create(job, op.key, op.cluster, op.name, fresh=False)
            return
        self._tell(job, op.key, op.cluster, PodPhase.GONE)

    # --- what operations ask ----------------------------------------------------------------------------------------

    def wants(self, key: PodKey) -> bool:
        """Whether this pod is to be created: still placed in this epoch and never seen."""
        job = self._state().jobs.get(key.job)
        return (
            job is not None
            and job.state in ACTIVE
            and self._is_current(job, key)
            and not _leaves(job, key)
            and self._known_phase(job, key) == PLACED
            and self._cache.get(key) is None
            and not self._cache.any_before(key.job, job.epoch)
        )

    def to_create(self, key: PodKey) -> tuple[Gang, Slot] | tuple[None, None]:
        """What to create for `key`, if it is wanted."""
        if not self.wants(key):
            return None, None
        gang = self.gang(self._state().jobs[key.job])
        return gang, gang.slots[key.pod]

    def unwanted(self, pod: Observed) -> bool:
        """Whether this pod is to be deleted."""
        job = self._state().jobs.get(pod.key.job)
        if job is None or not self._is_current(job, pod.key):
            return True
        if job.state in ACTIVE and job.phases[pod.key.pod] == GONE:
            return True  # the ledger has given it up
        return _leaves(job, pod.key) and not pod.finished

    def not_wanted_any_more(self, op: Op, *, tried: bool) -> None:
        """A create that was not carried out, or whose outcome nobody knows (`tried`), is not wanted now."""
        pod = self._cache.get(op.key)
        if pod is not None:
            self.review_pod(pod)
            return
        job = self._state().jobs.get(op.key.job)
        if job is not None and tried and op.key.epoch < job.epoch:
            self._start(Op(Kind.CONFIRM, op.key, op.cluster, op.namespace, op.name), self._settings.settle_s)
            return
        if job is None or not self._is_current(job, op.key) or not _leaves(job, op.key):
            return
        if op.fresh and not tried:
            self._tell(job, op.key, op.cluster, PodPhase.GONE)
            return
        wait_s = self._settings.settle_s if tried else self._owner.fence_s(op.key.job)
        self._start(Op(Kind.CONFIRM, op.key, op.cluster, op.namespace, op.name), wait_s)

    def confirm(self, pod: Observed) -> None:
        """Get a pod that we believe in but do not see; if something is being done to it, after that."""
        op = Op(Kind.CONFIRM, pod.key, pod.cluster, pod.namespace, pod.name)
        if pod.key in self._doing:
            self._doing.postpone(op)
        self._start(op, 0.0)

    def reject(self, op: Op, code: str, message: str) -> None:
        job = self._state().jobs.get(op.key.job)
        if job is not None and self._is_current(job, op.key) and not _leaves(job, op.key):
            self._reject(job, op.cluster, op.key, code, message, by_node=op.kind is not Kind.CREATE)

    def gang(self, job: Job) -> Gang:
        """The pods of the job's placement."""
        known = self._gangs.get(job.spec.id)
        if known is not None and known.epoch == job.epoch and known.placement is job.placement:
            return known
        state = self._state()
        gang = Gang(
            state.cell,
            job.spec,
            job.epoch,
            job.placement,
            state.nodes.spec,
            attempt_of=dict(job.regrown),
            default_image=self._settings.default_image,
        )
        if known is not None and known.epoch == job.epoch:
            gang.creates = known.creates  # the job has grown meanwhile
        return gang

    def done(self, op: Op) -> None:
        """The operation is over; another may begin for its pod."""
        if self._doing.end(op):
            postponed = self._doing.postponed(op.key)
            if postponed is not None and self._cache.get(op.key) is not None:
                self._start(postponed, 0.0)
            # A job that was placed again waits for what may still come of before: the ledger gives up pods of a node
            # that was removed without asking whether one is still on its way (LOG-15).
            job = self._state().jobs.get(op.key.job)
            if job is not None and op.key.epoch < job.epoch:
                self._look_again(op.key.job, self._clock.now_ms())
        if op.kind is Kind.CREATE:
            gang = self._gangs.get(op.key.job)
            if gang is not None and gang.epoch == op.key.epoch:
                gang.creates -= 1
                if gang.creates == 0:
                    del self._gangs[op.key.job]

    def needed(self, fact: PodFact | PlacementRejected) -> bool:
        """Whether the ledger lacks this fact and it is ours to tell."""
        job = self._state().jobs.get(fact.job)
        if job is None or job.epoch != fact.epoch or not self._owner.owns_job(fact.job):
            return False
        if fact.attempt != job.attempt_of(fact.pod):
            return False
        if isinstance(fact, PlacementRejected):
            return job.state in ACTIVE and fact.pod not in job.leaving and job.phases[fact.pod] != GONE
        return job.state in CHARGED and job.phases[fact.pod] < min(fact.phase, SUCCEEDED)

    # --- deciding ---------------------------------------------------------------------------------------------------

    def _review_missing(self, job: Job, *, fresh: bool) -> None:
        """Pods of the current placement that the cache does not hold."""
        if job.state in ACTIVE and self._cache.any_before(job.spec.id, job.epoch):
            for pod in self._earlier_pods(job):
                self.review_pod(pod)
            return  # `gone` comes back here
        if self._doing.any_before(job.spec.id, job.epoch):
            return  # `done` comes back here
        gang: Gang | None = None
        for position, phase in enumerate(job.phases):
            if phase >= SUCCEEDED:
                continue
            key = PodKey(job.spec.id, job.epoch, position, job.attempt_of(position))
            if key in self._doing or self._cache.get(key) is not None or self._known_phase(job, key) >= SUCCEEDED:
                continue
            gang = gang or self.gang(job)
            slot = gang.slots[position]
            if not self._owner.owns(job.spec.id, slot.cluster):
                continue
            if phase == PLACED and not _leaves(job, key):
                if self._known_phase(job, key) == PLACED:
                    self._gangs[job.spec.id] = gang  # so that it is built once
                    self._create(job, key, slot.cluster, slot.name, fresh=fresh)
                continue
            wait_s = self._owner.fence_s(job.spec.id) if phase == PLACED else 0.0
            self._start(Op(Kind.CONFIRM, key, slot.cluster, job.spec.namespace, slot.name), wait_s)

    def _earlier_pods(self, job: Job) -> list[Observed]:
        """Pods of placements before the current one: no two epochs of a job have pods at the same time (LOG-15)."""
        return [pod for pod in self._cache.of_job(job.spec.id) if pod.key.epoch < job.epoch]

    def _next_epoch(self, job: Job) -> None:
        """A pod of an earlier epoch was removed; the current one may begin when it was the last."""
        if job.state in ACTIVE and not self._cache.any_before(job.spec.id, job.epoch):
            self._review_missing(job, fresh=False)

    def _create(self, job: Job, key: PodKey, cluster: str, name: str, *, fresh: bool) -> None:
        gang = self._gangs[job.spec.id] = self.gang(job)
        gang.creates += 1
        op = Op(Kind.CREATE, key, cluster, job.spec.namespace, name, fresh=fresh)
        if not fresh:
            op.not_before_s = self._clock.monotonic() + self._owner.fence_s(job.spec.id)
        self._start(op, 0.0)

    def _clean_up(self, job: Job | None, pod: Observed) -> None:
        """A pod of another epoch, of a finished job, or of no job at all."""
        wait_ms = 0
        if job is None:
            if not pod.finished:
                wait_ms = pod.seen_ms + self._settings.orphan_grace_ms - self._clock.now_ms()
        elif self._is_ahead(job, pod.key):
            return  # not in our ledger yet; its owner was further than we are
        elif job.state in TERMINAL and pod.key.epoch == job.epoch and pod.finished:
            wait_ms = job.finished_ms + self._settings.finished_pod_ttl_ms - self._clock.now_ms()
        if wait_ms > 0:
            self._look_again(pod.key.job, self._clock.now_ms() + wait_ms)
            return
        if job is None and not pod.finished:
            self._metrics.orphans.labels(pod.cluster).inc()
        self._delete(pod)

    def _report(self, job: Job, pod: Observed) -> None:
        if pod.refused and not _leaves(job, pod.key):
            self._reject(job, pod.cluster, pod.key, pod.reason, pod.message, by_node=True)
        elif pod.phase > job.phases[pod.key.pod]:
            self._tell(job, pod.key, pod.cluster, pod.phase, pod)

    def _tell(self, job: Job, key: PodKey, cluster: str, phase: PodPhase, pod: Observed | None = None) -> None:
        if job.phases[key.pod] >= SUCCEEDED:
            return
        self._outbox.observe(
            cluster,
            PodFact(
                job=key.job,
                epoch=key.epoch,
                pod=key.pod,
                phase=int(phase),
                attempt=key.attempt,
                uid=pod.uid if pod else "",
                exit_code=pod.exit_code if pod else 0,
                reason=pod.reason if pod else "",
            ),
        )

    def _reject(self, job: Job, cluster: str, key: PodKey, code: str, message: str, *, by_node: bool) -> None:
        rejection = PlacementRejected(
            cluster=cluster,
            job=key.job,
            epoch=key.epoch,
            pod=key.pod,
            code=code or "Refused",
            message=message[:MESSAGE_CHARS_MAX],
            attempt=key.attempt,
            by_node=by_node,
        )
        self._outbox.reject(rejection, alone=job.gang.minimum_tasks is not None)

    def _delete(self, pod: Observed) -> None:
        if not pod.leaving or pod.finished:
            op = Op(Kind.DELETE, pod.key, pod.cluster, pod.namespace, pod.name, uid=pod.uid, finished=pod.finished)
            self._start(op, 0.0)

    def _start(self, op: Op, delay_s: float) -> None:
        if self._doing.begin(op):
            self._submit(op, delay_s)

    def _known_phase(self, job: Job, key: PodKey) -> int:
        """The furthest phase that the ledger has or that is on its way there."""
        return max(job.phases[key.pod], self._outbox.phase(key))

    def _look_again(self, job_id: str, at_ms: int) -> None:
        if job_id not in self._due_jobs:
            self._due_jobs.add(job_id)
            heappush(self._due, (at_ms, job_id))

    @staticmethod
    def _is_current(job: Job, key: PodKey) -> bool:
        """Whether the key names a pod of the placement that the job has now."""
        if job.state not in CHARGED or job.epoch != key.epoch or key.pod >= len(job.phases):
            return False
        return key.attempt == job.attempt_of(key.pod)

    @staticmethod
    def _is_ahead(job: Job, key: PodKey) -> bool:
        """Whether the pod belongs to something that is not in our ledger yet."""
        return key.epoch > job.epoch or (key.epoch == job.epoch and key.attempt > job.attempt_of(key.pod))


def _leaves(job: Job, key: PodKey) -> bool:
    """Whether the pod was asked to leave, with all of the job or alone."""
    return job.state is JobState.STOPPING or key.pod in job.leaving
