"""What comes out of a filling in `bounded_groups`, as numbers that know how to find out the rest of their digits.

A flow that was frozen at a level of its siblings has the share weight * level. The level is a symbol: siblings frozen
together are compared without knowing it, and levels that were decided by the same story, in leaves that are as alike,
are known to be the same one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import count
from typing import TYPE_CHECKING

from muster.core.exact import ZERO, Exact
from muster.core.flows import Flow, Node
from muster.core.replays import Again, Stop

if TYPE_CHECKING:
    from muster.core.bounded_groups import Member

Filled = dict[tuple[str, int], Exact]  # (queue, resource) -> its share, where that is known as a whole


class Record:
    """Where flows end up, and what the exact numbers behind it are."""

    def __init__(self, again: Again) -> None:
        self.reached: list[tuple[Flow, Exact]] = []
        self.filled: Filled = {}
        self._again = again
        self._marks: Iterator[int] = count(1)
        self._names: dict[Hashable, int] = {}

    def met(self, member: Member) -> None:
        """A flow has come where it stops by itself."""
        assert member.flow is not None
        self.reached.append((member.flow, member.goal))

    def level(self, node: Node, resource: int, bounds: tuple[int, int], story: Hashable) -> Exact:
        """The level at which a resource is exhausted in a group. Levels with the same story are the same."""
        again = self._again
        sources = (lambda: again.level(node, resource), lambda: again.whole_level(node, resource))
        if story is None:
            name = next(self._marks)
        else:
            name = self._names.get(story) or self._names.setdefault(story, next(self._marks))
        return Exact.symbol(bounds, sources, again.depth(node), (again, name))

    def stopped(self, member: Member, level: Exact | None) -> None:
        """A flow is frozen at a level of its siblings (None: nothing of it has been raised)."""
        flow, start = member.flow, member.start
        assert flow is not None
        if level is None or not member.is_active:
            self.reached.append((flow, start))
        else:
            self.reached.append((flow, _raised(member, level, start)))

    def stopped_group(self, member: Member, resource: int, level: Exact | None, lead: int) -> None:
        """A group was told that a resource is exhausted somewhere above. `lead`: its dominant resource until then."""
        group = member.group
        assert group is not None
        stop = Stop(resource, level if member.is_active else None, member.weight, member.start)
        self._again.stops.setdefault(group.node.id, []).append(stop)
        is_final = lead == resource or not group.alive
        if level is not None and member.is_active and lead >= 0 and is_final and member.start is ZERO:
            # What it has of its dominant resource is all it was raised by.
            self.filled[group.node.id, lead] = _raised(member, level, ZERO)


def _raised(member: Member, level: Exact, start: Exact) -> Exact:
    """A share that has been raised to weight * level, from wherever it started."""
    weight = member.weight
    middle = start.middle + weight * (level.middle - member.since)
    error = start.error + weight * (level.error + member.error) + 1
    return Exact.bounded(middle, error, lambda: Exact(weight) * level, (level.mark, weight))
