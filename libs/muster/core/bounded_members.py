"""Who shares a level in `bounded_groups`, and what is seen of a group from above.

A member goes along the moments of its group: the group may be further already, because it has been gone along before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from muster.core.exact import ZERO, Exact
from muster.core.flows import Flow

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


class Member:
    """One of the siblings that share a level: a flow, or the group of a child queue."""

    __slots__ = (
        "at",
        "end",
        "error",
        "flow",
        "goal",
        "group",
        "is_active",
        "is_added",
        "now",
        "number",
        "origin",
        "rising",
        "since",
        "speeds",
        "start",
        "weight",
    )

    def __init__(self, number: int, weight: int, share: Exact) -> None:
        self.number = number
        self.weight = weight or 1
        self.start = share
        self.since = share.middle // self.weight  # the level from which on it is raised
        self.error = share.error // self.weight + 2 if share is not ZERO else 0  # of `since`
        self.is_active = False
        self.is_added = False  # whether u has its part: all active ones, but for those that are about to be frozen
        self.rising: Sequence[tuple[int, int]] = ()  # of a group: what it adds to u
        self.speeds: Sequence[tuple[int, int]] | None = None  # of a flow, as shares: of what is watched
        self.flow: Flow | None = None
        self.goal = ZERO  # of a flow: where it stops by itself
        self.end = 0  # of a flow: the level at which it does
        self.group: Group | None = None
        self.origin: Group | None = None  # the one it had in the beginning
        self.at = 0  # at which of the moments of its group it is
        self.now: Moment | None = None  # that moment

    def of_group(self, group: Group, at: int) -> None:
        self.group, self.at, self.now = group, at, group.moments[at]

    def clock_at(self, level: Level) -> tuple[int, int]:
        """How far it has been raised when its siblings are at a level, and how wrong that is."""
        return self.weight * (level.middle - self.since), self.weight * (level.error + self.error) + 1

    def reset(self) -> Member:
        """As it was before anything happened, with the group it had then."""
        self.is_active = self.is_added = False
        if self.origin is not None:
            self.of_group(self.origin, 0)
        return self

    def copy(self) -> Member:
        twin = Member.__new__(Member)
        for name in Member.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    def next_level(self) -> int:
        """The level of its next event."""
        if not self.is_active:
            return self.since
        return self.end if self.now is None else self.since + self.now.next_clock // self.weight

    def next_error(self) -> int:
        if not self.is_active:
            return self.error
        return self.error + 2 if self.now is None else self.error + self.now.next_error // self.weight + 2

    def needs_surely(self, bits: int) -> bool:
        """Whether all of its flows need the resource."""
        return bool((self.flow.needs if self.group is None else self.group.common) & bits)  # type: ignore[union-attr]

    def is_done(self, level: int) -> bool:
        """Whether nothing of it rises any more at a level of its siblings, which is not close to any event."""
        return self.end <= level if self.now is None else not self.now.is_alive

    def seek(self, clock: int) -> Moment:
        """The moment of its group at a clock, as far as that can be told."""
        group = self.group
        assert group is not None
        while clock > group.moments[self.at].next_clock and group.moments[self.at].is_alive:
            self.proceed()
        while self.at and clock < group.moments[self.at].x:
            self.at -= 1
        self.now = group.moments[self.at]
        return self.now

    def proceed(self) -> bool:
        """What its group does next happens. Returns whether that was the last."""
        group = self.group
        assert group is not None
        self.at += 1
        if self.at == len(group.moments):
            group.step()
        self.now = group.moments[self.at]
        return not self.now.is_alive
