"""From exact shares to whole amounts (rule F2, the last step).

Top-down: what a queue has is split among its children, each first gets the whole part of its exact amount, and what is
left over goes one unit each to the largest remainders, then by name. Nobody gets more than its exact amount rounded up,
so no limit and no demand is passed; the capacity neither, because the whole tree is rounded down.

All queues are done at once, on integers: what a flow has is looked at as its whole part and FRACTION_BITS of the rest,
rounded down, so the exact amount of a queue is at most a known number of these units above what is seen. Where that
leaves it open which whole number it is or which of two remainders is larger, the exact numbers are asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cmp_to_key
from math import gcd
from typing import Final

import numpy as np

from muster.core.bounded_record import Filled, Level
from muster.core.columns import AMOUNT_BITS, Columns, Numbers, Places
from muster.core.exact import ZERO, Exact, order
from muster.core.filling import total
from muster.core.flow_tree import Tree
from muster.core.flows import Flow, Node
from muster.core.parts import CLOSELY, LIMB, LIMB_BITS, NOT_KNOWN, PART_BITS, parts_of

FRACTION_BITS: Final = 40  # of an amount
ONE_UNIT: Final = 1 << FRACTION_BITS
KEY_BITS: Final = FRACTION_BITS + 2  # of a remainder as a sort key: they may be a little outside of 0 .. 1
CLOSE: Final = 2  # so many units an amount of a flow may be too little when its part is known closely
CLEAR: Final = 1 << 24  # a queue of which less is known counts as not known at all
NOTHING_KNOWN: Final = 1 << (FRACTION_BITS + 3)
MAY_MISS: Final = np.array([0, CLOSE, CLEAR], dtype=np.int64)  # by how the part is known


def rounded(tree: Tree, columns: Columns, filled: Filled) -> Numbers:
    """Whole amounts from the shares of the flows: a row for each resource, the queues as in `columns`."""
    rounding = _Rounding(tree, columns, filled)
    rounding.split()
    return rounding.whole


class _Ties:
    """Queues and resources of which it is not clear who of the children gets one more: an entry for each child."""

    def __init__(self, columns: Columns, row: Places, parents: Places, count: Numbers, least: Numbers) -> None:
        """`count` children get one more, of these `least` is what the smallest remainder seems to be."""
        self.row = row
        self.parents = parents
        self.count = count
        self.least = least
        first, size = columns.first[parents], columns.last[parents] - columns.first[parents]
        self.begin: Places = np.cumsum(size) - size
        self.entry: Places = np.repeat(np.arange(len(size)), size)  # which of the ties
        self.child: Places = np.arange(len(self.entry)) + (first - self.begin)[self.entry]

    def sums(self, flags: Numbers) -> Numbers:
        found: Numbers = np.add.reduceat(flags.astype(np.int64), self.begin)
        return found

    def are_equal(self, same: Numbers, chosen: Numbers) -> Numbers:
        """Of each, whether all that are chosen have the same number, not below zero."""
        low = np.minimum.reduceat(np.where(chosen, same, np.iinfo(np.int64).max), self.begin)
        high = np.maximum.reduceat(np.where(chosen, same, -1), self.begin)
        equal: Numbers = (low == high) & (high >= 0)
        return equal


class _Rounding:
    def __init__(self, tree: Tree, columns: Columns, filled: Filled) -> None:
        self._tree = tree
        self._columns = columns
        self._filled = filled
        whole, rest, error = _amounts(columns)
        self.whole = columns.summed(whole)
        self._rest = columns.summed(rest)  # of the amount of each queue, below the whole part
        self._error = columns.summed(error)  # how many units that may be too little
        self._error[self._error >= CLEAR] = NOTHING_KNOWN
        self.whole += self._rest >> FRACTION_BITS
        self._rest &= ONE_UNIT - 1
        self._settle()

    def _settle(self) -> None:
        """Find out the whole parts that are not clear."""
        row, numbers = np.nonzero(self._rest + self._error >= ONE_UNIT)
        for r, number in zip(row.tolist(), numbers.tolist(), strict=True):
            node = self._columns.nodes[number]
            if node.demand[r]:
                ratio = _ratio(node, r)
                low = self._exact(node, r).floor() if ratio is None else ratio[0] // ratio[1]
                rest = int(self._rest[r, number]) + (int(self.whole[r, number]) - low) * ONE_UNIT
                self.whole[r, number], self._rest[r, number] = low, min(max(rest, -ONE_UNIT), 2 * ONE_UNIT)

    def split(self) -> None:
        """Give all children what their parents have."""
        columns, whole, error = self._columns, self.whole, self._error
        keys = (columns.up << KEY_BITS) + 2 * ONE_UNIT - self._rest  # by parent, then the largest remainder first
        keys[:, 0] = -1  # the root is nobody's child
        ranked = keys.copy()
        ranked.sort(axis=1)
        rows, queues = keys.shape
        row = queues * np.arange(rows)[:, None]
        for split in columns.splits:
            parents, among, _, first, last, start, stop, above = split
            count = whole[:, among] - split.sums(whole)  # how many of the children get one more
            edge = np.where(count > 0, first + count - 1, 0).astype(np.intp)
            worst = ranked.take(edge + row)  # of those that get one more; -1 where nobody does
            gets = keys[:, start:stop] <= worst.take(above, axis=1)
            beyond = ranked.take(np.minimum(edge + 1, queues - 1) + row)
            close = (beyond - worst <= error[among]) & (edge > 0) & (edge + 1 < last)
            row_of, which = np.nonzero(close)
            if len(which):
                ties = _Ties(columns, row_of, parents[which], count[close], _rest_of(worst[close], parents[which]))
                self._decide(ties, gets, start)
            whole[:, start:stop] += gets

    def _decide(self, ties: _Ties, gets: Numbers, start: int) -> None:
        """Who gets one more where that is not clear by the bounds. Equal remainders are in order of the names."""
        columns, row = self._columns, ties.row[ties.entry]
        apart, error = self._rest[row, ties.child] - ties.least[ties.entry], self._error[ties.parents][ties.entry]
        is_more, is_open = apart > error, abs(apart) <= error
        left = ties.count - ties.sums(is_more)
        place: Numbers = np.cumsum(is_open)  # among those that are open, of the same tie
        place -= (place[ties.begin] - is_open[ties.begin])[ties.entry]
        gets[row, ties.child - start] = is_more | is_open & (place <= left[ties.entry])
        several = ties.sums(is_open) > left
        columns.label(ties.parents[several], ties.row[several])
        several &= ~ties.are_equal(columns.same(row, ties.child), is_open)
        for number in np.flatnonzero(several).tolist():
            parent, r = int(ties.parents[number]), int(ties.row[number])
            children = ties.child[is_open & (ties.entry == number)].tolist()
            for place_of, child in enumerate(self._in_order(parent, r, children)):
                gets[r, child - start] = place_of < left[number]

    def _in_order(self, parent: int, r: int, children: list[int]) -> list[int]:
        """Children of a queue by the exact remainders of a resource, the largest first."""
        nodes, whole = self._columns.nodes, self.whole
        known = [self._raised(nodes[number], r) for number in children]
        if known[0] is not None and known.count(known[0]) == len(known):
            return children
        ratios = [_ratio(nodes[number], r) for number in children]
        fractions = [Fraction(*ratio) % 1 for ratio in ratios if ratio is not None]
        if len(fractions) == len(children):
            return [number for _, number in sorted(zip([-rest for rest in fractions], children, strict=True))]
        remainders = {n: self._exact(nodes[n], r) - Exact(int(whole[r, n])) for n in children}
        depth = nodes[parent].depth

        def compare(a: int, b: int) -> int:
            return order(remainders[b], remainders[a], depth) or a - b

        return sorted(children, key=cmp_to_key(compare))

    def _exact(self, node: Node, r: int) -> Exact:
        """The amount of a resource that a queue has."""
        capacity = self._tree.capacity
        for q, known in self._filled.get(node.id, {}).items():
            proportion = _proportion(node.below, q, r)
            if proportion is not None:
                share = known if isinstance(known, Exact) else known[0].raised(known[1])
                return share * Exact(capacity[q] * proportion[0], proportion[1])
        return total(_exact_share(flow, r) for flow in node.below_needing(r)) * Exact(capacity[r])

    def _raised(self, node: Node, r: int) -> tuple[Level, int, int, int] | None:
        """The level, the weight and the amount for each of these, if a queue has just what they make it have."""
        for q, known in self._filled.get(node.id, {}).items():
            proportion = _proportion(node.below, q, r) if isinstance(known, tuple) else None
            if isinstance(known, tuple) and proportion is not None:
                amount, of = self._tree.capacity[q] * proportion[0], proportion[1]
                common = gcd(amount, of)
                return *known, amount // common, of // common
        return None


def _proportion(flows: Sequence[Flow], first: int, second: int) -> tuple[int, int] | None:
    """How much all flows ask for of the second resource, for so much of the first one, if that is the same for all."""
    if first == second:
        return 1, 1
    ones, others = next(((x.asked[first], x.asked.get(second, 0)) for x in flows if x.needs >> first & 1), (0, 0))
    if not ones or any(flow.asked.get(first, 0) * others != flow.asked.get(second, 0) * ones for flow in flows):
        return None
    return others, ones


def _rest_of(keys: Numbers, parents: Places) -> Numbers:
    """The remainders of sort keys."""
    return (parents << KEY_BITS) + 2 * ONE_UNIT - keys


def _ratio(node: Node, r: int) -> tuple[int, int] | None:
    """The amount of a resource that a queue of one flow has, as numerator and denominator, if that is at hand."""
    if len(node.below) != 1:
        return None
    flow = node.below[0]
    ratio, (most, below) = flow.share.ratio, flow.main
    return None if ratio is None else (ratio[0] * below * flow.asked.get(r, 0), ratio[1] * most)


def _exact_share(flow: Flow, r: int) -> Exact:
    if flow.share is ZERO:
        return ZERO
    if flow.dominant >> r & 1:
        return flow.share
    return flow.share * flow.direction[r]


def _amounts(columns: Columns) -> tuple[Numbers, Numbers, Numbers]:
    """What each flow has: whole parts, the rest, and how many units that may be too little."""
    if columns.is_small:
        before, columns.amounts = columns.amounts, None
        digits, how = columns.parts.digits()
        changed = columns.parts.changed
        if before is None or changed is None:
            columns.amounts = multiplied(columns.asked, columns.large, digits)
        else:
            columns.amounts = before
            for all_of, some in zip(
                before, multiplied(columns.asked[:, changed], columns.large, digits[:, changed]), strict=True
            ):
                all_of[:, changed] = some
        whole, rest = columns.amounts
    else:
        parts, how = parts_of(columns.flows)
        amounts = columns.asked * np.array(parts, dtype=object)
        whole, rest = amounts >> PART_BITS, amounts >> (PART_BITS - FRACTION_BITS) & (ONE_UNIT - 1)
        # A part that is known closely tells little about an amount so large.
        how[(columns.asked >> AMOUNT_BITS).any(axis=0) & (how == CLOSELY)] = NOT_KNOWN
    return whole, rest, MAY_MISS.take(how)


def multiplied(asked: Numbers, large: Sequence[int], digits: Numbers) -> tuple[Numbers, Numbers]:
    """Amounts below 2^AMOUNT_BITS times parts of PART: whole, and units rounded down by at most CLOSE.

    A digit has LIMB_BITS; of no sum here there are more than two products of digits and a carry, which is below 2^63.
    Arrays are used again where they can be: to get new ones costs more than to multiply.
    """
    fourth, third, second, first = digits
    tail = asked * third
    tail >>= LIMB_BITS
    lead = asked * second
    tail += lead
    np.multiply(asked, first, out=lead)
    lead += tail >> LIMB_BITS
    whole = lead >> LIMB_BITS
    for r in large:  # these have two digits
        ones, twos = asked[r] & LIMB, asked[r] >> LIMB_BITS
        tail[r] = ones * second + twos * third + (ones * third + twos * fourth >> LIMB_BITS)
        lead[r] = ones * first + twos * second + (tail[r] >> LIMB_BITS)
        whole[r] = twos * first + (lead[r] >> LIMB_BITS)
    lead &= LIMB
    lead <<= FRACTION_BITS - LIMB_BITS
    tail &= LIMB
    tail >>= 2 * LIMB_BITS - FRACTION_BITS
    lead |= tail
    return whole, lead
