"""What a job may not take when it starts or grows, and whom it may not take it from, looked at naively.

- A job that nobody could take back stays within what its queue is entitled to (rule P4): after one started, those of
  its queue use no more of what it asks for. What others are guaranteed is looked at by `invariants_claims`.
- Nobody's namespace or user has more than the queue allows each of them (Q1).
- Who borrows leaves what lenders keep back of guarantees that nobody asks for (F6, `lending_limit`). What is asked for
  may be seen as it was before the transaction.
- No victim is a job that cannot be preempted, or one that has not yet run as long as its queue wants (P4).

Only what a transaction has done is judged: an entitlement may fall, an allowance may be cut below what is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from muster.core import layout
from muster.core import transitions as tr
from muster.core.jobs import Job, is_over
from muster.core.lifecycle import CHARGED
from muster.core.queues import Queue
from muster.core.state import CellState

Amounts = Counter[str]


class Guarding:
    """Told every transaction after it was applied."""

    def __init__(self) -> None:
        self._kept: Amounts = Counter()  # back by lenders, before

    def applied(self, state: CellState, tx: tr.Transaction) -> None:
        taken: dict[str, Amounts] = {}  # job -> what it got in this transaction
        started = [t.job for t in tx.transitions if isinstance(t, tr.JobPlaced)]
        settled = not any(isinstance(t, tr.QueueUpserted) for t in tx.transitions)
        for t in tx.transitions:
            if isinstance(t, tr.JobPreempted) and t.job in state.jobs:
                _may_be_taken(state, state.jobs[t.job], settled=settled)
            elif isinstance(t, (tr.JobPlaced, tr.JobGrown)) and state.jobs[t.job].state in CHARGED:
                pods = layout.each_pod(state.jobs[t.job].spec.tasks, t.groups)
                taken.setdefault(t.job, Counter()).update(_requests(state.jobs[t.job], [pod.group for pod in pods]))
        for job_id, got in taken.items():
            job = state.jobs[job_id]
            if not job.spec.preemptible:
                _within_entitlement(state, job, got)
            for queue in state.queues.by_id[job.queue].chain:
                _within_allowances(state, queue, job, got, starts=job_id in started)
        kept = _kept_back(state)
        if taken:
            _lenders_keep_theirs(state, taken, kept & self._kept)
        self._kept = kept


def _may_be_taken(state: CellState, victim: Job, *, settled: bool) -> None:
    """`settled`: the queues are as they were when that was decided."""
    assert victim.spec.preemptible, f"P4: {victim.spec.name} is preempted although it said that it cannot be"
    chain = state.queues.by_id[victim.queue].chain
    least_ms = next((queue.spec.min_runtime_ms for queue in chain if queue.spec.min_runtime_ms), 0)
    ran_ms = state.now_ms - (victim.started_ms or victim.placed_ms)
    assert not settled or ran_ms >= least_ms, f"P4: {victim.spec.name} is preempted after {ran_ms} of {least_ms} ms"


def _within_entitlement(state: CellState, job: Job, got: Amounts) -> None:
    queue = state.queues.by_id[job.queue]
    own = dict(state.entitled.get(job.queue, queue.spec.guaranteed))
    used: Amounts = Counter()
    for other in state.jobs.values():
        if other.queue == job.queue and not other.spec.preemptible and not other.victim:
            used += _uses(other, staying=True)
    for resource in got:
        assert used[resource] <= own.get(resource, 0), (
            f"P4: {job.spec.name} started, now jobs of {queue.path} that nobody can take back use {used[resource]} "
            f"{resource}, it is entitled to {own.get(resource, 0)}"
        )


def _within_allowances(state: CellState, queue: Queue, job: Job, got: Amounts, *, starts: bool) -> None:
    charged = list(_charged_below(state, queue))
    of_namespace = [other for other in charged if other.spec.namespace == job.spec.namespace]
    of_user = [other for other in charged if other.spec.submitter == job.spec.submitter]
    for allowance, jobs in ((queue.spec.per_namespace, of_namespace), (queue.spec.per_user, of_user)):
        most = allowance.running_jobs
        over = starts and 0 <= most < len(jobs)
        assert not over, f"Q1: {job.spec.name} started, now {len(jobs)} jobs run in {queue.path}, {most} may"
        used = sum((_uses(other) for other in jobs), Counter[str]())
        for resource, amount in allowance.resources:
            over = resource in got and used[resource] > amount
            assert not over, f"Q1: {job.spec.name} got {resource}, {used[resource]} in {queue.path}, {amount} may be"


def _lenders_keep_theirs(state: CellState, taken: dict[str, Amounts], back: Amounts) -> None:
    used = {queue.id: _committed(queue) for queue in state.queues.subtree()}
    started: dict[str, Amounts] = {}
    for job_id, got in taken.items():
        started.setdefault(state.jobs[job_id].queue, Counter()).update(got)
    capacity = dict(state.nodes.capacity())
    in_all = sum((_committed(queue) for queue in state.queues.subtree() if not queue.spec.parent), Counter[str]())
    for leaf, got in started.items():
        own = dict(state.entitled.get(leaf, state.queues.by_id[leaf].spec.guaranteed))
        if any(used[leaf][resource] - amount < own.get(resource, 0) for resource, amount in got.items()):
            continue  # some of it was its own
        for resource, kept in back.items():
            assert not got[resource] or in_all[resource] + kept <= capacity.get(resource, 0), (
                f"F6: {state.queues.by_id[leaf].path} borrowed {got[resource]} {resource}; {in_all[resource]} of "
                f"{capacity.get(resource, 0)} are used, lenders keep back {kept}"
            )


def _kept_back(state: CellState) -> Amounts:
    """Of guarantees that nobody asks for; no more than leaves room for those that somebody does."""
    if not state.queues.lending:
        return Counter()
    capacity = dict(state.nodes.capacity())
    floors: dict[str, Amounts] = {}
    kept: dict[str, Amounts] = {}
    asked: dict[str, Amounts] = {}
    for queue in reversed(list(state.queues.subtree())):  # children before parents
        below = list(queue.children.values())
        own = Counter(queue.asked if queue.starts_jobs else queue.usage)
        asked[queue.id] = sum((asked[child] for child in below), Counter[str]()) if below else own
        for resource, most in queue.spec.limit:
            asked[queue.id][resource] = min(asked[queue.id][resource], most)
        floors[queue.id] = sum((floors[child] for child in below), Counter[str]())
        kept[queue.id] = sum((kept[child] for child in below), Counter[str]())
        for resource, guaranteed in queue.spec.guaranteed:
            wanted = min(guaranteed, asked[queue.id][resource])
            floors[queue.id][resource] = max(floors[queue.id][resource], wanted)
            for _, lent in (pair for pair in queue.spec.lending_limit if pair[0] == resource):
                kept[queue.id][resource] = max(kept[queue.id][resource], guaranteed - lent - wanted)
    roots = [queue.id for queue in state.queues.subtree() if not queue.spec.parent]
    floor = sum((floors[root] for root in roots), Counter[str]())
    whole = sum((kept[root] for root in roots), Counter[str]())
    return Counter({r: max(min(amount, capacity.get(r, 0) - floor[r]), 0) for r, amount in whole.items()})


def _committed(queue: Queue) -> Amounts:
    """What is placed and stays, and what is held."""
    total = Counter(queue.usage)
    total.update(queue.held)
    total.subtract(queue.leaving)
    return total


def _charged_below(state: CellState, queue: Queue) -> Iterator[Job]:
    for job in state.jobs.values():
        if job.state in CHARGED and queue in state.queues.by_id[job.queue].chain:
            yield job


def _uses(job: Job, *, staying: bool = False) -> Amounts:
    """Of its pods that are not over; `staying`: nor on their way out."""
    if job.state not in CHARGED:
        return Counter()
    pods = layout.each_pod(job.spec.tasks, job.placement)
    gone = job.leaving if staying else ()
    return _requests(job, [p.group for p in pods if not is_over(job.phases[p.position]) and p.position not in gone])


def _requests(job: Job, groups: list[int]) -> Amounts:
    total: Amounts = Counter()
    for group in groups:
        for resource, amount in job.spec.tasks[group].requests:
            total[resource] += amount
    return total
