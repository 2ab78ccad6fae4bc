"""Who shares a level in `bounded_groups`, and what is seen of a group from above.

A member goes along the moments of its group: the group may be further already, because it has been gone along before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from muster.core import exact
from muster.core.exact import ZERO, Exact
from muster.core.flows import Flow
from muster.core.parts import SCALE_BITS

if TYPE_CHECKING:
    from muster.core.bounded_groups import Group
    from muster.core.bounded_record import Level

RELIABLE: Final = 1 << 20  # a divisor is so many times its error, or nothing is decided with it


class Undecided(Exception):
    """The bounds overlap."""


class Moment(NamedTuple):
    """A group between two of its events, as those above see it."""

    x: int  # the clock at which it began
    x_error: int
    next_clock: int
    next_error: int
    rate: int  # M
    speeds: list[int]  # u
    used: dict[int, int]  # in the beginning, of resources that are watched
    error: int  # of the clock and of what is used, as functions of the level
    is_alive: bool
    needs: int  # bits of the resources that what still rises or waits then needs


class Counted:
    """The resources that count in a filling. Others are never dominant nor limited, so nobody adds them up."""

    __slots__ = ("kinds", "sizes", "units")

    def __init__(self, capacity: Sequence[int], bits: int) -> None:
        self.sizes = [size if bits >> r & 1 else 0 for r, size in enumerate(capacity)]  # the capacity of each
        # What amounts times the scale of a flow are divided by to be shares.
        self.units = [size << SCALE_BITS - exact.PRECISION_BITS or 1 for size in self.sizes]
        self.kinds: dict[int, tuple[int, ...]] = {}  # by what a flow needs: what of that counts

    def of(self, flow: Flow) -> tuple[int, ...]:
        """Of what a flow needs, the resources that count."""
        known = self.kinds.get(flow.needs)
        return known or self.kinds.setdefault(flow.needs, tuple([r for r in flow.resources if self.sizes[r]]))


class _Sibling:
    """One of those that share a level."""

    __slots__ = ("is_active", "is_added", "number", "weight")

    number: int
    weight: int
    start: Exact  # the share it has in the beginning
    since: int  # the level from which on it is raised
    error: int  # of that
    is_active: bool
    is_added: bool  # whether u has its part: all active ones, but for those that are about to be frozen

    def clock_at(self, level: Level) -> tuple[int, int]:
        """How far it has been raised when its siblings are at a level, and how wrong that is."""
        return self.weight * (level.middle - self.since), self.weight * (level.error + self.error) + 1


class FlowMember(_Sibling):
    """A flow that has nothing in the beginning, and stops by itself when it has all."""

    __slots__ = ("end", "flow", "scale")

    start = ZERO
    since = error = 0
    goal: Exact | None = None  # where it stops by itself; None: when it has all

    def __init__(self, number: int, weight: int, flow: Flow) -> None:
        self.number = number
        self.weight = weight = weight or 1
        self.flow = flow
        self.is_active = self.is_added = False
        if flow.weight != weight:
            flow.weigh(weight)
        self.scale = flow.scale
        most, below = flow.main
        self.end: int = (most << exact.PRECISION_BITS) // (below * weight)  # the level at which it stops by itself

    def reset(self) -> None:
        """As it was before anything happened."""
        self.is_active = self.is_added = False

    def copy(self) -> FlowMember:
        twin = type(self).__new__(type(self))
        twin.number, twin.weight, twin.flow, twin.end = self.number, self.weight, self.flow, self.end
        twin.scale, twin.is_active, twin.is_added = self.scale, self.is_active, self.is_added
        return twin

    def next_level(self) -> int:
        """The level of its next event."""
        return self.end if self.is_active else self.since

    def next_error(self) -> int:
        return self.error + 2 if self.is_active else self.error

    @property
    def needs(self) -> int:
        """A bit for each resource that any of its flows needs."""
        return self.flow.needs

    def needs_surely(self, bits: int) -> bool:
        """Whether all of its flows need the resource."""
        return self.flow.needs & bits > 0

    def is_done(self, level: int) -> bool:
        """Whether nothing of it rises any more at a level of its siblings, which is not close to any event."""
        return self.end <= level


class BoundMember(FlowMember):
    """A flow that has something already, or below a limit of its own."""

    __slots__ = ("error", "goal", "since", "start")

    def __init__(self, number: int, weight: int, flow: Flow, share: Exact, goal: Exact | None) -> None:
        """The shares: what it has, and where it stops by itself."""
        super().__init__(number, weight, flow)
        self.start, self.goal = share, goal
        self.since, self.error = _since(share, self.weight)
        goal = goal or flow.full
        self.end = self.since + (goal.middle - share.middle) // self.weight
        if share is not ZERO:
            self.error += (goal.error + share.error) // self.weight + 1

    def copy(self) -> FlowMember:
        twin = super().copy()
        assert isinstance(twin, BoundMember)
        twin.start, twin.goal, twin.since, twin.error = self.start, self.goal, self.since, self.error
        return twin


class GroupMember(_Sibling):
    """The group of a child queue."""

    __slots__ = ("at", "error", "group", "now", "origin", "rising", "since", "start")

    group: Group
    at: int  # at which of the moments of its group it is
    now: Moment  # that moment

    def __init__(self, number: int, weight: int, group: Group, share: Exact) -> None:
        self.number = number
        self.weight = weight or 1
        self.start = share
        self.since, self.error = _since(share, self.weight)
        self.rising: Sequence[int] = ()  # what it adds to u
        self.origin = group  # the one it has in the beginning
        self.reset()

    def reset(self) -> None:
        """As it was before anything happened, with the group it had then."""
        self.is_active = self.is_added = False
        self.of_group(self.origin, 0)

    def of_group(self, group: Group, at: int) -> None:
        self.group, self.at, self.now = group, at, group.moments[at]

    def copy(self) -> GroupMember:
        twin = GroupMember.__new__(GroupMember)
        twin.number, twin.weight, twin.group, twin.start = self.number, self.weight, self.group, self.start
        twin.since, twin.error, twin.at, twin.now = self.since, self.error, self.at, self.now
        twin.is_active, twin.is_added, twin.rising = self.is_active, self.is_added, self.rising
        twin.origin = self.origin
        return twin

    def next_level(self) -> int:
        """The level of its next event."""
        return self.since + self.now.next_clock // self.weight if self.is_active else self.since

    def next_error(self) -> int:
        return self.error + self.now.next_error // self.weight + 2 if self.is_active else self.error

    @property
    def needs(self) -> int:
        """A bit for each resource that any of its flows needs that still rises or waits."""
        return self.now.needs

    def needs_surely(self, bits: int) -> bool:
        """Whether all of its flows need the resource."""
        return self.group.common & bits != 0

    def is_done(self, _level: int) -> bool:
        """Whether nothing of it rises any more at a level of its siblings, which is not close to any event."""
        return not self.now.is_alive

    def seek(self, clock: int) -> Moment:
        """The moment of its group at a clock, as far as that can be told."""
        moments = self.group.moments
        if not self.at:  # where it was last time is a good guess
            self.at = min(self.group.sought, len(moments) - 1)
        while clock > moments[self.at].next_clock and moments[self.at].is_alive:
            self.proceed()
        while self.at and clock < moments[self.at].x:
            self.at -= 1
        self.group.sought = self.at
        self.now = moments[self.at]
        return self.now

    def proceed(self) -> bool:
        """What its group does next happens. Returns whether that was the last."""
        group = self.group
        self.at += 1
        if self.at == len(group.moments):
            group.step()
        self.now = group.moments[self.at]
        return not self.now.is_alive


Member = FlowMember | GroupMember


def _since(share: Exact, weight: int) -> tuple[int, int]:
    """The level from which on a member is raised that has a share already."""
    return (0, 0) if share is ZERO else (share.middle // weight, share.error // weight + 2)
