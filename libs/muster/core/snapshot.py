"""The state as parts that can be stored, and back (LOG-6).

`dump` yields a head, then nodes, gangs, jobs and forgotten request ids in chunks, then timers and the pending index's
marks. What can be worked out again (usage, free nodes, indexes) is not stored but rebuilt by `load`, so a snapshot
cannot contradict itself. `load(dump(s))` decides exactly as `s` does: everything whose order matters is stored in its
order. The parts are encoded by `wire.codec`; how they are kept on a stream is the runtime's business.

Task groups are stored once for all jobs that share them, which is most of the size and time of a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from msgspec.structs import force_setattr, replace

from muster.core import layout
from muster.core.apply_preemption import count_held
from muster.core.gangs import Gang
from muster.core.jobs import RUNNING_STATES, Job, may_grow
from muster.core.model import (
    JobState,
)
from muster.core.order import ClassKey, PendingClass, protected
from muster.core.potential import staying
from muster.core.snapshot_accounts import dump_accounts, dump_histories, load_accounts, load_histories
from muster.core.snapshot_parts import (
    SNAPSHOT_VERSION,
    AccountsPart,
    AnyPart,
    ClusterRecord,
    ForgottenPart,
    GangsPart,
    HeadPart,
    JobRecord,
    JobsPart,
    NodeRecord,
    NodesPart,
    TailPart,
)
from muster.core.state import CellState, Cluster

JOBS_PER_PART: Final = 1000
NODES_PER_PART: Final = 1000
GANGS_PER_PART: Final = 200  # they carry pod templates
FORGOTTEN_PER_PART: Final = 5000

T = TypeVar("T")


class IncompleteSnapshot(Exception):
    """Parts are missing, doubled or out of order: take another snapshot."""


# --- dump -----------------------------------------------------------------------------------------------------------


def dump(state: CellState) -> Iterator[AnyPart]:
    """The parts of a snapshot, in order. The state must not change meanwhile."""
    yield _head(state)
    table = state.nodes
    for indices in _chunks(range(len(table)), NODES_PER_PART):
        yield NodesPart(
            SNAPSHOT_VERSION, tuple(NodeRecord(table.spec(n), table.is_removed(n), table.zones(n)) for n in indices)
        )
    yield from dump_accounts(state.accounts, state.now_ms)
    numbers: dict[int, int] = {}  # by identity of the gang, which the table keeps alive
    for gangs in _chunks(state.gangs, GANGS_PER_PART):
        for gang in gangs:
            numbers[id(gang)] = len(numbers)
        yield GangsPart(SNAPSHOT_VERSION, tuple(gang.tasks for gang in gangs))
    for jobs in _chunks(state.jobs.values(), JOBS_PER_PART):
        yield JobsPart(SNAPSHOT_VERSION, tuple(_record(job, numbers) for job in jobs))
    for ids in _chunks(state.forgotten_order, FORGOTTEN_PER_PART):
        yield ForgottenPart(SNAPSHOT_VERSION, tuple((job, state.forgotten[job]) for job in ids))
    timers, pending = state.timers, state.pending
    yield TailPart(
        version=SNAPSHOT_VERSION,
        starts=tuple(timers.starts),
        finished=tuple(timers.finished),
        others=tuple(timers.others),
        all_open=pending.all_open,
        opened=_representatives(pending.opened),
        opened_since=(),
        reopened=_representatives(pending.reopened),
        again=pending.again,
        paused=pending.paused,
        growing_opened=tuple(sorted(pending.growing_opened)),
    )


def _head(state: CellState) -> HeadPart:
    return HeadPart(
        version=SNAPSHOT_VERSION,
        cell=state.cell,
        ledger_seq=state.ledger_seq,
        position=state.position,
        now_ms=state.now_ms,
        epoch=state.epoch,
        leader=state.leader,
        cycle_after=None,
        cycle_owed=state.cycle_owed,
        changes=state.changes,
        requests=state.requests,
        next_queue_number=state.queues.next_number,
        queues=tuple(queue.spec for queue in state.queues.subtree()),
        entitled=tuple(sorted(state.entitled.items())),
        entitled_seq=state.entitled_seq,
        clusters=tuple(
            ClusterRecord(c.name, c.synced, None if c.unseen is None else tuple(sorted(c.unseen)))
            for _, c in sorted(state.clusters.items())
        ),
        vanished=tuple((node, tuple(sorted(jobs))) for node, jobs in sorted(state.vanished.items())),
        holds=tuple(state.holds[job] for job in sorted(state.holds)),
        asks=tuple(sorted(state.asks.items(), key=lambda item: item[0])),
        nodes=len(state.nodes),
        jobs=len(state.jobs),
        forgotten=len(state.forgotten),
        tallies=sum(len(period.tallies) for period in state.accounts.periods),
        histories=dump_histories(state.queues),
        classes=tuple(state.classes[name] for name in sorted(state.classes)),
        tree_revision=state.tree_log.revision,
        tree_changes=tuple(state.tree_log.changes),
    )


def _chunks(values: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(values)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _representatives(classes: dict[ClassKey, PendingClass]) -> tuple[str, ...]:
    return tuple(sorted(found.first()[2] for found in classes.values()))


def _record(job: Job, numbers: dict[int, int]) -> JobRecord:
    return JobRecord(
        spec=replace(job.spec, tasks=()),
        gang=numbers[id(job.gang)],
        queue=job.queue,
        submit_position=job.submit_position,
        submit_ms=job.submit_ms,
        state=str(job.state),
        reason=str(job.reason),
        message=job.message,
        epoch=job.epoch,
        placement=job.placement,
        phases=bytes(job.phases),
        unplaced=job.unplaced,
        not_before_ms=job.not_before_ms,
        placed_ms=job.placed_ms,
        started_ms=job.started_ms,
        finished_ms=job.finished_ms,
        exit_code=job.exit_code,
        next_state=str(job.next_state),
        suspects=job.suspects,
        requeues=job.requeues,
        preemptions=job.preemptions,
        attempts=job.attempts,
        leaving=job.leaving,
        regrown=tuple(sorted(job.regrown.items())),
        victim=job.victim,
        grow_after_ms=job.grow_after_ms,
        grown_ms=job.grown_ms,
        exits=job.exits,
        asks=-1 if job.asks is job.gang else numbers[id(job.asks)],
        saved_ms=job.saved_ms,
        began=tuple(sorted(job.began.items())) if job.began else (),
        suspects_until_ms=job.suspects_until_ms,
        resizes=job.resizes,
    )


# --- load -----------------------------------------------------------------------------------------------------------


def load(parts: Iterable[AnyPart]) -> CellState:
    """The state that was dumped. Raises IncompleteSnapshot."""
    iterator = iter(parts)
    head = next(iterator, None)
    if not isinstance(head, HeadPart):
        raise IncompleteSnapshot("the head is missing")
    state = CellState(head.cell)
    _load_head(state, head)
    gangs: list[Gang] = []
    tail: TailPart | None = None
    tallies = 0
    for part in iterator:
        if isinstance(part, JobsPart):
            if len(state.nodes) != head.nodes:
                raise IncompleteSnapshot(f"nodes: {len(state.nodes)} of {head.nodes}")
            state.accounts.advance(state.now_ms)  # does something only after a snapshot from before there were accounts
            for record in part.jobs:
                _load_job(state, record, gangs)
        elif isinstance(part, NodesPart):
            _load_nodes(state, part)
        elif isinstance(part, GangsPart):
            gangs.extend(state.gangs.restore(tasks) for tasks in part.gangs)
        elif isinstance(part, ForgottenPart):
            for job_id, forgotten in part.forgotten:
                state.forgotten[job_id] = forgotten
                state.forgotten_order.append(job_id)
        elif isinstance(part, AccountsPart):
            load_accounts(state.accounts, part)
            tallies += len(part.tallies)
        elif isinstance(part, TailPart):
            tail = part
    have = (len(state.nodes), len(state.jobs), len(state.forgotten), tallies)
    want = (head.nodes, head.jobs, head.forgotten, head.tallies)
    if tail is None or have != want:
        raise IncompleteSnapshot(f"nodes, jobs, request ids, tallies: {have} of {want}, tail: {tail is not None}")
    _hold(state)
    state.sums.settle(state)
    load_histories(state.queues, head.histories)  # when usage is what it was at their time
    _load_tail(state, tail)
    return state


def _load_head(state: CellState, head: HeadPart) -> None:
    state.ledger_seq = head.ledger_seq
    state.position = head.position
    state.now_ms = head.now_ms
    state.epoch = head.epoch
    state.leader = head.leader
    state.pending.paused = head.cycle_after is not None  # as older snapshots say it
    state.cycle_owed = head.cycle_owed
    state.changes = head.changes
    state.requests = head.requests
    for spec in head.queues:
        state.queues.put(spec)
    state.queues.next_number = head.next_queue_number
    aged = head.ledger_seq if head.next_queue_number > 1 else 0  # older snapshots do not say: it is none later
    state.tree_log.restore(head.tree_revision or aged, head.tree_changes)
    state.entitled = dict(head.entitled)
    state.entitled_seq = head.entitled_seq
    state.classes = {spec.name: spec for spec in head.classes}
    for record in head.clusters:
        cluster = state.clusters[record.name] = Cluster(record.name)
        cluster.synced = record.synced
        state.clusters_synced += record.synced
        cluster.unseen = None if record.unseen is None else dict.fromkeys(record.unseen)
    state.vanished = {node: dict.fromkeys(jobs) for node, jobs in head.vanished}
    state.holds = {hold.job: hold for hold in head.holds}
    state.asks = dict(head.asks)


def _load_nodes(state: CellState, part: NodesPart) -> None:
    table = state.nodes
    for record in part.nodes:
        index = table.next_index
        table.upsert(index, record.spec)
        if record.zones:
            table.set_zones(index, record.zones)
        if record.removed:
            table.remove(index)


def _load_job(state: CellState, record: JobRecord, gangs: list[Gang]) -> None:
    last = max(record.gang, record.asks)
    if last >= len(gangs):
        raise IncompleteSnapshot(f"job {record.spec.id} refers to gang {last} of {len(gangs)}")
    gang = gangs[record.gang]
    state.gangs.again(gang)
    asks = gang
    if record.asks >= 0:
        asks = gangs[record.asks]
        state.gangs.again(asks)
    force_setattr(record.spec, "tasks", gang.tasks)  # nobody else has this spec yet
    job = Job(
        spec=record.spec,
        queue=record.queue,
        submit_position=record.submit_position,
        submit_ms=record.submit_ms,
        gang=gang,
        asks=asks,
        state=JobState(record.state),
        reason=record.reason,
        message=record.message,
        epoch=record.epoch,
        placement=record.placement,
        phases=bytearray(record.phases),
        unplaced=record.unplaced,
        not_before_ms=record.not_before_ms,
        placed_ms=record.placed_ms,
        started_ms=record.started_ms,
        finished_ms=record.finished_ms,
        exit_code=record.exit_code,
        next_state=record.next_state,
        suspects=record.suspects,
        requeues=record.requeues,
        preemptions=record.preemptions,
        attempts=record.attempts,
        leaving=record.leaving,
        regrown=dict(record.regrown),
        victim=record.victim,
        grow_after_ms=record.grow_after_ms,
        grown_ms=record.grown_ms,
        exits=record.exits,
        saved_ms=record.saved_ms,
        began=dict(record.began) or None,
        suspects_until_ms=record.suspects_until_ms,
        resizes=record.resizes,
    )
    spec = job.spec
    state.jobs[spec.id] = job
    if not job.live:
        return
    state.by_name.setdefault(spec.namespace, {})[spec.name] = spec.id
    queue = state.queues.by_id[job.queue]
    queue.live[spec.id] = None
    state.sums.of(job, job.wanted()).demanded += 1
    state.queues.count_members(spec, job.queue, int(not job.charged), int(job.charged))
    if gang.minimum_tasks is not None and may_grow(job, state.now_ms):
        state.pending.growing[spec.id] = None
    if state.is_pending(job):
        state.pending.add(state.class_key(job), state.order_key(job))
    if job.state in RUNNING_STATES:
        queue.runs(spec.id, spec.priority, spec.preemptible)
    if job.charged:
        _charge(state, job)


def _charge(state: CellState, job: Job) -> None:
    """Nodes and quota of the pods that are not over (rule L5)."""
    gang = job.gang
    for group in job.placement:
        for node, _ in group.runs:
            state.node_jobs.setdefault(node, {})[job.spec.id] = None
    live = job.holding()
    if len(live) == gang.pods:
        state.nodes.charge_placement(gang.tasks, job.placement)
    else:
        for index, node, count, devices in layout.select(gang.tasks, job.placement, live):
            state.nodes.charge(node, gang.tasks[index].requests, count, devices)
    if live:  # nothing of an array job may be there just now
        state.sums.of(job, gang.of_positions(live)).charged += 1
    state.queues.leave(job.queue, gang.of_positions(live if job.victim else job.leaving))
    if protected(job) and not job.victim:
        state.queues.protect(job.queue, gang.of_positions([p for p in live if p not in job.leaving]))
    state.sums.of(job, gang.of_positions(staying(job))).committed += 1
    state.potential.touch(job.spec.id)
    state.potential.goes(job)


def _hold(state: CellState) -> None:
    for job_id, hold in state.holds.items():
        job = state.jobs[job_id]
        held = job.gang.of_groups(hold.placement)
        count_held(state, job, held, 1)
        state.sums.of(job, held).committed += 1
        state.potential.touch(job_id)


def _load_tail(state: CellState, tail: TailPart) -> None:
    state.timers.starts.extend(tail.starts)
    state.timers.finished.extend(tail.finished)
    state.timers.others.update(tail.others)
    pending = state.pending
    pending.all_open = tail.all_open
    pending.opened = _classes(state, tail.opened)
    pending.reopened = _classes(state, tail.reopened)
    pending.again = tail.again
    pending.paused = pending.paused or tail.paused
    pending.growing_opened = dict.fromkeys(tail.growing_opened)


def _classes(state: CellState, jobs: tuple[str, ...]) -> dict[ClassKey, PendingClass]:
    keys = [state.class_key(state.jobs[job]) for job in jobs]
    return {key: state.pending.classes[key] for key in keys}


__all__ = ["SNAPSHOT_VERSION", "AnyPart", "HeadPart", "IncompleteSnapshot", "JobsPart", "dump", "load"]
