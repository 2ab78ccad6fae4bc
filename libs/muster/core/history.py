"""What a queue has used, fading with time (rule F4).

    usage as it changes, time  ->  decayed usage: the mean of past usage, what is a half-life older counting half

Time is cut into periods of one half-life, counted from the epoch. Within a period the weight of a moment rises evenly
from `h` to `2h` (h: the half-life), and when the next period begins all sums are halved, so weights are integers, two
moments that are any number of half-lives apart differ by exactly that power of two, and nothing ever grows. With
`v = h + time since the period began`, using an amount `u` from v0 to v1 adds `u * (v1**2 - v0**2)`, and all weights
together are `2 * h**2 + v**2`: a queue that always used the same amount has exactly that amount.

Halving rounds down, and `floor((floor(x / 2) + c) / 2) = floor((x + 2 * c) / 4)`, so any number of periods is one step
(`_sums_at`) with the very result of all the single ones. A history is brought up to date when the usage it is of
changes and never between: what a reader needs is worked out at reading, and no clock has to tick.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FRACTION_BITS: Final = 10  # decayed amounts are in 2**-FRACTION_BITS of a unit, so that one licence can fade as well


class History:
    """Of one queue, up to `since_ms`. `sums`: weighted sums by resource, no zeros."""

    __slots__ = ("half_life_ms", "since_ms", "sums")

    def __init__(self, half_life_ms: int, since_ms: int, sums: dict[str, int]) -> None:
        self.half_life_ms = half_life_ms
        self.since_ms = since_ms
        self.sums = sums

    @classmethod
    def beginning(cls, half_life_ms: int, usage: Mapping[str, int], now_ms: int) -> History:
        """As if the queue had always used what it uses now, so that nobody changes places when this is turned on."""
        whole = _whole(half_life_ms, now_ms)
        return cls(half_life_ms, now_ms, {resource: amount * whole for resource, amount in usage.items()})

    def tuned(self, half_life_ms: int) -> History:
        """The same decayed usage, to fade at another pace from `since_ms` on."""
        before, after = _whole(self.half_life_ms, self.since_ms), _whole(half_life_ms, self.since_ms)
        sums = {resource: total * after // before for resource, total in self.sums.items()}
        return History(half_life_ms, self.since_ms, sums)

    def count(self, usage: Mapping[str, int], now_ms: int) -> None:
        """The queue has used this much since `since_ms`. What is less than the smallest fraction is forgotten."""
        if now_ms > self.since_ms:
            whole = _whole(self.half_life_ms, now_ms)
            self.sums = {
                resource: total
                for resource, total in self._sums_at(usage, now_ms).items()
                if total << FRACTION_BITS >= whole or usage.get(resource)
            }
            self.since_ms = now_ms

    def decayed(self, usage: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """Decayed usage at `now_ms` if the queue has used this much since; changes nothing. In fractions of units."""
        now_ms = max(now_ms, self.since_ms)
        whole = _whole(self.half_life_ms, now_ms)
        sums = self._sums_at(usage, now_ms)
        return {resource: (total << FRACTION_BITS) // whole for resource, total in sums.items()}

    def units(self, usage: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """As `decayed`, for people: in whole units, without what has less than one."""
        faded = {resource: left >> FRACTION_BITS for resource, left in self.decayed(usage, now_ms).items()}
        return {resource: left for resource, left in faded.items() if left}

    def _sums_at(self, usage: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """With so much in use since `since_ms`."""
        half_life_ms, since_ms = self.half_life_ms, self.since_ms
        start, end = half_life_ms + since_ms % half_life_ms, half_life_ms + now_ms % half_life_ms
        periods = now_ms // half_life_ms - since_ms // half_life_ms
        sums = {**dict.fromkeys(usage, 0), **self.sums}
        if not periods:
            weight = end**2 - start**2
            return {resource: total + usage.get(resource, 0) * weight for resource, total in sums.items()}
        period = 3 * half_life_ms**2  # the weight of a whole one
        rest, begun = period + half_life_ms**2 - start**2, end**2 - half_life_ms**2
        for resource, total in sums.items():
            amount = usage.get(resource, 0)
            halved = (total + amount * rest) >> 1
            steady = amount * period  # what every further period leads towards
            sums[resource] = steady + ((halved - steady) >> (periods - 1)) + amount * begun
        return sums


def _whole(half_life_ms: int, now_ms: int) -> int:
    """All weights up to now together."""
    return 2 * half_life_ms**2 + (half_life_ms + now_ms % half_life_ms) ** 2
