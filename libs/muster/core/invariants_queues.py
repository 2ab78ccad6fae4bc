"""What queues count beside usage, worked out naively from the jobs: demand, members, histories (rules F1, Q1, F4)."""

from __future__ import annotations

from collections import Counter, defaultdict

from muster.core.errors import InvariantBroken
from muster.core.jobs import Job
from muster.core.lifecycle import CHARGED, TERMINAL
from muster.core.model import EVERY_INDEX
from muster.core.state import CellState

SUCCEEDED = 3
OVER = (3, 4, 5)  # SUCCEEDED, FAILED, GONE


def _wanted(job: Job) -> list[int]:
    """Pods by group; an array job wants those that have not succeeded, at most so many at once, minima first (F1)."""
    if job.spec.completion != EVERY_INDEX:
        return [task.replicas for task in job.spec.tasks]
    phases, first, left, short = list(job.phases), 0, [], []
    for task in job.spec.tasks:
        done = phases[first : first + task.replicas].count(SUCCEEDED)
        first += task.replicas
        left.append(task.replicas - done)
        short.append(task.min_replicas - done)
    wanted = [0] * len(left)
    for only_minimum in (True, False):
        for number, count in enumerate(left):
            while wanted[number] < count and (wanted[number] < short[number] or not only_minimum):
                if job.spec.max_parallel and sum(wanted) == job.spec.max_parallel:
                    return wanted
                wanted[number] += 1
    return wanted


def check_counts(state: CellState) -> None:
    """Raises InvariantBroken unless demand and members are those of the live jobs."""
    asked: dict[str, Counter[str]] = defaultdict(Counter)
    flows: dict[str, dict[tuple[str, ...], Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    members: dict[str, dict[tuple[str, str], Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for job in state.jobs.values():
        if job.state in TERMINAL:
            continue
        first = 0
        wanted = _wanted(job)
        used: Counter[str] = Counter()
        whole: Counter[str] = Counter()
        for number, task in enumerate(job.spec.tasks):
            one = {**dict(task.requests), "pods": 1 + dict(task.requests).get("pods", 0)}
            for resource, amount in one.items():
                whole[resource] += amount * wanted[number]
            if job.state in CHARGED:
                live = sum(job.phases[first + replica] not in OVER for replica in range(task.replicas))
                used.update({resource: amount * live for resource, amount in one.items()})
            first += task.replicas
        asked[job.queue] += whole
        flows[job.queue][tuple(sorted(+whole))] += whole
        kind = "/running" if job.state in CHARGED else "/pending"
        queue = state.queues.by_id[job.queue]
        while True:
            for key in (("NAMESPACE", job.spec.namespace), ("USER", job.spec.submitter)):
                members[queue.id][key][kind] += 1
                members[queue.id][key] += used
            if not queue.spec.parent:
                break
            queue = state.queues.by_id[queue.spec.parent]
    for queue in state.queues.subtree():
        if queue.asked != {resource: amount for resource, amount in asked[queue.id].items() if amount}:
            raise InvariantBroken(f"F1: queue {queue.path} asks for {queue.asked}, not {dict(asked[queue.id])}")
        if queue.flows != {kind: dict(+amounts) for kind, amounts in flows[queue.id].items() if kind}:
            raise InvariantBroken(f"F3: queue {queue.path} has flows {queue.flows}")
        if queue.members is None:
            continue
        have = {key: {"/pending": m.pending, "/running": m.running, **m.usage} for key, m in queue.members.items()}
        want = {key: {"/pending": 0, "/running": 0, **+counts} for key, counts in members[queue.id].items()}
        if have != want:
            raise InvariantBroken(f"Q1: queue {queue.path} has members {have}, not {want}")
    _check_histories(state)
    if state.queues.lending != sum(bool(queue.spec.lending_limit) for queue in state.queues.subtree()):
        raise InvariantBroken("F2: queues with lending limits are counted wrongly")


def _check_histories(state: CellState) -> None:
    """F4: the queues of a tree with a half-life have a history, no others; all up to now."""
    fading = 0
    for queue in state.queues.subtree():
        half_life_ms, history = queue.chain[-1].spec.half_life_ms, queue.history
        fading += bool(queue.spec.half_life_ms)
        if queue.spec.half_life_ms and queue.spec.parent:
            raise InvariantBroken(f"F4: queue {queue.path} has a half-life of its own")
        if (history.half_life_ms if history is not None else 0) != half_life_ms:
            raise InvariantBroken(f"F4: queue {queue.path} has a wrong history, or none")
        if history is None:
            continue
        if history.since_ms > state.now_ms or any(total < 0 for total in history.sums.values()):
            raise InvariantBroken(f"F4: the history of queue {queue.path} is ahead of time, or negative")
    if state.queues.fading != fading:
        raise InvariantBroken(f"F4: {state.queues.fading} trees with a half-life, not {fading}")
