"""The tree of queues as numbers: what entitlements are computed from (rules F1-F3).

    QueueTree, demand by leaf and resource set, capacity  ->  Tree of Node and Flow, and its Columns

Resources are indices into `Tree.resources`, which has those with capacity; a flow that asks for anything else can get
nothing and is left out. All of it is read in one go: the queues once, parents first, then what all flows ask for is
written into one table, and what is dominant there is found for all flows at once. So a tree costs O(queues + flows).
A leaf that asks for something else is put into its place, which costs O(depth) as long as it has as many flows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from operator import add, sub
from typing import Any, Final

import numpy as np

from muster.core.columns import Columns, Numbers, Table, table
from muster.core.exact import Exact
from muster.core.flows import RATIO_BITS, Flow, FlowDemand, Kind, Node, flow_of, flows_of, kind_of
from muster.core.model import Amounts
from muster.core.queues import Queue, QueueTree

WORD_BITS: Final = 63  # of an integer in an array
MOST_OFTEN: Final = 8  # so many flows are looked at first, because one of them is what is looked for most often


class Tree:
    """All of it. Parents come before their children in `nodes`, siblings by name."""

    def __init__(self, queues: QueueTree, demand: Mapping[str, FlowDemand], capacity: Amounts) -> None:
        self.resources = [resource for resource, amount in capacity if amount > 0]
        self.capacity = [amount for _, amount in capacity if amount > 0]
        self.index = {resource: r for r, resource in enumerate(self.resources)}
        self._kinds: dict[int, Kind] = {}  # sets of resources that were asked for
        self._witnesses: dict[tuple[int, int], Flow | None] = {}  # of `_covered`
        self.root = Node("", 1, None, len(self.resources))
        self.nodes = [self.root]
        self.by_id = {"": self.root}
        self.limited: list[Node] = []  # those with a limit
        self.guaranteed: list[Node] = []  # those with a guarantee
        written = self._written(self._read(queues, demand))
        self._share_out(flows_of(self._kinds_of(written.amounts), written.amounts, self.capacity))
        self.columns: Columns | None = Columns(self, written)
        self.columns.total()
        for node in self.limited:
            self._press(node)

    def _read(self, queues: QueueTree, demand: Mapping[str, FlowDemand]) -> list[Amounts]:
        """The queues. What is asked for, depth first; each queue knows what of it is below."""
        asked: list[Amounts] = []
        self.root.begin = self.root.end = 0
        nodes, by_id, size = self.nodes, self.by_id, len(self.resources)
        for queue in queues.subtree():
            spec = queue.spec
            above = by_id[spec.parent]
            node = Node(spec.id, spec.weight, above, size)
            above.children.append(node)
            if spec.limit or spec.guaranteed or spec.lending_limit:
                self._settings(node, queue)
            node.begin = len(asked)
            if not queue.children and spec.id in demand:
                asked += demand[spec.id]
            node.end = len(asked)
            nodes.append(node)
            by_id[spec.id] = node
        for node in reversed(nodes):
            if node.children:
                node.end = node.children[-1].end
        return asked

    def _written(self, demand: list[Amounts]) -> Table:
        """The same in numbers, without what nobody can get."""
        names, values, sizes = _flat(demand)
        if not all(sizes) or min(values, default=1) <= 0 or not self.index.keys() >= set(names):
            known = [self._known(amounts) for amounts in demand]
            places = [0, *accumulate(map(bool, known))]
            for node in self.nodes:
                node.begin, node.end = places[node.begin], places[node.end]
            demand = [amounts for amounts in known if amounts]
            names, values, sizes = _flat(demand)
        return table(list(map(self.index.__getitem__, names)), values, sizes, len(self.resources))

    def _known(self, amounts: Amounts) -> Amounts:
        """Without nothing; of a flow that asks for a resource that there is not, nothing is left."""
        asked = tuple([pair for pair in amounts if pair[1] > 0])
        return asked if all(resource in self.index for resource, _ in asked) else ()

    def _kinds_of(self, amounts: Numbers) -> list[Kind]:
        """The resources that flows ask for."""
        count = len(self.resources)
        bits = np.array([1 << r for r in range(count)], dtype=np.int64 if count < WORD_BITS else object)
        return [self._kinds.get(needs) or self._kind(needs) for needs in (bits @ (amounts > 0)).tolist()]

    def _kind(self, needs: int) -> Kind:
        return self._kinds.setdefault(needs, kind_of(needs))

    def _settings(self, node: Node, queue: Queue) -> None:
        spec = queue.spec
        node.limit = self.indexed(spec.limit)
        node.lending = self.indexed(spec.lending_limit)
        node.guaranteed = {r: amount for r, amount in self.indexed(spec.guaranteed).items() if amount > 0}
        if node.limit:
            self.limited.append(node)
        if node.guaranteed:
            self.guaranteed.append(node)

    def _share_out(self, flows: list[Flow]) -> None:
        for node in self.nodes:
            node.below = node.flows = flows[node.begin : node.end]
            if node.children:
                node.flows = []

    def change(self, leaf: Node, demand: FlowDemand) -> None:
        """A leaf asks for something else."""
        before = leaf.flows
        for flow in before:
            flow.is_gone = True
        flows = [self._flow(amounts) for amounts in map(self._known, demand) if amounts]
        if self.columns is not None and len(flows) == len(before):
            self._replace(leaf, flows)
        else:
            leaf.flows = leaf.below = flows
            for node in leaf.path():
                self._derive(node)
        if self.columns is not None and not self.columns.ask(leaf, self.root.demand):
            self.columns = None
        for node in leaf.path():
            if node.limit:
                self._press(node)
        for (first, second), witness in self._witnesses.items():
            if witness is None:
                self._witnesses[first, second] = self._less_of(leaf.flows, first, second)

    def _flow(self, asked: Amounts) -> Flow:
        amounts, needs = [0] * len(self.resources), 0
        for r, amount in self.indexed(asked).items():
            amounts[r] = amount
            needs |= 1 << r
        return flow_of(self._kind(needs), amounts, self.capacity)

    def _replace(self, leaf: Node, flows: list[Flow]) -> None:
        """As many flows as before, in their places."""
        known, place, count = leaf.demand, leaf.begin, len(flows)
        leaf.flows, leaf.demand = flows, None
        more = list(map(sub, leaf.asked_by(flows), known))
        for node in leaf.path():
            if node is leaf:
                node.below = flows
            else:
                node.demand = list(map(add, node.demand, more))
                node.below[place - node.begin : place - node.begin + count] = flows

    def write(self) -> Columns:
        """The columns, made anew where the number of flows has changed."""
        if self.columns is None:
            count = 0
            for node in self.nodes:
                node.begin, node.end = count, count + len(node.below)
                count += len(node.flows)
            asked, size = [flow.amounts for flow in self.root.below], len(self.resources)
            values = list(chain.from_iterable(asked))
            self.columns = Columns(self, table(list(range(size)) * len(asked), values, [size] * len(asked), size))
        return self.columns

    def indexed(self, amounts: Amounts) -> dict[int, int]:
        """By resource index; without those that have no capacity."""
        return {self.index[resource]: amount for resource, amount in amounts if resource in self.index}

    def essential(self, node: Node, limits: dict[int, Exact]) -> dict[int, Exact]:
        """Without the limits that are reached, if ever, together with another one that stops the same flows."""
        if len(limits) < 2:
            return limits
        kept = dict(limits)
        for r, limit in limits.items():
            if any(q != r and self._cover(node, q, r) and other <= limit for q, other in kept.items()):
                del kept[r]
        return kept

    def _cover(self, node: Node, first: int, second: int) -> bool:
        """Whether all flows of a queue need at least as large a share of the first resource as of the second."""
        if node is self.root:
            return self._covered(first, second)
        return self._less_below(node, first, second) is None

    def counted(self, also: Iterable[int]) -> int:
        """A bit for each resource but those of which every flow needs at most as large a share as of another.

        Those are never dominant. Where one is limited, at a queue or `also`, it counts.
        """
        bits = (1 << len(self.resources)) - 1
        limited = sum(1 << r for r in also)
        for node in self.limited:
            for r in node.pressing:
                limited |= 1 << r
        for r in range(len(self.resources)):
            if not limited >> r & 1 and any(
                q != r and bits >> q & 1 and self._covered(q, r) for q in range(len(self.resources))
            ):
                bits &= ~(1 << r)
        return bits

    def _covered(self, first: int, second: int) -> bool:
        """Whether all flows of the tree need at least as large a share of the first as of the second."""
        pair = (first, second)
        witness = self._witnesses.get(pair)
        if witness is not None and not witness.is_gone:
            return False
        if witness is not None or pair not in self._witnesses:
            self._witnesses[pair] = self._less_below(self.root, first, second)
        return self._witnesses[pair] is None

    def _less_below(self, node: Node, first: int, second: int) -> Flow | None:
        """A flow below that needs a smaller share of the first resource than of the second."""
        flows, columns = node.below, self.columns
        if len(flows) <= MOST_OFTEN or columns is None or not columns.is_small:
            return self._less_of(flows, first, second)
        found = self._less_of(flows[:MOST_OFTEN], first, second)
        if found is None:  # only those of which ratios in floating point do not say that they need more of the first
            mine, other = columns.asked[[first, second], node.begin : node.end]
            much = self.capacity[first] * (1 + 0.5**RATIO_BITS)
            maybe = np.flatnonzero(mine * float(self.capacity[second]) < other * much).tolist()
            found = self._less_of([flows[number] for number in maybe], first, second)
        return found

    def _less_of(self, flows: Sequence[Flow], first: int, second: int) -> Flow | None:
        """The first of these that needs a smaller share of the first resource than of the second."""
        of_first, of_second = self.capacity[first], self.capacity[second]
        for flow in flows:
            if flow.amounts[first] * of_second < flow.amounts[second] * of_first:
                return flow
        return None

    def _derive(self, node: Node) -> None:
        """What follows from the flows and from what is right already below."""
        if node.children:
            node.below = list(chain.from_iterable([child.below for child in node.children]))
            node.demand = [sum(column) for column in zip(*[child.demand for child in node.children], strict=True)]
        else:
            node.demand = None

    def _press(self, node: Node) -> None:
        pressing = {r: Exact(a, self.capacity[r]) for r, a in node.limit.items() if node.demand[r] > a}
        node.pressing = self.essential(node, pressing)


def _flat(demand: Sequence[Amounts]) -> tuple[list[Any], list[Any], list[int]]:
    """One after the other: resources, amounts, and how many of these there are of each."""
    flat: list[Any] = list(chain.from_iterable(chain.from_iterable(demand)))
    return flat[::2], flat[1::2], list(map(len, demand))
