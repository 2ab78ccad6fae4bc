"""What comes out of a filling in `bounded_groups`, as numbers that know how to find out the rest of their digits.

A flow that was frozen at a level of its siblings has the share weight * level. The level is a symbol: siblings frozen
together are compared without knowing it, and levels that were decided by the same story, in leaves that are as alike,
are known to be the same one. How each member of a group has ended is noted while the filling goes on; `outcome` goes
through it once, from the top, and tells the flows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard

from muster.core.bounded_members import FlowMember, GroupMember, Member
from muster.core.exact import ZERO, Exact
from muster.core.filling import Used
from muster.core.replays import Again, Stop

if TYPE_CHECKING:
    from muster.core.bounded_groups import Group
    from muster.core.flows import Flow, Node

Known = Exact | tuple["Level", int]  # a share: a number, or a level times a weight
Filled = dict[str, dict[int, Known]]  # by queue and resource its share, where that is known as a whole
Story = tuple[object, ...]


class Level:
    """The level at which a resource is exhausted in a group. Levels with the same story are the same."""

    __slots__ = ("_exact", "_filling", "_record", "error", "group", "middle", "place", "resource", "story")

    def __init__(
        self, record: Record, group: Group, resource: int, bounds: tuple[int, int], story: Story | None
    ) -> None:
        self.group = group
        self.resource = resource
        self.place = -1  # its number in `parts`
        self._record = record
        self._exact: Exact | None = None
        self._filling = 0  # the one in which that was found
        self.move(bounds, story)

    def move(self, bounds: tuple[int, int], story: Story | None) -> None:
        """In another filling it is elsewhere, and the same flows have stopped at it."""
        self.middle, self.error = bounds
        self.story = story  # None: it is not known to be anybody else's, too

    def exact(self) -> Exact:
        """The number itself, which is another one in each filling, even where the bounds are the same."""
        if self._exact is None or self._filling != self._record.filling:
            self._filling = self._record.filling
            self._exact = self._record.symbol(self)
        return self._exact

    def raised(self, weight: int) -> Exact:
        """A share that has been raised to weight * level, from wherever it started."""
        level = self.exact()
        middle, error = weight * self.middle, weight * self.error + 1
        return Exact.bounded(middle, error, lambda: Exact(weight) * level, (level.mark, weight))


# How a member has ended: its demand was met, its group has nothing left, or a resource was exhausted above, at a level
# of its siblings (None: when it had not been raised).
How = str | tuple[int, Level | None]
Ending = tuple[Member, How]
MET: Final = "met"
FINISHED: Final = "finished"


class Kept(NamedTuple):
    """What stopped a whole group last time, for as long as nothing has happened in it since."""

    resource: int
    above: Level  # of its siblings
    level: Level
    groups: list[GroupMember]  # groups that stopped with it


class Record:
    """What is known at the end of a filling, and the exact numbers behind it.

    Where groups are used again, so is what was told to their flows.
    """

    def __init__(self, again: Again) -> None:
        self.filled: Filled = {}
        self.touched: list[Flow] = []  # those that were told something
        self.filling = 0  # the number of it
        self._again = again
        self._keeps = False
        self._used: Used = {}
        self._marks: Iterator[int] = count(1)  # never given twice: levels found before may still be in use
        self._names: dict[Hashable, int] = {}

    def begin(self, used: Used | None) -> None:
        """Another filling begins. `used`: what queues use; None: nothing, and groups may stop again as they did."""
        self.filling += 1
        self._keeps = used is None
        self._used = used or {}
        self.touched = []
        self._names = {}

    def forget(self, node: Node) -> None:
        """What is known of a queue is not so any more."""
        self._again.stops.pop(node.id, None)
        self.filled.pop(node.id, None)

    def forget_all(self) -> None:
        self._again.stops.clear()
        self.filled.clear()

    def symbol(self, level: Level) -> Exact:
        """A level as a number."""
        again, node, resource = self._again, level.group.node, level.resource
        sources = (lambda: again.level(node, resource), lambda: again.whole_level(node, resource))
        name = next(self._marks) if level.story is None else self._name(level.group.kinds or (), level.story)
        return Exact.symbol((level.middle, level.error), sources, again.depth(node), (again, name))

    def _name(self, flows: Sequence[Flow], story: Story) -> int:
        told = tuple([(part[0], part[1].exact().mark, part[2]) if _is_told(part) else part for part in story])
        key = (tuple([flow.kind for flow in flows]), told)
        return self._names.get(key) or self._names.setdefault(key, next(self._marks))

    def outcome(self, group: Group) -> None:
        """Give the flows of a group, which has come to its end, their shares."""
        queue = group.node.id
        self._again.stops[queue] = group.stops
        self.filled[queue] = dict(group.filled)
        for member, how in group.ended:
            if isinstance(how, tuple):
                self._stop(member, *how)
            elif isinstance(member, FlowMember):
                member.flow.share = member.goal or member.flow.full
                self.touched.append(member.flow)
            else:
                self.outcome(member.group.moment(member.at))

    def _stop(self, member: Member, resource: int, level: Level | None) -> None:
        """All that is left of a member stopped at a level of its siblings."""
        if isinstance(member, FlowMember):
            self._stop_flow(member, level)
            return
        group = member.group.moment(member.at)
        if group.kept is None or level is None or group.kept.resource != resource:
            self._stop_group(member, group, resource, level)
        else:
            self._stop_again(member, group, group.kept, level)

    def _stop_flow(self, member: FlowMember, level: Level | None) -> None:
        flow = member.flow
        self.touched.append(flow)
        if level is None:
            flow.share = member.start
        else:
            flow.level = level

    def _stop_group(self, member: GroupMember, group: Group, resource: int, level: Level | None) -> None:
        group.kept = None
        reached = None if level is None else group.reached(member, resource, level)
        self.outcome(group)
        self._note(member, group, resource, level)
        groups: list[GroupMember] = []
        for below in (*group.members.values(), *group.weightless.values()):
            if isinstance(below, FlowMember):
                self._stop_flow(below, reached if below.is_active else None)
                continue
            self._stop(below, resource, reached if below.is_active else None)
            if below.is_active:
                groups.append(below)
        if self._keeps and level is not None and reached is not None:
            group.kept = Kept(resource, level, reached, groups)

    def _stop_again(self, member: GroupMember, group: Group, kept: Kept, level: Level) -> None:
        """The same has happened to it as last time, only at another level: its own flows know all about it."""
        resource, reached = kept.resource, kept.level
        before = reached.middle, reached.error
        bounds = group.level_at(*member.clock_at(level))
        reached.move(bounds, group.story_of(resource, level, member.weight) if group.kinds else None)
        if kept.above is not level:
            self._note(member, group, resource, level)
            group.kept = kept._replace(above=level)
        if bounds == before:  # then nothing below is elsewhere either
            return
        for below in kept.groups:
            inside = below.group
            again = inside.kept
            if again is not None and again.resource == resource and below.at == len(inside.moments) - 1:
                self._stop_again(below, inside, again, reached)
            else:
                self._stop(below, resource, reached)

    def _note(self, member: GroupMember, group: Group, resource: int, level: Level | None) -> None:
        """What was told to a group that stopped as a whole."""
        self._again.stops[group.node.id] = [*group.stops, Stop(resource, level, member.weight, member.start)]
        if level is not None and group.lead >= 0:
            self.filled[group.node.id][group.lead] = self.raised(member, group, group.lead, level)

    def raised(self, member: GroupMember, group: Group, lead: int, level: Level) -> Known:
        """What a queue has of a resource that has been dominant all the time: what it had and what it was raised by."""
        if member.start is ZERO:
            return level, member.weight
        return level.raised(member.weight) + (self._used[group.node.id][lead] - member.start)


def _is_told(part: object) -> TypeGuard[tuple[int, Level, int]]:
    return isinstance(part, tuple) and len(part) == 3
