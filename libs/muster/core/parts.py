"""What part of its demand each flow gets, as digits, for all flows at once.

    share of a flow, or the level at which it was stopped  ->  a part of PART, rounded down, in DIGITS of LIMB_BITS

Most flows are stopped at a level that they have in common with their siblings. Their part is the level times a scale
that stays the same as long as they do. Both are cut to DIGITS, at places that differ from flow to flow, and multiplied;
what that takes away is less than 2^CLOSE_BITS by far. Other flows are done one by one.
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
LEVELS_MORE: Final = 256
SHIFT_BITS: Final = 256  # a level is moved up so far that each place in it that is looked at is there

EXACTLY, CLOSELY, NOT_KNOWN = range(3)  # how a part is known

Numbers = npt.NDArray[Any]


class Parts:
    """Of the flows of `columns`. What is known of a flow is looked at again when it is `see`n."""

    def __init__(self, flows: list[Flow]) -> None:
        self._flows = flows
        self._seen: dict[int, None] = dict.fromkeys(range(len(flows)))
        self._levels: list[Level] = []
        size = len(flows)
        self._which: Numbers = np.zeros(size, dtype=np.intp)  # the level at which a flow was stopped
        self._stopped: Numbers = np.zeros(size, dtype=np.bool_)  # whether it was
        self._fixed: Numbers = np.zeros((DIGITS, size), dtype=np.int64)  # the part of others
        self._how: Numbers = np.zeros(size, dtype=np.int64)  # and how it is known
        self._scales: Numbers = np.zeros((DIGITS, size), dtype=np.int64)  # cut to DIGITS
        self._bits: Numbers = np.zeros(size, dtype=np.int64)  # how many the scale has
        self._weighed: list[int] = [0] * size  # the scales that has been done for

    def see(self, flows: Iterable[Flow]) -> None:
        """They may have come somewhere else, or they are new."""
        self._seen |= dict.fromkeys([flow.place for flow in flows])

    def levels(self) -> Numbers:
        """The number of the level at which each flow was stopped, when `digits` were asked for; below zero: none."""
        return np.where(self._stopped, self._which, -1)

    def digits(self) -> tuple[Numbers, Numbers]:
        """The parts, rounded down, the least digit first; for each EXACTLY, CLOSELY or NOT_KNOWN. Not to be changed."""
        if len(self._levels) > len(self._flows) + LEVELS_MORE:  # most of these are not in use any more
            self._levels = []
            self.see(self._flows)
        if self._seen:
            self._look(list(self._seen))
            self._seen = {}
        if not self._levels:
            return self._fixed, self._how
        scaled = exact.PRECISION_BITS + SCALE_BITS - PART_BITS  # level times scale is the part, so many bits up
        start = scaled + 1 + SHIFT_BITS - self._bits  # where the digits of the level begin
        if not _fit(start, self._levels):
            parts, how = parts_of(self._flows)
            return digits_of(parts), how
        digits = _multiplied(_cut(self._levels, self._which, start), self._scales)
        errors = np.array([level.error.bit_length() for level in self._levels])
        close = errors[self._which] + self._bits < scaled + CLOSE_BITS - 2
        how = np.where(close, CLOSELY, NOT_KNOWN)
        return np.where(self._stopped, digits, self._fixed), np.where(self._stopped, how, self._how)

    def _look(self, seen: list[int]) -> None:
        flows = [self._flows[number] for number in seen]
        for flow in flows:
            level = flow.level
            if level is not None and not (0 <= level.place < len(self._levels) and self._levels[level.place] is level):
                level.place = len(self._levels)
                self._levels.append(level)
        self._stopped[seen] = [flow.level is not None for flow in flows]
        self._which[seen] = [flow.level.place if flow.level is not None else 0 for flow in flows]
        self._weigh([number for number in seen if self._flows[number].scale is not self._weighed[number]])
        others = [number for number in seen if self._flows[number].level is None]
        if others:
            parts, how = parts_of([self._flows[number] for number in others])
            self._fixed[:, others], self._how[others] = digits_of(parts), how

    def _weigh(self, changed: list[int]) -> None:
        scales = [self._flows[number].scale for number in changed]
        if scales:
            bits = self._bits[changed] = [scale.bit_length() for scale in scales]
            cut = [scale << PART_BITS >> many for scale, many in zip(scales, bits, strict=True)]
            self._scales[:, changed] = digits_of(cut)
            for number, scale in zip(changed, scales, strict=True):
                self._weighed[number] = scale


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
    share = flow.share
    if share is ZERO or share is flow.full:
        return (PART if share is flow.full else 0), EXACTLY
    most, below = flow.main
    unit = most << exact.PRECISION_BITS
    low, wide = (share.middle - share.error) * below << PART_BITS, share.error * below << PART_BITS + 1
    return min(max(low // unit, 0), PART), CLOSELY if wide < unit << CLOSE_BITS else NOT_KNOWN


def _fit(start: Numbers, levels: Iterable[Level]) -> bool:
    """Whether all digits that are looked at are among the words of a level."""
    last = WORDS * WORD_BITS - (DIGITS + 3) * LIMB_BITS
    room = WORDS * WORD_BITS - SHIFT_BITS
    return int(start.min()) >= 0 and int(start.max()) <= last and all(x.low.bit_length() <= room for x in levels)


def _cut(levels: Sequence[Level], which: Numbers, start: Numbers) -> Numbers:
    """DIGITS of the level of each flow, from a place of its own. The last one may be LIMB + 1."""
    size = WORDS * WORD_BITS // 8
    moved = b"".join([(level.low << SHIFT_BITS).to_bytes(size, "little") for level in levels])
    words = np.frombuffer(moved, dtype="<u8").astype(np.uint64)
    places = start + LIMB_BITS * np.arange(DIGITS)[:, None]
    word, bit = which * WORDS + (places >> 6), (places & (WORD_BITS - 1)).astype(np.uint64)
    found = words.take(word) >> bit | words.take(word + 1) << np.uint64(1) << np.uint64(WORD_BITS - 1) - bit
    found[:-1] &= np.uint64(LIMB)
    digits: Numbers = (found & np.uint64(2 * LIMB + 1)).astype(np.int64)
    return digits


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
