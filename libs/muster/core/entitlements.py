"""Who deserves how much: the entitlement of every queue (rules F1-F3).

    queues, demand by leaf and resource set, capacity  ->  whole amounts by queue and resource

First every queue gets what it is guaranteed (`guarantees`), then everything that is not withheld is shared by
progressive filling (`bounded_filling`, `filling`), and the exact result is rounded to whole amounts (`rounding`). It
depends on what is asked for and never on who runs, which is what lets preemption come to an end (P1).

`entitlements` computes once. An `EntitlementEngine` is kept by those who compute again and again: what it knows of the
tree, of the flows and of the floors is used again as long as it is the same, and a change that cannot matter (a queue
that gets less than it asks for asks for more of the same) costs nothing. The results are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from muster.core import bounded_filling, uniform_filling
from muster.core.bounded_record import Filled
from muster.core.columns import Columns
from muster.core.exact import ONE, Exact
from muster.core.filling import use
from muster.core.flows import Flow, FlowDemand, Node, Tree
from muster.core.guarantees import Floors, raise_to_floors, withheld
from muster.core.model import Amounts, QueueSpec
from muster.core.queues import QueueTree
from muster.core.rounding import rounded

Demand = Mapping[str, FlowDemand]  # by id of a leaf: totals for each set of requested resources
NO_DEMAND: Final[FlowDemand] = ()


def entitlements(queues: QueueTree, demand: Demand, capacity: Amounts) -> dict[str, Amounts]:
    """Entitlement of every queue by id. `capacity` is of the whole cell."""
    return EntitlementEngine().entitlements(queues, demand, capacity)


class EntitlementEngine:
    """Computes entitlements again and again; what has not changed is not computed again."""

    def __init__(self) -> None:
        self._specs: list[QueueSpec] = []
        self._capacity: Amounts = ()
        self._demand: dict[str, FlowDemand] = {}
        self._tree: Tree | None = None
        self._floors: Floors = {}
        self._result: dict[str, Amounts] = {}
        self._all_met = False  # whether in the last result everybody got what it asked for

    def entitlements(self, queues: QueueTree, demand: Demand, capacity: Amounts) -> dict[str, Amounts]:
        """As the function; the result belongs to the engine and is not to be changed."""
        specs = [queue.spec for queue in queues.by_id.values()]
        if self._tree is None or specs != self._specs or capacity != self._capacity:
            self._tree = Tree(queues, demand, capacity)
            self._specs, self._capacity = specs, capacity
            self._floors = {}
            self._all_met = False
            self._result = self._computed(self._tree, [])
        else:
            changed = self._change(self._tree, demand)
            if changed:
                self._result = self._computed(self._tree, changed)
        self._demand = dict(demand)
        return self._result

    def _change(self, tree: Tree, demand: Demand) -> list[Node]:
        """Put changed demands into the tree. Returns the leaves of which entitlements can change by it."""
        matter: list[Node] = []
        for node in tree.nodes:
            if node.children or not node.id:
                continue
            new, old = demand.get(node.id, NO_DEMAND), self._demand.get(node.id, NO_DEMAND)
            if new is old or new == old:
                continue
            before = node.flows
            if tree.change(node.id, new):
                self._floors.clear()  # who is inside which limit is another now
            for above in node.path():
                self._floors.pop(above.id, None)
            if not _more_of_the_same(before, node):
                matter.append(node)
        return matter

    def _computed(self, tree: Tree, changed: Sequence[Node]) -> dict[str, Amounts]:
        kept = withheld(tree)
        scarce = [r for r, amount in enumerate(tree.capacity) if tree.root.demand[r] > amount - kept[r]]
        if not scarce and not any(node.pressing for node in tree.nodes):
            return self._demanded(tree, changed)
        self._all_met = False
        raise_to_floors(tree, self._floors)
        used = use(tree.root.below, len(tree.resources)) if any(kept) else []
        limits = {r: ONE - min(Exact(kept[r], tree.capacity[r]), ONE - used[r]) if kept[r] else ONE for r in scarce}
        columns = Columns(tree)
        whole = rounded(tree, columns, self._filled(tree, limits))
        rows = whole.T.tolist()
        return {node.id: _named(tree, enumerate(row)) for node, row in zip(columns.nodes, rows) if node.id}

    def _demanded(self, tree: Tree, changed: Sequence[Node]) -> dict[str, Amounts]:
        """Everybody gets everything."""
        result = {}
        nodes: Iterable[Node] = tree.nodes
        if self._all_met:
            result = dict(self._result)
            nodes = [node for leaf in changed for node in leaf.path()]
        self._all_met = True
        for node in nodes:
            for flow in node.flows:
                flow.share = flow.full
            if node.id:
                result[node.id] = _named(tree, enumerate(node.demand))
        return result

    @staticmethod
    def _filled(tree: Tree, limits: dict[int, Exact]) -> Filled:
        """Share out everything above the floors."""
        flows = tree.root.below
        if uniform_filling.are_alike(flows):
            uniform_filling.fill(tree, limits)
            return {}
        for flow in flows:
            flow.is_open = True
        limits = tree.essential(flows, limits)
        counted = tree.counted() | sum(1 << r for r in limits)
        return bounded_filling.fill(tree.root, limits, len(tree.resources), counted)


def _named(tree: Tree, amounts: Iterable[tuple[int, int]]) -> Amounts:
    return tuple([(tree.resources[r], amount) for r, amount in sorted(amounts) if amount])


def _more_of_the_same(before: Sequence[Flow], leaf: Node) -> bool:
    """Whether flows that got less than they asked for ask for another amount that they do not get either.

    Then no event of the filling changes. What a guarantee or a lending limit does with the demand is not looked into.
    """
    if any(node.guaranteed or node.lending for node in leaf.path()) or len(before) != len(leaf.flows):
        return False
    pairs = list(zip(before, leaf.flows, strict=True))
    if not all(_is_proportional(old, new) and _is_less(old.share, old.full, new.full) for old, new in pairs):
        return False
    for old, new in pairs:
        new.share = old.share
    return True


def _is_proportional(a: Flow, b: Flow) -> bool:
    if a.needs != b.needs:
        return False
    (most_a, _), (most_b, _) = a.main, b.main
    return all(amount * most_b == b.asked[r] * most_a for r, amount in a.asked.items())


def _is_less(share: Exact, *numbers: Exact) -> bool:
    """Surely less than each, by the bounds alone."""
    return all(share.middle + share.error < number.middle - number.error for number in numbers)
