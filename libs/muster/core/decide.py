"""What happens next: items of the inbox and the passing of time become transitions.

`decide` is pure: the same state, items, time and work limit give the same transitions on any machine (I8). It works in
three steps: the items in their order, what is due by time, then the scheduling cycle. It closes the transaction when
its work units are spent or its bytes are full (LOG-1, LOG-8), leaving the rest to the next one. Items get at most three
quarters of both, so that a flood of them cannot keep jobs from starting.

The shell commits what comes out (`transaction` makes the message) and applies it like every follower; `decide` itself
changes nothing. A command that breaks a rule becomes `CommandRefused`; anything else that is raised is a bug and ends
the process, and after two deaths at one position the shell has the item quarantined (LOG-9).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from muster.core import checkpoints, commands, facts, pods, priority_classes, queue_changes, queue_rules, submission
from muster.core import transitions as tr
from muster.core.cycle import run_cycle
from muster.core.draft import Draft
from muster.core.errors import Code, Rejected
from muster.core.housekeeping import housekeeping, next_wake_ms
from muster.core.limits import TRANSACTION_BYTES_MAX
from muster.core.model import InboxPosition
from muster.core.plans import preemption_planned
from muster.core.state import CellState

ITEMS_SHARE: Final = (3, 4)  # of work units and bytes

AnyItem = commands.AnyItem | commands.Undecodable


class Decision(Struct, frozen=True):
    """What to commit. Nothing if there are no transitions and `inbox_to` has not moved."""

    transitions: tuple[tr.Transition, ...]
    inbox_to: InboxPosition  # the first item not consumed
    work_spent: int
    more: bool  # decide again at once after applying it


def decide(
    state: CellState,
    items: Sequence[tuple[InboxPosition, AnyItem]],
    now_ms: int,
    work_limit: int,
    quarantine: InboxPosition | None = None,
) -> Decision:
    """The next transaction. `items` start at `state.position` and end with a whole message.

    `quarantine` is the position of an item that must not be looked at again (LOG-9).
    """
    draft = Draft(state, max(now_ms, state.now_ms), work_limit)
    consumed = _consume(draft, items, quarantine)
    housekeeping(draft)
    if not draft.structural:
        run_cycle(draft)
    left = consumed < len(items)
    inbox_to = state.position
    if consumed:
        last = items[consumed - 1][0]
        inbox_to = InboxPosition(last.seq + 1, 0)
        if left and items[consumed][0].seq == last.seq:
            inbox_to = items[consumed][0]
    more = left or draft.structural or draft.exhausted
    return Decision(tuple(draft.transitions), inbox_to, draft.work, more)


def transaction(
    state: CellState, decision: Decision, *, transaction_id: str, now_ms: int, work_limit: int
) -> tr.Transaction:
    """The ledger message of a decision made by the leader of the state's term (LOG-1)."""
    header = tr.Header(
        version=tr.LEDGER_VERSION,
        id=transaction_id,
        prev=state.ledger_seq,
        epoch=state.epoch,
        now_ms=max(now_ms, state.now_ms),
        inbox_from=state.position,
        inbox_to=decision.inbox_to,
        work_limit=work_limit,
        work_spent=decision.work_spent,
    )
    return tr.Transaction(header, decision.transitions)  # type: ignore[arg-type]  # the union of all transitions


def leader_elected(state: CellState, *, leader: str, now_ms: int) -> tr.Transaction:
    """The message that starts the next term (LOG-5)."""
    epoch = state.epoch + 1
    header = tr.Header(
        version=tr.LEDGER_VERSION,
        id=f"{epoch}-0",
        prev=state.ledger_seq,
        epoch=epoch,
        now_ms=max(now_ms, state.now_ms),
        inbox_from=state.position,
        inbox_to=state.position,
        work_limit=0,
        work_spent=0,
    )
    return tr.Transaction(header, (tr.LeaderElected(epoch, leader),))


# --- items ----------------------------------------------------------------------------------------------------------


def _consume(draft: Draft, items: Sequence[tuple[InboxPosition, AnyItem]], quarantine: InboxPosition | None) -> int:
    """Decide items in order; returns how many were consumed."""
    part, whole = ITEMS_SHARE
    work_most = max(draft.work_limit * part // whole, 1)
    bytes_most = TRANSACTION_BYTES_MAX * part // whole
    consumed = 0
    for position, item in items:
        if draft.work >= work_most or draft.bytes >= bytes_most:
            break
        if _waits(draft, type(item)):
            break
        draft.spend(1)
        if position == quarantine:
            reason = f"{type(item).__name__} ended two leaders"
            draft.emit(tr.InboxItemQuarantined(position, reason))
        else:
            _decide_item(draft, position, item)
        consumed += 1
    return consumed


def _waits(draft: Draft, kind: type) -> bool:
    """Whether an item is for the next transaction, because of what was decided in this one or left out in the last."""
    if kind in _STRUCTURAL_ITEMS and draft.state.cycle_owed:
        return True  # the last transaction left the cycle out: it comes first now
    if kind is commands.ChangeQueues and draft.transitions:
        return True  # a whole tree may fill a transaction (LOG-8)
    if kind in _QUEUE_ITEMS and draft.replanted:
        return True  # so what it made of the tree has a revision of its own (rule Q4)
    if kind in _QUEUE_ITEMS:
        return draft.usages.touched  # what was counted belongs to the tree as it was (I3)
    if kind is commands.PreemptionPlanned:
        return draft.structural  # a plan is judged by the nodes and queues that are there after the change (rule P6)
    if kind is commands.SubmitJob:
        return draft.tree is not draft.state.queues  # who shares a queue is counted when its change is folded (Q1)
    return False


def _decide_item(draft: Draft, position: InboxPosition, item: AnyItem) -> None:
    handler = _HANDLERS.get(type(item))
    try:
        if handler is None:
            raise _not_built(item)
        handler(draft, position, item)
    except Rejected as why:
        draft.refuse(position, item, why)


def _not_built(item: AnyItem) -> Rejected:
    if isinstance(item, commands.Undecodable):
        return Rejected(Code.INVALID_ARGUMENT, "", f"cannot be read: {item.reason}", "LOG-9")
    return Rejected(Code.UNIMPLEMENTED, "", f"{type(item).__name__} is not available in this version")


Handler = Callable[[Draft, InboxPosition, Any], None]

_HANDLERS: Final[dict[type, Handler]] = {
    commands.SubmitJob: submission.submit,
    commands.CancelJob: lambda draft, _, item: submission.cancel(draft, item),
    commands.ReportCheckpoint: lambda draft, _, item: checkpoints.report_checkpoint(draft, item),
    commands.UpsertQueue: lambda draft, _, item: queue_rules.upsert(draft, item),
    commands.DeleteQueue: lambda draft, _, item: queue_rules.delete(draft, item),
    commands.ChangeQueues: lambda draft, _, item: queue_changes.change_queues(draft, item),
    commands.UpsertPriorityClass: lambda draft, _, item: priority_classes.upsert(draft, item),
    commands.DeletePriorityClass: lambda draft, _, item: priority_classes.delete(draft, item),
    commands.NodesReported: lambda draft, _, item: facts.nodes_reported(draft, item),
    commands.NodeTopologyReported: lambda draft, _, item: facts.topology_reported(draft, item),
    commands.PodsObserved: lambda draft, _, item: pods.observed(draft, item),
    commands.PlacementRejected: lambda draft, _, item: pods.placement_rejected(draft, item),
    commands.EntitlementsComputed: lambda draft, _, item: facts.entitlements_computed(draft, item),
    commands.PreemptionPlanned: lambda draft, _, item: preemption_planned(draft, item),
}

_QUEUE_ITEMS: Final = frozenset({commands.UpsertQueue, commands.DeleteQueue, commands.ChangeQueues})
_STRUCTURAL_ITEMS: Final = _QUEUE_ITEMS | {commands.NodesReported, commands.NodeTopologyReported}

__all__ = ["Decision", "decide", "leader_elected", "next_wake_ms", "transaction"]
