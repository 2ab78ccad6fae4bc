"""FILL of rule F2, fast: in integers with error bounds, and exactly where these do not suffice.

The events are those of `filling`, worked out by `bounded_groups`. Shares come out as numbers that are known to many
digits and know how to find out the rest (`replays`). If the bounds leave open what happens next, which they do when a
limit is reached at the very moment at which a demand is met, everything is done by `filling` instead.
"""

from __future__ import annotations

from muster.core import filling
from muster.core.bounded_groups import NO_LIMITS, Group, Member, Undecided
from muster.core.bounded_record import Filled, Record
from muster.core.exact import ONE, ZERO, Exact, greatest
from muster.core.filling import Limits, Used
from muster.core.flows import Flow, Node
from muster.core.replays import Again


def fill(top: Node, limits: Limits, resources: int, counted: int = -1) -> Filled:
    """As `filling.fill`, but resources without a bit in `counted` are never dominant nor limited.

    Returns the shares of queues that are known as a whole.
    """
    used = filling.close_exhausted(top, limits, resources)
    again = Again(top, limits, used, resources)
    record = Record(again)
    try:
        group = _Builder(record, used, resources, counted).group(top, limits)
        if group is not None:
            while group.members:
                group.step()
            record.outcome(group)
    except Undecided:
        again.settle()
        return {}
    return record.filled


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

    def __init__(self, record: Record, used: Used, resources: int, counted: int) -> None:
        self._record = record
        self._used = used
        self._resources = resources
        self._counted = counted

    def group(self, node: Node, limits: Limits) -> Group | None:
        """The group of a queue; None when none of its flows is open."""
        members: list[Member] = []
        weightless: list[Member] = []
        for flow in node.flows:
            if flow.is_open:
                members.append(self._flow(len(members), 1, flow, NO_LIMITS))
        for number, child in enumerate(node.children):
            member: Member | None = None
            if len(child.flows) == 1:
                if child.flows[0].is_open:
                    member = self._flow(number, child.weight, child.flows[0], child.pressing)
            elif child.below:
                member = self._child(number, child)
            if member is not None:
                (members if child.weight else weightless).append(member)
        if not members and not weightless:
            return None
        group = Group(self._record, node, self._resources, members, weightless)
        if limits:
            group.limit(limits, self._used.get(node.id) or [ZERO] * self._resources, ())
        elif node.flows and all(flow.share is ZERO for flow in node.flows):
            group.kinds = [flow for flow in node.flows if flow.is_open]
        group.begin()
        return group

    def _child(self, number: int, child: Node) -> Member | None:
        group = self.group(child, child.pressing)
        if group is None:
            return None
        used = self._used.get(child.id)
        member = Member(number, child.weight, ZERO if used is None else greatest(used))
        member.group = group
        return member

    def _flow(self, number: int, weight: int, flow: Flow, limits: Limits) -> Member:
        member = Member(number, weight, flow.share)
        member.flow = flow
        member.goal = stop(flow, limits) if limits else flow.full
        rest = member.goal.middle - flow.share.middle
        weight = member.weight
        member.end = member.since + rest // weight
        if flow.share is not ZERO:
            member.error += (member.goal.error + flow.share.error) // weight + 1
        counted = self._counted
        member.rising = tuple([(r, weight * part) for r, part in flow.parts if counted >> r & 1])
        return member
