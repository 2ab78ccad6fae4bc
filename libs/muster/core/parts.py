"""What part of its demand each flow gets, as digits, for all flows at once.

    share of a flow, or the level at which it was stopped  ->  a part of PART, rounded down, in DIGITS of LIMB_BITS

Most flows are stopped at a level that they have in common with their siblings. Their part is the level times a scale
that stays the same as long as they do. Both are cut to DIGITS, at places that differ from flow to flow, and multiplied;
what that takes away is less than 2^CLOSE_BITS by far. Other flows are done one by one. As long as no level has moved,
only those that were seen to change are done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from muster.core import exact
from muster.core.exact import ZERO

if TYPE_CHECKING:
    from muster.core.bounded_record import Level
    from muster.core.flows import Flow

SCALE_BITS: Final = 256  # of the scale of a flow
LIMB_BITS: Final = 31
LIMB: Final = (1 << LIMB_BITS) - 1
DIGITS: Final = 4
PART_BITS: Final = DIGITS * LIMB_BITS
PART: Final = 1 << PART_BITS  # the whole demand
CLOSE_BITS: Final = 20  # a part that is wrong by less than 2^this is good enough
WORD_BITS: Final = 64
WORDS: Final = 12  # of a level
FEW: Final = 40  # so many flows are done one by one, because that is faster
LEVELS_MORE: Final = 64
UP_BITS: Final = SCALE_BITS - PART_BITS  # level times scale is the part, so many bits up, and those of the level
SHIFT_BITS: Final = 256  # a level is moved up so far that each place in it that is looked at is there
ROOM_BITS: Final = WORDS * WORD_BITS - SHIFT_BITS  # a level has fewer

EXACTLY, CLOSELY, NOT_KNOWN = range(3)  # how a part is known

Numbers = npt.NDArray[Any]


class Parts:
    """Of the flows of `columns`. What is known of a flow is looked at again when it is `see`n."""

    def __init__(self, flows: list[Flow]) -> None:
        self._flows = flows
        self._seen: dict[int, None] = {}
        self._all_seen = True
        self._levels: list[Level] = []
        size = len(flows)
        self._which: Numbers = np.zeros(size, dtype=np.intp)  # the level at which a flow was stopped
        self._stopped: Numbers = np.zeros(size, dtype=np.bool_)  # whether it was
        self._fixed: Numbers = np.zeros((DIGITS, size), dtype=np.int64)  # the part of others
        self._how: Numbers = np.zeros(size, dtype=np.int64)  # and how it is known
        self._scales: Numbers = np.zeros((DIGITS, size), dtype=np.int64)  # cut to DIGITS
        self._bits: Numbers = np.zeros(size, dtype=np.int64)  # how many the scale has
        self._weighed: list[int] = [0] * size  # the scales that has been done for
        # Where the digits of the level begin, for each digit: the word, and the bits below and above in it.
        self._word: Numbers = np.zeros((DIGITS, size), dtype=np.intp)
        self._below: Numbers = np.zeros((DIGITS, size), dtype=np.uint64)
        self._above: Numbers = np.zeros((DIGITS, size), dtype=np.uint64)
        self._misfits: Numbers = np.zeros(size, dtype=np.bool_)  # of which some digit is not among these words
        self._late: dict[int, None] = {}  # those of which `_find` does not know that yet
        self._in_use = 0  # how many levels were in use when last counted
        self._bounds: list[tuple[int, int]] = []  # of the levels, when digits were found

    def see(self, flows: Iterable[Flow] | None) -> None:
        """They may have come somewhere else, or they are new; None: all may have."""
        if flows is None:
            self._all_seen = True
        else:
            self._seen |= dict.fromkeys([flow.place for flow in flows])

    def look(self) -> list[int] | None:
        """Look at what was seen. Returns the flows of which the part may be another one than before; None: of all."""
        if len(self._levels) > 2 * self._in_use + LEVELS_MORE:  # most of these are not in use any more
            self._all_seen = True
        seen = list(range(len(self._flows))) if self._all_seen else list(self._seen)
        self._seen, self._all_seen = {}, False
        if seen:
            self._look(seen)
        before = self._bounds
        self._bounds = [(level.middle, level.error) for level in self._levels]
        has_moved = not before or self._bounds[: len(before)] != before
        return None if has_moved or len(seen) > FEW else seen

    def digits(self) -> tuple[Numbers, Numbers]:
        """The parts of all, rounded down, the least digit first; for each EXACTLY, CLOSELY or NOT_KNOWN."""
        late, self._late = list(self._late), {}
        if late:
            self._find(late)
        if not self._levels:
            return self._fixed, self._how
        if self._misfits.any() or max(self._bounds)[0] >> ROOM_BITS:
            parts, how = parts_of(self._flows)
            return digits_of(parts), how
        levels = self._cut([max(middle - error, 0) for middle, error in self._bounds])
        errors = np.array([error.bit_length() for _, error in self._bounds])
        close = errors.take(self._which) + self._bits < UP_BITS + exact.PRECISION_BITS + CLOSE_BITS - 2
        digits = np.where(self._stopped, _multiplied(levels, self._scales), self._fixed)
        return digits, np.where(self._stopped, np.where(close, CLOSELY, NOT_KNOWN), self._how)

    def _cut(self, lows: Sequence[int]) -> Numbers:
        """DIGITS of the level of each flow, from a place of its own. The last one may be LIMB + 1."""
        size = WORDS * WORD_BITS // 8
        moved = b"".join([(low << SHIFT_BITS).to_bytes(size, "little") for low in lows])
        words = np.frombuffer(moved, dtype="<u8").astype(np.uint64, copy=False)
        word = self._which * WORDS + self._word
        found = words[1:].take(word)
        found <<= np.uint64(1)
        found <<= self._above
        found |= words.take(word) >> self._below
        found[:-1] &= np.uint64(LIMB)
        found[-1] &= np.uint64(2 * LIMB + 1)
        return found.view(np.int64)

    def _look(self, seen: list[int]) -> None:
        if len(seen) == len(self._flows):
            self._levels = []
        at = [self._flows[number].level for number in seen]
        for level in dict.fromkeys(at):
            if level is not None and not (0 <= level.place < len(self._levels) and self._levels[level.place] is level):
                level.place = len(self._levels)
                self._levels.append(level)
        which = np.array([-1 if level is None else level.place for level in at], dtype=np.intp)
        self._stopped[seen] = which >= 0
        self._which[seen] = np.maximum(which, 0)
        self._late |= dict.fromkeys(seen)
        if len(seen) == len(self._flows):
            self._in_use = len(self._levels)

    def _find(self, late: list[int]) -> None:
        """What it takes to work on all flows at once: the parts of those that were not stopped at levels; of others the
        scales, and where the digits of levels begin."""
        self._weigh(
            [flow for flow in map(self._flows.__getitem__, late) if flow.scale is not self._weighed[flow.place]]
        )
        seen = np.array(late, dtype=np.intp)
        others = seen[~self._stopped[seen]].tolist()
        if others:
            parts, how = parts_of([self._flows[number] for number in others])
            self._fixed[:, others], self._how[others] = digits_of(parts), how
        start = UP_BITS + exact.PRECISION_BITS + 1 + SHIFT_BITS - self._bits[seen]
        fits = (start >= 0) & (start <= WORDS * WORD_BITS - (DIGITS + 3) * LIMB_BITS)
        self._misfits[seen] = self._stopped[seen] & ~fits
        places = np.where(fits, start, 0) + LIMB_BITS * np.arange(DIGITS)[:, None]
        below = places & (WORD_BITS - 1)
        self._word[:, seen] = places >> 6
        self._below[:, seen] = below
        self._above[:, seen] = WORD_BITS - 1 - below

    def _weigh(self, flows: Sequence[Flow]) -> None:
        if not flows:
            return
        places, scales = [flow.place for flow in flows], [flow.scale for flow in flows]
        bits = list(map(int.bit_length, scales))
        self._bits[places] = bits
        if min(bits) < PART_BITS:
            cut = [scale << PART_BITS >> many for scale, many in zip(scales, bits, strict=True)]
        else:
            cut = [scale >> many - PART_BITS for scale, many in zip(scales, bits, strict=True)]
        self._scales[:, places] = digits_of(cut)
        for place, scale in zip(places, scales, strict=True):
            self._weighed[place] = scale


def parts_of(flows: Sequence[Flow]) -> tuple[list[int], Numbers]:
    """The parts as numbers, rounded down, and for each EXACTLY, CLOSELY or NOT_KNOWN."""
    pairs = [_part(flow) for flow in flows]
    return [part for part, _ in pairs], np.array([how for _, how in pairs], dtype=np.int64)


def digits_of(parts: Sequence[int]) -> Numbers:
    """Of numbers up to PART."""
    halves = np.frombuffer(b"".join([part.to_bytes(16, "little") for part in parts]), dtype="<u8").astype(np.uint64)
    low, high = halves[::2], halves[1::2]
    digits = [low & LIMB, low >> 31 & LIMB, (low >> 62 | high << 2) & LIMB, high >> 29]
    found: Numbers = np.array(digits).astype(np.int64)
    return found


def _part(flow: Flow) -> tuple[int, int]:
    if flow.level is not None:  # as `Level.raised` does it
        middle, error = flow.weight * flow.level.middle, flow.weight * flow.level.error + 1
    else:
        share = flow.share
        if share is ZERO or share is flow.full:
            return (PART if share is flow.full else 0), EXACTLY
        middle, error = share.middle, share.error
    most, below = flow.main
    unit = most << exact.PRECISION_BITS
    low, wide = (middle - error) * below << PART_BITS, error * below << PART_BITS + 1
    return min(max(low // unit, 0), PART), CLOSELY if wide < unit << CLOSE_BITS else NOT_KNOWN


def _multiplied(levels: Numbers, scales: Numbers) -> Numbers:
    """The upper half of the products, one bit further down; a carry from the lower half may be missing."""
    columns, carry = [], np.zeros_like(levels[0])
    above: list[Numbers] = [levels[i] * scales[DIGITS - 1 - i] >> LIMB_BITS for i in range(DIGITS)]
    for place in range(DIGITS, 2 * DIGITS):
        products = [levels[i] * scales[place - i] for i in range(place - DIGITS + 1, DIGITS)]
        column = sum([product & LIMB for product in products], start=sum(above, start=carry))
        above = [product >> LIMB_BITS for product in products]
        columns.append(column & LIMB)
        carry = column >> LIMB_BITS
    digits = np.array(columns) << 1
    digits[1:] |= digits[:-1] >> LIMB_BITS
    digits[:-1] &= LIMB
    return digits
