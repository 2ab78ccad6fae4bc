"""From exact shares to whole amounts (rule F2, the last step).

Top-down: what a queue has is split among its children, each first gets the whole part of its exact amount, and what is
left over goes one unit each to the largest remainders, then by name. Nobody gets more than its exact amount rounded up,
so no limit and no demand is passed; the capacity neither, because the whole tree is rounded down.

All queues are done at once, on integers: what a flow has is looked at as its whole part and FRACTION_BITS of the rest,
rounded down, so the exact amount of a queue is at most a known number of these units above what is seen. Where that
leaves it open which whole number it is or which of two remainders is larger, the exact numbers are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cmp_to_key
from typing import Final

import numpy as np

from muster.core.bounded_record import Filled
from muster.core.columns import Columns, Numbers, sums
from muster.core.exact import PRECISION_BITS, ZERO, Exact, order
from muster.core.filling import total
from muster.core.flows import SCALE_BITS, Flow, Node, Tree

FRACTION_BITS: Final = 40  # of an amount
ONE_UNIT: Final = 1 << FRACTION_BITS
KEY_BITS: Final = FRACTION_BITS + 2  # of a remainder as a sort key: they may be a little outside of 0 .. 1
PART_BITS: Final = 124  # of the part of its demand that a flow gets
PART: Final = 1 << PART_BITS
LIMB_BITS: Final = 31
LIMB: Final = (1 << LIMB_BITS) - 1
CLOSE: Final = 2  # so many units an amount of a flow may be too little
CLOSE_BITS: Final = 20  # when its part is wrong by less than 2^this: 2^AMOUNT_BITS times as much is less than a unit
CLEAR: Final = 1 << 24  # a queue of which less is known counts as not known at all
NOT_KNOWN: Final = 1 << (FRACTION_BITS + 3)


def rounded(tree: Tree, columns: Columns, filled: Filled) -> Numbers:
    """Whole amounts from the shares of the flows: a row for each resource, the queues as in `columns`."""
    rounding = _Rounding(tree, columns, filled)
    rounding.split()
    return rounding.whole


class _Rounding:
    def __init__(self, tree: Tree, columns: Columns, filled: Filled) -> None:
        self._tree = tree
        self._columns = columns
        self._filled = filled
        whole, rest, error = _amounts(columns)
        begin, end = columns.begin, columns.end
        self.whole = sums(whole, begin, end)
        self._rest = sums(rest, begin, end)  # of the amount of each queue, below the whole part
        self._error = sums(error, begin, end)  # how many units that may be too little
        self._error[self._error >= CLEAR] = NOT_KNOWN
        self.whole += self._rest >> FRACTION_BITS
        self._rest &= ONE_UNIT - 1
        self._settle()

    def _settle(self) -> None:
        """Find out the whole parts that are not clear."""
        for r, number in np.argwhere(self._rest + self._error >= ONE_UNIT).tolist():
            node = self._columns.nodes[number]
            if node.demand[r]:
                low = self._exact(node, r).floor()
                rest = int(self._rest[r, number]) + (int(self.whole[r, number]) - low) * ONE_UNIT
                self.whole[r, number], self._rest[r, number] = low, min(max(rest, -ONE_UNIT), 2 * ONE_UNIT)

    def split(self) -> None:
        """Give all children what their parents have."""
        columns, whole = self._columns, self.whole
        up = columns.up
        keys = (up << KEY_BITS) + 2 * ONE_UNIT - self._rest  # by parent, then the largest remainder first
        keys[:, 0] = -1  # the root is nobody's child
        ranked = np.sort(keys, axis=1)
        left = whole - sums(whole, columns.first, columns.last)  # for the children, once all have their whole parts
        for start, stop in columns.levels:
            parents = slice(int(up[start]), int(up[stop - 1]) + 1)
            first, last, count = columns.first[parents], columns.last[parents], left[:, parents]
            edge = np.where((first < last) & (count > 0), first + count - 1, 0).astype(np.intp)
            worst = np.take_along_axis(ranked, edge, axis=1)  # of those that get one more; -1 where nobody does
            gets = keys[:, start:stop] <= worst[:, up[start:stop] - parents.start]
            beyond = np.minimum(edge + 1, len(up) - 1)
            close = np.take_along_axis(ranked, beyond, axis=1) - worst <= self._error[parents]
            for r, number in np.argwhere(close & (edge > 0) & (edge + 1 < last)).tolist():
                parent = parents.start + number
                begin, end = int(columns.first[parent]), int(columns.last[parent])
                gets[r, begin - start : end - start] = self._largest(parent, r, int(left[r, parent]))
            whole[:, start:stop] += gets
            left[:, start:stop] += gets

    def _largest(self, parent: int, r: int, count: int) -> list[bool]:
        """Which children of a queue have the `count` largest remainders of a resource; where the bounds do not tell."""
        first, last, error = int(self._columns.first[parent]), int(self._columns.last[parent]), self._error[parent]
        rests = self._rest[r, first:last].tolist()
        worst = sorted(rests, reverse=True)[count - 1]
        gets = [rest > worst + error for rest in rests]
        nodes = self._columns.nodes
        open_ = [
            number
            for number, rest in enumerate(rests)
            if abs(rest - worst) <= error and nodes[first + number].demand[r]
        ]
        left = count - sum(gets)
        if left < len(open_) and not self._are_equal([nodes[first + number] for number in open_], r):
            remainders = {
                number: self._exact(nodes[first + number], r) - Exact(int(self.whole[r, first + number]))
                for number in open_
            }
            depth = nodes[parent].depth
            open_.sort(key=cmp_to_key(lambda a, b: order(remainders[b], remainders[a], depth) or a - b))
        for number in open_[:left]:
            gets[number] = True
        return gets

    def _are_equal(self, nodes: Sequence[Node], r: int) -> bool:
        """Whether queues surely have the same amount: each is one flow that was stopped at the same level."""
        if any(len(node.flows) != 1 for node in nodes):
            return False
        first, *others = [node.flows[0] for node in nodes]
        most, below = first.main
        above = first.weight * first.asked[r] * below  # of the level, as a multiple of 1 / most
        for flow in others:
            if flow.level is not first.level or flow.level is None:
                return False
            if flow.weight * flow.asked[r] * flow.main[1] * most != above * flow.main[0]:
                return False
        return True

    def _exact(self, node: Node, r: int) -> Exact:
        """The amount of a resource that a queue has."""
        known = self._filled.get((node.id, r))
        if known is None:
            for q in range(len(self._tree.resources)):
                if (node.id, q) in self._filled and self._tree.always_equal(node.below, q, r):
                    known = self._filled[node.id, q]
                    break
        if known is None:
            known = total(_exact_share(flow, r) for flow in node.below_needing(r))
        share = known if isinstance(known, Exact) else known[0].raised(known[1])
        return share * Exact(self._tree.capacity[r])


def _exact_share(flow: Flow, r: int) -> Exact:
    if flow.share is ZERO:
        return ZERO
    if flow.dominant >> r & 1:
        return flow.share
    return flow.share * flow.direction[r]


def _amounts(columns: Columns) -> tuple[Numbers, Numbers, Numbers]:
    """What each flow has: whole parts, the rest, and how many units that may be too little."""
    scaled = PRECISION_BITS + SCALE_BITS - PART_BITS  # a level times the scale of a flow is its part, so many bits up
    clear = scaled + CLOSE_BITS - 2
    parts: list[int] = []
    errors: list[int] = []
    for flow in columns.flows:
        level = flow.level
        if level is not None:
            part, error = (level.middle - level.error) * flow.scale >> scaled, level.error
            parts.append(part if 0 <= part <= PART else min(max(part, 0), PART))
            errors.append(CLOSE if error.bit_length() + flow.scale.bit_length() < clear else CLEAR)
            continue
        share = flow.share
        if share is ZERO or share is flow.full:
            parts.append(PART if share is flow.full else 0)
            errors.append(0)
        else:
            most, below = flow.main
            unit = most << PRECISION_BITS
            low, wide = (share.middle - share.error) * below << PART_BITS, share.error * below << PART_BITS + 1
            parts.append(min(max(low // unit, 0), PART))
            errors.append(CLOSE if wide < unit << CLOSE_BITS else CLEAR)
    whole, rest = (multiplied if columns.is_small else multiplied_large)(columns.asked, parts)
    return whole, rest, np.array(errors, dtype=np.int64)


def multiplied(asked: Numbers, parts: Sequence[int]) -> tuple[Numbers, Numbers]:
    """Amounts below 2^AMOUNT_BITS times parts of PART, digit by digit: whole, and units rounded down by at most CLOSE.

    A digit has LIMB_BITS; of no sum here there are more than two products of digits and a carry, which is below 2^63.
    """
    halves = np.frombuffer(b"".join([part.to_bytes(16, "little") for part in parts]), dtype="<u8").astype(np.uint64)
    low, high = halves[::2], halves[1::2]
    digits = [low, low >> 31, low >> 62 | high << 2, high >> 29]
    *below, last = [(digit & LIMB if number < 3 else digit).astype(np.int64) for number, digit in enumerate(digits)]
    small, large = asked & LIMB, asked >> LIMB_BITS
    third = small * below[2] + large * below[1] + ((small * below[1] + large * below[0]) >> LIMB_BITS)
    second = small * last + large * below[2] + (third >> LIMB_BITS)
    rest = (second & LIMB) << (FRACTION_BITS - LIMB_BITS) | (third & LIMB) >> (2 * LIMB_BITS - FRACTION_BITS)
    return large * last + (second >> LIMB_BITS), rest


def multiplied_large(asked: Numbers, parts: Sequence[int]) -> tuple[Numbers, Numbers]:
    """The same for Python's integers."""
    amounts = asked * np.array(parts, dtype=object)
    return amounts >> PART_BITS, amounts >> (PART_BITS - FRACTION_BITS) & (ONE_UNIT - 1)
