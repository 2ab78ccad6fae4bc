"""What would happen if: a job were submitted, the queues were changed. By the code that decides, with nothing changed.

A job is put into the inbox of a thought: `decide` is pure, so asking it costs nobody anything and the answer is what
the leader would commit next. If the job would not start, the answer is its explanation in a state that differs from
this one by the job alone, and the plan a preemptor would make for it. Entitlements follow demand (rule F1): what does
not come about with those that are published is asked again with those that fair-share would publish with the job there.
A tree is compared with today's by the entitlements both give for the demand and the capacity of now, and by whom that
makes reclaimable (rule P3).

Called by readers on a follower, never by the leader. Work is bounded, so a question never holds up the follower.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from muster.core import commands, layout, resources
from muster.core import transitions as tr
from muster.core.borrowing import NAMED_MAX, Borrowing, Newly
from muster.core.decide import decide
from muster.core.demand import Flows, demand, startable
from muster.core.draft import Draft
from muster.core.entitlements import EntitlementEngine
from muster.core.errors import Code, Rejected
from muster.core.explain import Explanation, explain_job
from muster.core.jobs import Job
from muster.core.limits import ENTITLEMENT_LATE_MS
from muster.core.lost_work import lost
from muster.core.model import Amounts, GroupPlacement, InboxPosition, JobSpec
from muster.core.preemption import Plan, Planner
from muster.core.promises import overpromised
from muster.core.queue_changes import Difference, change_queues, differences
from muster.core.queues import Queue, QueueTree
from muster.core.state import CellState
from muster.core.takers import waiting

WORK_MAX: Final = 300  # work units of the decision that is asked for
ACCEPTING_WORK: Final = 1  # enough for whether the job is accepted, with nothing started


class PlacedOn(Struct, frozen=True):
    """Pods of one group on one node."""

    task: str
    cluster: str
    node: str
    pods: int


class Displaced(Struct, frozen=True):
    """A job that would be preempted. `lost` is in resource-milliseconds."""

    job: str
    name: str
    queue: str
    priority: int
    replicas: int  # elastic ones that would go; 0: the whole job
    lost: tuple[tuple[str, int], ...]


class JobForecast(Struct, frozen=True):
    """What would become of a job."""

    summary: str
    starts_now: bool
    placement: tuple[PlacedOn, ...]
    displaces: tuple[Displaced, ...]
    explanation: Explanation | None


class TreeForecast(Struct, frozen=True):
    """What a change of the tree would do."""

    changes: tuple[Difference, ...]
    entitlements: tuple[tuple[str, Amounts, Amounts], ...]  # path, before, after
    reclaimable: tuple[Newly, ...]  # jobs that others could take back then and cannot now
    leaving: tuple[Newly, ...] = ()  # running jobs that would have to leave: their queues would be draining
    warnings: tuple[str, ...] = ()  # what is allowed, and may not be meant


# --- a job ----------------------------------------------------------------------------------------------------------


def forecast_job(state: CellState, spec: JobSpec, now_ms: int, engine: EntitlementEngine | None = None) -> JobForecast:
    """What the cell would do with the job. Raises Rejected as its submission would be. `engine`: as `today` of
    `forecast_queues`, and may be the same."""
    item = (state.position, commands.SubmitJob(spec))
    job = _accepted(state, item, now_ms)
    now = copy.copy(state)  # shares everything with it: read only, but for what is set here
    now.now_ms = max(now_ms, state.now_ms)  # while nothing happens the ledger's own time stands still
    found = _starts(now, item)
    if found is None and (planner := Planner(now, ENTITLEMENT_LATE_MS)).is_below(job):
        answer = planner.plan_for(job)  # as long as entitlements do not count the job
        found = _displaces(now, job, answer.plan) if answer.plan is not None else None
    if found is None and not _asks_for_more(now, job):
        now.entitled = _entitled_with(now, job, engine or EntitlementEngine())
        found = _starts(now, item)
    return found or _waits(now, job)


def _starts(state: CellState, item: tuple[InboxPosition, commands.SubmitJob]) -> JobForecast | None:
    spec = item[1].spec
    for transition in decide(state, [item], state.now_ms, WORK_MAX).transitions:
        if isinstance(transition, tr.JobPlaced) and transition.job == spec.id:
            where = tuple(_places(state, spec, transition.groups))
            return JobForecast(f"would start now {_on(where)}; displaces nothing", True, where, (), None)
    return None


def _accepted(state: CellState, item: tuple[InboxPosition, commands.SubmitJob], now_ms: int) -> Job:
    """The job as it would be queued."""
    position, command = item
    for transition in decide(state, [item], now_ms, ACCEPTING_WORK).transitions:
        if isinstance(transition, tr.CommandRefused) and transition.position == position:
            raise Rejected(Code(transition.code), transition.field, transition.message, transition.rule)
        if isinstance(transition, tr.JobQueued) and transition.spec.id == command.spec.id:
            return _queued(state, transition, now_ms)
    raise Rejected(Code.ALREADY_EXISTS, "job", f"job {command.spec.id} was submitted already", "LOG-11")


def _asks_for_more(state: CellState, job: Job) -> bool:
    """Whether the job's queue asks for more such jobs than it is entitled to already: one more changes nothing."""
    flows, share = state.queues.by_id[job.queue].demand(), dict(state.entitled.get(job.queue, ()))
    if len(flows) != 1 or [resource for resource, _ in flows[0]] != [resource for resource, _ in job.wanted()]:
        return False
    return all(amount > share.get(resource, 0) for resource, amount in flows[0] if resource != resources.PODS)


def _entitled_with(state: CellState, job: Job, engine: EntitlementEngine) -> dict[str, Amounts]:
    """What queues are entitled to when the job is there as well."""
    flows = demand(state)
    flows[job.queue] = _with_one_more(flows.get(job.queue, ()), job.wanted())
    computed = engine.entitlements(state.queues, startable(state, state.queues, flows), state.nodes.capacity())
    return {**state.entitled, **computed}


def _with_one_more(flows: tuple[Amounts, ...], wanted: Amounts) -> tuple[Amounts, ...]:
    """Flows keep jobs apart by the set of resources they ask for (rule F3)."""
    names = [resource for resource, _ in wanted]
    alike = [flow for flow in flows if [resource for resource, _ in flow] == names]
    others = [flow for flow in flows if flow not in alike]
    return tuple(sorted([*others, resources.total((*alike, wanted))], key=lambda flow: [name for name, _ in flow]))


def _queued(state: CellState, transition: tr.JobQueued, now_ms: int) -> Job:
    spec = transition.spec
    draft = Draft(state, now_ms, 1)
    gang = draft.gang(spec.tasks) or draft.new_gang(spec.tasks)
    asks = draft.asks(gang, spec)
    return Job(spec, transition.queue, transition.position, max(now_ms, state.now_ms), gang, asks)


def _waits(state: CellState, job: Job) -> JobForecast:
    explanation = explain_job(state, job)
    if any(blocker.kind == "queue-state" for blocker in explanation.blockers):  # nobody's leaving helps
        return JobForecast(f"would wait: {_reason(explanation)}", False, (), (), explanation)
    answer = Planner(state).plan_for(job)
    if answer.plan is None:
        summary = f"would wait: {_reason(explanation)}; would not preempt: {answer.reason}"
        return JobForecast(summary, False, (), (), explanation)
    return _displaces(state, job, answer.plan, explanation)


def _displaces(state: CellState, job: Job, plan: Plan, explanation: Explanation | None = None) -> JobForecast:
    victims = tuple(_displaced(state, plan))
    where = tuple(_places(state, job.spec, plan.placement))
    summary = f"would start {_on(where)} once {_leaving(victims)} made room"
    return JobForecast(summary, False, where, victims, explanation or explain_job(state, job))


def _reason(explanation: Explanation) -> str:
    return explanation.blockers[0].message if explanation.blockers else "others are looked at before it"


def _leaving(victims: Sequence[Displaced]) -> str:
    whole = sum(not victim.replicas for victim in victims)
    replicas = sum(victim.replicas for victim in victims)
    parts = [f"{whole} running {'job' if whole == 1 else 'jobs'}"] if whole else []
    parts += [f"{replicas} elastic {'replica' if replicas == 1 else 'replicas'}"] if replicas else []
    return " and ".join(parts) + (" has" if whole + replicas == 1 else " have")


def _displaced(state: CellState, plan: Plan) -> Iterator[Displaced]:
    for victim, _ in plan.victims:
        job = state.jobs[victim]
        yield _victim(state, job, 0, range(len(job.phases)))
    for victim, _, positions in plan.shrinks:
        job = state.jobs[victim]
        yield _victim(state, job, len(positions), positions)


def _victim(state: CellState, job: Job, replicas: int, positions: Sequence[int]) -> Displaced:
    path = state.queues.path(job.queue)
    return Displaced(job.id, job.spec.name, path, job.spec.priority, replicas, lost(job, positions, state.now_ms))


def _places(state: CellState, spec: JobSpec, placement: tuple[GroupPlacement, ...]) -> Iterator[PlacedOn]:
    for group, node, count, _ in layout.runs_of(placement):
        at = state.nodes.spec(node)
        yield PlacedOn(spec.tasks[group].name, at.cluster, at.name, count)


def _on(where: tuple[PlacedOn, ...]) -> str:
    nodes = list(dict.fromkeys((place.cluster, place.node) for place in where))
    if len(nodes) == 1:
        return f"on {nodes[0][1]} ({nodes[0][0]})"
    return f"on {len(nodes)} nodes of {nodes[0][0]}"


# --- the queues -----------------------------------------------------------------------------------------------------


def forecast_queues(
    state: CellState, changes: commands.ChangeQueues, now_ms: int, today: EntitlementEngine | None = None
) -> TreeForecast:
    """What the changes would do. Raises Rejected as the command would be. `today` is kept by those who ask again and
    again about one cell: what it knows of the tree as it is need not be computed again."""
    now_ms = max(now_ms, state.now_ms)
    before, after = state.queues, changed_tree(state, changes, now_ms)
    flows = demand(state)
    engine = today or EntitlementEngine()
    deserved = _entitlements(engine, state, before, flows), _entitlements(EntitlementEngine(), state, after, flows)
    changed = [
        (queue.path, deserved[0].get(queue.id, ()), deserved[1].get(queue.id, ()))
        for queue in after.subtree()
        if deserved[0].get(queue.id, ()) != deserved[1].get(queue.id, ())
    ]
    borrowing = Borrowing(state, now_ms, waiting(state, now_ms))
    reclaimable = borrowing.change((before, deserved[0]), (after, deserved[1]))
    return TreeForecast(
        warnings=overpromised(after, state.nodes.capacity()) if state.clusters_synced else (),
        changes=differences(before, after),
        entitlements=tuple(changed),
        reclaimable=tuple(reclaimable),
        leaving=tuple(_drained(state, after, now_ms)),
    )


def _drained(state: CellState, after: QueueTree, now_ms: int) -> Iterator[Newly]:
    """What the queues run that would be draining and are not yet (rule Q1), by leaf."""
    known = {leaf.id for leaf in _draining(state.queues)}
    for leaf in _draining(after):
        jobs = [state.jobs[job] for job in leaf.running]
        if jobs and leaf.id not in known:
            usage: dict[str, int] = {}
            work: dict[str, int] = {}
            for job in jobs:
                resources.count(usage, job.held(), 1)
                resources.count(work, lost(job, range(len(job.phases)), now_ms), 1)
            first = tuple(sorted(leaf.running)[:NAMED_MAX])
            yield Newly(leaf.id, len(jobs), first, resources.amounts(usage), resources.amounts(work))


def _draining(tree: QueueTree) -> Iterator[Queue]:
    """The leaves whose jobs leave."""
    for drained in sorted(tree.draining):
        for queue in tree.subtree(drained):
            if not queue.children:
                yield queue


def changed_tree(state: CellState, changes: commands.ChangeQueues, now_ms: int) -> QueueTree:
    """The tree as it would be. Raises Rejected as the command would be."""
    draft = Draft(state, max(now_ms, state.now_ms), WORK_MAX)
    change_queues(draft, changes)
    return draft.tree


def _entitlements(engine: EntitlementEngine, state: CellState, tree: QueueTree, flows: Flows) -> dict[str, Amounts]:
    """When what leaves queues that drain has gone."""
    asked = startable(state, tree, flows)
    for leaf in _draining(tree):
        asked.pop(leaf.id, None)
    return engine.entitlements(tree, asked, state.nodes.capacity())
