"""The groups of `filling` in integers with error bounds: same clocks and levels, a fraction of the cost.

Levels and clocks are integers in units of 2^-PRECISION_BITS, and with each goes a bound on how wrong it may be, in the
same unit. Most of what happens needs no decision: two demands that are met at almost the same time may be taken in
either order, because each changes how a group rises only for the tiny time between them. What does need one, whether a
limit is reached before a demand is met or before another limit, must be clear by the bounds, or `Undecided` is raised.

Where the bounds come from, for one group (weights are integers, so an active group has M >= 1):

* A direction is wrong by at most 2 * slack + 2 in each resource, where slack is what the sums u are wrong by.
* The clock and the use of a resource, as functions of the level, are wrong by at most `drift + level * slack`. An event
  at a level that is itself wrong by e changes the slope by at most the weight w of its member, so it adds e * w,
  whatever the order of events; it is added when the event is foreseen.
* The level as a function of the clock is no more wrong than the clock is, because the clock runs at least as fast.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final

from muster.core.bounded_record import Record
from muster.core.exact import PRECISION_BITS, UNIT, ZERO, Exact
from muster.core.filling import Limits
from muster.core.flows import Flow, Node

RELIABLE: Final = 1 << 20  # a divisor is so many times its error, or nothing is decided with it
NOBODY: Final = -1  # nothing has risen yet
SEVERAL: Final = -2
NEVER: Final = -1 << 4096  # a level before all others
NO_LIMITS: Final[Limits] = {}


class Undecided(Exception):
    """The bounds overlap."""


class Member:
    """One of the siblings that share a level: a flow, or the group of a child queue."""

    __slots__ = ("end", "error", "flow", "goal", "group", "is_active", "number", "rising", "since", "start", "weight")

    def __init__(self, number: int, weight: int, share: Exact) -> None:
        self.number = number
        self.weight = weight or 1
        self.start = share
        self.since = share.middle // self.weight  # the level from which on it is raised
        self.error = share.error // self.weight + 2 if share is not ZERO else 0  # of `since`
        self.is_active = False
        self.rising: tuple[tuple[int, int], ...] = ()  # what it adds to u while active
        self.flow: Flow | None = None
        self.goal = ZERO  # of a flow: where it stops by itself
        self.end = 0  # of a flow: the level at which it does
        self.group: Group | None = None

    def next_level(self) -> int:
        """The level of its next event."""
        if not self.is_active:
            return self.since
        return self.end if self.group is None else self.since + self.group.next_clock // self.weight

    def next_error(self) -> int:
        if not self.is_active:
            return self.error
        return self.error + 2 if self.group is None else self.error + self.group.next_error // self.weight + 2


class Group:
    """The siblings below one queue, and the queue's own limits."""

    __slots__ = (
        "_drift",
        "_exhausted",
        "_given",
        "_has_moved",
        "_heap",
        "_latest",
        "_lead",
        "_level",
        "_level_error",
        "_limits",
        "_members",
        "_next_level_error",
        "_rate",
        "_record",
        "_slack",
        "_sums",
        "_used",
        "_weightless",
        "_weights",
        "_x",
        "_x_error",
        "needs",
        "next_clock",
        "next_error",
        "node",
        "story",
    )

    def __init__(self, record: Record, node: Node, resources: int, members: Sequence[Member]) -> None:
        self.node = node
        self._record = record
        self._given: Limits = NO_LIMITS  # the limits
        self._limits: dict[int, int] = {}  # their middles
        self._used: dict[int, int] = {}
        self._members: dict[int, Member] = {}
        self._weightless: dict[int, Member] = {}
        self._sums = [0] * resources  # u
        self._rate = UNIT  # M
        self._x = self._x_error = self._level = self._level_error = 0
        self._has_moved = False
        self._latest = NEVER  # the level before which everything has happened that has been seen to happen
        self._heap: list[tuple[int, int]] = []  # (level of the next event, member)
        self._exhausted = -1  # the resource whose limit is the next event
        self._lead = NOBODY  # the resource that has been dominant all the time
        self.next_clock = self.next_error = self._next_level_error = 0
        self.needs = 0  # bits of the resources needed here
        self.story: list[Hashable] | None = None  # of a leaf that had nothing: whatever decides its level
        self._weights = self._slack = self._drift = 0
        for member in members:
            weight, group = member.weight, member.group
            self._weights += weight
            if group is None:
                assert member.flow is not None
                self.needs |= member.flow.needs
                self._slack += weight
                self._drift += 4 * weight * (member.error + 2) + 4  # it begins and ends once
            else:
                self.needs |= group.needs
                self._slack += weight * (2 * group._slack + 2)
                self._drift += 2 * weight * (member.error + 1) + 2

    @property
    def alive(self) -> bool:
        return bool(self._members)

    def limit(self, limits: Limits, used: Sequence[Exact]) -> None:
        """What the queue may use at most, and what it uses now."""
        self._given = limits
        for r, limit in limits.items():
            self._limits[r] = limit.middle
            self._used[r] = used[r].middle
            self._drift += limit.error + used[r].error

    def begin(self, members: Sequence[Member], weightless: Sequence[Member]) -> None:
        """Members, and those that come when no member is left."""
        self._weightless = {member.number: member for member in weightless}
        self._start({member.number: member for member in members})

    def step(self) -> None:
        """What happens at `next_clock`."""
        if self._exhausted >= 0:
            exhausted = self._exhausted
            self.advance(self.next_clock, self.next_error)
            self._record.filled[self.node.id, exhausted] = self._given[exhausted]
            self.freeze(exhausted, None, 0)
            return
        heap = self._heap
        level, number = heap[0]
        self._move(level)
        self._x, self._x_error = self.next_clock, self.next_error
        self._level_error = self._next_level_error
        self._latest = max(self._latest, level + self._level_error)
        self._has_moved = True
        member = self._members[number]
        group = member.group
        ends = False
        if member.is_active:
            sums = self._sums
            for r, part in member.rising:
                sums[r] -= part
            if group is None:
                self._record.met(member)
                ends = True
                if self.story is not None:
                    self.story.append((number, member.flow.main))  # type: ignore[union-attr]
            else:
                group.step()
                ends = not group._members
        if ends:
            heappop(heap)
            del self._members[number]
        else:
            self._join(member)
            heapreplace(heap, (member.next_level(), number))
        self._settle()

    def advance(self, clock: int, error: int) -> None:
        """Be raised to a clock that is surely between the last event and the next."""
        level = self._level + ((clock - self._x) << PRECISION_BITS) // self._rate
        level_error = error + self._drift + (level * self._slack >> PRECISION_BITS) + 4
        if level - level_error <= self._latest:
            raise Undecided
        for member in self._members.values():
            if member.next_level() - member.next_error() <= level + level_error:
                raise Undecided
        self._move(level)
        self._x, self._x_error = clock, error
        self._level_error = level_error
        self._latest = level + level_error
        self._has_moved = True

    def freeze(self, resource: int, above: Exact | None, weight: int) -> None:
        """Freeze every flow that needs the resource. `above`: the level of the siblings where that comes from."""
        bit, error = 1 << resource, self._level_error
        reached: Exact | None = None
        if self._has_moved:
            reached = self._record.level(self.node, resource, (self._level, error), self._told(resource, above, weight))
        elif self.story is not None:
            self.story.append(resource)
        for members in (self._members, self._weightless):
            for member in list(members.values()):
                group, flow = member.group, member.flow
                if flow is not None and not flow.needs & bit:
                    continue
                if group is not None and not group.needs & bit:
                    continue
                if member.is_active:
                    for r, part in member.rising:
                        self._sums[r] -= part
                if group is None:
                    self._record.stopped(member, reached)
                    del members[member.number]
                    continue
                if member.is_active and reached is not None:
                    clock = member.weight * (self._level - member.since)
                    group.advance(clock, member.weight * (error + member.error) + 1)
                lead = group._lead
                group.freeze(resource, reached if member.is_active else None, member.weight)
                self._record.stopped_group(member, resource, reached, lead)
                if not group._members:
                    del members[member.number]
                elif member.is_active:
                    self._join(member)
        self.needs &= ~bit
        self._drift += 2 * self._weights * (error + 1)
        self._line_up()
        self._settle()

    def _told(self, resource: int, above: Exact | None, weight: int) -> Hashable:
        """The story up to here: what decides the level. None: it is not known to be anybody else's, too."""
        if self.story is None or above is None:
            self.story = None
            return None
        self.story.append((resource, above.mark, weight))
        return tuple(self.story)

    def _start(self, members: dict[int, Member]) -> None:
        """A level of their own for the members."""
        self._members = members
        self._level = 0
        for member in members.values():
            if not member.since:
                self._join(member)
        self._line_up()
        self._settle()

    def _line_up(self) -> None:
        self._heap = [(member.next_level(), number) for number, member in self._members.items()]
        heapify(self._heap)

    def _move(self, level: int) -> None:
        if self._limits:
            rise, sums, used = level - self._level, self._sums, self._used
            for r in self._limits:
                if sums[r]:
                    used[r] += rise * sums[r] >> PRECISION_BITS
            self._drift += 1
        self._level = level

    def _join(self, member: Member) -> None:
        """Raise it from now on, as it is now."""
        sums, group = self._sums, member.group
        if group is not None:
            rate, weight = group._rate, member.weight
            scale = weight << PRECISION_BITS
            member.rising = tuple([(r, part * scale // rate) for r, part in enumerate(group._sums) if part])
            self._drift += 2 * (group.next_error + weight * (member.error + 3))  # of its next event
        for r, part in member.rising:
            sums[r] += part
        member.is_active = True

    def _settle(self) -> None:
        """After any change: who rises now, and what is next."""
        if not self._members:
            if self._weightless:
                members, self._weightless = self._weightless, {}
                self._drift += self._x_error + (self._level * self._slack >> PRECISION_BITS) + 1
                self._latest = self._drift if self._has_moved else NEVER
                self._start(members)
            return
        heap = self._heap
        rate = max(self._sums)
        if not rate:  # all wait: nothing moves until the level has reached the first
            self._level, number = heap[0]
            member = self._members[number]
            self._join(member)
            heapreplace(heap, (member.next_level(), number))
            rate = max(self._sums)
        self._rate = rate
        if self._lead != SEVERAL:
            self._follow_lead(rate)
        level, number = heap[0]
        rise = level - self._level
        self._drift += 2
        self.next_clock = self._x + (rise * rate >> PRECISION_BITS)
        level_error = self._next_level_error = self._members[number].next_error()
        self.next_error = self._drift + (level * self._slack >> PRECISION_BITS) + level_error * self._weights + 2
        self._exhausted = -1
        if self._limits:
            self._look_at_limits(rise)

    def _follow_lead(self, rate: int) -> None:
        """Whether one resource alone has had the largest sum all the time."""
        sums, lead = self._sums, self._lead
        if lead == NOBODY:
            lead = self._lead = sums.index(rate)
        if sums[lead] != rate:
            self._lead = SEVERAL
            return
        sums[lead] = 0
        if max(sums) + 2 * self._slack >= rate:
            self._lead = SEVERAL
        sums[lead] = rate

    def _look_at_limits(self, rise: int) -> None:
        """Whether one is reached before the next event."""
        sums, used = self._sums, self._used
        margin = self.next_error + 4
        for r, limit in self._limits.items():
            speed = sums[r]
            if not speed:
                continue
            room = limit - used[r]
            left = room - (rise * speed >> PRECISION_BITS)
            if left > margin:
                continue
            if left >= -margin or room <= margin or speed < RELIABLE * self._slack:
                raise Undecided
            passed = room * self._rate // speed
            clock, error = self._x + passed, self._clock_error(passed, speed)
            if self._exhausted >= 0 and abs(clock - self.next_clock) <= error + self.next_error:
                raise Undecided
            if self._exhausted < 0 or clock < self.next_clock:
                self.next_clock, self.next_error, self._exhausted = clock, error, r

    def _clock_error(self, passed: int, speed: int) -> int:
        """Of the clock at which the room of a resource is used up: twice the first-order terms."""
        base = self._drift + (self._level * self._slack >> PRECISION_BITS) + 4
        slack = passed * self._slack
        return 2 * (base + (base * self._rate + slack) // speed + slack // self._rate + 4)
