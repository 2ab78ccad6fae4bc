"""Why a job is where it is, in numbers, by the code that decides (I5, rule B4).

For a queued job: its position, what its queues use and may use, every limit it would exceed and by how much, what of
which resource is missing on how many nodes, what is held for others, who is ahead, and what would let it start. The
placement is tried with the overlay that the cycle uses, so the answer is what the cycle would do now. For a placed or
finished job: where it runs, or how it ended. Called by readers on a follower, never by the leader; never raises for a
job that is in the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from muster.core import layout, resources
from muster.core.blockers import Blocker, limits, shares_of_others
from muster.core.draft import Draft
from muster.core.errors import Code, Rejected
from muster.core.explain_growth import further
from muster.core.jobs import RUNNING_STATES, Job, shunned
from muster.core.lost_work import unsaved_ms, work_since_ms
from muster.core.members import fair_member
from muster.core.model import Amounts, JobState, PodPhase, Reason
from muster.core.overlay import Overlay
from muster.core.potential import entitled, staying
from muster.core.preemption import NO_VICTIMS, cluster_mask
from muster.core.queues import Queue
from muster.core.requests import may_displace
from muster.core.room import Room
from muster.core.shortfall import Cause, GroupShortfall, Shortfall, shortfall
from muster.core.state import CellState
from muster.core.words import several

AHEAD_SHOWN: Final = 5
SUSPECTS_SHOWN: Final = 3
UNKNOWN_START: Final = "it starts when enough of what runs has ended, and Muster does not estimate yet when that is"

RULE_OF: Final[dict[str, str]] = {
    Reason.POD_FAILED: "L2",
    Reason.MAX_RUNTIME: "B1",
    Reason.PREEMPTED: "P5",
    Reason.NODE_LOST: "LOG-15",
    Reason.PLACEMENT_REJECTED: "G5",
    Reason.START_TIMEOUT: "L3",
    Reason.POD_GONE: "L2",
    Reason.QUEUE_DRAINED: "Q1",
    Reason.WAITS_FOR_ROOM: "G1",
}
START_FAILURES: Final = frozenset({Reason.PLACEMENT_REJECTED, Reason.START_TIMEOUT})
_KIND_OF: Final = {  # of shortfall causes, as the API calls them
    "too small": "capacity",
    "not ready": "not-ready",
}
_RULE_OF_KIND: Final = {"overcommitted": "I1"}


class Need(Struct, frozen=True):
    """What one group asks for, per pod."""

    task: str
    replicas: int
    min_replicas: int
    requests: Amounts


class QueueShare(Struct, frozen=True):
    """One queue on the path, from the job's own up to the root."""

    queue: str
    usage: Amounts
    limit: Amounts
    entitled: Amounts
    with_job: Amounts  # usage with this job, in the resources that it asks for or that are limited
    over: Amounts  # by how much that exceeds the limit


class Explanation(Struct, frozen=True):
    """Everything there is to say about a job's place in the world."""

    job: str
    state: str
    reason: str
    rule: str
    summary: str  # one sentence
    position: int  # 1-based among the queued jobs of its queue; 0: not queued
    pending: int  # queued jobs of its queue
    expected_start_ms: int  # 0: unknown
    expected_start_unknown: str
    needs: tuple[Need, ...]
    shares: tuple[QueueShare, ...]
    blockers: tuple[Blocker, ...]
    unblocked_by: tuple[str, ...]
    ahead: tuple[str, ...]
    preemption: str = ""  # what preempting others does for it, or why it does not


def explain(state: CellState, job_id: str, now_ms: int = 0) -> Explanation:
    """`now_ms`: the reader's time; the ledger's own time stands still while nothing happens. Raises Rejected only for
    a job that is not in the state."""
    job = state.jobs.get(job_id)
    if job is None:
        raise Rejected(Code.NOT_FOUND, "job", f"job {job_id} does not exist, or ended long ago")
    return explain_job(state, job, now_ms)


def explain_job(state: CellState, job: Job, now_ms: int = 0) -> Explanation:
    """The same for a job that may as well be thought of only: with everything else as it is in the state."""
    now_ms = max(now_ms, state.now_ms)
    if job.state is JobState.QUEUED:
        return _queued(state, job, now_ms)
    growth = further(state, job, now_ms)
    return _explanation(state, job, summary=_story(job, now_ms) + growth.story, preemption=growth.preemption)


def _explanation(
    state: CellState,
    job: Job,
    *,
    summary: str,
    blockers: tuple[Blocker, ...] = (),
    unblocked_by: tuple[str, ...] = (),
    preemption: str = "",
) -> Explanation:
    queued = job.state is JobState.QUEUED
    position, pending, ahead = _order(state, job) if queued else (0, 0, ())
    tasks = job.asks.tasks if queued else job.spec.tasks  # what is left of an array job
    return Explanation(
        job=job.id,
        state=str(job.state),
        reason=str(job.reason),
        rule=blockers[0].rule if blockers else RULE_OF.get(job.reason, ""),
        summary=summary,
        position=position,
        pending=pending,
        expected_start_ms=0,
        expected_start_unknown=UNKNOWN_START if queued else "",
        needs=tuple(Need(t.name, t.replicas, t.min_replicas, t.requests) for t in tasks),
        shares=_shares(state, job),
        blockers=blockers,
        unblocked_by=unblocked_by,
        ahead=ahead,
        preemption=preemption,
    )


# --- a job that is not queued ---------------------------------------------------------------------------------------


def _story(job: Job, now_ms: int) -> str:
    message = f" ({job.message})" if job.message else ""
    if job.charged:
        stopping = job.state is JobState.STOPPING
        where = _where(job, [pod for pod in job.holding() if stopping or pod not in job.leaving])
        if stopping:
            return f"Stopping, then {job.next_state}: {job.reason}{message}; {where} until its pods are gone"
        if job.leaving:
            where += f" ({len(job.leaving)} more leave)"
        since_ms = job.started_ms or job.placed_ms
        return f"{job.state} for {_seconds(now_ms - since_ms)}: {where}, epoch {job.epoch}{progress(job, now_ms)}"
    if not job.live:
        return f"{job.state} {_seconds(now_ms - job.finished_ms)} ago: {job.reason}{message}"
    return f"{job.state}: {job.reason}{message}"


def _where(job: Job, positions: Sequence[int]) -> str:
    runs = list(layout.select(job.gang.tasks, job.placement, positions))
    pods, nodes = sum(count for _, _, count, _ in runs), len({node for _, node, _, _ in runs})
    return f"{several(pods, 'pod')} on {several(nodes, 'node')}"


def progress(job: Job, now_ms: int) -> str:
    """What is done and safe of a job: indices that have succeeded (rule G1), work that nobody can destroy (rule P3)."""
    told = ""
    if job.spec.completion:
        told += f"; {job.phases.count(PodPhase.SUCCEEDED)} of {job.gang.pods} indices have succeeded"
    if job.state in RUNNING_STATES and job.started_ms and (job.saved_ms or job.spec.checkpoint_ms):
        since_ms = work_since_ms(job, staying(job))
        told += f"; its work is safe but for the last {_seconds(unsaved_ms(job, since_ms, now_ms))}"
    return told


def _seconds(duration_ms: int) -> str:
    return f"{max(duration_ms, 0) // 1000} s"


# --- a queued job ---------------------------------------------------------------------------------------------------


def _queued(state: CellState, job: Job, now_ms: int) -> Explanation:
    blockers: list[Blocker] = []
    unblocked: list[str] = []
    queue = state.queues.get(job.queue)
    _queue_states(queue, blockers, unblocked)
    _backoff(job, now_ms, blockers)
    draft = Draft(state, state.now_ms, 1)  # of the cycle that would look at the job; thrown away
    room = Room(draft)
    room.lift(job)
    limits(job, queue, room, blockers, unblocked)
    shares_of_others(job, queue, room, blockers, unblocked)
    shut = shunned(job, now_ms)
    _places(state, job, draft.overlay, blockers, unblocked, shut=shut)
    if shut:
        _suspects(state, job, shut, now_ms, blockers)
    never = draft.never_fits(job.gang, next(iter(cluster_mask(job) or ("",))))
    if never is not None:  # it was taken when the clusters were larger
        message = f"it can never run on the clusters as they are now: {never.message}"
        blockers.insert(0, Blocker("Q2", "never-fits", "", message=message))
    if job.not_before_ms > now_ms:
        unblocked.clear()  # it starts at no price before its pause is over
    preemption = _preemption(state, job, queue, now_ms, room)
    why = blockers[0].message if blockers else "it fits now and is placed in the next cycle"
    summary = f"{_waited(job, now_ms)}: {why}{progress(job, now_ms)}"
    if job.reason in START_FAILURES and job.message and job.message not in summary:
        summary += f"; it did not start last time: {job.reason} ({job.message})"
    return _explanation(
        state,
        job,
        summary=summary,
        blockers=tuple(blockers),
        unblocked_by=tuple(unblocked),
        preemption=preemption if blockers else "",
    )


def _waited(job: Job, now_ms: int) -> str:
    """How long it waits now, and all in all."""
    if not job.attempts:
        return f"Queued for {_seconds(now_ms - job.submit_ms)}"
    again, first = _seconds(now_ms - job.attempts[-1].ended_ms), _seconds(now_ms - job.submit_ms)
    return f"Queued again for {again}, submitted {first} ago"


def _queue_states(queue: Queue, blockers: list[Blocker], unblocked: list[str]) -> None:
    for above in queue.chain:
        if above.spec.state not in ("OPEN", "CLOSED"):
            message = f"queue {above.path} is {above.spec.state.lower()} and starts nothing"
            blockers.append(Blocker("Q1", "queue-state", above.path, message=message))
            unblocked.append(f"open queue {above.path}")


def _backoff(job: Job, now_ms: int, blockers: list[Blocker]) -> None:
    left_ms = job.not_before_ms - now_ms
    if left_ms > 0:
        cause = f" ({job.message})" if job.message else ""
        message = f"waits {_seconds(left_ms + 999)} more after {job.reason}{cause}"
        rule = RULE_OF.get(job.reason, "P5")
        blockers.append(Blocker(rule, "backoff", "", missing=left_ms, message=message))


def _suspects(state: CellState, job: Job, shut: Sequence[int], now_ms: int, blockers: list[Blocker]) -> None:
    """Nodes where it failed to start are closed to it for a while (rule L3). Of interest only as long as it waits for
    room: `blockers` says what is missing elsewhere."""
    nodes = [state.nodes.spec(n).name for n in shut if not state.nodes.is_removed(n)]
    if not nodes or not blockers:
        return
    more = len(nodes) - SUSPECTS_SHOWN
    names = ", ".join(nodes[:SUSPECTS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    left_ms = job.suspects_until_ms - now_ms
    cause = f" ({job.message})" if job.message and job.reason in START_FAILURES else ""
    again = f"tried there again in {_seconds(left_ms + 999)} if there is no other room"
    message = f"it failed to start on {names}{cause}: {again}"
    blockers.append(Blocker("L3", "suspect", names, missing=left_ms, nodes=len(nodes), message=message))


def _places(
    state: CellState, job: Job, overlay: Overlay, blockers: list[Blocker], unblocked: list[str], *, shut: Sequence[int]
) -> None:
    """What keeps the gang off the nodes, and whether it is only what is held for others (rule P5)."""
    tasks, mask = job.asks.minimum_tasks or job.asks.tasks, cluster_mask(job)
    if overlay.place_gang(tasks, cluster_mask=mask, suspects=shut) is not None:
        return
    others_hold = len(state.holds) > (job.id in state.holds)
    if others_hold and Overlay(state.nodes).place_gang(tasks, cluster_mask=mask, suspects=shut):
        holders = [holder for holder in sorted(state.holds) if holder != job.id]
        message = f"what would be enough is held for job {', '.join(holders[:AHEAD_SHOWN])}"
        blockers.append(Blocker("P5", "hold", holders[0], message=message))
        return
    short = shortfall(overlay, tasks, cluster_mask=mask, suspects=shut)
    found = [blocker for group in short.groups for blocker in _of_group(group, short)]
    blockers.extend(found or [Blocker("G1", "capacity", short.cluster or "cell", message=short.message)])
    unblocked.extend(f"{group.name}: {group.unblock}" for group in short.groups if group.unblock)
    for number, group in enumerate(short.groups):
        if 0 < group.fitting_pods < group.needed_pods:
            unblocked.append(f"min_replicas of {tasks[number].name} {group.fitting_pods}")


def _of_group(group: GroupShortfall, short: Shortfall) -> list[Blocker]:
    if group.fitting_pods >= group.needed_pods:
        return []
    kind = "device" if resources.is_device(group.limiting) else "capacity"
    busy = dict(group.excluded).get(Cause.BUSY, 0)
    found = [
        Blocker(
            rule="G1",
            kind=kind,
            subject=group.name,
            resource=group.limiting,
            needed=group.needed_pods,
            available=group.fitting_pods,
            missing=group.missing_on_best,
            nodes=busy,
            message=f"cluster {short.cluster}: {group.fitting_pods} of {group.needed_pods} {group.name} fit now"
            + (f", {group.limiting} is short" if group.limiting else ""),
        )
    ]
    for cause, nodes in group.excluded:
        if cause in (Cause.BUSY, Cause.SUSPECT):
            continue  # said elsewhere
        name = _KIND_OF.get(cause, cause)
        message = f"{several(nodes, 'node')} {'is' if nodes == 1 else 'are'} out for {group.name}: {cause}"
        found.append(Blocker(_RULE_OF_KIND.get(cause, "G4"), name, group.name, nodes=nodes, message=message))
    return found


def _preemption(state: CellState, job: Job, queue: Queue, now_ms: int, room: Room) -> str:
    """Whether it takes the place of others (rules P2, P5)."""
    hold = state.holds.get(job.id)
    ask = state.asks.get(job.id)
    if hold is not None:
        return f"preempting {several(hold.givers(), 'job')}: what they free is held for it"
    if ask is not None and not ask.answered:
        return "a preemption plan has been asked for"
    if queue.spec.preemption == "NEVER":
        return f"not preempting because the jobs of queue {queue.path} preempt nobody"
    if not room.entitled(job) and not may_displace(job, queue, state.jobs):
        return (
            f"not preempting because queue {queue.path} is not below its entitlement in anything that the job needs, "
            f"and nobody in it runs at a priority below {job.spec.priority}"
        )
    if ask is None or not ask.reason:
        return ""
    told = f"not preempting: {ask.reason}"
    over = next(room.over_allowance(job, job.asks.minimum_map), None)
    if ask.reason == NO_VICTIMS and over is not None:
        told += f" (what {over[1].who} may have in queue {over[0].path} is used up)"
    elif ask.reason == NO_VICTIMS and queue.spec.preemption == "LOWER_PRIORITY":
        told += f" (jobs of queue {queue.path} take the place of lower priorities than theirs only: LOWER_PRIORITY)"
    if ask.retry_at_ms > now_ms:
        told += f"; asked again in {_seconds(ask.retry_at_ms - now_ms + 999)} at the earliest"
    return told


def _order(state: CellState, job: Job) -> tuple[int, int, tuple[str, ...]]:
    """(position, queued jobs of the queue, the next few ahead of it); in a fair queue, of its member alone: whose turn
    it is among members depends on what they use.
    """
    mine = state.order_key(job)
    queue = state.queues.get(job.queue)
    classes = [
        found
        for found in state.pending.of_queue.get(job.queue, {}).values()
        if fair_member(queue.spec, state.jobs[found.first()[2]].spec) == fair_member(queue.spec, job.spec)
    ]
    before = sum(found.count_before(mine) for found in classes)
    heads = sorted(key for found in classes for key in found.before(mine, AHEAD_SHOWN))
    mine_in = state.pending.classes.get(state.class_key(job))
    total = sum(len(found) for found in classes) + (mine_in is None or not mine_in.holds(mine))
    return before + 1, total, tuple(key[2] for key in heads[:AHEAD_SHOWN])


def _shares(state: CellState, job: Job) -> tuple[QueueShare, ...]:
    """The queues on the path. A job that is charged already is in the usage."""
    if job.queue not in state.queues:
        return ()
    add = {} if job.charged or not job.live else job.asks.minimum_map
    shares = []
    for queue in state.queues.get(job.queue).chain:
        limit = dict(queue.spec.limit)
        with_job = {r: queue.usage.get(r, 0) + add.get(r, 0) for r in sorted({*add, *limit})}
        over = {r: with_job[r] - most for r, most in limit.items() if with_job[r] > most}
        shares.append(
            QueueShare(
                queue=queue.path,
                usage=tuple(sorted(queue.usage.items())),
                limit=queue.spec.limit,
                entitled=resources.amounts(dict(entitled(queue, state.entitled).amounts)),
                with_job=resources.amounts(with_job),
                over=resources.amounts(over),
            )
        )
    return tuple(shares)
