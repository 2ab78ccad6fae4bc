"""Who deserves how much: the entitlement of every queue (rules F1-F3).

    queues, demand by leaf and resource set, capacity  ->  whole amounts by queue and resource

First every queue gets what it is guaranteed (`guarantees`), then everything that is not withheld is shared by
progressive filling (`bounded_filling`, `filling`), and the exact result is rounded to whole amounts (`rounding`). It
depends on what is asked for and never on who runs, which is what lets preemption come to an end (P1).

`entitlements` computes once. An `EntitlementEngine` is kept by those who compute again and again: what it knows of the
tree, of the flows and of the floors is used again as long as it is the same, queues below which nothing has changed are
not filled again, and a change that cannot matter (a queue that gets less than it asks for asks for more of the same)
costs nothing. The results are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, repeat
from operator import is_not
from typing import Final

import numpy as np

from muster.core import uniform_filling
from muster.core.bounded_filling import Filling
from muster.core.bounded_record import Filled
from muster.core.columns import Columns, Numbers
from muster.core.exact import ONE, ZERO, Exact
from muster.core.flow_tree import Tree
from muster.core.flows import Flow, FlowDemand, Node
from muster.core.guarantees import Floors, fit, raise_to_floors, withheld
from muster.core.model import Amounts, QueueSpec
from muster.core.queues import QueueTree
from muster.core.rounding import rounded

Demand = Mapping[str, FlowDemand]  # by id of a leaf: totals for each set of requested resources
FEW: Final = 100  # fewer results than this are written down one by one
NO_DEMAND: Final[FlowDemand] = ()


def entitlements(queues: QueueTree, demand: Demand, capacity: Amounts) -> dict[str, Amounts]:
    """Entitlement of every queue by id. `capacity` is of the whole cell."""
    return EntitlementEngine().entitlements(queues, demand, capacity)


class EntitlementEngine:
    """Computes entitlements again and again; what has not changed is not computed again."""

    def __init__(self) -> None:
        self._queues: QueueTree | None = None
        self._revision = 0  # of these
        self._specs: list[QueueSpec] = []
        self._capacity: Amounts = ()
        self._demand: dict[str, FlowDemand] = {}
        self._tree: Tree | None = None
        self._filling: Filling | None = None
        self._floors: Floors = {}
        self._is_scaled = False  # whether the floors did not fit
        self._whole: Numbers | None = None  # the result as numbers; None: everybody got what it asked for
        self._result: dict[str, Amounts] = {}

    def entitlements(self, queues: QueueTree, demand: Demand, capacity: Amounts) -> dict[str, Amounts]:
        """As the function; the result belongs to the engine and is not to be changed."""
        is_known = self._is_known(queues)
        if self._tree is None or not is_known or capacity != self._capacity:
            self._tree = tree = Tree(queues, demand, capacity)
            self._demand, self._capacity = dict(demand), capacity
            self._filling = Filling(tree.root, tree.capacity)
            self._floors = {}
            self._whole = None
            self._result = {}
            self._compute(tree, self._filling, tree.nodes)
        else:
            assert self._filling is not None
            changed = self._change(self._tree, self._filling, demand)
            if changed:
                self._compute(self._tree, self._filling, [node for leaf in changed for node in leaf.path()])
        return self._result

    def _is_known(self, queues: QueueTree) -> bool:
        """Whether these are the queues of the last time."""
        if queues is self._queues and queues.revision == self._revision:
            return True
        before = self._specs
        self._specs = [queue.spec for queue in queues.by_id.values()]
        self._queues, self._revision = queues, queues.revision
        return before == self._specs

    def _change(self, tree: Tree, filling: Filling, demand: Demand) -> list[Node]:
        """Put changed demands into the tree. Returns the leaves of which entitlements can change by it."""
        matter: list[Node] = []
        known = self._demand
        asks = list(compress(demand, map(is_not, demand.values(), map(known.get, demand))))
        if len(known) + sum([queue not in known for queue in asks]) > len(demand):
            asks += [queue for queue in known if queue not in demand]
        for queue in asks:
            node = tree.by_id.get(queue)
            new, old = demand.get(queue, NO_DEMAND), known.get(queue, NO_DEMAND)
            if queue in demand:
                known[queue] = new
            else:
                del known[queue]
            if node is None or node.children or new == old:
                continue
            before = node.flows
            tree.change(node, new)
            top = node
            for above in node.path():
                self._floors.pop(above.id, None)
                top = above if above.guaranteed else top
            filling.forget(top)
            if len(node.flows) != len(before):  # who is inside which limit is another now
                self._floors.clear()
                if tree.guaranteed:
                    filling.forget_all()
            if not _more_of_the_same(before, node):
                matter.append(node)
        return matter

    def _compute(self, tree: Tree, filling: Filling, changed: Iterable[Node]) -> None:
        kept = withheld(tree)
        scarce = [r for r, amount in enumerate(tree.capacity) if tree.root.demand[r] > amount - kept[r]]
        if not scarce and not any(node.pressing for node in tree.limited):
            filling.forget_all()
            self._give_everything(tree, changed)
            return
        filled = self._filled(tree, filling, kept, scarce)
        columns = tree.write()
        columns.see(filling.touched)
        self._publish(tree, columns, rounded(tree, columns, filled))

    def _filled(self, tree: Tree, filling: Filling, kept: Sequence[int], scarce: Sequence[int]) -> Filled:
        """Share out everything above the floors."""
        flows = tree.root.below
        alike = uniform_filling.are_alike(flows)
        limits = dict.fromkeys(scarce, ONE)
        if not alike and not tree.guaranteed and not _is_closed(tree):
            limits = tree.essential(tree.root, limits)
            return filling.fill(limits, tree.counted(limits), is_from_nothing=True)
        raise_to_floors(tree, self._floors)
        if self._is_scaled:
            filling.forget_all()
        self._is_scaled = bool(tree.guaranteed) and fit(tree, filling.uses())
        if self._is_scaled:  # so nothing of this is of use the next time
            filling.forget_all()
        if any(kept):
            used = filling.uses()[tree.root.id] or [ZERO] * len(tree.resources)
            limits = {r: ONE - min(Exact(kept[r], tree.capacity[r]), ONE - used[r]) if kept[r] else ONE for r in scarce}
        if alike:
            filling.forget_all()
            return uniform_filling.fill(tree, limits)
        for flow in flows:
            flow.is_open = True
        limits = tree.essential(tree.root, limits)
        return filling.fill(limits, tree.counted(limits))

    def _publish(self, tree: Tree, columns: Columns, whole: Numbers) -> None:
        """Make the result of numbers; what is as before stays the same object."""
        nodes, rows, result = columns.ids[1:], whole[:, 1:], dict(self._result)  # without the root
        if self._whole is not None:
            changed = np.flatnonzero((rows != self._whole[:, 1:]).any(axis=0))
            nodes, rows = [nodes[number] for number in changed.tolist()], rows[:, changed]
        self._whole = whole
        result.update(zip(nodes, _as_amounts(rows, tree.resources), strict=True))
        self._result = result

    def _give_everything(self, tree: Tree, changed: Iterable[Node]) -> None:
        """Everybody gets what it asks for."""
        if self._whole is not None:
            changed, self._whole = tree.nodes, None
        self._result = dict(self._result)
        for node in changed:
            for flow in node.flows:
                flow.share = flow.full
            if node.id:
                amounts = [(tree.resources[r], amount) for r, amount in enumerate(node.demand) if amount]
                self._result[node.id] = tuple(amounts)


def _is_closed(tree: Tree) -> bool:
    """Whether some queue may not use anything of what it asks for."""
    return any(not node.limit[r] for node in tree.limited for r in node.pressing)


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
    return all(one * most_b == other * most_a for one, other in zip(a.amounts, b.amounts, strict=True))


def _is_less(share: Exact, *numbers: Exact) -> bool:
    """Surely less than each, by the bounds alone."""
    return all(share.middle + share.error < number.middle - number.error for number in numbers)


def _as_amounts(whole: Numbers, names: Sequence[str]) -> list[Amounts]:
    """Of each queue, without zeros. Queues that have something of the same resources are done together."""
    if whole.shape[1] <= FEW:
        columns = whole.T.tolist()
        return [tuple([pair for pair in zip(names, column, strict=True) if pair[1]]) for column in columns]
    found: list[Amounts] = [()] * whole.shape[1]
    has = np.packbits(whole != 0, axis=0)
    order = np.lexsort(has)
    ranked = has[:, order]
    begins = np.flatnonzero((ranked[:, 1:] != ranked[:, :-1]).any(axis=0)) + 1
    for places in np.split(order, begins):
        rows = [r for r, amount in enumerate(whole[:, places[0]].tolist()) if amount] if len(places) else []
        pairs = [zip(repeat(names[r]), whole[r, places].tolist(), strict=False) for r in rows]
        for place, amounts in zip(places.tolist(), zip(*pairs, strict=True), strict=False):
            found[place] = amounts
    return found
