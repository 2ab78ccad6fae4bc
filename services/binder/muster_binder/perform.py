"""Carrying out one operation on one pod: the only code that writes to a cluster.

Before an operation starts, and after every await, it is asked again whether it is still wanted: a job may be cancelled,
or its partition lost, while a request waits in the queue or on the wire. Errors are sorted by what they mean here:

- AlreadyExists: our own earlier attempt (or a previous owner's) if the labels say so: adopt it; else the name is taken.
- Invalid, or no such namespace: the server will never have this pod: the placement is rejected with its words.
- Throttled and Transient go on to `ClusterWork`, which calls again later. A create whose answer was lost is simply
  sent again while it is wanted; when it is not, a GET after `settle_s` tells whether it happened.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.runtime import kube
from muster.runtime.kube_objects import Pod
from muster.runtime.logs import get_logger
from muster.runtime.ports import Clock
from muster.runtime.tracing import Tracing
from muster_binder import names
from muster_binder.cache import PodCache
from muster_binder.manifest import BadTemplate, Gang, Slot
from muster_binder.metrics import BinderMetrics
from muster_binder.observed import observe
from muster_binder.review import Owner, Reviewer
from muster_binder.work import Kind, Op

ALREADY_EXISTS = "AlreadyExists"

log = get_logger(__name__)


class _Refused(Exception):
    """The pod cannot be had for good."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Performer:
    """Runs operations of all clusters. `perform` is what `ClusterWork` calls."""

    def __init__(
        self,
        apis: Mapping[str, kube.KubeApi],
        *,
        reviewer: Reviewer,
        cache: PodCache,
        owner: Owner,
        clock: Clock,
        tracing: Tracing,
        metrics: BinderMetrics,
    ) -> None:
        self._apis = apis
        self._reviewer = reviewer
        self._cache = cache
        self._owner = owner
        self._clock = clock
        self._tracing = tracing
        self._created = {cluster: metrics.created.labels(cluster) for cluster in apis}
        self._deleted = {cluster: metrics.deleted.labels(cluster) for cluster in apis}
        self._create_seconds = {cluster: metrics.create_seconds.labels(cluster) for cluster in apis}

    async def perform(self, op: Op) -> None:
        if not self._owner.owns(op.key.job, op.cluster):
            if op.kind is Kind.CREATE and self._clock.monotonic() < op.not_before_s:
                # Should it be ours again in a moment, nobody may take the pod for missing meanwhile (LOG-15).
                raise kube.Transient(f"an earlier create of {op.name} may still arrive")
            self._reviewer.done(op)  # the new owner looks at everything itself
        elif op.kind is Kind.CREATE:
            await self._create(op)
        elif op.kind is Kind.DELETE:
            await self._delete(op)
        else:
            await self._confirm(op)

    async def _create(self, op: Op) -> None:
        gang, slot = self._reviewer.to_create(op.key)
        if gang is None or slot is None:
            self._reviewer.done(op)
            self._reviewer.not_wanted_any_more(op, tried=op.tries > 0)
            return
        began_s = self._clock.monotonic()
        try:
            with self._tracing.bind_span(gang.spec.trace, op.key.job, op.name, slot.node):
                pod = await self._obtain(op, gang, slot)
        except (_Refused, BadTemplate, kube.Invalid, kube.NotFound) as refusal:
            self._reviewer.done(op)
            self._refuse(op, refusal)
            return
        self._create_seconds[op.cluster].observe(self._clock.monotonic() - began_s)
        self._created[op.cluster].inc()
        self._reviewer.done(op)
        observed = observe(op.cluster, pod, self._clock.now_ms(), confirmed=False)
        if observed is not None and observed.key == op.key and self._cache.get(op.key) is None:
            self._cache.put(observed)  # else the watch was faster
        current = self._cache.get(op.key)
        if current is not None:
            self._reviewer.review_pod(current)

    async def _obtain(self, op: Op, gang: Gang, slot: Slot) -> Pod:
        """The pod, created or found created. Raises KubeErrors and _Refused."""
        api = self._apis[op.cluster]
        if gang.binds_existing(slot):
            return await self._bind_existing(api, op, gang, slot)
        if self._clock.monotonic() < op.not_before_s:
            return await self._wait_for(api, op)
        body = gang.manifest(slot, op.key.attempt)
        try:
            return await api.create_pod(op.namespace, body)
        except kube.Transient as unanswered:
            if unanswered.status == 0:
                op.not_before_s = self._clock.monotonic() + self._reviewer.settle_s
            raise
        except kube.Conflict as conflict:
            if conflict.reason != ALREADY_EXISTS:
                raise kube.Transient(conflict.message, status=conflict.status, reason=conflict.reason) from conflict
        try:
            pod = await api.get_pod(op.namespace, op.name)
        except kube.NotFound as vanished:
            raise kube.Transient(f"pod {op.name} existed and is gone") from vanished  # the watch tells what it was
        return self._ours(op, pod)

    async def _wait_for(self, api: kube.KubeApi, op: Op) -> Pod:
        """The pod of an earlier create. Of two creates on their way at once the second could arrive when the first
        one's pod has lived and gone, and run where nobody expects it (LOG-15)."""
        try:
            pod = await api.get_pod(op.namespace, op.name)
        except kube.NotFound as missing:
            raise kube.Transient(f"an earlier create of {op.name} may still arrive") from missing
        return self._ours(op, pod)

    def _ours(self, op: Op, pod: Pod) -> Pod:
        if names.key_of(pod.metadata.labels) != op.key:
            raise _Refused("NameTaken", f"a pod that is not of this job is called {op.namespace}/{op.name}")
        return pod

    async def _bind_existing(self, api: kube.KubeApi, op: Op, gang: Gang, slot: Slot) -> Pod:
        """Label a pod that somebody else created for us and bind it to its slot (rule L4)."""
        pod = await api.get_pod(op.namespace, op.name)
        if pod.spec.scheduler_name != names.SCHEDULER:
            raise _Refused("OtherScheduler", f"pod {op.name} has schedulerName {pod.spec.scheduler_name!r}")
        if pod.spec.node_name and pod.spec.node_name != slot.node:
            raise _Refused("AlreadyBound", f"pod {op.name} is bound to {pod.spec.node_name}, not {slot.node}")
        if names.key_of(pod.metadata.labels) != op.key:
            pod = await api.patch_pod(op.namespace, op.name, gang.adoption(slot, op.key.attempt))
        if not pod.spec.node_name and self._reviewer.wants(op.key):
            try:
                await api.bind_pod(op.namespace, op.name, slot.node, uid=pod.metadata.uid)
            except kube.Conflict as conflict:  # bound meanwhile; by whom shows when we look again
                raise kube.Transient(conflict.message, status=conflict.status, reason=conflict.reason) from conflict
        return pod

    async def _delete(self, op: Op) -> None:
        before = self._cache.get(op.key)
        leaving = before is not None and before.leaving and not op.finished
        if before is None or before.uid != op.uid or leaving or not self._reviewer.unwanted(before):
            self._reviewer.done(op)
            return
        try:
            await self._apis[op.cluster].delete_pod(op.namespace, op.name, uid=op.uid, finished=op.finished)
        except kube.NotFound:
            before.leaving = True  # the watch brings its end, and with it whether the pod had succeeded before
            self._reviewer.done(op)
        except kube.Conflict:
            self._reviewer.done(op)
            self._reviewer.confirm(before)  # another pod has the name now
        except kube.Invalid as refusal:
            log.error("may not delete a pod", cluster=op.cluster, pod=op.name, error=refusal.message)
            raise kube.Transient(refusal.message, status=refusal.status, reason=refusal.reason) from refusal
        else:
            before.leaving = True  # the watch will say so too
            self._deleted[op.cluster].inc()
            self._reviewer.done(op)

    async def _confirm(self, op: Op) -> None:
        before = self._cache.get(op.key)
        try:
            pod = await self._apis[op.cluster].get_pod(op.namespace, op.name)
        except kube.NotFound:
            pod = Pod()
        except kube.Invalid as refusal:
            raise kube.Transient(refusal.message, status=refusal.status, reason=refusal.reason) from refusal
        self._reviewer.done(op)
        now = self._cache.get(op.key)
        if now is not before and now is not None:
            self._reviewer.review_pod(now)  # the watch knows better than our answer
            return
        observed = observe(op.cluster, pod, self._clock.now_ms())
        if observed is None or observed.key != op.key:
            self._reviewer.absent(op, before)
            return
        if before is not None and before.uid != observed.uid:
            self._reviewer.absent(op, before)
        self._cache.put(observed)
        self._reviewer.review_pod(observed)

    def _refuse(self, op: Op, refusal: Exception) -> None:
        if isinstance(refusal, _Refused):
            code, message = refusal.code, refusal.message
        elif isinstance(refusal, kube.KubeError):
            code, message = refusal.reason or "Refused", refusal.message
        else:
            code, message = "BadTemplate", str(refusal)
        log.warning("placement refused", cluster=op.cluster, pod=op.name, job=op.key.job, code=code, message=message)
        self._reviewer.reject(op, code, message)
