"""Where the first limit of a group is reached, without its own events before: for a group of which that was known.

    level at which it was reached last time, moments of the groups below  ->  the group at the level of now

What a group uses grows with its level, so the level at which a limit is reached is found as a root is found: from a
guess, by the slope there. Nothing is believed: the use of every limited resource at the level that was found, and
that no event is close to it, follow from bounds. Where they do not, the steps are taken one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from muster.core.bounded_groups import Group
from muster.core.bounded_members import RELIABLE, FlowMember, Member
from muster.core.exact import PRECISION_BITS
from muster.core.parts import SCALE_BITS

TRIES: Final = 12


class _Use(NamedTuple):
    """What is used at a level."""

    amounts: dict[int, int]
    speeds: dict[int, int]
    error: int


def jump(group: Group, guess: int) -> bool:
    """Freeze what is stopped by the first limit that is reached. Returns whether that has been done."""
    level, limits = guess, group.limits
    if not limits or group.weightless:
        return False
    for _ in range(TRIES):
        use = _use(group, level)
        exhausted, target = -1, level
        for r, speed in use.speeds.items():
            if speed > RELIABLE * group.slack:
                at = level + ((limits[r] - use.amounts[r]) << PRECISION_BITS) // speed
                if exhausted < 0 or at < target:
                    exhausted, target = r, at
        if exhausted < 0 or target < 0:
            return False
        if _arrive(group, level, target, use, exhausted):
            return True
        if target == level:
            return False
        level = target
    return False


def _arrive(group: Group, seen: int, level: int, use: _Use, exhausted: int) -> bool:
    """At a level, if what was seen at another one tells what is used there."""
    moved = level - seen
    used = {r: amount + (moved * use.speeds[r] >> PRECISION_BITS) for r, amount in use.amounts.items()}
    doubt = use.error + (abs(moved) * group.slack >> PRECISION_BITS) + 4
    error = 2 * ((doubt << PRECISION_BITS) // use.speeds[exhausted]) + 8
    for r, limit in group.limits.items():
        if r != exhausted and limit - used[r] <= doubt + 2 * (error * use.speeds[r] >> PRECISION_BITS) + 4:
            return False
    if not all(_is_clear(member, seen, level, error) for member in group.members.values()):
        return False
    group.arrive(level, (error, doubt), used, exhausted)
    return True


def _is_clear(member: Member, seen: int, level: int, error: int) -> bool:
    """Whether no event is close to a level nor between it and the one that was seen."""
    rise, error = level - member.since, error + member.error + 4
    if abs(rise) <= error or (rise > 0) != (seen > member.since):
        return False
    if rise < 0:
        return True
    if isinstance(member, FlowMember):
        return abs(level - member.end) > error and (level < member.end) == (seen < member.end)
    now, clock, error = member.now, member.weight * rise, member.weight * error
    is_past = not member.at or clock - error > now.x + now.x_error
    return is_past and (not now.is_alive or clock + error < now.next_clock - now.next_error)


def _speeds(group: Group, member: FlowMember) -> Iterator[tuple[int, int]]:
    """How fast a flow uses what is watched."""
    for r in group.counted.of(member.flow):
        if r in group.base:
            yield r, (member.flow.amounts[r] * member.scale >> SCALE_BITS - PRECISION_BITS) // group.counted.sizes[r]


def _use(group: Group, level: int) -> _Use:
    amounts, speeds = dict(group.base), dict.fromkeys(group.base, 0)
    error = group.doubt + (level * group.slack >> PRECISION_BITS) + 4 * len(group.members)
    for member in group.members.values():
        rise = max(level - member.since, 0)
        if isinstance(member, FlowMember):
            upto = min(level, member.end) - member.since
            for r, speed in _speeds(group, member) if rise else ():
                amounts[r] += upto * speed >> PRECISION_BITS
                speeds[r] += speed if level < member.end else 0
            continue
        now = member.seek(member.weight * rise)
        since = member.weight * rise - now.x if now.is_alive else 0
        error += 2 * now.error + member.weight * member.error + (since >> PRECISION_BITS) + 4
        slopes = member.group.slopes(member.at)
        for r, before in member.group.base.items():
            if r in amounts:
                amounts[r] += now.used[r] - before + (since * slopes[r] >> PRECISION_BITS)
                speeds[r] += member.weight * slopes[r] if rise and now.is_alive else 0
    return _Use(amounts, speeds, error)
