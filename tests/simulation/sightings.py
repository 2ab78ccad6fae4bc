"""What was to be seen in a run, by name: a rule that no run exercises is not tested by any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from muster.core import transitions as tr
from muster.core.model import PodPhase, QueueSpec, Reason
from muster.core.state import CellState

# What the runs together have to show.
SHARING = (
    "entitlements published",
    "reclaim",  # a victim in another queue (rule P2a)
    "priority preemption",  # in the same queue (P2b)
    "shrink",  # elastic replicas leave for another job (P2c)
    "hold made",
    "hold given up",  # it came to nothing in time, or the job may not start any more (P5)
    "plan dropped",  # it no longer held (P6)
    "victim in backoff",
    "victim placed again",
    "growth",
    "growth takes from others",  # entitled growth is made room for (P2a)
)
WAITING = {  # rule and kind of what keeps a job waiting -> how it is called here
    ("P4", "protected"): "protected job waits for entitlement",
    ("P4", "guaranteed"): "protected job leaves guarantees alone",
    ("F6", "withheld"): "borrower leaves what lenders keep",
    ("Q1", "user-limit"): "user has all that is allowed",
    ("Q1", "namespace-limit"): "namespace has all that is allowed",
}
GUARDING = ("protected job started", *WAITING.values())
ARRAYS = (
    "index succeeded",
    "array placed again",  # with indices that succeeded before
    "array grew",
    "array waits for room",
    "array preempted",
    "array drained",
    "array lost pods",
    "array succeeded",
)
OPERATING = (
    "queue stopped",
    "queue closed",
    "queue draining",
    "queue opened",
    "job drained",
    "queue drained",  # it used something and was seen to use nothing
    "weights changed",
    "guarantee changed",
    "limit below usage",
    "queue with running jobs moved",
    "queue removed",
    "many queues changed",
    "change of queues refused",
    "node cordoned",
    "pod of a drained node deleted",
    "two clusters used",
    "checkpoint",
    "checkpoint refused",
    "past usage counts",  # in a tree (F4)
    "runtime exceeded",  # B1
)
RARE = ("hold given up", "plan dropped", "array drained", "borrower leaves what lenders keep")  # one run is enough
ONLY_THE_LEADER_SAYS = (
    "a victim is no longer running",
    "a victim cannot spare these replicas",
    "the job is no longer queued",
    "the job is in backoff",
    "the job would not fit after the eviction",
    "the queue does not preempt now",
)


class Sightings:
    """Counts, from transitions that were just applied to `state`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._queues: dict[str, QueueSpec] = {}
        self._cordoned: dict[int, bool] = {}
        self._clusters: dict[str, None] = {}

    def applied(self, state: CellState, tx: tr.Transaction) -> None:
        for transition in tx.transitions:
            for name in (_name(state, transition), _of_array(state, transition), *self._operating(state, transition)):
                if name:
                    self.counts[name] += 1

    def waits(self, rule: str, kind: str) -> None:
        """Something keeps a job waiting."""
        if (rule, kind) in WAITING:
            self.counts[WAITING[rule, kind]] += 1

    def _operating(self, state: CellState, t: tr.AnyTransition) -> Iterator[str]:
        """What operators did, and what came of it."""
        if isinstance(t, tr.QueueUpserted):
            before = self._queues.get(t.spec.id)
            self._queues[t.spec.id] = t.spec
            yield "past usage counts" if t.spec.half_life_ms else ""
            if before is not None:
                yield from _queue_changed(state, before, t.spec)
        elif isinstance(t, tr.NodeUpserted):
            yield "node cordoned" if t.spec.cordoned and not self._cordoned.get(t.index) else ""
            self._cordoned[t.index] = t.spec.cordoned
        elif isinstance(t, tr.JobPlaced):
            cluster = state.nodes.spec(next(node for group in t.groups for node, _ in group.runs)).cluster
            yield "" if state.jobs[t.job].spec.preemptible else "protected job started"
            if cluster not in self._clusters:
                self._clusters[cluster] = None
                yield "two clusters used" if len(self._clusters) > 1 else ""
        elif isinstance(t, tr.CommandRefused):
            yield {"ReportCheckpoint": "checkpoint refused", "SubmitJob": "job refused"}.get(t.command, "")
            yield "change of queues refused" if "Queue" in t.command else ""
        elif isinstance(t, tr.JobStopping):
            yield {Reason.QUEUE_DRAINED: "job drained", Reason.MAX_RUNTIME: "runtime exceeded"}.get(
                Reason(t.reason), ""
            )
        yield {tr.QueueRemoved: "queue removed", tr.CheckpointReported: "checkpoint"}.get(type(t), "")


def _queue_changed(state: CellState, before: QueueSpec, after: QueueSpec) -> Iterator[str]:
    if before.state != after.state:
        yield {"STOPPED": "queue stopped", "CLOSED": "queue closed", "OPEN": "queue opened"}.get(
            after.state, "queue draining"
        )
    yield "weights changed" if before.weight != after.weight else ""
    yield "guarantee changed" if before.guaranteed != after.guaranteed else ""
    usage = state.queues.get(after.id).usage
    if before.limit != after.limit and any(usage.get(resource, 0) > most for resource, most in after.limit):
        yield "limit below usage"
    if before.parent != after.parent:
        yield "queue with running jobs moved" if usage else "idle queue moved"


def _of_array(state: CellState, t: tr.AnyTransition) -> str:
    """What happened to an array job."""
    job = state.jobs.get(getattr(t, "job", ""))
    if job is None or not job.spec.completion:
        return ""
    if isinstance(t, tr.JobPlaced):
        return "array placed again" if any(group.skipped for group in t.groups) else ""
    if isinstance(t, tr.JobStopping):
        return {
            Reason.WAITS_FOR_ROOM: "array waits for room",
            Reason.QUEUE_DRAINED: "array drained",
            Reason.POD_GONE: "array lost pods",
        }.get(Reason(t.reason), "")
    if isinstance(t, tr.PodsChanged):
        return "index succeeded" if any(pod.phase == PodPhase.SUCCEEDED for pod in t.pods) else ""
    return {tr.JobGrown: "array grew", tr.JobPreempted: "array preempted", tr.JobSucceeded: "array succeeded"}.get(
        type(t), ""
    )


def _name(state: CellState, t: tr.AnyTransition) -> str:
    if isinstance(t, (tr.JobPreempted, tr.JobShrunk)):
        return _taken(state, t)
    if isinstance(t, tr.HoldMade):
        grows = t.job in state.holds and state.jobs[t.job].charged
        return "growth takes from others" if grows else "hold made"
    if isinstance(t, tr.HoldReleased):
        return "hold given up"
    if isinstance(t, tr.PreemptionAnswered):
        return "plan dropped" if t.reason in ONLY_THE_LEADER_SAYS else ""
    if isinstance(t, tr.JobRequeued):
        return "victim in backoff" if t.reason == Reason.PREEMPTED and t.not_before_ms > state.now_ms else ""
    if isinstance(t, tr.JobPlaced):
        return "victim placed again" if state.jobs[t.job].preemptions else ""
    return {tr.JobGrown: "growth", tr.HoldExtended: "hold extended", tr.EntitlementsSet: "entitlements published"}.get(
        type(t), ""
    )


def _taken(state: CellState, t: tr.JobPreempted | tr.JobShrunk) -> str:
    if isinstance(t, tr.JobShrunk):
        return "shrink" if t.by else "shrunk for nobody"
    same = state.jobs[t.job].queue == state.jobs[t.by].queue
    return "priority preemption" if same else "reclaim"
