"""How the siblings below one queue rise, in integers with error bounds; the arithmetic of `bounded_groups`.

Levels and clocks are integers in units of 2^-PRECISION_BITS, and with each goes a bound on how wrong it may be, in the
same unit. Where the bounds come from, for one group (weights are integers, so an active group has M >= 1):

* A direction is wrong by at most 2 * slack + 2 in each resource, where slack is what the sums u are wrong by. These
  are kept as amounts for flows, SCALE_BITS up, so that of a flow nothing has to be divided: it adds its amounts times
  its scale. Of a group, which adds shares, there is one division; what that leaves out is multiplied by u, which is not
  above its weights.
* The clock and the use of a resource, as functions of the level, are wrong by at most `drift + level * slack`. An event
  at a level that is itself wrong by e changes the slope by at most the weight w of its member, so it adds e * w,
  whatever the order of events; it is added when the event is foreseen.
* The level as a function of the clock is no more wrong than the clock is, because the clock runs at least as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from itertools import repeat
from operator import add, floordiv, mul, rshift, sub
from typing import Final

from muster.core.bounded_members import RELIABLE, Counted, FlowMember, GroupMember, Member, Moment, Undecided
from muster.core.exact import PRECISION_BITS, UNIT

NOBODY: Final = -1  # nothing has risen yet
SEVERAL: Final = -2
NEVER: Final = -1 << 4096  # a level before all others


class Rise:
    """Siblings that share a level."""

    __slots__ = (
        "_drift",
        "_exhausted",
        "_has_moved",
        "_heap",
        "_latest",
        "_level",
        "_level_error",
        "_next_level_error",
        "_rate",
        "_shares",
        "_speeds",
        "_sums",
        "_used",
        "_x",
        "_x_error",
        "base",
        "counted",
        "lead",
        "left",
        "limits",
        "members",
        "moments",
        "slack",
        "weightless",
        "weights",
    )

    base: dict[int, int]  # what was used in the beginning, of resources that are limited or watched
    limits: dict[int, int]  # middles
    slack: int
    weights: int
    members: dict[int, Member]  # those that rise, or wait
    weightless: dict[int, Member]  # those that come when no other is left
    moments: list[Moment]
    left: int  # bits of the resources that these need

    counted: Counted

    def _to_start(self, drift: int) -> None:
        self._used = dict(self.base)
        self._drift = drift
        self._sums = [0] * len(self.counted.sizes)  # u of the flows, as amounts
        self._shares = self._sums[:]  # u of the groups, as shares
        self._speeds = self._sums[:]  # u
        self._rate = UNIT  # M
        self._x = self._x_error = self._level = self._level_error = 0
        self._has_moved = False
        self._latest = NEVER  # the level before which everything has happened that has been seen to happen
        self._heap: list[tuple[int, int]] = []  # (level of the next event, member)
        self._exhausted = -1  # the resource whose limit is the next event
        self._next_level_error = 0
        self.lead = NOBODY  # the resource that has been dominant all the time

    def level_at(self, clock: int, error: int) -> tuple[int, int]:
        """The level at a clock that is surely between the last event and the next, and how wrong it is."""
        level = self._level + ((clock - self._x) << PRECISION_BITS) // self._rate
        level_error = error + self._drift + (level * self.slack >> PRECISION_BITS) + 4
        if level - level_error <= self._latest:
            raise Undecided
        heap, most = self._heap, level + level_error
        # The drift is more than the error of any member's next event.
        if heap and heap[0][0] - self._drift > most:
            return level, level_error
        for member in self.members.values():
            if member.next_level() - member.next_error() <= most:
                raise Undecided
        return level, level_error

    def _start(self, members: dict[int, Member]) -> None:
        """A level of their own for the members."""
        self.members = members
        self._level = 0
        heap: list[tuple[int, int]] = []
        flows: list[FlowMember] = []
        for number, member in members.items():
            if member.since:
                heap.append((member.since, number))
            elif isinstance(member, FlowMember):
                member.is_active = member.is_added = True
                flows.append(member)
                heap.append((member.end, number))
            else:
                self._join_group(member)
                heap.append((member.next_level(), number))
        if flows:
            self._join_flows(flows)
        heapify(heap)
        self._heap = heap
        self._settle()

    def _join_flows(self, members: Sequence[FlowMember]) -> None:
        """As `_join` of each, resource by resource."""
        scales, sums = [member.scale for member in members], self._sums
        for r, amounts in enumerate(zip(*[member.flow.amounts for member in members], strict=True)):
            if self.counted.sizes[r]:
                sums[r] += sum(map(mul, amounts, scales))

    def _line_up(self) -> None:
        self._heap = [(member.next_level(), number) for number, member in self.members.items()]
        heapify(self._heap)

    def _move(self, level: int) -> None:
        if self.base:
            rise, speeds, used = level - self._level, self._speeds, self._used
            for r in self.base:
                if speeds[r]:
                    used[r] += rise * speeds[r] >> PRECISION_BITS
            self._drift += 1
        self._level = level

    def _join(self, member: Member) -> None:
        """Raise it from now on, as it is now."""
        if not isinstance(member, FlowMember):
            self._join_group(member)
            return
        sums, amounts, scale = self._sums, member.flow.amounts, member.scale
        for r in self.counted.of(member.flow):
            sums[r] += amounts[r] * scale
        member.is_active = member.is_added = True

    def _join_group(self, member: GroupMember) -> None:
        now, weight, known = member.now, member.weight, member.group.joined.get(member.at)
        if known and known[1] == weight and known[0].rate == now.rate and known[0].speeds == now.speeds:
            rising = known[2]  # from another time: nothing that matters has changed below it since
        else:
            part = (weight << 2 * PRECISION_BITS) // now.rate  # weight / M
            rising = list(map(rshift, map(mul, now.speeds, repeat(part)), repeat(PRECISION_BITS)))
            member.group.joined[member.at] = now, weight, rising
        member.rising = rising
        self._shares[:] = map(add, self._shares, rising)
        self._drift += 2 * (now.next_error + weight * (member.error + 3))  # of its next event
        member.is_active = member.is_added = True

    def _withdraw(self, member: Member) -> None:
        """Its part is not to be in the sums any more."""
        if member.is_added:
            self._subtract(member)
            member.is_added = False

    def _subtract(self, member: Member) -> None:
        if isinstance(member, FlowMember):
            sums = self._sums
            amounts, scale = member.flow.amounts, member.scale
            for r in self.counted.of(member.flow):
                sums[r] -= amounts[r] * scale
        else:
            self._shares[:] = map(sub, self._shares, member.rising)

    def _speed_up(self, changed: Sequence[int] | None = None) -> int:
        """Find out u as shares, of all resources or of those that have changed. Returns the largest."""
        speeds: list[int]
        if changed is None:
            speeds = list(map(add, self._shares, map(floordiv, self._sums, self.counted.units)))
        else:
            speeds = self._speeds[:]
            for r in changed:
                speeds[r] = self._shares[r] + self._sums[r] // self.counted.units[r]
        self._speeds = speeds
        return max(speeds)

    def _settle(self, changed: Sequence[int] | None = None) -> None:
        """After any change: who rises now, and what is next. `changed`: only of these u has."""
        if not self.members:
            if self.weightless:
                members, self.weightless = self.weightless, {}
                self._drift += self._x_error + (self._level * self.slack >> PRECISION_BITS) + 1
                self._latest = self._drift if self._has_moved else NEVER
                self._start(members)
            else:
                at = self._x, self._x_error
                nothing = [0] * len(self._sums)
                self.moments.append(Moment(*at, *at, self._rate, nothing, self._used, self._reach(0), False, 0))
            return
        heap = self._heap
        rate = self._speed_up(changed)
        if not rate:  # all wait: nothing moves until the level has reached the first
            self._level, number = heap[0]
            member = self.members[number]
            self._join(member)
            heapreplace(heap, (member.next_level(), number))
            rate = self._speed_up()
        self._rate = rate
        if self.lead != SEVERAL:
            self._follow_lead(rate)
        self._look_ahead()

    def _look_ahead(self) -> None:
        """What is the next event."""
        level, number = self._heap[0]
        x, rate = self._x, self._rate
        rise = level - self._level
        self._drift += 2
        clock = x + (rise * rate >> PRECISION_BITS)
        level_error = self._next_level_error = self.members[number].next_error()
        reach = self._reach(level)
        error = reach + level_error * self.weights
        self._exhausted = -1
        if self.limits:
            clock, error = self._look_at_limits(rise, clock, error)
        used = dict(self._used) if self.base else self._used
        self.moments.append(Moment(x, self._x_error, clock, error, rate, self._speeds, used, reach, True, self.left))

    def _reach(self, level: int) -> int:
        """How wrong the clock and what is used may be, as functions of the level."""
        return self._drift + (max(level, self._level) * self.slack >> PRECISION_BITS) + 2

    def _follow_lead(self, rate: int) -> None:
        """Whether one resource alone has had the largest sum all the time."""
        speeds, lead = self._speeds, self.lead
        if lead == NOBODY:
            lead = self.lead = speeds.index(rate)
        if speeds[lead] != rate:
            self.lead = SEVERAL
            return
        if len(speeds) > 1 and sorted(speeds)[-2] >= rate - 2 * self.slack:
            self.lead = SEVERAL

    def _look_at_limits(self, rise: int, next_clock: int, next_error: int) -> tuple[int, int]:
        """Whether one is reached before the next event: then the clock and the error of that."""
        speeds, used = self._speeds, self._used
        margin = next_error + 4
        for r, limit in self.limits.items():
            speed = speeds[r]
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
