"""The tree of queues as arrays, for what is done to all queues at once.

Queues are numbered parents first, the children of one queue side by side and by name; flows depth first, so those of
any queue are side by side, too. Amounts are integers of 64 bits where they fit with room to spare, and Python's own
otherwise: the same operations work on both, only slower. There are no floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from muster.core.parts import LIMB_BITS, Parts

if TYPE_CHECKING:
    from muster.core.flow_tree import Tree
    from muster.core.flows import Flow, Node

AMOUNT_BITS: Final = 62  # what all flows together ask for has fewer, or Python's own integers are used
Numbers = npt.NDArray[Any]  # of int64 or of Python's integers
Places = npt.NDArray[np.intp]


Some = slice | Places  # the same places, a slice if that is possible because that is faster


class Split(NamedTuple):
    """Some queues of one depth, and all of their children: what is needed to give these what their parents have."""

    parents: Places  # those that have children
    among: Some  # the same
    children: Some
    begin: Places  # where the children of each begin among these
    end: Places
    above: Places  # the parent of each child, as a place in `parents`

    def sums(self, amounts: Numbers) -> Numbers:
        """What the children of each have, along the last axis."""
        found: Numbers = np.add.reduceat(amounts[..., self.children], self.begin, axis=-1)
        return found


class Table(NamedTuple):
    """What flows ask for: a row for each resource, a column for each flow."""

    amounts: Numbers
    is_small: bool  # whether the sums of 64 bits are enough
    large: list[int]  # the resources of which some amount has more than one digit


class Columns:
    """What stays the same as long as the queues and the number of their flows do; `ask` keeps up with the rest."""

    def __init__(self, tree: Tree, written: Table) -> None:
        self.nodes: list[Node] = [tree.root]
        up, first = [0], []
        for number, node in enumerate(self.nodes):  # it grows while it is read
            node.place = number
            first.append(len(self.nodes))
            children = node.children
            if children:
                up += [number] * len(children)
                self.nodes += children
        self.ids: list[str] = [node.id for node in self.nodes]
        self.up: Places = np.array(up, dtype=np.intp)  # the parent of each queue
        self.first: Places = np.array(first, dtype=np.intp)  # its first child
        self.last: Places = np.append(self.first[1:], len(up))
        above = self.last > self.first
        self.splits = [self.split(start + np.flatnonzero(above[start:stop])) for start, stop in _levels(first)]
        self.begin: Places = np.array([node.begin for node in self.nodes], dtype=np.intp)  # its first flow
        self.end: Places = np.array([node.end for node in self.nodes], dtype=np.intp)
        leaves, flows = self.last == self.first, self.end - self.begin
        single = np.flatnonzero(leaves & (flows == 1))
        self._single, self._of_single = _some(single), _some(self.begin[single])
        by_flow = np.argsort(np.where(leaves, self.begin, -1), kind="stable")
        self._leaf: Places = np.repeat(by_flow, np.where(leaves, flows, 0)[by_flow])  # of each flow
        self._several: Places = np.flatnonzero(leaves & (flows > 1))
        self.flows: list[Flow] = list(tree.root.below)
        self.asked, self.is_small, self.large = written  # `large`: or had, see `Table`
        self.parts = Parts(self.flows)
        self.amounts: tuple[Numbers, Numbers] | None = None  # what flows have, as `rounding` has found it
        self.rounded: tuple[Numbers, set[int]] | None = None  # and what comes of it
        for place, flow in enumerate(self.flows):
            flow.place = place

    def total(self) -> None:
        """Tell the queues with others below them what these ask for."""
        above = np.flatnonzero(self.last > self.first)
        demands = self.summed(self.asked)[:, above].T.tolist()
        for number, demand in zip(above.tolist(), demands, strict=True):
            self.nodes[number].demand = demand

    def summed(self, parts: Numbers) -> Numbers:
        """What flows have, along the last axis, for each queue: leaves from their flows, others from their children."""
        found: Numbers = np.zeros((*parts.shape[:-1], len(self.nodes)), dtype=parts.dtype)
        found[..., self._single] = parts[..., self._of_single]
        several = self._several
        if len(several):
            running = np.zeros((*parts.shape[:-1], parts.shape[-1] + 1), dtype=parts.dtype)
            np.cumsum(parts, axis=-1, out=running[..., 1:])
            found[..., several] = running[..., self.end[several]] - running[..., self.begin[several]]
        for split in reversed(self.splits):
            found[..., split.among] = split.sums(found)
        return found

    def ask(self, leaf: Node, total: Sequence[int]) -> bool:
        """A leaf asks for something else. Returns whether that can be written down here."""
        begin, end = leaf.begin, leaf.end
        if end - begin != len(leaf.flows) or (self.is_small and max(total, default=0) >> AMOUNT_BITS):
            return False
        self.flows[begin:end] = leaf.flows
        for place, flow in enumerate(leaf.flows, begin):
            flow.place = place
            self.asked[:, place] = flow.amounts
            large = [r for r in flow.resources if flow.amounts[r] >> LIMB_BITS]
            self.large = sorted({*self.large, *large})
        self.parts.see(leaf.flows)
        return True

    def see(self, touched: Sequence[Flow] | None) -> None:
        """Flows have come somewhere else; None: all may have."""
        self.parts.see(touched)

    def split(self, parents: Places) -> Split:
        """Of queues of one depth that have children."""
        first = self.first[parents]
        sizes = self.last[parents] - first
        end: Places = np.cumsum(sizes)
        begin: Places = end - sizes
        above = np.repeat(np.arange(len(parents)), sizes)
        children = np.arange(len(above)) + (first - begin)[above]
        return Split(parents, _some(parents), _some(children), begin, end, above)

    def above(self, flows: Places) -> Numbers:
        """For each queue, whether it is above the leaf of any of these flows."""
        found: Numbers = np.zeros(len(self.nodes), dtype=np.bool_)
        queues = self.up[self._leaf[flows]]
        found[queues] = True
        while queues.any():
            queues = self.up[queues]
            found[queues] = True
        return found


def table(rows: Sequence[int], values: Sequence[int], sizes: Sequence[int], resources: int) -> Table:
    """What flows ask for, one after the other: resources, amounts, and how many of these each flow has."""
    is_small = sum(values) >> AMOUNT_BITS == 0 or max(_totals(rows, values, resources)) >> AMOUNT_BITS == 0
    amounts: Numbers = np.zeros((resources, len(sizes)), dtype=np.int64 if is_small else object)
    columns = np.repeat(np.arange(len(sizes)), sizes)
    amounts[rows, columns] = values
    largest = amounts.max(axis=1, initial=0).tolist()
    return Table(amounts, is_small, [r for r, amount in enumerate(largest) if amount >> LIMB_BITS])


def _totals(rows: Sequence[int], values: Sequence[int], resources: int) -> list[int]:
    totals = [0] * resources
    for r, amount in zip(rows, values, strict=True):
        totals[r] += amount
    return totals


def _some(places: Places) -> Some:
    """Places as a slice, if they are side by side."""
    first, count = int(places[0]) if len(places) else 0, len(places)
    return slice(first, first + count) if (places == np.arange(first, first + count)).all() else places


def _levels(first: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where the queues of each depth but the last begin and end. Those of the next depth begin with the first child."""
    start, stop = 0, 1
    while stop < len(first):
        yield start, stop
        start, stop = stop, first[stop]
