"""FILL of rule F2, fast: in integers with error bounds, and exactly where these do not suffice.

The events are those of `filling`, worked out by `bounded_groups`. Shares come out as numbers that are known to many
digits and know how to find out the rest (`replays`). If the bounds leave open what happens next, which they do when a
limit is reached at the very moment at which a demand is met, everything is done by `filling` instead.

A `Filling` is kept to fill again, from nothing or from floors. The groups of queues below which nothing has changed
stay, with their moments; only those above a change are made anew, and where the first limit is reached is found from
where it was (`bounded_jump`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from muster.core import filling
from muster.core.bounded_groups import NO_LIMITS, Group
from muster.core.bounded_jump import jump
from muster.core.bounded_members import BoundMember, Counted, FlowMember, GroupMember, Member, Undecided
from muster.core.bounded_record import Filled, Record
from muster.core.exact import ONE, ZERO, Exact, greatest
from muster.core.filling import Limits, Used
from muster.core.flows import Flow, Node
from muster.core.replays import Again

Groups = dict[str, tuple[Group | None, tuple[bool, ...]]]  # by queue; and which flows were open, if not all were
FIRST_GUESS: Final = 1  # of the level at which the first limit is reached: next to nothing


class Filling:
    """Of the flows below one queue, again and again. What has not changed below is not filled again."""

    def __init__(self, top: Node, capacity: Sequence[int]) -> None:
        self.touched: list[Flow] | None = None  # the flows of which the last filling changed anything; None: maybe all
        self._top = top
        self._capacity = capacity
        self._resources = len(capacity)
        self._again = Again(top)
        self._record = Record(self._again)
        self._groups: Groups = {}  # of queues below which nothing has changed
        self._used: Used = {}  # what such queues use before they are filled
        self._kind: tuple[object, ...] = ()  # of the last filling: groups of another one are of no use
        self._crossed = FIRST_GUESS  # the level at which the first limit was reached

    def forget(self, changed: Node) -> None:
        """A queue and all below it begin with something else."""
        for node in chain(changed.path(), changed.subtree()):
            self._groups.pop(node.id, None)
            self._used.pop(node.id, None)
            self._record.forget(node)

    def forget_all(self) -> None:
        """The flows have been given shares by somebody else."""
        self.touched = None
        self._groups.clear()
        self._used.clear()
        self._record.forget_all()

    def uses(self) -> Used:
        """What queues use now: of those that have not been forgotten it is what it was before the last filling."""
        filling.find_uses(self._top, self._resources, self._used)
        return self._used

    def fill(self, limits: Limits, counted: int = -1, *, is_from_nothing: bool = False) -> Filled:
        """FILL of rule F2. Resources without a bit in `counted` are never dominant nor limited.

        `is_from_nothing`: no flow has anything, and all are open, or would be if nothing had been filled before.
        Otherwise all flows are again where they were before the last filling, but for those that were forgotten.
        Returns the shares of queues that are known as a whole.
        """
        kind = (counted, *limits, is_from_nothing)
        is_new = not self._groups or kind != self._kind
        if is_new:
            self._groups.clear()
            self._record.forget_all()
        self._kind = kind
        used = None
        if not is_from_nothing:
            used = self.uses()
            filling.close_exhausted(self._top, limits, used)
        self._again.begin(limits, used, self._resources)
        self._record.begin(used)
        try:
            counting = Counted(self._capacity, counted)
            self._fill(limits, _Builder(self._record, self._groups, counting, used, (self._top, limits)))
        except Undecided:
            self._groups.clear()
            self._record.forget_all()
            self._again.settle()
            self.touched = None
        else:
            self.touched = None if is_new or used is not None else self._record.touched
        return self._record.filled

    def _fill(self, limits: Limits, builder: _Builder) -> None:
        group = builder.group(self._top, limits)
        if group is None:
            return
        group.reset()
        if not jump(group, self._crossed):
            group.begin()
        while group.members:
            group.step()
        self._crossed = group.crossed or FIRST_GUESS
        self._record.outcome(group)


def fill(top: Node, limits: Limits, capacity: Sequence[int]) -> None:
    """Once."""
    Filling(top, capacity).fill(limits)


def stop(flow: Flow, limits: Limits) -> Exact:
    """Where a flow stops by itself when it is alone below these limits."""
    goal = flow.full
    for r, limit in limits.items():
        if flow.needs >> r & 1:
            part = flow.direction[r]
            goal = min(goal, limit if part is ONE else Exact.of(limit.value() / part.value()))
    return goal if goal > ZERO else ZERO


class _Builder:
    """Makes the groups. The only flow of a leaf is a member in its place."""

    def __init__(
        self,
        record: Record,
        groups: Groups,
        counted: Counted,
        used: Used | None,
        watched: tuple[Node, Iterable[int]],
    ) -> None:
        """`used`: what queues use; None: no flow has anything, and all are open.

        `watched`: a queue, and resources of which it is to be known at any time what its children use; see `jump`.
        """
        self._record = record
        self._used = used or {}
        self._is_from_nothing = used is None
        self._counted = counted
        self._watched = watched
        self._groups = groups
        self._nothing = [ZERO] * len(counted.sizes)

    def group(self, node: Node, limits: Limits) -> Group | None:
        """The group of a queue, which has not begun yet; None when none of its flows is open."""
        members: list[Member] = []
        weightless: list[Member] = []
        flows = [flow for flow in node.flows if self._is_open(flow)]
        members += [self._flow(number, 1, flow, NO_LIMITS) for number, flow in enumerate(flows)]
        is_open = self._is_from_nothing
        for number, child in enumerate(node.children):
            member: Member | None = None
            own = child.flows
            if len(own) == 1:
                if is_open and not child.pressing:
                    member = FlowMember(number, child.weight, own[0])
                elif is_open or own[0].is_open:
                    member = self._flow(number, child.weight, own[0], child.pressing)
            elif child.below:
                member = self._child(number, child)
            if member is not None:
                (members if child.weight else weightless).append(member)
        if not members and not weightless:
            return None
        group = Group(self._record, node, self._counted, members, weightless)
        above, resources = self._watched
        watched = resources if node.parent is above else ()
        if limits or watched:
            group.limit(limits, self._used.get(node.id) or self._nothing, watched)
        if flows and not limits and all(member.start is ZERO for member in members):
            group.kinds = flows
        return group

    def _is_open(self, flow: Flow) -> bool:
        return self._is_from_nothing or flow.is_open

    def _child(self, number: int, child: Node) -> Member | None:
        is_open = () if self._is_from_nothing else tuple([flow.is_open for flow in child.below])
        group, was_open = self._groups.get(child.id, (None, None))
        if is_open != was_open:
            group = self.group(child, child.pressing)
            self._groups[child.id] = group, is_open
            if group is not None:
                group.begin()
        if group is None:
            return None
        used = self._used.get(child.id)
        return GroupMember(number, child.weight, group, greatest(used) if used else ZERO)

    def _flow(self, number: int, weight: int, flow: Flow, limits: Limits) -> Member:
        share = ZERO if self._is_from_nothing else flow.share
        if share is ZERO and not limits:
            return FlowMember(number, weight, flow)
        return BoundMember(number, weight, flow, share, stop(flow, limits) if limits else None)
