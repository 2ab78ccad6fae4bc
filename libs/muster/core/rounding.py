"""From exact shares to whole amounts (rule F2, the last step).

Top-down: what a queue has is split among its children, each first gets the whole part of its exact amount, and what is
left over goes one unit each to the largest remainders, then by name. Nobody gets more than its exact amount rounded up,
so no limit and no demand is passed; the capacity neither, because the whole tree is rounded down.

Amounts are looked at through the bounds of `exact` first; the exact numbers are asked only where those leave it open.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cmp_to_key

from muster.core.exact import PRECISION_BITS, ZERO, Exact, order
from muster.core.filling import total
from muster.core.flows import Flow, Node, Tree

Filled = Mapping[tuple[str, int], Exact]  # (queue, resource) -> its share, where that is known as a whole
Whole = dict[str, dict[int, int]]  # queue -> resource -> amount; no zeros
Bounded = tuple[dict[int, int], int]  # middles of amounts by resource; the error as a share of each capacity
Part = tuple[int, int, int, Node]  # minus the remainder (a middle), number of the child, whole part, child


def rounded(tree: Tree, filled: Filled) -> Whole:
    """Whole amounts of every queue from the shares of the flows."""
    amounts: dict[str, Bounded] = {}
    for node in reversed(tree.nodes):
        if node.below:
            amounts[node.id] = _amounts(tree, node, amounts)
    rounding = _Rounding(tree, filled, amounts)
    whole: Whole = {node.id: {} for node in tree.nodes}
    if tree.root.below:
        for r in amounts[tree.root.id][0]:
            whole[tree.root.id][r] = rounding.floor(tree.root, r)
    for node in tree.nodes:
        if node.children and node.below:
            rounding.split(node, whole)
    return whole


def _amounts(tree: Tree, node: Node, amounts: Mapping[str, Bounded]) -> Bounded:
    sums: dict[int, int] = {}
    error = 0
    capacity = tree.capacity
    for flow in node.flows:
        share = flow.share
        if share is flow.full:
            for r, amount in flow.asked.items():
                sums[r] = sums.get(r, 0) + (amount << PRECISION_BITS)
        elif share is not ZERO:
            error += share.error + 2
            middle = share.middle
            for r, part in flow.parts:
                sums[r] = sums.get(r, 0) + (middle * part >> PRECISION_BITS) * capacity[r]
    for child in node.children:
        if child.below:
            more, error_below = amounts[child.id]
            error += error_below
            for r, middle in more.items():
                sums[r] = sums.get(r, 0) + middle
    return sums, error


class _Rounding:
    def __init__(self, tree: Tree, filled: Filled, amounts: Mapping[str, Bounded]) -> None:
        self._tree = tree
        self._filled = filled
        self._amounts = amounts

    def floor(self, node: Node, r: int) -> int:
        middles, error = self._amounts[node.id]
        middle, error = middles[r], error * self._tree.capacity[r]
        low = (middle - error) >> PRECISION_BITS
        return low if low == (middle + error) >> PRECISION_BITS else self._exact(node, r).floor()

    def split(self, parent: Node, whole: Whole) -> None:
        """Give the children what the parent has."""
        children = [(child, whole[child.id], *self._amounts[child.id]) for child in parent.children if child.below]
        for r, amount in whole[parent.id].items():
            capacity, left = self._tree.capacity[r], amount
            parts: list[Part] = []
            for number, (child, gets, middles, error) in enumerate(children):
                middle = middles.get(r)
                if middle is None:
                    continue
                low = (middle - error * capacity) >> PRECISION_BITS
                if error and low != (middle + error * capacity) >> PRECISION_BITS:
                    low = self._exact(child, r).floor()
                if low:
                    gets[r] = low
                left -= low
                parts.append(((low << PRECISION_BITS) - middle, number, low, child))
            if left:
                parts.sort()
                for part in self._largest(parent, parts, left, r):
                    whole[part[3].id][r] = part[2] + 1

    def _largest(self, parent: Node, parts: list[Part], count: int, r: int) -> list[Part]:
        """Of parts in the order of their remainders, as far as the bounds tell: the `count` first."""
        edge = parts[count - 1][0]
        error = 2 * self._amounts[parent.id][1] * self._tree.capacity[r]
        if count == len(parts) or parts[count][0] - edge > error:
            return parts[:count]
        sure = [part for part in parts if part[0] < edge - error]
        open_ = [part for part in parts if edge - error <= part[0] <= edge + error]
        open_.sort(key=lambda part: part[1])

        def compare(a: Part, b: Part) -> int:
            x, y = self._exact(a[3], r), self._exact(b[3], r)
            if a[2] != b[2]:
                x, y = x - Exact(a[2]), y - Exact(b[2])
            return order(y, x, parent.depth)

        open_.sort(key=cmp_to_key(compare))
        return [*sure, *open_[: count - len(sure)]]

    def _exact(self, node: Node, r: int) -> Exact:
        """The amount of a resource that a queue has."""
        share = self._filled.get((node.id, r))
        if share is None:
            for q in range(len(self._tree.resources)):
                if (node.id, q) in self._filled and self._tree.always_equal(node.below, q, r):
                    share = self._filled[node.id, q]
                    break
        if share is None:
            share = total(_exact_share(flow, r) for flow in node.below_needing(r))
        return share * Exact(self._tree.capacity[r])


def _exact_share(flow: Flow, r: int) -> Exact:
    if flow.share is ZERO:
        return ZERO
    if flow.dominant >> r & 1:
        return flow.share
    return flow.share * flow.direction[r]
