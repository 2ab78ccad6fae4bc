"""Progressive filling in exact fractions: FILL of rule F2.

Flows are raised together, in proportion to the weights along their paths, until each is frozen: by its demand, or by a
limit or a resource it needs. Nothing is stepped through. Every queue is a `Group` of siblings with a clock of its own,
the dominant share it has been raised by; between two events all of its members rise at constant rates, so its next
event has a known time on its clock. An event changes only the groups above it: a group costs nothing while
nothing happens in it.

    clock of a group   x      dominant share by which the queue was raised
    level              L      what its siblings share: a member of weight w has been raised by w * (L - since)
    direction          u / M  with u = sum of w * direction of the active members, M = max(u): dominant share 1
    so                 dx = M * dL, and the use of a resource grows by u * dL

A member whose share is above w * L when the filling begins (floors) waits until the level has reached it (`since`).
Members of weight 0 come when all others are frozen, each with weight 1, at a level of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from muster.core.exact import ONE, ZERO, Exact, greatest
from muster.core.flows import Flow, Node

Limits = Mapping[int, Exact]  # resource -> share of its capacity
Used = dict[str, list[Exact]]  # what queues use, by resource; an empty list: nothing
Levels = dict[tuple[str, int], Exact]


def raise_all(top: Node, limits: Limits, used: Used, resources: int, stops: Sequence[tuple[int, Exact]]) -> Levels:
    """Raise what is open below a queue. `stops` come from above: a resource, and the clock at which it is exhausted.

    Returns the levels at which flows were frozen, by queue and resource.
    """
    levels: Levels = {}
    group = _group(top, limits, used, resources, levels)
    for resource, clock in stops:
        while group is not None and group.alive and group.next_clock < clock:
            group.step()
        if group is not None and group.alive:
            group.advance(clock)
            group.freeze(resource)
    while group is not None and group.alive:
        group.step()
    return levels


def use(flows: Sequence[Flow], resources: int) -> list[Exact]:
    """What flows use now, by resource, as shares."""
    sums = [ZERO] * resources
    for flow in flows:
        if flow.share is not ZERO:
            for r, part in flow.direction.items():
                more = flow.share * part
                sums[r] = more if sums[r] is ZERO else sums[r] + more
    return sums


def find_uses(node: Node, resources: int, used: Used) -> None:
    """What the queues from one on downwards use now, but for those of which that is known already."""
    if node.id in used:
        return
    parts: list[list[Exact]] = []
    if any(flow.share is not ZERO for flow in node.flows):
        parts.append(use(node.flows, resources))
    for child in node.children:
        if child.below:
            find_uses(child, resources, used)
            if used[child.id]:
                parts.append(used[child.id])
    used[node.id] = [total(column) for column in zip(*parts, strict=True)]


def close_exhausted(node: Node, limits: Limits, used: Used) -> None:
    """Close the flows that have no room to begin with."""
    uses = used[node.id]
    if uses:
        for flow in node.flows:
            if flow.is_open and flow.share is not ZERO and flow.full <= flow.share:
                flow.is_open = False
    for child in node.children:
        if child.below:
            close_exhausted(child, child.pressing, used)
    for r, limit in limits.items():
        if limit <= (uses[r] if uses else ZERO):
            for flow in node.below:
                if flow.needs >> r & 1:
                    flow.is_open = False


def total(numbers: Iterable[Exact]) -> Exact:
    """The sum; `ZERO` itself when there is nothing to add."""
    result = ZERO
    for number in numbers:
        if number is not ZERO:
            result = number if result is ZERO else result + number
    return result


class _Member:
    """One of the siblings that share a level: a flow, or the group of a child queue."""

    __slots__ = ("alive", "group", "is_active", "number", "rising", "since", "weight")

    def __init__(self, number: int, weight: int, share: Exact) -> None:
        self.number = number
        self.weight = Exact(weight or 1)
        self.since = share if share is ZERO else share / self.weight  # the level from which on it is raised
        self.alive = True
        self.is_active = False
        self.rising: dict[int, Exact] = {}  # what it adds to u while active
        self.group: Group | None = None

    def next_level(self) -> Exact:
        """The level of the siblings at its next event."""
        return self.since + self.next() / self.weight if self.is_active else self.since

    def clock(self, level: Exact) -> Exact:
        return self.weight * (level - self.since)

    def direction(self) -> dict[int, Exact]:
        assert self.group is not None
        return self.group.direction()

    def next(self) -> Exact:
        """Its next event, on its own clock."""
        assert self.group is not None
        return self.group.next_clock

    def step(self) -> None:
        assert self.group is not None
        self.group.step()
        self.alive = self.group.alive

    def freeze(self, resource: int, clock: Exact) -> None:
        """The resource is exhausted somewhere above when this has been raised by `clock`."""
        assert self.group is not None
        self.group.advance(clock)
        self.group.freeze(resource)
        self.alive = self.group.alive


class _FlowMember(_Member):
    __slots__ = ("flow", "start")

    def __init__(self, number: int, flow: Flow) -> None:
        super().__init__(number, 1, flow.share)
        self.flow = flow
        self.start = flow.share

    def direction(self) -> dict[int, Exact]:
        return self.flow.direction

    def next(self) -> Exact:
        return self.flow.full - self.start

    def step(self) -> None:
        self.flow.share = self.flow.full
        self.alive = False

    def freeze(self, resource: int, clock: Exact) -> None:
        if self.flow.needs >> resource & 1:
            self.flow.share = self.start + clock
            self.alive = False


class Group:
    """The siblings below one queue, and the queue's own limits."""

    __slots__ = (
        "_exhausted",
        "_heap",
        "_level",
        "_levels",
        "_limits",
        "_members",
        "_queue",
        "_rate",
        "_risers",
        "_sums",
        "_used",
        "_weightless",
        "_x",
        "next_clock",
    )

    def __init__(self, queue: str, levels: Levels, members: Sequence[_Member], weightless: Sequence[_Member]) -> None:
        self._queue = queue
        self._levels = levels
        self._limits: Limits = {}
        self._used: list[Exact] = []  # kept up to date only where there is a limit
        self._members = {member.number: member for member in members}
        self._weightless = {member.number: member for member in weightless}
        self._x = ZERO
        self._rate = ONE  # M
        self._sums: dict[int, Exact] = {}  # u
        self._risers: dict[int, int] = {}  # how many members are in each sum
        self._level = ZERO
        self._heap: list[tuple[Exact, int]] = []  # (level of the next event, member), one entry each
        self._exhausted = -1  # the resource whose limit is the next event
        self.next_clock = ZERO

    def begin(self, limits: Limits, used: list[Exact]) -> None:
        self._limits, self._used = limits, used
        self._begin()
        self._settle()

    @property
    def alive(self) -> bool:
        return bool(self._members)

    def direction(self) -> dict[int, Exact]:
        return {r: part / self._rate for r, part in self._sums.items()}

    def step(self) -> None:
        """What happens at `next_clock`."""
        if self._exhausted >= 0:
            self.advance(self.next_clock)
            self.freeze(self._exhausted)
            return
        level, number = heappop(self._heap)
        self._move(level)
        member = self._members[number]
        if member.is_active:
            self._withdraw(member)
            member.step()
        self._join(member)
        if member.alive:
            heappush(self._heap, (member.next_level(), number))
        self._settle()

    def advance(self, clock: Exact) -> None:
        """Be raised to `clock`, which is not past the next event."""
        if clock is not self._x:
            self._move(self._level + (clock - self._x) / self._rate)
            self._x = clock

    def freeze(self, resource: int) -> None:
        """Freeze every flow that needs the resource."""
        self._levels.setdefault((self._queue, resource), self._level)
        for member in [*self._members.values(), *self._weightless.values()]:
            if member.is_active:
                self._withdraw(member)
                member.freeze(resource, member.clock(self._level))
                self._join(member)
            else:
                member.freeze(resource, ZERO)
                if not member.alive:
                    self._remove(member)
        self._line_up()
        self._settle()

    def _begin(self) -> None:
        """A level of their own for the members."""
        self._level = ZERO
        for member in list(self._members.values()):
            if member.since is ZERO:
                self._join(member)
        self._line_up()

    def _line_up(self) -> None:
        self._heap = [(member.next_level(), number) for number, member in self._members.items()]
        heapify(self._heap)

    def _move(self, level: Exact) -> None:
        rise = level - self._level
        self._level = level
        self._x = self._x + rise * self._rate
        for r in self._limits:
            if r in self._sums:
                self._used[r] = self._used[r] + rise * self._sums[r]

    def _withdraw(self, member: _Member) -> None:
        for r, part in member.rising.items():
            self._risers[r] -= 1
            if self._risers[r]:
                self._sums[r] = self._sums[r] - part
            else:
                del self._risers[r], self._sums[r]
        member.is_active = False

    def _join(self, member: _Member) -> None:
        """Raise it from now on, as it is now."""
        if not member.alive:
            self._remove(member)
            return
        member.is_active = True
        member.rising = {r: member.weight * part for r, part in member.direction().items()}
        for r, part in member.rising.items():
            before = self._sums.get(r)
            self._sums[r] = part if before is None else before + part
            self._risers[r] = self._risers.get(r, 0) + 1

    def _remove(self, member: _Member) -> None:
        self._members.pop(member.number, None)
        self._weightless.pop(member.number, None)

    def _settle(self) -> None:
        """After any change: who rises now, and what is next."""
        if not self._members and self._weightless:
            self._members, self._weightless = self._weightless, {}
            self._begin()
        if not self._members:
            return
        if not self._sums:  # all wait: nothing moves until the level has reached the first
            self._level, number = heappop(self._heap)
            self._join(self._members[number])
            heappush(self._heap, (self._members[number].next_level(), number))
        self._rate = greatest(self._sums.values())
        self.next_clock = self._x + (self._heap[0][0] - self._level) * self._rate
        self._exhausted = -1
        for r, limit in self._limits.items():
            if r in self._sums:
                clock = self._x + (limit - self._used[r]) * self._rate / self._sums[r]
                if clock <= self.next_clock:
                    self.next_clock, self._exhausted = clock, r


def _group(node: Node, limits: Limits, used: Used, resources: int, levels: Levels) -> Group | None:
    """The group of a queue; None when none of its flows is open."""
    members: list[_Member] = []
    weightless: list[_Member] = []
    for flow in node.flows:
        if flow.is_open:
            members.append(_FlowMember(len(members), flow))
    for number, child in enumerate(node.children):
        group = _group(child, child.pressing, used, resources, levels)
        if group is not None:
            member = _Member(number, child.weight, greatest(used[child.id]) if used.get(child.id) else ZERO)
            member.group = group
            (members if child.weight else weightless).append(member)
    if not members and not weightless:
        return None
    group = Group(node.id, levels, members, weightless)
    group.begin(limits, list(used.get(node.id) or [ZERO] * resources))
    return group
