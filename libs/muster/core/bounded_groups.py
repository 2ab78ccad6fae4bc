"""The groups of `filling` in integers with error bounds: same clocks and levels, a fraction of the cost.

Levels and clocks are numbers of which it is known how wrong they may be (`bounded_rise`). Most of what happens needs no
decision: two demands that are met at almost the same time may be taken in either order, because each changes how a
group rises only for the tiny time between them. What does need one, whether a limit is reached before a demand is met
or before another limit, must be clear by the bounds, or `Undecided` is raised.

What happens in a group follows from what is below it alone, until a resource is exhausted above. So a group keeps the
`Moment`s between its events, and whoever is above goes along them; they can be gone along again as long as nothing
below has changed. Where a resource is exhausted above, what is left of a group goes on in a `fork` of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heapreplace
from itertools import chain
from operator import attrgetter
from typing import Final

from muster.core.bounded_members import Counted, FlowMember, GroupMember, Member, Moment
from muster.core.bounded_record import FINISHED, MET, Ending, Kept, Known, Level, Record, Story
from muster.core.bounded_rise import SEVERAL, Rise
from muster.core.exact import PRECISION_BITS, Exact
from muster.core.filling import Limits
from muster.core.flows import Flow, Node
from muster.core.parts import SCALE_BITS
from muster.core.replays import Stop

NO_LIMITS: Final[Limits] = {}


class Group(Rise):
    """The siblings below one queue, and the queue's own limits."""

    __slots__ = (
        "_given",
        "_initial",
        "_is_new",
        "_record",
        "_slopes",
        "_tells",
        "common",
        "crossed",
        "doubt",
        "ended",
        "filled",
        "joined",
        "kept",
        "kinds",
        "needs",
        "node",
        "sought",
        "stops",
        "story",
    )

    def __init__(
        self, record: Record, node: Node, counted: Counted, members: Sequence[Member], weightless: Sequence[Member]
    ) -> None:
        self.node = node
        self.needs = 0  # bits of the resources needed here
        self.common = -1  # of those that every flow here needs
        self.base: dict[int, int] = {}  # what was used in the beginning, of resources that are limited or watched
        self._record = record
        self._given: Limits = NO_LIMITS  # the limits
        self.limits: dict[int, int] = {}  # their middles
        self._initial = (members, weightless)
        self._is_new = True
        self.sought = 0  # the moment somebody looked for
        self.joined: dict[int, tuple[Moment, int, list[int]]] = {}  # by number of a moment: how it rose, at a weight
        self.counted = counted
        self._drift = 0
        self.kinds: Sequence[Flow] | None = None  # of a leaf that had nothing: another as alike has the same levels
        self._sum_up()

    def _sum_up(self) -> None:
        """What is needed by members, and what is wrong with what they add up to."""
        needs, common, weights, slack, doubt, more = 0, -1, 0, 0, 0, SCALE_BITS - PRECISION_BITS
        for member in chain(*self._initial):
            weight = member.weight
            weights += weight
            if isinstance(member, FlowMember):
                flow = member.flow
                needs |= flow.needs
                common &= flow.needs
                slack += weight + (flow.main[0] >> more)  # its scale is rounded down
                doubt += 4 * weight * (member.error + 3)  # it begins and ends once
            else:
                group = member.group
                needs |= group.needs
                common &= group.common
                slack += weight * (2 * group.slack + 2) + 2 * group.weights
                doubt += 2 * weight * (member.error + 1) + 2
        self.needs, self.common = needs, common
        self.weights, self.slack, self.doubt = weights, slack, doubt

    def limit(self, limits: Limits, used: Sequence[Exact], watched: Iterable[int]) -> None:
        """What the queue may use at most, and what it uses now, also of what is only watched."""
        self._given = limits
        for r in {**limits, **dict.fromkeys(watched)}:
            self.base[r] = used[r].middle
            self.doubt += used[r].error
        for r, limit in limits.items():
            self.limits[r] = limit.middle
            self.doubt += limit.error

    def begin(self) -> None:
        """From the start."""
        self.reset()
        self._start(self.members)

    def reset(self) -> None:
        """To where it was before anything rose."""
        self._tells = self.kinds is not None
        self._to_start(self.doubt)
        self.crossed = 0  # the level at which the first of its own limits was reached
        self.story: list[object] = []  # whatever decides its levels
        self.ended: list[Ending] = []
        self.filled: list[tuple[int, Known]] = []  # (resource, share of the queue) where it is known as a whole
        self.stops: list[Stop] = []
        self.moments = []
        self._slopes: tuple[int, dict[int, int]] | None = None
        self.kept: Kept | None = None
        self.left = self.needs
        members, weightless = self._initial
        if self._is_new:
            self._is_new = False
        else:
            for member in chain(members, weightless):
                member.reset()
        self.members = {member.number: member for member in members}
        self.weightless = {member.number: member for member in weightless} if weightless else {}

    def moment(self, at: int) -> Group:
        """This group at one of its moments."""
        if at < len(self.moments) - 1:  # it has gone along further another time
            self.begin()
            for _ in range(at):
                self.step()
        return self

    def slopes(self, at: int) -> dict[int, int]:
        """How fast what is watched is used at a moment, for each unit of the clock."""
        if self._slopes is None or self._slopes[0] != at:
            now = self.moments[at]
            self._slopes = at, {r: (now.speeds[r] << PRECISION_BITS) // now.rate for r in self.base}
        return self._slopes[1]

    def fork(self, resource: int) -> Group:
        """As it is now, to go on by itself: the resource will be exhausted next."""
        self.kept = None
        twin = Group.__new__(Group)
        for name, value in zip(SLOTS, _PARTS(self), strict=True):
            setattr(twin, name, value)
        twin.members, twin.weightless = _copied(self.members, resource), _copied(self.weightless, resource)
        twin._used, twin._heap = dict(self._used), list(self._heap)
        twin._sums, twin._shares = list(self._sums), list(self._shares)
        twin.story, twin.ended, twin.filled, twin.stops = [*self.story], [*self.ended], [*self.filled], [*self.stops]
        twin.moments, twin._slopes, twin.joined = self.moments[-1:], None, {}
        return twin

    def step(self) -> None:
        """What happens next."""
        now = self.moments[-1]
        self.kept = None
        if self._exhausted >= 0:
            self.advance(now.next_clock, now.next_error)
            self._exhaust(self._exhausted)
            return
        heap = self._heap
        level, number = heap[0]
        self._move(level)
        self._x, self._x_error = now.next_clock, now.next_error
        self._level_error = self._next_level_error
        self._latest = max(self._latest, level + self._level_error)
        self._has_moved = True
        member = self.members[number]
        ends, changed = False, None
        if member.is_active:
            self._withdraw(member)
            if isinstance(member, FlowMember):
                ends, changed = True, self.counted.of(member.flow)
                if self._tells:
                    self.story.append((number, member.flow.main))
            else:
                ends = member.proceed()
        if ends:
            heappop(heap)
            del self.members[number]
            self.ended.append((member, MET if changed is not None else FINISHED))
        else:
            self._join(member)
            heapreplace(heap, (member.next_level(), number))
        self._settle(changed)

    def arrive(self, level: int, errors: tuple[int, int], used: dict[int, int], exhausted: int) -> None:
        """As if all steps up to a level had been taken, at which a resource is exhausted; see `bounded_jump`.

        The errors are of the level and of what is used there.
        """
        self._level, self._level_error = level, errors[0]
        self._drift += errors[1]
        self._latest = level + errors[0]
        self._has_moved = True
        self._used = used
        self.lead = SEVERAL  # nobody has looked
        self._sums, self._shares = [0] * len(self._sums), [0] * len(self._sums)
        for member in list(self.members.values()):
            member.is_active = member.is_added = False
            if member.is_done(level):
                self.ended.append((member, MET if isinstance(member, FlowMember) else FINISHED))
                del self.members[member.number]
            elif member.since <= level:
                if member.needs_surely(1 << exhausted):
                    member.is_active = True  # not for long
                else:
                    self._join(member)
        self._exhaust(exhausted)

    def _exhaust(self, resource: int) -> None:
        self.crossed = self.crossed or self._level
        self.filled.append((resource, self._given[resource]))
        self.freeze(resource, None, 0)

    def advance(self, clock: int, error: int) -> None:
        """Be raised to such a clock."""
        level, level_error = self.level_at(clock, error)
        self._move(level)
        self._x, self._x_error = clock, error
        self._level_error = level_error
        self._latest = level + level_error
        self._has_moved = True

    def freeze(self, resource: int, above: Level | None, weight: int) -> None:
        """Freeze every flow that needs the resource. `above`: the level of the siblings where that comes from."""
        bit, error = 1 << resource, self._level_error
        reached: Level | None = None
        if self._has_moved:
            reached = self.told((self._level, error), resource, above, weight)
            self._tells = self._tells and above is not None
        self.story.append((resource, above, weight) if self._has_moved else resource)
        for members in (self.members, self.weightless):
            for member in list(members.values()):
                if not member.needs & bit:
                    continue
                if member.is_added:
                    self._subtract(member)
                level = reached if member.is_active else None
                if isinstance(member, FlowMember) or member.needs_surely(bit):  # all that is left of it stops
                    self.ended.append((member, (resource, level)))
                    del members[member.number]
                    continue
                twin = member.group.moment(member.at).fork(resource)
                if level is not None:
                    twin.advance(*member.clock_at(level))
                lead = twin.lead
                twin.freeze(resource, level, member.weight)
                twin.stopped(member, resource, level, lead)
                member.of_group(twin, len(twin.moments) - 1)
                if not twin.members:
                    self.ended.append((member, FINISHED))
                    del members[member.number]
                elif member.is_active:
                    self._join(member)
        self.left &= ~bit
        self._drift += 2 * self.weights * (error + 1)
        self._line_up()
        self._settle()

    def reached(self, member: GroupMember, resource: int, above: Level) -> Level:
        """The level at which all of it stops, when that is told to the member it is above."""
        return self.told(self.level_at(*member.clock_at(above)), resource, above, member.weight)

    def told(self, level: tuple[int, int], resource: int, above: Level | None, weight: int) -> Level:
        """The level at which it is told that a resource is exhausted."""
        return Level(self._record, self, resource, level, self.story_of(resource, above, weight))

    def story_of(self, resource: int, above: Level | None, weight: int) -> Story | None:
        return (*self.story, (resource, above, weight)) if self._tells and above is not None else None

    def stopped(self, member: GroupMember, resource: int, level: Level | None, lead: int) -> None:
        """That has come from above. `lead`: its dominant resource until then."""
        self.stops.append(Stop(resource, level, member.weight, member.start))
        is_final = lead == resource or not self.members
        if level is not None and lead >= 0 and is_final:
            self.filled.append((lead, self._record.raised(member, self, lead, level)))


def _copied(members: dict[int, Member], resource: int) -> dict[int, Member]:
    """Those to go on with. A flow that needs the resource stops, so nothing about it changes."""
    bit = 1 << resource
    return {n: m if isinstance(m, FlowMember) and m.flow.needs & bit else m.copy() for n, m in members.items()}


SLOTS: Final = (*Rise.__slots__, *Group.__slots__)
_PARTS: Final = attrgetter(*SLOTS)
