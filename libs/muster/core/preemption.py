"""Who would have to leave so that a job can start (rules P1 to P4, P6).

    Planner(state)            what the committed plans leave (prospect), what the rules look at (outlook)
      .plan(job)              -> Answer: search victims, leave out the needless, place the job, weigh the potential
                              and count the plan as committed, so that the next answer builds on it

A placed job that asks gets a plan for further replicas (`further`): as many as E allows, or half of them, and so on,
until there is a plan. Who holds something is nobody's victim: what waits for room would have to be counted with it.

Nothing is changed but the planner's own books: it answers several requests from one state without planning the same
victims twice. The leader checks each plan with `preemption_rules.why_not` and `why_no_room` against its own state: only
what matters counts, not that nothing changed since (rule P6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from muster.core import layout
from muster.core.avoiding import place_avoiding
from muster.core.claims import Claims
from muster.core.further import as_job, within
from muster.core.jobs import Job, may_grow
from muster.core.limits import PLAN_VICTIMS_MAX
from muster.core.members import Key, Member
from muster.core.model import Amounts, GroupPlacement, JobState, Shrinks, TaskGroup
from muster.core.order import class_key
from muster.core.overlay import Overlay
from muster.core.potential import ByPriority, add, summed
from muster.core.preemption_rules import Outlook, Taking, asked_for, why_not
from muster.core.prospect import Prospect, prospect
from muster.core.pruning import prune
from muster.core.queues import Queue
from muster.core.quota import why_no_quota
from muster.core.state import CellState
from muster.core.victim_search import Search
from muster.core.victims import Ranking

NO_VICTIMS: Final = "nobody who may be preempted would make enough room"
ROOM_COMES: Final = "there is room for it once what is leaving is gone"
ENTITLEMENT_COMES: Final = "what its queue is entitled to may not count it yet"


class Plan(Struct, frozen=True):
    """Who leaves as a whole (job, epoch), whose elastic replicas leave, cheapest first; and where the job goes then."""

    victims: tuple[tuple[str, int], ...]
    placement: tuple[GroupPlacement, ...]
    shrinks: Shrinks = ()


class Answer(Struct, frozen=True):
    """A plan, or why there is none, and when it is worth asking again although nothing has changed (0: it is not)."""

    plan: Plan | None
    reason: str = ""
    again_at_ms: int = 0
    final: bool = False  # who asked for less would get the same
    later: bool = False  # who could leave loses something to a plan made here: to be asked again when that is committed


def plan_preemption(state: CellState, job_id: str) -> Plan | None:
    """A minimal plan that lets the job start, or None. Nothing is changed."""
    return Planner(state).plan(job_id).plan


class Planner:
    """Answers requests one after the other, from one state. The state must not change meanwhile.

    `late_ms`: so long after its submission a job may not be counted in what queues are entitled to. Until then nobody
    of its own queue leaves for it, where it may turn out that another queue borrows what it needs (rule P3).
    """

    def __init__(self, state: CellState, late_ms: int = 0) -> None:
        self._state = state
        self._late_ms = late_ms
        # Who holds something or loses something to a plan made here is no victim; whether it may be one later.
        self._taken: dict[str, bool] = dict.fromkeys(state.holds, False)
        self._placed: dict[str, None] = {}
        self._changed: dict[str, ByPriority] = {}  # leaf -> committed usage, where plans made here change it
        self._prospects: dict[str, Prospect] = {}  # by the job that is left out, "" for none
        self._plans: list[tuple[Job, list[Taking], tuple[GroupPlacement, ...]]] = []
        self._none: dict[tuple[object, ...], Answer] = {}

    def plan(self, job_id: str) -> Answer:
        """The answer for one job."""
        job = self._state.jobs.get(job_id)
        if job is None or job_id in self._placed:
            return Answer(None, "the job is no longer queued")
        if may_grow(job, self._state.now_ms):
            return self._plan_further(job)
        if job.state is not JobState.QUEUED:
            return Answer(None, "the job is no longer queued")
        return self.plan_for(job)

    def is_below(self, job: Job) -> bool:
        """Whether the job's queue is below what it is entitled to, as far as that is published (rule P2a)."""
        return self._outlook().below(job)

    def plan_for(self, job: Job) -> Answer:
        """The same for a queued job that may as well be thought of only."""
        state = self._state
        queue = state.queues.get(job.queue)
        if queue.spec.preemption == "NEVER" or not queue.starts_jobs:
            return Answer(None, "the queue does not preempt now")
        # Equal jobs that are no more important find no more than the first of them did.
        alike = (class_key(queue, job, held=False, now_ms=state.now_ms), job.spec.priority, self._is_fresh(job))
        known = self._none.get(alike)
        if known is None:
            answer = self._search(job)
            if answer.plan is not None:
                return answer
            known = self._none[alike] = answer
        return known

    def _plan_further(self, job: Job) -> Answer:
        """For replicas that a placed job may have within E, of the first group for which there is a plan (rule P2a)."""
        state = self._state
        queue = state.queues.get(job.queue)
        answer = Answer(None, "the queue does not preempt now")
        if queue.spec.preemption == "NEVER" or not queue.starts_jobs:
            return answer
        answer = Answer(None, "the job's queue is not below its entitlement")
        again_ms: list[int] = []
        for group in range(len(job.gang.tasks)):
            count = within(self._outlook(), job, group)
            while count:
                answer = self._search(as_job(state.nodes, job, group, count))
                if answer.plan is not None or answer.later:
                    return answer
                again_ms += [answer.again_at_ms] if answer.again_at_ms else []
                count = 0 if answer.final else count // 2
        return Answer(None, answer.reason, min(again_ms, default=0))

    def _outlook(self) -> Outlook:
        state = self._state
        return Outlook(state.queues, state.entitled, state.nodes.capacity(), self._usage_of, state.now_ms)

    def _search(self, job: Job) -> Answer:
        state, outlook = self._state, self._outlook()
        ranking = Ranking(state, job, outlook, self._taken)
        ahead = self._prospect(job)
        tasks = job.asks.minimum_tasks or job.asks.tasks  # nobody leaves for what a job does not need to start
        if place(ahead, outlook, job, (), tasks) is not None:
            return Answer(None, ROOM_COMES, final=True)
        reason, anybody = NO_VICTIMS, bool(ranking.allowed.any())
        if anybody:
            for strict in (False, True):
                if strict and not ranking.keep_entitlements():
                    break
                search = Search(state, job, ranking, outlook, ahead, strict=strict)
                clusters = Overlay(state.nodes).allowed(cluster_mask(job))
                found = search.run(tasks, clusters)
                if found is None:
                    break
                reason = why_no_quota(ahead, outlook, job, found.takings, job.asks.minimum_map) or ""
                if reason:
                    break
                takings = prune(ahead, outlook, job, found.takings, tasks)
                placement = place(ahead, outlook, job, takings, tasks)
                if placement is None or not takings:
                    reason = NO_VICTIMS
                    break
                placement = tuple(group for group in placement if group.runs) if job.charged else placement
                gains, replicas = job.gang.of_groups(placement), sum(layout.pods_placed(g) for g in placement)
                reason = why_not(outlook, job, takings, gains, replicas) or ""
                if not reason and self._is_early(job, takings):
                    return Answer(None, ENTITLEMENT_COMES, job.submit_ms + self._late_ms)
                if not reason:
                    self._commit(job, takings, placement, gains)
                    return Answer(_as_plan(takings, placement))
        return Answer(None, reason, ranking.again_at_ms, final=not anybody, later=ranking.later)

    def _is_fresh(self, job: Job) -> bool:
        return self._state.now_ms < job.submit_ms + self._late_ms

    def _is_early(self, job: Job, takings: Sequence[Taking]) -> bool:
        """Whether somebody of the job's own queue would leave although others may be found to borrow."""
        if not self._is_fresh(job) or all(taking.victim.queue != job.queue for taking in takings):
            return False
        leaves = (queue for queue in self._state.queues.by_id.values() if not queue.children and queue.id != job.queue)
        return any(beyond_guarantee(leaf, summed(self._usage_of(leaf.id)), asked_for(job)) for leaf in leaves)

    # --- what plans made here change ----------------------------------------------------------------------------------

    def _usage_of(self, leaf: str) -> ByPriority:
        found = self._changed.get(leaf)
        return found if found is not None else self._state.potential.usage.get(leaf, {})

    def _commit(self, job: Job, takings: list[Taking], placement: tuple[GroupPlacement, ...], gains: Amounts) -> None:
        self._plans.append((job, takings, placement))
        self._placed[job.spec.id] = None
        self._taken[job.spec.id] = False
        self._count(job, gains, 1)
        for taking in takings:
            self._taken[taking.victim.spec.id] = not taking.whole
            self._count(taking.victim, taking.amounts, -1)

    def _count(self, job: Job, amounts: Amounts, sign: int) -> None:
        usage = self._changed.get(job.queue)
        if usage is None:
            usage = self._changed[job.queue] = {p: dict(u) for p, u in self._usage_of(job.queue).items()}
        add(usage, job.spec.priority, amounts, sign)

    def _prospect(self, job: Job) -> Prospect:
        """What is left for this job: everybody's holds but its own."""
        state = self._state
        holds = {holder: hold for holder, hold in state.holds.items() if holder != job.spec.id}
        made = prospect(
            lambda: Overlay(state.nodes),
            lambda queue: queue.usage,
            member_of,
            claims=Claims(state.queues),
            leaving=[state.jobs[leaver] for leaver in state.potential.leaving],
            holds=holds,
            find=state.jobs.get,
        )
        for holder, takings, placement in self._plans:
            for taking in takings:
                made.leaves(taking.victim, taking.positions, whole=taking.whole)
            made.holds(holder, placement)
        return made


def beyond_guarantee(queue: Queue, usage: Mapping[str, int], asked: Iterable[str]) -> bool:
    """Whether the queue uses more of something asked for than it is guaranteed. What it is guaranteed nobody takes."""
    guaranteed = dict(queue.spec.guaranteed)
    return any(usage.get(resource, 0) > guaranteed.get(resource, 0) for resource in asked)


def member_of(queue: Queue, key: Key) -> Member:
    """What a namespace or user has in a queue that keeps its members."""
    found = queue.members.get(key) if queue.members is not None else None
    return found if found is not None else Member()


def place(
    ahead: Prospect, outlook: Outlook, job: Job, takings: Sequence[Taking], tasks: Sequence[TaskGroup]
) -> tuple[GroupPlacement, ...] | None:
    """Where the job goes when all this is taken, within its quota and on the nodes; None: nowhere."""
    if why_no_quota(ahead, outlook, job, takings, job.asks.minimum_map) is not None:
        return None
    return place_avoiding(ahead.overlay(takings), job, tasks, cluster_mask(job), outlook.now_ms)


def why_no_room(
    ahead: Prospect, outlook: Outlook, job: Job, takings: Sequence[Taking], placement: tuple[GroupPlacement, ...]
) -> str | None:
    """Why the job could not go where the plan says (rule P6); None: it could."""
    counts = {group.group: layout.pods_placed(group) for group in placement}
    for number, task in enumerate(job.asks.tasks):
        if not task.min_replicas <= counts.get(number, 0) <= task.replicas:
            return "the placement is not the job's gang"
    reason = why_no_quota(ahead, outlook, job, takings, dict(job.gang.of_groups(placement)))
    if reason is not None:
        return reason
    nodes = [node for group in placement for node, _ in group.runs]
    if not ahead.overlay(takings, only=nodes).fits(job.asks.tasks, placement):
        return "the job would not fit after the eviction"
    return None


def cluster_mask(job: Job) -> tuple[str, ...] | None:
    """The clusters the job may use, as `Overlay.place_gang` wants them."""
    selector = job.spec.cluster_selector
    return (selector[0][1],) if selector else None


def _as_plan(takings: Sequence[Taking], placement: tuple[GroupPlacement, ...]) -> Plan:
    victims = tuple((t.victim.spec.id, t.victim.epoch) for t in takings if t.whole)
    shrinks = tuple((t.victim.spec.id, t.victim.epoch, t.positions) for t in takings if not t.whole)
    return Plan(victims, placement, shrinks)


__all__ = ["PLAN_VICTIMS_MAX", "Answer", "Plan", "Planner", "cluster_mask", "place", "plan_preemption", "why_no_room"]
