"""The binder's loop: what the ledger decides becomes pods, what the pods do becomes facts.

    ledger > on_transaction > Reviewer > ClusterWork > Performer > API server
    API server > Informer > PodCache > Reviewer > Outbox > inbox

This module joins the parts for one replica and looks after the partitions it holds. A partition that was taken is not
acted on in a cluster before (1) the ledger is applied up to where it was when the partition was taken, so that nothing
the previous owner knew is unknown here, and (2) the cluster's pods were listed after that (LOG-15). Only asyncio is
used, and time, randomness and all traffic come in through ports, so the simulation runs this very code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

from muster.core import transitions as tr
from muster.core.state import CellState
from muster.runtime import kube
from muster.runtime.kube_http import WRITE_TIMEOUT_S
from muster.runtime.kube_objects import PODS, Pod, WatchEvent
from muster.runtime.kube_watch import Informer, WatchSettings
from muster.runtime.lease import TTL_S
from muster.runtime.logs import get_logger
from muster.runtime.ports import Clock
from muster.runtime.tracing import Tracing
from muster_binder import names
from muster_binder.cache import PodCache
from muster_binder.facts import Inbox, Outbox
from muster_binder.metrics import BinderMetrics
from muster_binder.observed import observe
from muster_binder.partitions import partition_of
from muster_binder.perform import Performer
from muster_binder.review import Reviewer, ReviewSettings
from muster_binder.work import ClusterWork, Op

FENCE_S: Final = WRITE_TIMEOUT_S + TTL_S  # what a previous owner had on the wire when it lost its lease is done by then
HOUSEKEEPING_S: Final = 1.0
UNCONFIRMED_MAX_MS: Final = 10_000
REVIEWS_AT_ONCE: Final = 500  # jobs reviewed before other tasks get their turn

log = get_logger(__name__)


class Ledger(Protocol):
    """The follower, as far as it is used here."""

    @property
    def state(self) -> CellState: ...

    def on_transaction(self, callback: Callable[[tr.Transaction, int], None]) -> None: ...

    def on_reload(self, callback: Callable[[CellState], None]) -> None: ...

    async def catch_up(self) -> None:
        """Returns when everything that is in the ledger now is applied."""


class Partitions(Protocol):
    """The partitions of this replica (`partitions.PartitionLeases`)."""

    changed: asyncio.Event

    def holds(self, partition: int) -> bool: ...
    def term(self, partition: int) -> int: ...
    def taken_s(self, partition: int) -> float: ...
    def held(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class BinderOptions:
    in_flight_max: int = 32  # writes at once to one cluster
    per_second_max: int = 0  # writes a second to one cluster; 0: no limit
    resync_s: float = 60.0
    review: ReviewSettings = field(default_factory=ReviewSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)


class Binder:
    """One replica. `run` does everything until it is cancelled."""

    def __init__(
        self,
        cell: str,
        *,
        ledger: Ledger,
        apis: Mapping[str, kube.KubeApi],
        inbox: Inbox,
        partitions: Partitions,
        clock: Clock,
        random: Random,
        options: BinderOptions,
        tracing: Tracing,
        metrics: BinderMetrics,
    ) -> None:
        self._ledger = ledger
        self._partitions = partitions
        self._clock = clock
        self._options = options
        self._metrics = metrics
        self._tracing = tracing
        self._ready: dict[str, dict[int, int]] = {cluster: {} for cluster in apis}  # partition -> term it is ready for
        self.cache = PodCache()
        self.outbox = Outbox(
            inbox, needed=self._needed, consumed=lambda: ledger.state.position, clock=clock, metrics=metrics
        )
        self._reviewer = Reviewer(
            state=lambda: ledger.state,
            cache=self.cache,
            outbox=self.outbox,
            owner=self,
            submit=self._submit,
            clock=clock,
            settings=options.review,
            metrics=metrics,
        )
        performer = Performer(
            apis, reviewer=self._reviewer, cache=self.cache, owner=self, clock=clock, tracing=tracing, metrics=metrics
        )
        self._work = {
            cluster: ClusterWork(
                cluster,
                performer.perform,
                in_flight_max=options.in_flight_max,
                per_second_max=options.per_second_max,
                clock=clock,
                random=random,
                metrics=metrics,
            )
            for cluster in apis
        }
        self._informers = {cluster: self._informer(cell, cluster, api, random) for cluster, api in apis.items()}
        metrics.follow(
            {cluster: informer.stale_s for cluster, informer in self._informers.items()},
            {cluster: work.waiting for cluster, work in self._work.items()},
        )
        self._look_at_all = asyncio.Event()  # do not wait for the next resync
        ledger.on_transaction(self.on_transaction)
        ledger.on_reload(lambda _state: self._look_at_all.set())

    async def run(self) -> None:
        """For ever; ends by cancellation, or by an error that is a bug."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.outbox.run(), name="facts")
            tasks.create_task(self._keep_house(), name="housekeeping")
            tasks.create_task(self._resync(), name="resync")
            tasks.create_task(self._follow_partitions(), name="partitions")
            for cluster, informer in self._informers.items():
                tasks.create_task(informer.run(), name=f"pods of {cluster}")
                tasks.create_task(self._work[cluster].run(), name=f"writes to {cluster}")

    @property
    def synced(self) -> bool:
        """Whether every cluster's pods were listed at least once."""
        return all(informer.synced for informer in self._informers.values())

    # --- whose business a job is (review.Owner) ---------------------------------------------------------------------

    def owns(self, job: str, cluster: str) -> bool:
        partition = partition_of(job)
        ready = self._ready.get(cluster)
        return (
            ready is not None
            and ready.get(partition, 0) == self._partitions.term(partition) != 0
            and self._partitions.holds(partition)
        )

    def owns_job(self, job: str) -> bool:
        return self._partitions.holds(partition_of(job))

    def fence_s(self, job: str) -> float:
        return max(0.0, self._partitions.taken_s(partition_of(job)) + FENCE_S - self._clock.monotonic())

    # --- from the ledger --------------------------------------------------------------------------------------------

    def on_transaction(self, tx: tr.Transaction, ledger_seq: int) -> None:  # noqa: ARG002 - the callback's shape
        """Called right after a transaction was applied."""
        for transition in tx.transitions:
            if isinstance(transition, tr.PodsChanged):
                for change in transition.pods:
                    self.outbox.settle(transition.job, change.pod, change.phase, change.attempt)
            elif isinstance(transition, _REVIEWED) and self.owns_job(transition.job):
                self._reviewer.review_job(transition.job, fresh=isinstance(transition, tr.JobPlaced))

    # --- from the clusters (kube_watch.Handler, through _ClusterPods) -----------------------------------------------

    def pods_listed(self, cluster: str, pods: Sequence[Pod]) -> None:
        """Everything there is. What the cache has beyond that is gone, if a GET says so as well."""
        now_ms = self._clock.now_ms()
        listed = [found for pod in pods if (found := observe(cluster, pod, now_ms)) is not None]
        present = {pod.key for pod in listed}
        missing = [pod for key, pod in self.cache.of_cluster(cluster).items() if key not in present]
        for pod in listed:
            self.cache.put(pod)
        for pod in listed:
            self._reviewer.review_pod(pod)
        for pod in missing:
            if self.owns(pod.key.job, cluster):
                self._reviewer.confirm(pod)
            else:
                self.cache.remove(pod)

    def pods_changed(self, cluster: str, events: Sequence[WatchEvent[Any]]) -> None:
        now_ms = self._clock.now_ms()
        for event in events:
            pod = observe(cluster, event.object, now_ms)
            if pod is None:
                continue
            if event.type == "DELETED":
                self.cache.remove(pod)
                self._reviewer.gone(pod)
                continue
            before = self.cache.put(pod)
            if self._tracing.enabled and event.object.status.phase == "Running":
                self._trace_running(
                    event.object, pod.key.job, pod.first_ms, first=not before or pod.phase > before.phase
                )
            self._reviewer.review_pod(pod)

    def _trace_running(self, pod: Pod, job_id: str, first_ms: int, *, first: bool) -> None:
        job = self._ledger.state.jobs.get(job_id)
        if first and job is not None and self.owns_job(job_id):
            self._tracing.pod_running(
                job.spec.trace,
                job_id,
                pod.metadata.name,
                start_ns=first_ms * 1_000_000,
                end_ns=self._clock.now_ms() * 1_000_000,
            )

    # --- partitions -------------------------------------------------------------------------------------------------

    async def _follow_partitions(self) -> None:
        """Get each newly taken partition ready in each cluster; a cluster that is away holds up only itself."""
        wake = {cluster: asyncio.Event() for cluster in self._informers}
        async with asyncio.TaskGroup() as tasks:
            for cluster, event in wake.items():
                tasks.create_task(self._take_over(cluster, event), name=f"take over {cluster}")
            while True:
                await self._partitions.changed.wait()
                self._partitions.changed.clear()
                self._metrics.partitions.set(len(self._partitions.held()))
                for event in wake.values():
                    event.set()

    async def _take_over(self, cluster: str, taken: asyncio.Event) -> None:
        ready = self._ready[cluster]
        while True:
            await taken.wait()
            taken.clear()
            terms = {p: self._partitions.term(p) for p in self._partitions.held()}
            new = {p: term for p, term in terms.items() if ready.get(p) != term}
            if not new:
                continue
            await self._ledger.catch_up()
            await self._informers[cluster].relist()
            still = {p: term for p, term in new.items() if self._partitions.term(p) == term}
            ready.update(still)
            log.info("partitions ready", cluster=cluster, partitions=sorted(still))
            await self._review_all(still)

    # --- looking again ----------------------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        while True:
            await self._clock.sleep(HOUSEKEEPING_S)
            self.outbox.sweep()
            self._reviewer.review_due()
            for pod in self.cache.unconfirmed_before(self._clock.now_ms() - UNCONFIRMED_MAX_MS):
                if self.owns(pod.key.job, pod.cluster):
                    self._reviewer.confirm(pod)
                else:
                    self.cache.remove(pod)

    async def _resync(self) -> None:
        """Nothing should depend on this; it bounds the harm of a missed trigger."""
        while True:
            try:
                async with asyncio.timeout(self._options.resync_s):
                    await self._look_at_all.wait()
            except TimeoutError:
                pass
            self._look_at_all.clear()
            await self._review_all(self._partitions.held())

    async def _review_all(self, partitions: Collection[int]) -> None:
        jobs = dict.fromkeys([*self._ledger.state.jobs, *self.cache.jobs()])
        since_pause = 0
        for job in jobs:
            if partition_of(job) in partitions:
                self._reviewer.review_job(job)
                since_pause += 1
            if since_pause == REVIEWS_AT_ONCE:
                since_pause = 0
                await self._clock.sleep(0)

    # --- wiring -----------------------------------------------------------------------------------------------------

    def _submit(self, op: Op, delay_s: float) -> None:
        work = self._work[op.cluster]
        if delay_s > 0:
            work.submit_later(op, delay_s)
        else:
            work.submit(op)

    def _needed(self, fact: Any) -> bool:
        return self._reviewer.needed(fact)

    def _informer(self, cell: str, cluster: str, api: kube.KubeApi, random: Random) -> Informer[Pod]:
        errors = self._metrics.watch_errors.labels(cluster)

        def failed(error: kube.KubeError) -> None:
            errors.inc()
            log.warning("pods cannot be watched", cluster=cluster, error=error.message)

        return Informer(
            api,
            PODS,
            names.selector(names.label_value(cell)),
            _ClusterPods(self, cluster),
            clock=self._clock,
            random=random,
            settings=self._options.watch,
            on_error=failed,
        )


class _ClusterPods:
    """The handler of one cluster's informer."""

    def __init__(self, binder: Binder, cluster: str) -> None:
        self._binder = binder
        self._cluster = cluster

    def listed(self, objects: Sequence[Pod]) -> None:
        self._binder.pods_listed(self._cluster, objects)

    def changed(self, events: Sequence[WatchEvent[Any]]) -> None:
        self._binder.pods_changed(self._cluster, events)


_REVIEWED: Final = (
    tr.JobPlaced,
    tr.JobGrown,
    tr.JobShrunk,
    tr.JobStopping,
    tr.JobPreempted,
    tr.JobRequeued,
    tr.JobSucceeded,
    tr.JobFailed,
    tr.JobCancelled,
    tr.JobForgotten,
)
