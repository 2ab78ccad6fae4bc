"""The groups of `filling` in integers with error bounds: same clocks and levels, a fraction of the cost.

Levels and clocks are integers in units of 2^-PRECISION_BITS, and with each goes a bound on how wrong it may be, in the
same unit. Most of what happens needs no decision: two demands that are met at almost the same time may be taken in
either order, because each changes how a group rises only for the tiny time between them. What does need one, whether a
limit is reached before a demand is met or before another limit, must be clear by the bounds, or `Undecided` is raised.

What happens in a group follows from what is below it alone, until a resource is exhausted above. So a group keeps the
`Moment`s between its events, and whoever is above goes along them; they can be gone along again as long as nothing
below has changed. Where a resource is exhausted above, what is left of a group goes on in a `fork` of it.

Where the bounds come from, for one group (weights are integers, so an active group has M >= 1):

* A direction is wrong by at most 2 * slack + 2 in each resource, where slack is what the sums u are wrong by.
* The clock and the use of a resource, as functions of the level, are wrong by at most `drift + level * slack`. An event
  at a level that is itself wrong by e changes the slope by at most the weight w of its member, so it adds e * w,
  whatever the order of events; it is added when the event is foreseen.
* The level as a function of the clock is no more wrong than the clock is, because the clock runs at least as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final

from muster.core.bounded_members import RELIABLE, Member, Moment, Undecided
from muster.core.bounded_record import FINISHED, MET, Ending, Kept, Known, Level, Record, Story
from muster.core.exact import PRECISION_BITS, UNIT, ZERO, Exact
from muster.core.filling import Limits
from muster.core.flows import Flow, Node
from muster.core.replays import Stop

NOBODY: Final = -1  # nothing has risen yet
SEVERAL: Final = -2
NEVER: Final = -1 << 4096  # a level before all others
NO_LIMITS: Final[Limits] = {}


class Group:
    """The siblings below one queue, and the queue's own limits."""

    __slots__ = (
        "_drift",
        "_exhausted",
        "_given",
        "_has_moved",
        "_heap",
        "_initial",
        "_latest",
        "_level",
        "_level_error",
        "_next_level_error",
        "_rate",
        "_record",
        "_sums",
        "_tells",
        "_used",
        "_weights",
        "_x",
        "_x_error",
        "base",
        "common",
        "crossed",
        "doubt",
        "ended",
        "filled",
        "kept",
        "kinds",
        "lead",
        "limits",
        "members",
        "moments",
        "needs",
        "node",
        "slack",
        "stops",
        "story",
        "weightless",
    )

    def __init__(
        self, record: Record, node: Node, resources: int, members: Sequence[Member], weightless: Sequence[Member]
    ) -> None:
        self.node = node
        self.base: dict[int, int] = {}  # what was used in the beginning, of resources that are limited or watched
        self.needs = 0  # bits of the resources needed here
        self.common = -1  # of those that every flow here needs
        self._record = record
        self._given: Limits = NO_LIMITS  # the limits
        self.limits: dict[int, int] = {}  # their middles
        self._initial = ([(m, m.group) for m in members], [(m, m.group) for m in weightless])
        self._sums = [0] * resources  # u
        self._weights = self.slack = self._drift = 0
        self.kinds: Sequence[Flow] | None = None  # of a leaf that had nothing: another as alike has the same levels
        self.doubt = 0  # what is wrong with what it begins with
        for member in (*members, *weightless):
            weight, group = member.weight, member.group
            self._weights += weight
            if group is None:
                assert member.flow is not None
                self.needs |= member.flow.needs
                self.common &= member.flow.needs
                self.slack += weight
                self.doubt += 4 * weight * (member.error + 2) + 4  # it begins and ends once
            else:
                self.needs |= group.needs
                self.common &= group.common
                self.slack += weight * (2 * group.slack + 2)
                self.doubt += 2 * weight * (member.error + 1) + 2

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
        self._used = dict(self.base)
        self._drift = self.doubt
        self._sums = [0] * len(self._sums)
        self._rate = UNIT  # M
        self._x = self._x_error = self._level = self._level_error = 0
        self._has_moved = False
        self._latest = NEVER  # the level before which everything has happened that has been seen to happen
        self._heap: list[tuple[int, int]] = []  # (level of the next event, member)
        self._exhausted = -1  # the resource whose limit is the next event
        self._next_level_error = 0
        self.crossed: int | None = None  # the level at which the first of its own limits was reached
        self.lead = NOBODY  # the resource that has been dominant all the time
        self.story: list[object] = []  # whatever decides its levels
        self.ended: list[Ending] = []
        self.filled: list[tuple[int, Known]] = []  # (resource, share of the queue) where it is known as a whole
        self.stops: list[Stop] = []
        self.moments: list[Moment] = []
        self.kept: Kept | None = None
        members, weightless = self._initial
        self.members: dict[int, Member] = {member.number: member.reset(group) for member, group in members}
        self.weightless: dict[int, Member] = {member.number: member.reset(group) for member, group in weightless}

    def moment(self, at: int) -> Group:
        """This group at one of its moments."""
        if at < len(self.moments) - 1:  # it has gone along further another time
            self.begin()
            for _ in range(at):
                self.step()
        return self

    def fork(self) -> Group:
        """As it is now, to go on by itself."""
        self.kept = None
        twin = Group.__new__(Group)
        for name in Group.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.members = {number: member.copy() for number, member in self.members.items()}
        twin.weightless = {number: member.copy() for number, member in self.weightless.items()}
        twin._used, twin._sums, twin._heap = dict(self._used), list(self._sums), list(self._heap)
        twin.story, twin.ended, twin.filled, twin.stops = [*self.story], [*self.ended], [*self.filled], [*self.stops]
        twin.moments = self.moments[-1:]
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
        ends = False
        if member.is_active:
            sums = self._sums
            for r, part in member.rising:
                sums[r] -= part
            if member.flow is not None:
                ends = True
                if self._tells:
                    self.story.append((number, member.flow.main))
            else:
                ends = member.proceed()
        if ends:
            heappop(heap)
            del self.members[number]
            self.ended.append((member, MET if member.flow is not None else FINISHED))
        else:
            self._join(member)
            heapreplace(heap, (member.next_level(), number))
        self._settle()

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
        self._sums = [0] * len(self._sums)
        for member in list(self.members.values()):
            member.is_active = False
            if member.is_done(level):
                self.ended.append((member, MET if member.flow is not None else FINISHED))
                del self.members[member.number]
            elif member.since <= level:
                if member.needs_surely(1 << exhausted):
                    member.is_active, member.rising = True, ()  # not for long
                else:
                    self._join(member)
        self._exhaust(exhausted)

    def _exhaust(self, resource: int) -> None:
        if self.crossed is None:
            self.crossed = self._level
        self.filled.append((resource, self._given[resource]))
        self.freeze(resource, None, 0)

    def level_at(self, clock: int, error: int) -> tuple[int, int]:
        """The level at a clock that is surely between the last event and the next, and how wrong it is."""
        level = self._level + ((clock - self._x) << PRECISION_BITS) // self._rate
        level_error = error + self._drift + (level * self.slack >> PRECISION_BITS) + 4
        if level - level_error <= self._latest:
            raise Undecided
        # The drift is more than the error of any member's next event.
        if self._heap and self._heap[0][0] - self._drift > level + level_error:
            return level, level_error
        for member in self.members.values():
            if member.next_level() - member.next_error() <= level + level_error:
                raise Undecided
        return level, level_error

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
                group = member.group
                if not (member.flow.needs if group is None else group.needs) & bit:  # type: ignore[union-attr]
                    continue
                if member.is_active:
                    for r, part in member.rising:
                        self._sums[r] -= part
                level = reached if member.is_active else None
                if group is None or member.needs_surely(bit):  # all that is left of it stops
                    self.ended.append((member, (resource, level)))
                    del members[member.number]
                    continue
                twin = group.moment(member.at).fork()
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
        self.needs &= ~bit
        self._drift += 2 * self._weights * (error + 1)
        self._line_up()
        self._settle()

    def reached(self, member: Member, resource: int, above: Level) -> Level:
        """The level at which all of it stops, when that is told to the member it is above."""
        return self.told(self.level_at(*member.clock_at(above)), resource, above, member.weight)

    def told(self, level: tuple[int, int], resource: int, above: Level | None, weight: int) -> Level:
        """The level at which it is told that a resource is exhausted."""
        return Level(self._record, self, resource, level, self.story_of(resource, above, weight))

    def story_of(self, resource: int, above: Level | None, weight: int) -> Story | None:
        return (*self.story, (resource, above, weight)) if self._tells and above is not None else None

    def stopped(self, member: Member, resource: int, level: Level | None, lead: int) -> None:
        """That has come from above. `lead`: its dominant resource until then."""
        self.stops.append(Stop(resource, level, member.weight, member.start))
        is_final = lead == resource or not self.members
        if level is not None and lead >= 0 and is_final and member.start is ZERO:
            # What it has of its dominant resource is all it was raised by.
            self.filled.append((lead, (level, member.weight)))

    def _start(self, members: dict[int, Member]) -> None:
        """A level of their own for the members."""
        self.members = members
        self._level = 0
        sums = self._sums
        for member in members.values():
            if member.since:
                continue
            if member.now is not None:
                self._join(member)
                continue
            for r, part in member.rising:
                sums[r] += part
            member.is_active = True
        self._line_up()
        self._settle()

    def _line_up(self) -> None:
        self._heap = [(member.next_level(), number) for number, member in self.members.items()]
        heapify(self._heap)

    def _move(self, level: int) -> None:
        if self.base:
            rise, sums, used = level - self._level, self._sums, self._used
            for r in self.base:
                if sums[r]:
                    used[r] += rise * sums[r] >> PRECISION_BITS
            self._drift += 1
        self._level = level

    def _join(self, member: Member) -> None:
        """Raise it from now on, as it is now."""
        sums, now = self._sums, member.now
        if now is not None:
            rate, weight = now.rate, member.weight
            scale = weight << PRECISION_BITS
            member.rising = [(r, part * scale // rate) for r, part in enumerate(now.sums) if part]
            self._drift += 2 * (now.next_error + weight * (member.error + 3))  # of its next event
        for r, part in member.rising:
            sums[r] += part
        member.is_active = True

    def _settle(self) -> None:
        """After any change: who rises now, and what is next."""
        if not self.members:
            if self.weightless:
                members, self.weightless = self.weightless, {}
                self._drift += self._x_error + (self._level * self.slack >> PRECISION_BITS) + 1
                self._latest = self._drift if self._has_moved else NEVER
                self._start(members)
            else:
                at = self._x, self._x_error
                self.moments.append(Moment(*at, *at, self._rate, self._sums, self._used, self._reach(0), False))
            return
        heap = self._heap
        rate = max(self._sums)
        if not rate:  # all wait: nothing moves until the level has reached the first
            self._level, number = heap[0]
            member = self.members[number]
            self._join(member)
            heapreplace(heap, (member.next_level(), number))
            rate = max(self._sums)
        self._rate = rate
        if self.lead != SEVERAL:
            self._follow_lead(rate)
        self._look_ahead()

    def _look_ahead(self) -> None:
        """What is the next event."""
        level, number = self._heap[0]
        rise = level - self._level
        self._drift += 2
        clock = self._x + (rise * self._rate >> PRECISION_BITS)
        level_error = self._next_level_error = self.members[number].next_error()
        reach = self._reach(level)
        error = reach + level_error * self._weights
        self._exhausted = -1
        if self.limits:
            clock, error = self._look_at_limits(rise, clock, error)
        used = dict(self._used) if self.base else self._used
        self.moments.append(
            Moment(self._x, self._x_error, clock, error, self._rate, self._sums[:], used, reach, True)
        )

    def _reach(self, level: int) -> int:
        """How wrong the clock and what is used may be, as functions of the level."""
        return self._drift + (max(level, self._level) * self.slack >> PRECISION_BITS) + 2

    def _follow_lead(self, rate: int) -> None:
        """Whether one resource alone has had the largest sum all the time."""
        sums, lead = self._sums, self.lead
        if lead == NOBODY:
            lead = self.lead = sums.index(rate)
        if sums[lead] != rate:
            self.lead = SEVERAL
            return
        sums[lead] = 0
        if max(sums) + 2 * self.slack >= rate:
            self.lead = SEVERAL
        sums[lead] = rate

    def _look_at_limits(self, rise: int, next_clock: int, next_error: int) -> tuple[int, int]:
        """Whether one is reached before the next event: then the clock and the error of that."""
        sums, used = self._sums, self._used
        margin = next_error + 4
        for r, limit in self.limits.items():
            speed = sums[r]
            if not speed:
                continue
            room = limit - used[r]
            left = room - (rise * speed >> PRECISION_BITS)
            if left > margin:
                continue
            if left >= -margin or room <= margin or speed < RELIABLE * self.slack:
                raise Undecided
            passed = room * self._rate // speed
            clock, error = self._x + passed, self._clock_error(passed, speed)
            if self._exhausted >= 0 and abs(clock - next_clock) <= error + next_error:
                raise Undecided
            if self._exhausted < 0 or clock < next_clock:
                next_clock, next_error, self._exhausted = clock, error, r
        return next_clock, next_error

    def _clock_error(self, passed: int, speed: int) -> int:
        """Of the clock at which the room of a resource is used up: twice the first-order terms."""
        base = self._drift + (self._level * self.slack >> PRECISION_BITS) + 4
        slack = passed * self.slack
        return 2 * (base + (base * self._rate + slack) // speed + slack // self._rate + 4)
