"""I6: every scheduling action raises the potential (rule P1), worked out naively from the jobs.

`Calm` is taken before a transaction is applied and then told what was in it. It keeps its own account of who is placed,
computes PSI of the whole cell before and after every plan as written down in P1, with fractions, and compares. Starts
and growth only add to it, so for them it is enough that they do. It shares no code with `potential`; slow on purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from muster.core import layout
from muster.core import transitions as tr
from muster.core.errors import InvariantBroken
from muster.core.model import GroupPlacement, JobSpec, JobState
from muster.core.state import CellState

RUNNING = (JobState.PLACED, JobState.STARTING, JobState.RUNNING)
SUCCEEDED = 3
OVER = (SUCCEEDED, 4, 5)  # FAILED, GONE

Psi = tuple[list[Fraction], dict[tuple[int, int, str], int]]


class _Placed:
    """One job as far as PSI goes: which of its positions count as placed."""

    def __init__(self, queue: str, submit_ms: int, spec: JobSpec) -> None:
        self.queue = queue
        self.priority = spec.priority
        self.submit_ms = submit_ms
        self.positions: dict[int, int] = {}  # position -> group
        self.more: Counter[int] = Counter()  # grown in this transaction, by group
        self.held: Counter[int] = Counter()  # room that others left for it, by group: counts as placed
        self.tasks = spec.tasks
        self.array = bool(spec.completion)

    def replicas(self) -> int:
        return len(self.positions) + sum(self.more.values()) + sum(self.held.values())

    def usage(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for group, count in (Counter(self.positions.values()) + self.more + self.held).items():
            for resource, amount in self.tasks[group].requests:
                used[resource] += amount * count
        return used


class Calm:
    """See the module's text."""

    def __init__(self, state: CellState) -> None:
        self._now_ms = state.now_ms
        self._capacity = {r: a for r, a in state.nodes.capacity() if r != "pods" and a > 0}
        self._published = dict(state.entitled)
        self._guaranteed = {queue.id: queue.spec.guaranteed for queue in state.queues.subtree()}
        self._jobs: dict[str, _Placed] = {}
        for job in state.jobs.values():
            placed = _Placed(job.queue, job.submit_ms, job.spec)
            hold = state.holds.get(job.id)
            for pod in layout.each_pod(job.spec.tasks, job.placement if job.state in RUNNING else ()):
                if job.phases[pod.position] not in OVER and pod.position not in job.leaving:
                    placed.positions[pod.position] = pod.group
            if hold is not None:
                placed.held = _by_group(hold.placement)
            self._jobs[job.id] = placed
        self._plan: tuple[str, Psi, dict[str, None]] | None = None  # preemptor, PSI before it, queues of its victims

    def psi(self) -> Psi:
        """EU_p for every priority from the highest down, and the replicas of every job by its place in the order."""
        jobs = self._jobs
        entitled = {queue: dict(self._published.get(queue, own)) for queue, own in self._guaranteed.items()}
        sums = []
        for lowest in sorted({job.priority for job in jobs.values()}, reverse=True):
            usage: dict[str, Counter[str]] = {}
            for job in jobs.values():
                if job.priority >= lowest:
                    usage.setdefault(job.queue, Counter()).update(job.usage())
            share = Fraction(0)
            for queue, used in usage.items():
                for resource, amount in used.items():
                    most = entitled[queue].get(resource, 0)
                    if resource in self._capacity:
                        share += Fraction(min(amount, most), self._capacity[resource])
            sums.append(share)
        return sums, {(-j.priority, j.submit_ms, job_id): j.replicas() for job_id, j in jobs.items()}

    def check(self, transitions: Sequence[tr.AnyTransition], now_ms: int) -> None:
        """Raises InvariantBroken for the first action that does not raise PSI."""
        self._now_ms = now_ms
        for transition in transitions:
            if isinstance(transition, tr.JobQueued):
                spec = transition.spec
                self._jobs[spec.id] = _Placed(transition.queue, now_ms, spec)
            elif isinstance(transition, (tr.JobPreempted, tr.JobShrunk)) and transition.by:
                self._victim(transition)
            else:
                self._follow(transition)
        if self._plan is not None:
            raise InvariantBroken(f"I6: victims leave for job {self._plan[0]}, which holds nothing")

    def _victim(self, t: tr.JobPreempted | tr.JobShrunk) -> None:
        if self._plan is None:
            self._plan = (t.by, self.psi(), {})
        if self._plan[0] != t.by:
            raise InvariantBroken(f"I6: the plan for {self._plan[0]} is mixed with that for {t.by}")
        job = self._jobs[t.job]
        if job.held:
            raise InvariantBroken(f"I6: job {t.job} is a victim although room is held for it")
        self._plan[2][job.queue] = None
        for position in t.pods if isinstance(t, tr.JobShrunk) else tuple(job.positions):
            job.positions.pop(position, None)

    def _follow(self, t: tr.AnyTransition) -> None:
        if isinstance(t, tr.JobPlaced):
            self._starts(t)
        elif isinstance(t, tr.JobGrown):
            self._grows(t)
        elif isinstance(t, tr.HoldMade):
            self._ends_plan(t)
        elif isinstance(t, tr.PodsChanged):
            for change in t.pods:
                if change.phase in OVER:
                    self._jobs[t.job].positions.pop(change.pod, None)
                if change.phase == SUCCEEDED and not self._jobs[t.job].array:
                    self._jobs[t.job].held.clear()  # it is ending, and grows no more
        elif isinstance(t, tr.JobShrunk):
            self._jobs[t.job].held.clear()
            for position in t.pods:
                self._jobs[t.job].positions.pop(position, None)
        elif isinstance(t, tr.HoldReleased):
            self._jobs[t.job].held.clear()
        elif isinstance(t, (tr.JobStopping, tr.JobSucceeded, tr.JobFailed, tr.JobCancelled)):
            job = self._jobs[t.job]
            job.positions = {}
            job.more.clear()
            job.held.clear()
        elif isinstance(t, tr.JobForgotten):
            del self._jobs[t.job]
        elif isinstance(t, tr.EntitlementsSet):
            self._published |= {e.queue: e.amounts for e in t.entitlements}
        elif isinstance(t, tr.QueueUpserted):
            self._guaranteed[t.spec.id] = t.spec.guaranteed

    def _starts(self, t: tr.JobPlaced) -> None:
        job = self._jobs[t.job]
        before = job.replicas()
        if job.positions or job.more:
            raise InvariantBroken(f"I6: job {t.job} is placed again")
        job.held.clear()
        job.positions = {pod.position: pod.group for pod in layout.each_pod(job.tasks, t.groups)}
        if job.replicas() < max(before, 1):
            raise InvariantBroken(f"I6: job {t.job} is placed with less than was held for it")

    def _grows(self, t: tr.JobGrown) -> None:
        job = self._jobs[t.job]
        more = _by_group(t.groups)
        if any(more[group] < count for group, count in job.held.items()):
            raise InvariantBroken(f"I6: job {t.job} grows by less than was held for it")
        job.held.clear()
        job.more += more

    def _ends_plan(self, t: tr.HoldMade) -> None:
        if self._plan is None or self._plan[0] != t.job:
            raise InvariantBroken(f"I6: job {t.job} holds what nobody left for it")
        _, before, queues = self._plan
        self._plan = None
        job = self._jobs[t.job]
        job.held = _by_group(t.placement)
        after = self.psi()
        if (after[0], _in_order(after[1])) <= (before[0], _in_order(before[1])):
            raise InvariantBroken(f"I6: the plan for job {t.job} does not raise the potential (P1)")
        if any(queue != job.queue for queue in queues) and after[0][-1] <= before[0][-1]:
            raise InvariantBroken(f"I6: the plan for job {t.job} takes from another queue for nothing (P1)")


def _by_group(placement: Sequence[GroupPlacement]) -> Counter[int]:
    return Counter({group.group: layout.pods_placed(group) for group in placement if group.runs})


def check_usage(state: CellState) -> None:
    """The potential's books are the sum of what is placed and stays, and of what holders hold."""
    usage: dict[tuple[str, int], Counter[str]] = {}
    leaving = []
    for job in state.jobs.values():
        hold = state.holds.get(job.id)
        counted = list(layout.each_pod(job.spec.tasks, hold.placement)) if hold is not None else []
        for pod in layout.each_pod(job.spec.tasks, job.placement):
            stays = job.state in RUNNING and pod.position not in job.leaving
            if stays and job.phases[pod.position] not in OVER:
                counted.append(pod)
        for pod in counted:
            used = usage.setdefault((job.queue, job.spec.priority), Counter())
            used["pods"] += 1
            for resource, amount in job.spec.tasks[pod.group].requests:
                used[resource] += amount
        stopping = job.state is JobState.STOPPING and any(phase not in OVER for phase in job.phases)
        if stopping or job.leaving:
            leaving.append(job.id)
    have = {
        (queue, priority): Counter(amounts)
        for queue, by_priority in state.potential.usage.items()
        for priority, amounts in by_priority.items()
    }
    if have != usage:
        raise InvariantBroken(f"I6: the potential counts {have}, not {usage}")
    if sorted(state.potential.leaving) != sorted(leaving):
        raise InvariantBroken(f"I6: {sorted(state.potential.leaving)} are said to leave, not {sorted(leaving)}")


def _in_order(replicas: dict[tuple[int, int, str], int]) -> list[int]:
    return [replicas[key] for key in sorted(replicas)]
