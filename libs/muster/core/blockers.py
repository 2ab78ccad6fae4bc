"""What keeps a queued job from starting as far as numbers go: limits, allowances, protection, lenders (I5, rule B4).

For explanations. Each says by which rule, in which queue, by how much, and what would help; the sums are those of
`room`, by which the cycle decides.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from muster.core import resources
from muster.core.claims import Overclaim
from muster.core.jobs import Job
from muster.core.order import protected
from muster.core.queues import Queue
from muster.core.room import Room

KEPT_SHOWN: Final = 3  # queues whose guarantees are in the way


class Blocker(Struct, frozen=True):
    """One thing in the way. Amounts are in canonical units of `resource`."""

    rule: str
    kind: str  # queue-state, queue-limit, capacity, device, selector, taint, not-ready, hold, backoff, ...
    subject: str
    resource: str = ""
    needed: int = 0
    available: int = 0
    missing: int = 0
    nodes: int = 0
    message: str = ""


def limits(job: Job, queue: Queue, room: Room, blockers: list[Blocker], unblocked: list[str]) -> None:
    """Rule F6: every limit on the path that the job's minimum would exceed, with what holds keep counted as used."""
    need = job.asks.minimum_map
    for above, limit in queue.limits:
        held = room.held.get(above.id, {})
        for resource, most in limit:
            asked = need.get(resource, 0)
            used = above.usage.get(resource, 0) + max(held.get(resource, 0), 0)
            over = used + asked - most
            if asked and over > 0:
                used_text, most_text = resources.format_amount(resource, used), resources.format_pair(resource, most)
                asked_text = resources.format_amount(resource, asked)
                message = f"queue {above.path} uses {used_text} of {most_text}, the job needs {asked_text}"
                blockers.append(
                    Blocker(
                        rule="F6",
                        kind="queue-limit",
                        subject=above.path,
                        resource=resource,
                        needed=asked,
                        available=max(most - used, 0),
                        missing=over,
                        message=message,
                    )
                )
                unblocked.append(f"{resources.format_pair(resource, over)} more limit or less usage in {above.path}")


def shares_of_others(job: Job, queue: Queue, room: Room, blockers: list[Blocker], unblocked: list[str]) -> None:
    """What allowances, protection and lenders keep it from, beside the limits of its path (rules Q1, P4, F6)."""
    need = job.asks.minimum_map
    for above, over in room.over_allowance(job, need):
        blockers.append(
            Blocker(
                rule="Q1",
                kind=f"{over.key[0].lower()}-limit",
                subject=above.path,
                resource=over.resource,
                needed=over.asked,
                available=max(over.most - over.used, 0),
                missing=over.used + over.asked - over.most,
                message=over.say(above.path),
            )
        )
        unblocked.append(f"less in use by {over.key[0].lower()} {over.key[1]} in queue {above.path}")
    if protected(job):
        _protection(job, queue, room, blockers, unblocked)
    kept = () if room.entitled(job) else room.kept_by_lenders(need)
    for resource, missing, withheld in kept:
        told = resources.format_pair(resource, withheld)
        message = f"queue {queue.path} would borrow, and lenders keep back {told} of their guarantees"
        blockers.append(Blocker("F6", "withheld", queue.path, resource=resource, missing=missing, message=message))
        unblocked.append(f"{resources.format_pair(resource, missing)} more lent by others, or entitled to {queue.path}")


def _protection(job: Job, queue: Queue, room: Room, blockers: list[Blocker], unblocked: list[str]) -> None:
    """Rule P4: what nobody can reclaim stays within the entitlement, and off what others are guaranteed."""
    need = job.asks.minimum_map
    above_own = room.above_entitlement(job, need)
    if above_own:
        told = resources.format_amounts(above_own)
        message = (
            f"it cannot be reclaimed from ({_why_protected(job)}), so it starts only within the entitlement of "
            f"{queue.path}: {told} too much"
        )
        blockers.append(Blocker("P4", "protected", queue.path, message=message))
        less = all(queue.usage.get(resource, 0) >= amount for resource, amount in above_own)
        change = (
            f"{told} less in use by queue {queue.path}" if less else f"{told} more that {queue.path} is entitled to"
        )
        unblocked.append(f"{change}, or preemptible jobs")
    for over in room.over_claims(queue, need):
        blockers.append(_kept(job, queue, over, room.kept_for(queue, over)))
        told = resources.format_pair(over.resource, over.missing)
        unblocked.append(f"{told} more guaranteed to {queue.path}, less guaranteed to others, or preemptible jobs")


def _why_protected(job: Job) -> str:
    if not job.spec.preemptible:
        return "it is not preemptible"
    return f"it was preempted {job.preemptions} times, and max_preemptions is {job.spec.max_preemptions}"


def _kept(job: Job, queue: Queue, over: Overclaim, kept: list[tuple[Queue, int]]) -> Blocker:
    resource, asked = over.resource, job.asks.minimum_map[over.resource]
    whole = "the cell" if over.queue is None else f"queue {over.queue.path}"
    most, missing = (resources.format_pair(resource, amount) for amount in (over.most, over.missing))
    shown = [f"{q.path} is guaranteed {resources.format_pair(resource, left)} more" for q, left in kept[:KEPT_SHOWN]]
    shown += [f"{len(kept) - KEPT_SHOWN} more queues"] if len(kept) > KEPT_SHOWN else []
    why = f"others are guaranteed too much of the {most} of {whole} for a job that cannot be reclaimed from"
    return Blocker(
        rule="P4",
        kind="guaranteed",
        subject=kept[0][0].path if kept else queue.path,
        resource=resource,
        needed=asked,
        available=max(asked - over.missing, 0),
        missing=over.missing,
        message=f"{why}: {missing} too little ({', '.join(shown) or 'others like it use the rest'})",
    )
