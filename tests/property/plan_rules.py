"""A preemption plan judged by the letter of rules P2 to P4, by trying every order and every smaller plan.

Shares nothing with the planner but the overlay that says whether a gang fits. Slow on purpose: for small cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any, NamedTuple

from muster.core.jobs import Job
from muster.core.model import GroupPlacement
from muster.core.preemption_rules import Taking

OVER = (3, 4, 5)  # SUCCEEDED, FAILED, GONE
ORDERS_MAX_OF = 6  # victims of one queue whose orders are all tried

Usage = dict[str, int]


class Believed(NamedTuple):
    """What the planner could know: committed usage by leaf, entitlements, the tree."""

    state: Any
    usage: dict[str, Usage]

    def copy(self) -> Believed:
        return Believed(self.state, {leaf: dict(usage) for leaf, usage in self.usage.items()})

    def above(self, queue: str) -> list[str]:
        """The queue and all above it."""
        found = []
        while queue:
            found.append(queue)
            queue = self.state.queues.get(queue).spec.parent
        return found

    def of(self, queue: str) -> Usage:
        """Committed usage of a queue with everything below it."""
        total: Usage = {}
        for leaf, usage in self.usage.items():
            if queue in self.above(leaf):
                for resource, amount in usage.items():
                    total[resource] = total.get(resource, 0) + amount
        return total

    def entitled(self, leaf: str) -> tuple[Usage, bool]:
        """(E, whether what it does not name is 0)."""
        if leaf in self.state.entitled:
            return dict(self.state.entitled[leaf]), True
        return dict(self.state.queues.get(leaf).spec.guaranteed), False

    def is_over(self, leaf: str, used: Usage, resource: str) -> bool:
        share, complete = self.entitled(leaf)
        if resource not in share and not complete:
            return False
        return used.get(resource, 0) > share.get(resource, 0)

    def moves(self, job: Job, amounts: Usage, sign: int) -> None:
        usage = self.usage.setdefault(job.queue, {})
        for resource, amount in amounts.items():
            usage[resource] = usage.get(resource, 0) + sign * amount


def believed(state: Any) -> Believed:
    """From the jobs alone: who is placed and not asked to leave, and who holds something."""
    found = Believed(state, {queue.id: {} for queue in state.queues.subtree() if not queue.children})
    for job in state.jobs.values():
        hold = state.holds.get(job.id)
        if hold is not None:
            found.moves(job, amounts_of(job, positions_of(job, hold.placement)), 1)
        if str(job.state) in ("Placed", "Starting", "Running"):
            stays = [p for p, phase in enumerate(job.phases) if phase not in OVER and p not in job.leaving]
            found.moves(job, amounts_of(job, stays), 1)
    return found


def positions_of(job: Job, placement: Sequence[GroupPlacement]) -> list[int]:
    """As many positions of every group as are placed there, from its first on."""
    placed = {group.group: sum(pods for _, pods in group.runs) for group in placement}
    found, first = [], 0
    for number, task in enumerate(job.spec.tasks):
        found += range(first, first + placed.get(number, 0))
        first += task.replicas
    return found


def amounts_of(job: Job, positions: Sequence[int]) -> Usage:
    """What the pods at these positions use."""
    of = [task.requests for task in job.spec.tasks for _ in range(task.replicas)]
    found: Usage = {}
    for position in positions:
        for resource, amount in of[position]:
            found[resource] = found.get(resource, 0) + amount
    return found


def check_rules(now: Believed, job: Job, takings: Sequence[Taking]) -> None:
    """Rules P2 and P4 for every victim, and the order that P2a needs for every queue that gives."""
    state = now.state
    queue = state.queues.get(job.queue)
    policy, asked = queue.spec.preemption, sorted({r for t in job.spec.tasks for r, amount in t.requests if amount})
    assert takings
    assert policy != "NEVER"
    others = [taking for taking in takings if taking.victim.queue != job.queue]
    if str(job.state) != "Queued":
        assert len(others) == len(takings), "P2: nobody of its own queue leaves for an elastic part"
    for taking in takings:
        victim = taking.victim
        lower = victim.spec.priority < job.spec.priority
        newer = (victim.submit_ms, victim.id) > (job.submit_ms, job.id)
        if victim.queue == job.queue:
            equal = victim.spec.priority == job.spec.priority
            assert queue.spec.ordering != "FIFO", "P2b: in FIFO order priority means nothing"
            assert lower or (policy == "ANY" and equal and newer), "P2b"
            assert lower or _share_of(queue.spec, victim) == _share_of(queue.spec, job), "P2b: FAIR was undone"
        else:
            assert lower or policy == "ANY", "P2a: the policy allows lower priorities only"
        assert victim.spec.preemptible, "P4"
        if taking.whole:
            assert victim.preemptions < victim.spec.max_preemptions or lower, "P4: preempted too often"
            since_ms = victim.started_ms or victim.placed_ms
            assert since_ms + _min_runtime_ms(now, victim) <= state.now_ms, "P4: min_runtime of its queue"
            assert since_ms + victim.spec.min_runtime_ms <= state.now_ms, "P4: min_runtime of its class"
    if others:
        share, used = now.entitled(job.queue)[0], now.usage[job.queue]
        assert any(used.get(r, 0) < share.get(r, 0) for r in asked), "P2a: its own queue is not below E"
    _check_givers(now, job, others, asked)


def _share_of(spec: Any, job: Job) -> str:
    """Whose share of a fair queue the job is part of."""
    if spec.ordering != "FAIR":
        return ""
    return job.spec.submitter if spec.fair_by == "USER" else job.spec.namespace


def check_growth(now: Believed, job: Job, group: int, positions: Sequence[int]) -> None:
    """Rule P2a for further replicas of a group of a placed job, as many as these: its queue is below E before each."""
    share, used = now.entitled(job.queue)[0], now.usage[job.queue]
    before = amounts_of(job, positions[:-1])
    asked = [resource for resource, amount in job.spec.tasks[group].requests if amount]
    assert any(used.get(r, 0) + before.get(r, 0) < share.get(r, 0) for r in asked), "P2a: growth beyond E"


def _min_runtime_ms(now: Believed, victim: Job) -> int:
    for queue in now.above(victim.queue):
        if now.state.queues.get(queue).spec.min_runtime_ms:
            return int(now.state.queues.get(queue).spec.min_runtime_ms)
    return 0


def _check_givers(now: Believed, job: Job, others: Sequence[Taking], asked: Sequence[str]) -> None:
    own = now.above(job.queue)
    by_leaf: dict[str, list[Taking]] = {}
    by_queue: dict[str, list[Taking]] = {}
    for taking in others:
        by_leaf.setdefault(taking.victim.queue, []).append(taking)
        for above in now.above(taking.victim.queue):
            if above not in own:
                by_queue.setdefault(above, []).append(taking)
    for leaf, taken in by_leaf.items():
        assert _some_order(taken, lambda order, leaf=leaf: _above_share_until_last(now, leaf, order, asked)), (
            "P2a: more than the last victim was taken from a queue that was not above E"
        )
    for queue, taken in by_queue.items():
        assert _some_order(taken, lambda order, queue=queue: _guarantee_kept_until_last(now, queue, order)), (
            "P2a: more than the last victim cut a queue below its guarantee"
        )


def _some_order(taken: Sequence[Taking], right: Callable[[Sequence[Taking]], bool]) -> bool:
    if len(taken) > ORDERS_MAX_OF:  # only who is last matters then, as far as it can be told
        return any(right([*(t for t in taken if t is not last), last]) for last in taken)
    return any(right(order) for order in permutations(taken))


def _above_share_until_last(now: Believed, leaf: str, order: Sequence[Taking], asked: Sequence[str]) -> bool:
    """At every moment the leaf is above E in something that both use."""
    used = dict(now.usage[leaf])
    for taking in order:
        amounts = amounts_of(taking.victim, taking.positions)
        if not any(amount and r in asked and now.is_over(leaf, used, r) for r, amount in amounts.items()):
            return False
        used = {r: amount - amounts.get(r, 0) for r, amount in used.items()}
    return True


def _guarantee_kept_until_last(now: Believed, queue: str, order: Sequence[Taking]) -> bool:
    guaranteed = dict(now.state.queues.get(queue).spec.guaranteed)
    before = now.of(queue)
    used = dict(before)
    for taking in order[:-1]:
        for resource, amount in amounts_of(taking.victim, taking.positions).items():
            used[resource] = used.get(resource, 0) - amount
    return all(used.get(r, 0) >= min(amount, before.get(r, 0)) for r, amount in guaranteed.items())


def smaller_plans(takings: Sequence[Taking]) -> list[list[Taking]]:
    """Every plan that takes less from one of them: nothing, or fewer elastic replicas."""
    found = []
    for taking in takings:
        rest = [other for other in takings if other is not taking]
        found.append(rest)
        if not taking.whole:
            found += [[*rest, taking._replace(positions=taking.positions[n:])] for n in range(1, len(taking.positions))]
    return found
