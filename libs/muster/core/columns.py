"""The tree of queues as arrays, for what is done to all queues at once.

Queues are numbered parents first, the children of one queue side by side and by name; flows depth first, so those of
any queue are side by side, too. Amounts are integers of 64 bits where they fit with room to spare, and Python's own
otherwise: the same operations work on both, only slower. There are no floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from math import gcd
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from muster.core.parts import LIMB_BITS, Parts

if TYPE_CHECKING:
    from muster.core.flows import Flow, Node, Tree

LEVEL_BITS: Final = 32  # there are fewer levels than 2^this
UNLABELLED: Final = -2
UNEQUAL: Final = -1  # to all others
AMOUNT_BITS: Final = 62  # what all flows together ask for has fewer, or Python's own integers are used
Numbers = npt.NDArray[Any]  # of int64 or of Python's integers
Places = npt.NDArray[np.intp]


class Split(NamedTuple):
    """What is needed to give all queues of one depth what their parents have."""

    parents: Places  # the queues above that have children
    first: Places  # the first child of each
    last: Places  # the first that is no longer one
    start: int  # the queues of this depth
    stop: int
    above: Places  # the parent of each of them, as a place in `parents`


class Columns:
    """What stays the same as long as the queues and the number of their flows do; `ask` keeps up with the rest."""

    def __init__(self, tree: Tree) -> None:
        self.nodes: list[Node] = [tree.root]
        up, first = [0], []
        for node in self.nodes:  # it grows while it is read
            first.append(len(self.nodes))
            up += [len(first) - 1] * len(node.children)
            self.nodes += node.children
        self.up: Places = np.array(up, dtype=np.intp)  # the parent of each queue
        self.first: Places = np.array(first, dtype=np.intp)  # its first child
        self.last: Places = self.first + np.array([len(node.children) for node in self.nodes], dtype=np.intp)
        self.splits = [self._split(start, stop) for start, stop in _levels(self.nodes)]
        self._place = {node.id: number for number, node in enumerate(self.nodes)}
        self._begin = _begins(tree.nodes)
        self.begin: Places = np.array([self._begin[node.id] for node in self.nodes], dtype=np.intp)  # its first flow
        self.end: Places = self.begin + np.array([len(node.below) for node in self.nodes], dtype=np.intp)
        self.flows: list[Flow] = list(tree.root.below)
        self.is_small = _are_small(self.flows, len(tree.resources))
        dtype = np.int64 if self.is_small else object
        self.asked: Numbers = np.zeros((len(tree.resources), len(self.flows)), dtype=dtype)
        self.large: list[int] = []  # the resources of which some amount has, or had, more than one digit
        self._write(0, self.flows)
        self.parts = Parts(self.flows)
        for place, flow in enumerate(self.flows):
            flow.place = place
        # By resource and queue, see `label`: siblings with the same label have equal amounts of the resource whenever
        # they are stopped at one level.
        self.labels: Numbers = np.full((len(tree.resources), len(self.nodes)), UNLABELLED, dtype=np.int64)

    def total(self) -> None:
        """Tell the queues with others below them what these ask for."""
        above = np.flatnonzero(self.last > self.first)
        demands = sums(self.asked, self.begin[above], self.end[above]).T.tolist()
        for number, demand in zip(above.tolist(), demands, strict=True):
            self.nodes[number].demand = demand

    def ask(self, leaf: Node, total: Sequence[int]) -> bool:
        """A leaf asks for something else. Returns whether that can be written down here."""
        place = self._place[leaf.id]
        if self.end[place] - self.begin[place] != len(leaf.flows):
            return False
        if self.is_small and any(amount >= 1 << AMOUNT_BITS for amount in total):
            return False
        begin = self._begin[leaf.id]
        self.flows[begin : begin + len(leaf.flows)] = leaf.flows
        self.asked[:, begin : begin + len(leaf.flows)] = 0
        self._write(begin, leaf.flows)
        for place_of, flow in enumerate(leaf.flows, begin):
            flow.place = place_of
        self.parts.see(leaf.flows)
        above = self.up[place]
        self.labels[:, self.first[above] : self.last[above]] = UNLABELLED
        return True

    def label(self, parent: int, r: int) -> None:
        """The children of a queue: the same for those of one flow that add the same for each unit of the level."""
        known: dict[tuple[int, int], int] = {}
        first, last = int(self.first[parent]), int(self.last[parent])
        if self.labels[r, first] != UNLABELLED:
            return
        for number in range(first, last):
            node = self.nodes[number]
            self.labels[r, number] = UNEQUAL
            if len(node.flows) == 1:
                flow = node.flows[0]
                most, below = flow.main
                amount = (node.weight or 1) * flow.asked.get(r, 0) * below
                common = gcd(amount, most)
                self.labels[r, number] = known.setdefault((amount // common, most // common), number)

    def same(self, row: Places, queues: Places) -> Numbers:
        """Numbers: siblings with the same have equal amounts of a resource. Below zero: nothing is known."""
        labels, levels = self.labels[row, queues], self.parts.levels()
        level = levels[np.minimum(self.begin[queues], len(levels) - 1)]
        found: Numbers = np.where((labels >= 0) & (level >= 0), labels << LEVEL_BITS | level, -1)
        return found

    def see(self, touched: Sequence[Flow] | None) -> None:
        """Flows have come somewhere else; None: all may have."""
        self.parts.see(self.flows if touched is None else touched)

    def _split(self, start: int, stop: int) -> Split:
        parents, above = np.unique(self.up[start:stop], return_inverse=True)
        return Split(parents, self.first[parents], self.last[parents], start, stop, above)

    def _write(self, begin: int, flows: Sequence[Flow]) -> None:
        rows = list(chain.from_iterable([flow.asked for flow in flows]))
        if rows:
            columns = np.repeat(np.arange(begin, begin + len(flows)), [len(flow.asked) for flow in flows])
            self.asked[rows, columns] = list(chain.from_iterable([flow.asked.values() for flow in flows]))
            large = [r for flow in flows for r, amount in flow.asked.items() if amount >> LIMB_BITS]
            self.large = sorted({*self.large, *large})


def sums(parts: Numbers, begin: Places, end: Places) -> Numbers:
    """Along the last axis, of each stretch from a beginning to an end."""
    running = np.zeros((*parts.shape[:-1], parts.shape[-1] + 1), dtype=parts.dtype)
    np.cumsum(parts, axis=-1, out=running[..., 1:])
    found: Numbers = running.take(end, axis=-1) - running.take(begin, axis=-1)
    return found


def _are_small(flows: Sequence[Flow], resources: int) -> bool:
    """Whether the sums of 64 bits are enough: for a start, all amounts together."""
    if sum(chain.from_iterable([flow.asked.values() for flow in flows])) < 1 << AMOUNT_BITS:
        return True
    return all(sum(flow.asked.get(r, 0) for flow in flows) < 1 << AMOUNT_BITS for r in range(resources))


def _levels(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Where the queues of each depth below the root begin and end."""
    depths = [node.depth for node in nodes]
    starts = [number for number in range(1, len(nodes)) if depths[number] != depths[number - 1]]
    return list(pairwise([*starts, len(nodes)]))


def _begins(nodes: Sequence[Node]) -> dict[str, int]:
    """The number of the first flow of each queue."""
    begin, count = {}, 0
    for node in nodes:
        begin[node.id] = count
        if not node.children:
            count += len(node.flows)
    return begin
