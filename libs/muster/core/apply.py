"""Folding the ledger: one transition after the other changes the state, nothing else does.

Every follower, the leader included, runs `apply_transaction` on every ledger message in order. A transaction that does
not build on the last applied one, or that comes from an older term, is void (LOG-4). `apply` folds one transition: the
job itself changes in `jobs.advance` (which asks the lifecycle table), and here nodes and queue usage are charged and
released, and the indexes follow. Nothing is decided and nothing can fail, except a broken invariant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import force_setattr

from muster.core import transitions as tr
from muster.core.due import drop_spent_timers, wake
from muster.core.errors import InvariantBroken
from muster.core.jobs import RUNNING_STATES, Job, advance, is_over, live_positions
from muster.core.limits import PREEMPTIONS_REQUESTED_MAX, REFUSALS_REMEMBERED_MAX
from muster.core.model import Amounts, GroupPlacement
from muster.core.state import Ask, CellState, Cluster, Forgotten, Hold
from muster.core.timers import Due

STRUCTURAL: Final = frozenset(
    {tr.NodeUpserted, tr.NodeRemoved, tr.NodeZonesUpdated, tr.QueueUpserted, tr.QueueRemoved}
)  # after these a cycle needs the new nodes or queues, so it waits for the next transaction


def apply_transaction(state: CellState, tx: tr.Transaction, ledger_seq: int) -> bool:
    """Fold one ledger message. False: it is void and changed nothing (LOG-4)."""
    header = tx.header
    if header.prev != state.ledger_seq or header.epoch < state.epoch:
        return False
    if header.inbox_to < state.position:
        raise InvariantBroken(f"LOG-3: transaction {header.id} takes the inbox back to {header.inbox_to}")
    state.epoch = header.epoch
    state.now_ms = max(state.now_ms, header.now_ms)  # LOG-2
    wake(state)
    structural = cycled = False
    for transition in tx.transitions:
        kind = type(transition)
        structural = structural or kind in STRUCTURAL
        cycled = cycled or kind is tr.CyclePaused
        _APPLY[kind](state, transition)
    state.cycle_owed = structural and not cycled and state.pending.has_candidates
    state.position = header.inbox_to
    state.ledger_seq = ledger_seq
    drop_spent_timers(state)
    return True


def apply(state: CellState, transition: tr.Transition) -> None:
    """Fold one transition."""
    _APPLY[type(transition)](state, transition)


# --- the cell -------------------------------------------------------------------------------------------------------


def _leader_elected(state: CellState, t: tr.LeaderElected) -> None:
    state.epoch = t.epoch
    state.leader = t.leader


def _quarantined(_state: CellState, _t: tr.InboxItemQuarantined) -> None:
    """The position moves on with the header."""


def _command_refused(state: CellState, t: tr.CommandRefused) -> None:
    state.refusals[t.position] = t
    state.refusal_order.append(t.position)
    if len(state.refusal_order) > REFUSALS_REMEMBERED_MAX:
        state.refusals.pop(state.refusal_order.popleft(), None)


def _cycle_paused(state: CellState, t: tr.CyclePaused) -> None:
    if t.after is not None:
        state.pending.pass_paused(state.cycle_after, t.after)
    else:
        state.pending.pass_ended(one_part=state.cycle_after is None)
    state.cycle_after = t.after


def _loosened(state: CellState) -> None:
    state.changes += 1
    state.pending.loosen()


# --- nodes ----------------------------------------------------------------------------------------------------------


def _cluster(state: CellState, name: str) -> Cluster:
    found = state.clusters.get(name)
    if found is None:
        found = state.clusters[name] = Cluster(name)
    return found


def _seen(state: CellState, cluster: str, index: int) -> None:
    unseen = _cluster(state, cluster).unseen
    if unseen is not None:
        unseen.pop(index, None)


def _node_upserted(state: CellState, t: tr.NodeUpserted) -> None:
    state.nodes.upsert(t.index, t.spec)
    state.vanished.pop(t.index, None)  # it is back: what its pods do will be reported
    _seen(state, t.spec.cluster, t.index)
    _loosened(state)


def _node_removed(state: CellState, t: tr.NodeRemoved) -> None:
    spec = state.nodes.spec(t.index)
    state.nodes.remove(t.index)
    _seen(state, spec.cluster, t.index)
    there = [j for j in state.node_jobs.get(t.index, ()) if live_positions(state.jobs[j], t.index)]
    if there:
        state.vanished[t.index] = dict.fromkeys(there)


def _node_zones_updated(state: CellState, t: tr.NodeZonesUpdated) -> None:
    state.nodes.set_zones(t.index, t.zones)
    _loosened(state)


def _cluster_list_started(state: CellState, t: tr.ClusterListStarted) -> None:
    _cluster(state, t.cluster).unseen = dict.fromkeys(state.nodes.live(t.cluster))


def _nodes_seen(state: CellState, t: tr.NodesSeen) -> None:
    for index in t.nodes:
        _seen(state, t.cluster, index)


def _cluster_synced(state: CellState, t: tr.ClusterSynced) -> None:
    cluster = _cluster(state, t.cluster)
    state.clusters_synced += not cluster.synced
    cluster.synced = True
    cluster.unseen = None


# --- queues ---------------------------------------------------------------------------------------------------------


def _queue_upserted(state: CellState, t: tr.QueueUpserted) -> None:
    if state.queues.put(t.spec):
        _reorder(state)
    _loosened(state)


def _reorder(state: CellState) -> None:
    """Queue priorities or orderings changed: all order keys are made again; the paused cycle starts afresh."""
    pending = state.pending
    fresh = type(pending)()
    for found in pending.classes.values():
        for key in found.keys[found.head :]:
            job = state.jobs[key[2]]
            fresh.add(found.key, state.order_key(job))
    fresh.loosen()
    state.pending = fresh
    state.cycle_after = None


def _queue_removed(state: CellState, t: tr.QueueRemoved) -> None:
    state.queues.remove(t.queue)
    state.entitled.pop(t.queue, None)


def _entitlements_set(state: CellState, t: tr.EntitlementsSet) -> None:
    for entitlement in t.entitlements:
        if entitlement.queue in state.queues:
            state.entitled[entitlement.queue] = entitlement.amounts
    state.entitled_seq = t.ledger_seq


# --- jobs -----------------------------------------------------------------------------------------------------------


def _job_queued(state: CellState, t: tr.JobQueued) -> None:
    spec = t.spec
    gang = state.gangs.take(spec.tasks)
    if gang.tasks is not spec.tasks:
        force_setattr(spec, "tasks", gang.tasks)  # equal; jobs of one template share it
    job = Job(spec, t.queue, t.position, state.now_ms, gang)
    state.jobs[spec.id] = job
    state.by_name.setdefault(spec.namespace, {})[spec.name] = spec.id
    state.queues.by_id[t.queue].jobs += 1
    state.pending.add(state.class_key(job), state.order_key(job))


def _job_placed(state: CellState, t: tr.JobPlaced) -> None:
    job = state.jobs[t.job]
    state.pending.remove(state.class_key(job), state.order_key(job))
    if state.holds.pop(t.job, None) is not None:
        state.pending.loosen_behind()  # it may have found something smaller or elsewhere
    state.asks.pop(t.job, None)
    advance(job, t, state.now_ms)
    state.queues.charge(job.queue, charged_amounts(job))
    state.nodes.charge_placement(job.gang.tasks, t.groups)
    for group in t.groups:
        for node, _ in group.runs:
            state.node_jobs.setdefault(node, {})[t.job] = None
    queue = state.queues.by_id[job.queue]
    queue.runs(t.job, job.spec.priority, job.spec.preemptible)
    if job.spec.preemptible:
        state.changes += 1
        if queue.preempts:
            state.pending.reopen_above(job.queue, job.spec.priority)
    state.timers.starts.append((state.now_ms, t.job, t.epoch))
    if job.spec.max_runtime_ms:
        state.timers.add(state.now_ms + job.spec.max_runtime_ms, Due.MAX_RUNTIME, t.job, t.epoch)


def charged_amounts(job: Job) -> Amounts:
    """What the whole placement of a job charges its queue."""
    if not job.unplaced:
        return job.gang.full
    return job.gang.of_counts({g.group: sum(count for _, count in g.runs) for g in job.placement})


def _pods_changed(state: CellState, t: tr.PodsChanged) -> None:
    job = state.jobs[t.job]
    over = [change.pod for change in t.pods if is_over(change.phase) and not is_over(job.phases[change.pod])]
    advance(job, t, state.now_ms)
    if over:
        if state.vanished:
            _accounted_for(state, job)
        gang = job.gang
        state.nodes.release_pods(gang.tasks, job.placement, over)  # rule L5: pod by pod
        state.queues.release(job.queue, gang.of_positions(over))
        _loosened(state)


def _accounted_for(state: CellState, job: Job) -> None:
    """Take the job off the vanished nodes that have none of its live pods any more."""
    for node in list(state.vanished):
        if job.spec.id in state.vanished[node] and not live_positions(job, node):
            _off_vanished(state, node, job.spec.id)


def _off_vanished(state: CellState, node: int, job_id: str) -> None:
    there = state.vanished.get(node)
    if there is not None:
        there.pop(job_id, None)
        if not there:
            del state.vanished[node]


def _job_changed(state: CellState, t: tr.JobStarting | tr.JobRunning) -> None:
    advance(state.jobs[t.job], t, state.now_ms)


def _job_stopping(state: CellState, t: tr.JobStopping | tr.JobPreempted) -> None:
    job = state.jobs[t.job]
    _runs_no_more(state, job)
    advance(job, t, state.now_ms)
    state.changes += 1


def _runs_no_more(state: CellState, job: Job) -> None:
    """The job is about to leave Placed, Starting or Running, if it is in one of them."""
    if job.state in RUNNING_STATES:
        state.queues.by_id[job.queue].ran(job.spec.id, job.spec.priority, job.spec.preemptible)


def _leave_nodes(state: CellState, job_id: str, placement: tuple[GroupPlacement, ...]) -> None:
    for group in placement:
        for node, _ in group.runs:
            on_node = state.node_jobs.get(node)
            if on_node is not None:
                on_node.pop(job_id, None)
                if not on_node:
                    del state.node_jobs[node]
            _off_vanished(state, node, job_id)


def _job_requeued(state: CellState, t: tr.JobRequeued) -> None:
    job = state.jobs[t.job]
    placement = job.placement
    advance(job, t, state.now_ms)
    _leave_nodes(state, t.job, placement)
    if job.not_before_ms > state.now_ms:
        state.timers.add(job.not_before_ms, Due.BACKOFF_OVER, t.job, job.epoch)
    else:
        state.pending.add(state.class_key(job), state.order_key(job))


def _job_finished(state: CellState, t: tr.JobSucceeded | tr.JobFailed | tr.JobCancelled) -> None:
    job = state.jobs[t.job]
    if state.is_pending(job):
        state.pending.remove(state.class_key(job), state.order_key(job))
    _runs_no_more(state, job)
    placement = job.placement
    advance(job, t, state.now_ms)
    _leave_nodes(state, t.job, placement)
    if state.holds.pop(t.job, None) is not None:
        _loosened(state)
    state.asks.pop(t.job, None)
    spec = job.spec
    names = state.by_name[spec.namespace]
    del names[spec.name]
    if not names:
        del state.by_name[spec.namespace]
    state.queues.by_id[job.queue].jobs -= 1
    state.timers.finished.append(t.job)


def _job_forgotten(state: CellState, t: tr.JobForgotten) -> None:
    job = state.jobs.pop(t.job)
    state.gangs.drop(job.gang)
    if state.timers.finished and state.timers.finished[0] == t.job:
        state.timers.finished.popleft()
    else:
        state.timers.finished.remove(t.job)
    state.forgotten[t.job] = Forgotten(job.spec.digest, state.now_ms)
    state.forgotten_order.append(t.job)


def _request_ids_dropped(state: CellState, t: tr.RequestIdsDropped) -> None:
    for _ in range(t.count):
        del state.forgotten[state.forgotten_order.popleft()]


# --- preemption -----------------------------------------------------------------------------------------------------


def _preemption_requested(state: CellState, t: tr.PreemptionRequested) -> None:
    before = state.asks.get(t.job)
    state.requests = t.request
    state.asks[t.job] = Ask(request=t.request, tries=before.tries + 1 if before else 1)


def _preemption_answered(state: CellState, t: tr.PreemptionAnswered) -> None:
    ask = state.asks.get(t.job)
    if ask is None or ask.request != t.request:
        return
    if sum(not other.answered for other in state.asks.values()) >= PREEMPTIONS_REQUESTED_MAX:
        state.pending.loosen()  # others had to wait with their requests
    retry_at_ms = state.now_ms + t.retry_after_ms
    state.asks[t.job] = Ask(ask.request, ask.tries, answered=True, retry_at_ms=retry_at_ms, changes=state.changes)
    state.timers.add(retry_at_ms, Due.REQUEST_AGAIN, t.job)


def _hold_made(state: CellState, t: tr.HoldMade) -> None:
    job = state.jobs[t.job]
    state.asks.pop(t.job, None)
    state.pending.remove(state.class_key(job), state.order_key(job))
    state.holds[t.job] = Hold(t.job, t.placement, t.victims, t.expires_ms)
    state.pending.add(state.class_key(job), state.order_key(job))
    state.timers.add(t.expires_ms, Due.HOLD_EXPIRES, t.job, job.epoch)


def _hold_released(state: CellState, t: tr.HoldReleased) -> None:
    job = state.jobs[t.job]
    state.pending.remove(state.class_key(job), state.order_key(job))
    del state.holds[t.job]
    state.pending.add(state.class_key(job), state.order_key(job))
    _loosened(state)


_APPLY: Final[dict[type[tr.Transition], Callable[[CellState, Any], None]]] = {
    tr.LeaderElected: _leader_elected,
    tr.InboxItemQuarantined: _quarantined,
    tr.CommandRefused: _command_refused,
    tr.CyclePaused: _cycle_paused,
    tr.NodeUpserted: _node_upserted,
    tr.NodeRemoved: _node_removed,
    tr.NodeZonesUpdated: _node_zones_updated,
    tr.ClusterListStarted: _cluster_list_started,
    tr.NodesSeen: _nodes_seen,
    tr.ClusterSynced: _cluster_synced,
    tr.QueueUpserted: _queue_upserted,
    tr.QueueRemoved: _queue_removed,
    tr.EntitlementsSet: _entitlements_set,
    tr.JobQueued: _job_queued,
    tr.JobPlaced: _job_placed,
    tr.PodsChanged: _pods_changed,
    tr.JobStarting: _job_changed,
    tr.JobRunning: _job_changed,
    tr.JobStopping: _job_stopping,
    tr.JobPreempted: _job_stopping,
    tr.JobRequeued: _job_requeued,
    tr.JobSucceeded: _job_finished,
    tr.JobFailed: _job_finished,
    tr.JobCancelled: _job_finished,
    tr.JobForgotten: _job_forgotten,
    tr.RequestIdsDropped: _request_ids_dropped,
    tr.PreemptionRequested: _preemption_requested,
    tr.HoldMade: _hold_made,
    tr.HoldReleased: _hold_released,
    tr.PreemptionAnswered: _preemption_answered,
}
