"""The tree of queues as arrays, for what is done to all queues at once.

Queues are numbered parents first, the children of one queue side by side and by name; flows depth first, so those of
any queue are side by side, too. Amounts are integers of 64 bits where they fit with room to spare, and Python's own
otherwise: the same operations work on both, only slower. There are no floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from muster.core.flows import Flow, Node, Tree

AMOUNT_BITS: Final = 62  # what all flows together ask for has fewer, or Python's own integers are used

Numbers = npt.NDArray[Any]  # of int64 or of Python's integers
Places = npt.NDArray[np.intp]


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
        self.levels = _levels(self.nodes)
        begin = _begins(tree)
        self.begin: Places = np.array([begin[node.id] for node in self.nodes], dtype=np.intp)  # its first flow
        self.end: Places = self.begin + np.array([len(node.below) for node in self.nodes], dtype=np.intp)
        self.flows: list[Flow] = list(tree.root.below)
        self._first_flow = begin
        self.is_small = all(amount < 1 << AMOUNT_BITS for amount in tree.root.demand)
        self.asked: Numbers = np.zeros((len(tree.resources), len(self.flows)), dtype=np.int64)
        if not self.is_small:
            self.asked = self.asked.astype(object)
        self._write(0, self.flows)

    def ask(self, tree: Tree, leaf: Node) -> bool:
        """As many flows of a leaf as before ask for something else. Returns whether that can be written down here."""
        if self.is_small and any(amount >= 1 << AMOUNT_BITS for amount in tree.root.demand):
            return False
        begin = self._first_flow[leaf.id]
        self.flows[begin : begin + len(leaf.flows)] = leaf.flows
        self.asked[:, begin : begin + len(leaf.flows)] = 0
        self._write(begin, leaf.flows)
        return True

    def _write(self, begin: int, flows: Sequence[Flow]) -> None:
        rows = [r for flow in flows for r in flow.asked]
        columns = [number for number, flow in enumerate(flows, begin) for _ in flow.asked]
        if rows:
            self.asked[rows, columns] = [amount for flow in flows for amount in flow.asked.values()]


def sums(parts: Numbers, begin: Places, end: Places) -> Numbers:
    """Along the last axis, of each stretch from a beginning to an end."""
    running = np.zeros((*parts.shape[:-1], parts.shape[-1] + 1), dtype=parts.dtype)
    np.cumsum(parts, axis=-1, out=running[..., 1:])
    found: Numbers = running[..., end] - running[..., begin]
    return found


def _levels(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Where the queues of each depth below the root begin and end."""
    depths = [node.depth for node in nodes]
    starts = [number for number in range(1, len(nodes)) if depths[number] != depths[number - 1]]
    return list(zip(starts, [*starts[1:], len(nodes)], strict=True))


def _begins(tree: Tree) -> dict[str, int]:
    """The number of the first flow of each queue."""
    begin, count = {}, 0
    for node in tree.nodes:
        begin[node.id] = count
        if not node.children:
            count += len(node.flows)
    return begin
