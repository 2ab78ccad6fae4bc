"""Folding the ledger: one transition after the other changes the state, nothing else does.

Every follower, the leader included, runs `apply_transaction` on every ledger message in order. A transaction that does
not build on the last applied one, or that comes from an older term, is void (LOG-4). `apply` folds one transition: the
job itself changes in `jobs.advance` (which asks the lifecycle table), and here nodes and queue usage are charged and
released, and the indexes follow. Nothing is decided and nothing can fail, except a broken invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import force_setattr

from muster.core import apply_nodes, apply_preemption, apply_queues
from muster.core import transitions as tr
from muster.core.asks import claimants
from muster.core.due import avoids, drop_spent_timers, waits, wake
from muster.core.errors import InvariantBroken
from muster.core.jobs import OVER, RUNNING_STATES, Job, advance, is_over
from muster.core.limits import REFUSALS_REMEMBERED_MAX, START_TIMEOUT_MS
from muster.core.model import Amounts, JobState
from muster.core.order import class_key, order_key, protected
from muster.core.potential import staying
from muster.core.state import CellState, Forgotten
from muster.core.sums import Sum
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
    state.accounts.advance(state.now_ms)
    wake(state)
    for transition in tx.transitions:
        _APPLY[type(transition)](state, transition)
    _settle(state)
    kinds = set(map(type, tx.transitions))
    structural, cycled = not STRUCTURAL.isdisjoint(kinds), tr.CyclePaused in kinds
    state.cycle_owed = structural and not cycled and state.pending.has_candidates
    state.position = header.inbox_to
    state.ledger_seq = ledger_seq
    state.tree_log.close(ledger_seq, header.inbox_to)
    drop_spent_timers(state)
    return True


def apply(state: CellState, transition: tr.Transition) -> None:
    """Fold one transition."""
    _APPLY[type(transition)](state, transition)
    _settle(state)


def _settle(state: CellState) -> None:
    """What was counted comes into the totals: at the end, and before the tree of queues changes under it."""
    state.sums.settle(state)
    state.pending.reopen()


def _queue_upserted(state: CellState, t: tr.QueueUpserted) -> None:
    _settle(state)
    apply_queues.queue_upserted(state, t)


def _queue_removed(state: CellState, t: tr.QueueRemoved) -> None:
    _settle(state)
    apply_queues.queue_removed(state, t)


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
    if not t.paused and t.after is None:
        state.pending.pass_ended()
        return
    jobs = [state.jobs[job] for job in t.blocked if job in state.jobs]
    state.pending.pass_paused(
        [state.class_key(job) for job in jobs if job.state is JobState.QUEUED],
        [job.spec.id for job in jobs if job.charged],
    )


# --- jobs -----------------------------------------------------------------------------------------------------------


def _job_queued(state: CellState, t: tr.JobQueued) -> None:
    spec = t.spec
    gang = state.gangs.take(spec.tasks)
    if gang.tasks is not spec.tasks:
        force_setattr(spec, "tasks", gang.tasks)  # equal; jobs of one template share it
    asks = state.gangs.take_rest(gang, spec) if spec.completion else gang
    job = Job(spec, t.queue, t.position, state.now_ms, gang, asks)
    state.jobs[spec.id] = job
    state.by_name.setdefault(spec.namespace, {})[spec.name] = spec.id
    queue = state.queues.by_id[t.queue]
    queue.live[spec.id] = None
    if queue.tracked:
        state.queues.count_members(spec, t.queue, 1, 0)
    counted = state.sums.of(job, asks.full)
    counted.demanded += 1
    counted.tally(state.accounts).submitted += 1
    state.pending.add(class_key(queue, job, held=False, now_ms=state.now_ms), order_key(queue, job))


def _job_placed(state: CellState, t: tr.JobPlaced) -> None:
    job = state.jobs[t.job]
    queue, held = state.queues.by_id[job.queue], t.job in state.holds
    state.pending.remove(class_key(queue, job, held=held, now_ms=state.now_ms), order_key(queue, job))
    if held and apply_preemption.unhold(state, job):
        state.pending.loosen_behind()  # it may have found something smaller or elsewhere
    state.asks.pop(t.job, None)
    advance(job, t, state.now_ms)
    _charge(state, job, charged_amounts(job)).tally(state.accounts).placed(job, state.now_ms)
    state.nodes.charge_placement(job.gang.tasks, t.groups)
    apply_nodes.enter_nodes(state, t.job, t.groups)
    if queue.tracked:
        state.queues.count_members(job.spec, job.queue, -1, 1)
    _grows(state, job)
    if job.suspects:
        avoids(state, job)
    queue.runs(t.job, job.spec.priority, job.spec.preemptible)
    if job.spec.preemptible:
        state.changes += 1
        if queue.preempts:
            state.pending.placed(job.queue, job.spec.priority)
    state.timers.starts.append((state.now_ms, t.job, t.epoch))
    if job.spec.max_runtime_ms:
        state.timers.add(state.now_ms + job.spec.max_runtime_ms, Due.MAX_RUNTIME, t.job, t.epoch)


def _grows(state: CellState, job: Job) -> None:
    """The job has changed: if it is elastic, whether it could grow."""
    if job.gang.minimum_tasks is not None:
        apply_preemption.grows(state, job)


def _job_grown(state: CellState, t: tr.JobGrown) -> None:
    job = state.jobs[t.job]
    before = job.placement
    advance(job, t, state.now_ms)
    _charge(state, job, job.gang.of_groups(t.groups))
    state.nodes.charge_placement(job.gang.tasks, t.groups)
    apply_nodes.enter_nodes(state, t.job, t.groups)
    there = {node for group in job.placement for node, _ in group.runs}
    for group in before:
        for node, _ in group.runs:
            if node not in there:  # the last position there is used again elsewhere
                apply_nodes.leave_node(state, t.job, node)
    state.changes += 1  # these replicas may be taken away again (rule P2c)
    if apply_preemption.unhold(state, job):
        state.pending.loosen_behind()  # as for JobPlaced
    state.timers.add(state.now_ms + START_TIMEOUT_MS, Due.GROWN, t.job, t.epoch)
    _grows(state, job)


def _job_shrunk(state: CellState, t: tr.JobShrunk) -> None:
    job = state.jobs[t.job]
    live = [position for position in t.pods if not is_over(job.phases[position])]
    if t.by:
        state.accounts.shrunk(job, live, state.now_ms)
    advance(job, t, state.now_ms)
    leaving = job.gang.of_positions(live)
    _less_committed(state, job, leaving)
    _uncommit(state, job, leaving)
    state.changes += 1
    apply_preemption.give_back(state, job)
    if t.not_before_ms > state.now_ms:
        state.timers.add(t.not_before_ms, Due.GROW_AGAIN, t.job, t.epoch)
    if t.suspects:
        avoids(state, job)
    _grows(state, job)


def charged_amounts(job: Job) -> Amounts:
    """What the whole placement of a job charges its queue."""
    if not job.unplaced and not job.spec.completion:
        return job.gang.full
    return job.gang.of_groups(job.placement)


def _pods_changed(state: CellState, t: tr.PodsChanged) -> None:
    job = state.jobs[t.job]
    phases, leaving, gang = job.phases, job.leaving, job.gang
    over = [change.pod for change in t.pods if change.phase >= OVER and phases[change.pod] < OVER]
    left = [position for position in over if position in leaving] if leaving else []
    gone = over if job.victim else left
    stayed: Sequence[int] = ()
    if job.state in RUNNING_STATES:
        stayed = [position for position in over if position not in leaving] if leaving else over
    wanted = job.wanted() if job.spec.completion else None
    advance(job, t, state.now_ms)
    if wanted is not None:  # an array job: what it asks for, and when the work began that it could lose
        state.sums.of(job, wanted).demanded -= 1
        state.sums.of(job, job.wanted()).demanded += 1
        state.potential.touch(t.job)
    if over:
        counted = state.sums.of(job, gang.of_positions(over))
        counted.charged -= 1  # rule L5: pod by pod
        state.nodes.release_pods(gang.tasks, job.placement, over if len(over) < gang.pods else None)
        counted.committed -= stayed is over
        _uncommit(state, job, () if stayed is over else gang.of_positions(stayed))
        if gone:
            state.queues.leave(job.queue, gang.of_positions(gone), -1)
        if protected(job) and len(gone) < len(over):
            state.queues.protect(job.queue, gang.of_positions([p for p in over if p not in gone]), -1)
        if state.vanished:
            apply_nodes.accounted_for(state, job)
        _grows(state, job)
        state.loosened()


def _charge(state: CellState, job: Job, amounts: Amounts) -> Sum:
    """The job is placed with so much more: quota (rule Q3), accounts, potential (rule P1)."""
    counted = state.sums.of(job, amounts)
    counted.charged += 1
    counted.committed += 1
    if protected(job):
        state.queues.protect(job.queue, amounts)
    state.potential.touch(job.spec.id)
    return counted


def _uncommit(state: CellState, job: Job, amounts: Amounts) -> None:
    """So much of the job no longer counts as placed in the sense of rule P1; its pods are leaving, or over."""
    if amounts:
        state.sums.of(job, amounts).committed -= 1
    state.potential.touch(job.spec.id)
    state.potential.goes(job)


def _job_changed(state: CellState, t: tr.JobStarting | tr.JobRunning) -> None:
    job = state.jobs[t.job]
    advance(job, t, state.now_ms)
    if job.spec.checkpoint_ms:
        state.potential.touch(t.job)  # its intervals begin


def _checkpoint_reported(state: CellState, t: tr.CheckpointReported) -> None:
    advance(state.jobs[t.job], t, state.now_ms)
    state.potential.touch(t.job)  # it would be a cheaper victim (rule P3)


def _job_stopping(state: CellState, t: tr.JobStopping | tr.JobPreempted) -> None:
    job = state.jobs[t.job]
    _runs_no_more(state, job)
    stayed = job.gang.of_positions(staying(job))
    if isinstance(t, tr.JobPreempted):
        _less_committed(state, job, stayed)
        state.accounts.preempted(job, state.now_ms)
    advance(job, t, state.now_ms)
    _grows(state, job)
    _uncommit(state, job, stayed)
    state.changes += 1


def _less_committed(state: CellState, job: Job, amounts: Amounts) -> None:
    """A plan takes something from the queue (rule Q3): what starts only within E (rule P4), or by E before what lenders
    withhold (rule F6), may fit now, before anything is free; and in all queues what is protected, if this was."""
    state.queues.leave(job.queue, amounts)
    if job.queue in state.pending.protected or state.queues.lending:
        state.pending.open_queue(job.queue)
    if protected(job):
        state.queues.protect(job.queue, amounts, -1)
        for queue in claimants(state):
            state.pending.open_queue(queue)
        state.pending.open_growing(job for job in state.pending.growing if protected(state.jobs[job]))


def _runs_no_more(state: CellState, job: Job) -> None:
    """The job is about to leave Placed, Starting or Running, if it is in one of them."""
    if job.state in RUNNING_STATES:
        state.queues.by_id[job.queue].ran(job.spec.id, job.spec.priority, job.spec.preemptible)


def _job_requeued(state: CellState, t: tr.JobRequeued) -> None:
    job = state.jobs[t.job]
    placement = job.placement
    advance(job, t, state.now_ms)
    if job.spec.completion:
        state.gangs.drop_rest(job.gang, job.asks)
        job.asks = state.gangs.take_rest(job.gang, job.spec, job.phases)
    state.potential.goes(job)
    apply_nodes.leave_nodes(state, t.job, placement)
    waits(state, job)
    state.queues.count_members(job.spec, job.queue, 1, -1)


def _job_finished(state: CellState, t: tr.JobSucceeded | tr.JobFailed | tr.JobCancelled) -> None:
    job = state.jobs[t.job]
    queue = state.queues.by_id[job.queue]
    if state.is_pending(job):
        state.pending.remove(state.class_key(job), state.order_key(job))
    _runs_no_more(state, job)
    if queue.tracked:
        state.queues.count_members(job.spec, job.queue, -int(not job.charged), -int(job.charged))
    placement = job.placement
    advance(job, t, state.now_ms)
    _grows(state, job)
    state.potential.goes(job)
    apply_nodes.leave_nodes(state, t.job, placement)
    if apply_preemption.unhold(state, job):
        state.loosened()
    state.asks.pop(t.job, None)
    spec = job.spec
    names = state.by_name[spec.namespace]
    del names[spec.name]
    if not names:
        del state.by_name[spec.namespace]
    del queue.live[t.job]
    counted = state.sums.of(job, job.wanted())
    counted.demanded -= 1
    counted.tally(state.accounts).ended(job.state)
    state.timers.finished.append(t.job)


def _job_forgotten(state: CellState, t: tr.JobForgotten) -> None:
    job = state.jobs.pop(t.job)
    state.gangs.drop_rest(job.gang, job.asks)
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


_APPLY: Final[dict[type[tr.Transition], Callable[[CellState, Any], None]]] = {
    tr.LeaderElected: _leader_elected,
    tr.InboxItemQuarantined: _quarantined,
    tr.CommandRefused: _command_refused,
    tr.CyclePaused: _cycle_paused,
    tr.NodeUpserted: apply_nodes.node_upserted,
    tr.NodeRemoved: apply_nodes.node_removed,
    tr.NodeZonesUpdated: apply_nodes.node_zones_updated,
    tr.ClusterListStarted: apply_nodes.cluster_list_started,
    tr.NodesSeen: apply_nodes.nodes_seen,
    tr.ClusterSynced: apply_nodes.cluster_synced,
    tr.QueueUpserted: _queue_upserted,
    tr.QueueRemoved: _queue_removed,
    tr.EntitlementsSet: apply_queues.entitlements_set,
    tr.PriorityClassUpserted: apply_queues.class_upserted,
    tr.PriorityClassRemoved: apply_queues.class_removed,
    tr.JobQueued: _job_queued,
    tr.JobPlaced: _job_placed,
    tr.JobGrown: _job_grown,
    tr.JobShrunk: _job_shrunk,
    tr.PodsChanged: _pods_changed,
    tr.CheckpointReported: _checkpoint_reported,
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
    tr.PreemptionRequested: apply_preemption.preemption_requested,
    tr.HoldMade: apply_preemption.hold_made,
    tr.HoldExtended: apply_preemption.hold_extended,
    tr.HoldReleased: apply_preemption.hold_released,
    tr.PreemptionAnswered: apply_preemption.preemption_answered,
}
