"""What comes out of a filling in `bounded_groups`, as numbers that know how to find out the rest of their digits.

A flow that was frozen at a level of its siblings has the share weight * level. The level is a symbol: siblings frozen
together are compared without knowing it, and levels that were decided by the same story, in leaves that are as alike,
are known to be the same one. How each member of a group has ended is noted while the filling goes on; `outcome` goes
through it once, from the top, and tells the flows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, TypeGuard

from muster.core.exact import ZERO, Exact
from muster.core.replays import Again, Stop

if TYPE_CHECKING:
    from muster.core.bounded_groups import Group, Member
    from muster.core.flows import Flow

Known = Exact | tuple["Level", int]  # a share: a number, or a level times a weight
Filled = dict[tuple[str, int], Known]  # (queue, resource) -> its share, where that is known as a whole
Story = tuple[object, ...]


class Level:
    """The level at which a resource is exhausted in a group. Levels with the same story are the same."""

    __slots__ = ("_exact", "_record", "error", "group", "low", "middle", "resource", "story")

    def __init__(
        self, record: Record, group: Group, resource: int, bounds: tuple[int, int], story: Story | None
    ) -> None:
        self.group = group
        self.resource = resource
        self.middle, self.error = bounds
        self.low = max(bounds[0] - bounds[1], 0)  # it is not less
        self.story = story  # None: it is not known to be anybody else's, too
        self._record = record
        self._exact: Exact | None = None

    def exact(self) -> Exact:
        if self._exact is None:
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
Ending = tuple["Member", How]
MET: Final = "met"
FINISHED: Final = "finished"


class Record:
    """What is known at the end of a filling, and the exact numbers behind it."""

    def __init__(self, again: Again) -> None:
        self._again = again
        self._marks: Iterator[int] = count(1)
        self.begin()

    def begin(self) -> None:
        """Another filling begins. Names are not given a second time: levels found before may still be in use."""
        self.filled: Filled = {}
        self._names: dict[Hashable, int] = {}

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
        self._again.stops[group.node.id] = group.stops
        for r, share in group.filled:
            self.filled[group.node.id, r] = share
        for member, how in group.ended:
            if how is MET:
                assert member.flow is not None
                member.flow.share = member.goal
            elif how is FINISHED:
                assert member.group is not None
                self.outcome(member.group.moment(member.at))
            else:
                self._stop(member, *how)

    def _stop(self, member: Member, resource: int, level: Level | None) -> None:
        """All that is left of a member stopped at a level of its siblings."""
        if member.group is None:
            assert member.flow is not None
            if level is None:
                member.flow.share = member.start
            else:
                member.flow.level = level
            return
        group = member.group.moment(member.at)
        reached = None if level is None else group.reached(member, resource, level)
        self.outcome(group)
        self._again.stops[group.node.id] = [*group.stops, Stop(resource, level, member.weight, member.start)]
        if level is not None and group.lead >= 0 and member.start is ZERO:
            # What it has of its dominant resource is all it was raised by.
            self.filled[group.node.id, group.lead] = level, member.weight
        for below in (*group.members.values(), *group.weightless.values()):
            if below.flow is not None and below.is_active and reached is not None:
                below.flow.level = reached
            else:
                self._stop(below, resource, reached if below.is_active else None)


def _is_told(part: object) -> TypeGuard[tuple[int, Level, int]]:
    return isinstance(part, tuple) and len(part) == 3
