"""From exact shares to whole amounts (rule F2, the last step).

Top-down: what a queue has is split among its children, each first gets the whole part of its exact amount, and what is
left over goes one unit each to the largest remainders, then by name. Nobody gets more than its exact amount rounded up,
so no limit and no demand is passed; the capacity neither, because the whole tree is rounded down.

All queues are done at once, on integers: what a flow has is looked at as its whole part and FRACTION_BITS of the rest,
rounded down, so the exact amount of a queue is at most a known number of these units above what is seen. Where that
leaves it open which whole number it is or which of two remainders is larger, the exact numbers are asked.

After a change of a few flows, the children of a queue are given what it has only where that may be something else:
where the queue has another amount, where such a flow is below it, or where exact numbers decide: these move always.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cmp_to_key
from math import gcd
from typing import Final

import numpy as np

from muster.core.bounded_record import Filled, Level
from muster.core.columns import AMOUNT_BITS, Columns, Numbers, Split
from muster.core.exact import ZERO, Exact, order
from muster.core.filling import total
from muster.core.flow_tree import Tree
from muster.core.flows import Flow, Node
from muster.core.parts import CLOSELY, LIMB, LIMB_BITS, NOT_KNOWN, PART_BITS, parts_of

Amounts = tuple[Numbers, Numbers]  # of flows: whole parts and the rest; how many units that may be too little

FRACTION_BITS: Final = 40  # of an amount
ONE_UNIT: Final = 1 << FRACTION_BITS
KEY_BITS: Final = FRACTION_BITS + 5  # of a remainder as a sort key: two parents are further apart than any error
NO_KEY: Final = -1 << KEY_BITS  # before all keys
LAST_KEY: Final = 1 << 62  # after all keys
FEW: Final = 40  # of so many parents at one depth none are picked: to do them all is faster
CLOSE: Final = 2  # so many units an amount of a flow may be too little when its part is known closely
CLEAR: Final = 1 << 24  # a queue of which less is known counts as not known at all
NOTHING_KNOWN: Final = 1 << (FRACTION_BITS + 3)
MAY_MISS: Final = np.array([0, CLOSE, CLEAR], dtype=np.int64)  # by how the part is known


def rounded(tree: Tree, columns: Columns, filled: Filled) -> Numbers:
    """Whole amounts from the shares of the flows: a row for each resource, the queues as in `columns`."""
    rounding = _Rounding(tree, columns, filled)
    rounding.split()
    columns.rounded = rounding.whole, rounding.close
    return rounding.whole


class _Rounding:
    def __init__(self, tree: Tree, columns: Columns, filled: Filled) -> None:
        self._tree = tree
        self._columns = columns
        self._filled = filled
        self._before, columns.rounded = columns.rounded, None
        self._changed = columns.parts.look()
        amounts, error = _amounts(columns, self._changed)
        self.whole: Numbers
        self.whole, self._rest = columns.summed(amounts)  # of each queue, the rest below the whole part
        self._error = columns.summed(error)  # how many units that may be too little
        self.close: set[int] = set()  # the queues of whose children exact numbers decide what they get
        self._error[self._error >= CLEAR] = NOTHING_KNOWN
        self.whole += self._rest >> FRACTION_BITS
        self._rest = (self._rest & ONE_UNIT - 1).astype(np.int64)
        self._settle()

    def _settle(self) -> None:
        """Find out the whole parts that are not clear."""
        up = self._columns.up
        row, numbers = np.nonzero(self._rest + self._error >= ONE_UNIT)
        for r, number in zip(row.tolist(), numbers.tolist(), strict=True):
            node = self._columns.nodes[number]
            if node.demand[r]:
                self.close.add(int(up[number]))
                ratio = _ratio(node, r)
                low = self._exact(node, r).floor() if ratio is None else ratio[0] // ratio[1]
                rest = int(self._rest[r, number]) + (int(self.whole[r, number]) - low) * ONE_UNIT
                self.whole[r, number], self._rest[r, number] = low, min(max(rest, -ONE_UNIT), 2 * ONE_UNIT)

    def split(self) -> None:
        """Give all children what their parents have; where everything about these is as before, that is as before."""
        columns, before, changed = self._columns, self._before, self._changed
        if before is None or changed is None or not columns.is_small:
            for split in columns.splits:
                self._split(split)
            return
        is_new = columns.above(np.array(changed, dtype=np.intp))
        is_new[[*self.close, *before[1]]] = True
        low, self.whole = self.whole, before[0].copy()
        self.whole[:, 0] = low[:, 0]
        for split in columns.splits:
            among = split.among
            is_new[among] |= (self.whole[:, among] != before[0][:, among]).any(axis=0)
            some = split.parents[is_new[among]]
            if len(some):
                part = columns.split(some) if len(split.parents) > FEW else split
                self.whole[:, part.children] = low[:, part.children]
                self._split(part)

    def _split(self, split: Split) -> None:
        whole, children = self.whole, split.children
        count = whole[:, split.among] - split.sums(whole)  # how many of the children get one more
        # By parent, then the largest remainder first.
        keys = (split.above << KEY_BITS) + 2 * ONE_UNIT - self._rest[:, children]
        rows, queues = keys.shape
        ranked = np.empty((rows, queues + 2), dtype=keys.dtype)
        ranked[:, 0], ranked[:, 1:-1], ranked[:, -1] = NO_KEY, keys, LAST_KEY
        ranked.sort(axis=1)
        edge = split.begin + count.astype(np.intp) + (queues + 2) * np.arange(rows)[:, None]
        worst, beyond = ranked.take(edge), ranked.take(edge + 1)  # the last that gets one more, and the next one
        gets = keys <= worst.take(split.above, axis=1)
        for place, r in zip(*np.nonzero((beyond - worst <= self._error[split.among]).T), strict=True):
            begin, end, parent = split.begin[place], split.end[place], int(split.parents[place])
            least = (int(place) << KEY_BITS) + 2 * ONE_UNIT - int(worst[r, place])
            gets[r, begin:end] = self._chosen(parent, int(r), int(count[r, place]), least)
        whole[:, children] += gets

    def _chosen(self, parent: int, r: int, count: int, least: int) -> list[bool]:
        """Which children get one more where that is not clear by the bounds.

        `least`: the smallest remainder of `count` children. Equal ones are in order of the names.
        """
        first, last = self._columns.first[parent], self._columns.last[parent]
        rest, error = self._rest[r, first:last].tolist(), int(self._error[parent])
        chosen = [remainder - least > error for remainder in rest]
        are_open = [place for place, remainder in enumerate(rest, first) if abs(remainder - least) <= error]
        left = count - sum(chosen)
        if left < len(are_open):
            are_open = self._in_order(parent, r, are_open)
        for number in are_open[:left]:
            chosen[number - first] = True
        return chosen

    def _in_order(self, parent: int, r: int, children: list[int]) -> list[int]:
        """Children of a queue by the exact remainders of a resource, the largest first."""
        nodes, whole = self._columns.nodes, self.whole
        raised = [self._raised(nodes[number], r) for number in children]
        are_equal = raised[0] is not None and raised.count(raised[0]) == len(raised)
        if not are_equal or any(len(nodes[number].flows) != 1 for number in children):
            self.close.add(parent)
        if are_equal:
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

    def _raised(self, node: Node, r: int) -> tuple[Level, int, int] | None:
        """The level, and the amount for so many of these, if a queue has just what they make it have."""
        if len(node.flows) == 1:
            flow = node.flows[0]
            if flow.level is None:
                return None
            return _times(flow.level, flow.weight * flow.main[1] * flow.amounts[r], flow.main[0])
        for q, known in self._filled.get(node.id, {}).items():
            proportion = _proportion(node.below, q, r) if isinstance(known, tuple) else None
            if isinstance(known, tuple) and proportion is not None:
                return _times(known[0], known[1] * self._tree.capacity[q] * proportion[0], proportion[1])
        return None


def _times(level: Level, amount: int, of: int) -> tuple[Level, int, int]:
    common = gcd(amount, of)
    return level, amount // common, of // common


def _proportion(flows: Sequence[Flow], first: int, second: int) -> tuple[int, int] | None:
    """How much all flows ask for of the second resource, for so much of the first one, if that is the same for all."""
    if first == second:
        return 1, 1
    asked = [(flow.amounts[first], flow.amounts[second]) for flow in flows]
    ones, others = next((pair for pair in asked if pair[0]), (0, 0))
    if not ones or any(one * others != other * ones for one, other in asked):
        return None
    return others, ones


def _ratio(node: Node, r: int) -> tuple[int, int] | None:
    """The amount of a resource that a queue of one flow has, as numerator and denominator, if that is at hand."""
    if len(node.below) != 1:
        return None
    flow = node.below[0]
    ratio, (most, below) = flow.share.ratio, flow.main
    return None if ratio is None else (ratio[0] * below * flow.amounts[r], ratio[1] * most)


def _exact_share(flow: Flow, r: int) -> Exact:
    if flow.share is ZERO:
        return ZERO
    if flow.dominant >> r & 1:
        return flow.share
    return flow.share * flow.direction[r]


def _amounts(columns: Columns, changed: list[int] | None) -> Amounts:
    """What each flow has. `changed`: those of which that may be something else than before."""
    before, columns.amounts = columns.amounts, None
    if not columns.is_small:
        return _of_parts(columns.asked, *parts_of(columns.flows))
    if before is None or changed is None:
        digits, how = columns.parts.digits()
        amounts = multiplied(columns.asked, columns.large, digits), MAY_MISS.take(how)
    else:
        amounts = before
        found = _of_parts(columns.asked[:, changed], *parts_of([columns.flows[place] for place in changed]))
        for all_of, some in zip(before, found, strict=True):
            all_of[..., changed] = some
    columns.amounts = amounts
    return amounts


def _of_parts(asked: Numbers, parts: list[int], how: Numbers) -> Amounts:
    """Amounts times parts of PART, in Python's own integers."""
    amounts = asked * np.array(parts, dtype=object)
    # A part that is known closely tells little about an amount so large.
    how[(asked >> AMOUNT_BITS).any(axis=0) & (how == CLOSELY)] = NOT_KNOWN
    return np.array([amounts >> PART_BITS, amounts >> (PART_BITS - FRACTION_BITS) & (ONE_UNIT - 1)]), MAY_MISS.take(how)


def multiplied(asked: Numbers, large: Sequence[int], digits: Numbers) -> Numbers:
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
    return np.array([whole, lead])
