"""The tree of queues as numbers: what entitlements are computed from (rules F1-F3).

    QueueTree, demand by leaf and resource set, capacity  ->  Tree of Node and Flow

A `Flow` is what one leaf asks for with one set of resources (F3): a queue with GPU jobs and CPU-only jobs is two flows,
so an exhausted GPU stops only the first. Resources are indices into `Tree.resources`, which has those with capacity; a
flow that asks for anything else can get nothing and is left out. *Shares* are fractions of a resource's capacity. A
flow is raised along its `direction`, its demand scaled to dominant share 1, so how far it has come is one number, its
`share`, from 0 to `full`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import gcd
from typing import TYPE_CHECKING, Final

from muster.core.columns import Columns
from muster.core.exact import ONE, ZERO, Exact
from muster.core.model import Amounts
from muster.core.parts import SCALE_BITS
from muster.core.queues import Queue, QueueTree

if TYPE_CHECKING:
    from muster.core.bounded_record import Level

FlowDemand = Sequence[Amounts]  # of one leaf: one for each set of requested resources


NOTHING: Final[Mapping[int, int]] = {}
NO_LIMITS: Final[Mapping[int, Exact]] = {}


class Flow:
    """The jobs of a leaf that ask for the same resources, as one divisible thing."""

    __slots__ = (
        "_capacity",
        "_direction",
        "_share",
        "_share_at",
        "asked",
        "dominant",
        "full",
        "is_gone",
        "is_open",
        "level",
        "main",
        "needs",
        "place",
        "scale",
        "weight",
    )

    def __init__(self, asked: dict[int, int], capacity: Sequence[int]) -> None:
        self.asked = asked  # resource -> amount > 0
        self._capacity = capacity
        most, below, needs, dominant = 0, 1, 0, 0
        for r, amount in asked.items():
            needs |= 1 << r
            size = capacity[r]
            this, other = amount * below, most * size
            if this > other:
                most, below, dominant = amount, size, 1 << r
            elif this == other:
                dominant |= 1 << r
        self.main = (most, below)  # amount and capacity of a resource of which it asks for the largest share
        self.full = Exact(most, below)  # dominant share of the whole demand
        self.needs = needs  # a bit for each resource
        self.dominant = dominant  # a bit for each that has the largest share
        self._direction: dict[int, Exact] | None = None
        self._share: Exact = ZERO
        self._share_at: Exact | None = None  # the level it was worked out for
        self.level: Level | None = None  # where it was stopped, if it was
        self.weight = 0  # of what is raised to this level
        self.scale = 0  # what its part of the demand grows by with the level, SCALE_BITS up, rounded down
        self.place = 0  # its number in `columns`
        self.is_open = False  # whether the present filling may raise it
        self.is_gone = False  # replaced by another

    @property
    def share(self) -> Exact:
        """How far it has come."""
        if self.level is not None and self._share_at is not self.level.exact():
            self._share, self._share_at = self.level.raised(self.weight), self.level.exact()
        return self._share

    @share.setter
    def share(self, share: Exact) -> None:
        self._share, self._share_at, self.level = share, None, None

    def saved(self) -> tuple[Exact, Exact | None, Level | None, bool]:
        """Where it is, for `restore`."""
        return self._share, self._share_at, self.level, self.is_open

    def restore(self, saved: tuple[Exact, Exact | None, Level | None, bool]) -> None:
        self._share, self._share_at, self.level, self.is_open = saved

    def weigh(self, weight: int) -> None:
        """From now on, where it is stopped at a level it has come to weight * level."""
        if weight != self.weight:
            if self.level is not None:
                self.share = self.share
            most, below = self.main
            self.weight, self.scale = weight, (weight * below << SCALE_BITS) // most

    @property
    def kind(self) -> tuple[tuple[int, int], ...]:
        """The direction as the smallest integers."""
        common = gcd(*self.asked.values())
        return tuple([(r, amount // common) for r, amount in self.asked.items()])

    @property
    def direction(self) -> dict[int, Exact]:
        """The demand scaled to dominant share 1, by resource."""
        if self._direction is None:
            most, below = self.main
            capacity = self._capacity
            self._direction = {
                r: ONE if self.dominant >> r & 1 else Exact(amount * below, most * capacity[r])
                for r, amount in self.asked.items()
            }
        return self._direction


class Node:
    """A queue of the tree; the one above all roots has the id ""."""

    __slots__ = (
        "_demand",
        "_resources",
        "below",
        "children",
        "depth",
        "flows",
        "guaranteed",
        "id",
        "lending",
        "limit",
        "parent",
        "pressing",
        "weight",
    )

    def __init__(self, queue: str, weight: int, parent: Node | None, resources: int) -> None:
        self.id = queue
        self.weight = weight
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.children: Sequence[Node] = ()  # by name
        self.flows: Sequence[Flow] = ()  # its own: of a leaf
        self.below: Sequence[Flow] = ()  # of the whole subtree, depth first
        self.guaranteed: Mapping[int, int] = NOTHING  # > 0
        self.limit: Mapping[int, int] = NOTHING
        self.lending: Mapping[int, int] = NOTHING
        self.pressing: Mapping[int, Exact] = NO_LIMITS  # those that are below the demand, as shares
        self._demand: list[int] | None = None
        self._resources = resources  # how many there are

    @property
    def demand(self) -> list[int]:
        """Of all flows below, by resource."""
        if self._demand is None:
            self._demand = sums = [0] * self._resources
            for flow in self.below:
                for r, amount in flow.asked.items():
                    sums[r] += amount
        return self._demand

    @demand.setter
    def demand(self, demand: list[int] | None) -> None:
        """None: to be found out when somebody asks."""
        self._demand = demand

    def below_needing(self, resource: int) -> list[Flow]:
        return [flow for flow in self.below if flow.needs >> resource & 1]

    def path(self) -> Iterator[Node]:
        """From here up to the root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator[Node]:
        """Itself and what is below."""
        yield self
        for child in self.children:
            yield from child.subtree()


class Tree:
    """All of it. Parents come before their children in `nodes`, siblings by name."""

    def __init__(self, queues: QueueTree, demand: Mapping[str, FlowDemand], capacity: Amounts) -> None:
        self.resources = [resource for resource, amount in capacity if amount > 0]
        self.capacity = [amount for _, amount in capacity if amount > 0]
        self.index = {resource: r for r, resource in enumerate(self.resources)}
        self._witnesses: dict[tuple[int, int], Flow | None] = {}  # of `_covered`
        self.root = Node("", 1, None, len(self.resources))
        self.nodes = [self.root]
        self.by_id = {"": self.root}
        self.limited: list[Node] = []  # those with a limit
        self.guaranteed: list[Node] = []  # those with a guarantee
        siblings: dict[str, list[Node]] = {}  # by parent
        for queue in queues.subtree():
            siblings.setdefault(queue.spec.parent, []).append(self._add(queue, demand.get(queue.id, ())))
        for parent, children in reversed(siblings.items()):
            above = self.by_id[parent]
            above.children = children
            above.below = list(chain.from_iterable([child.below for child in children]))
        self.columns: Columns | None = Columns(self)
        self.columns.total()
        for node in self.limited:
            self._press(node)

    def change(self, leaf: Node, demand: FlowDemand) -> None:
        """A leaf asks for something else."""
        for flow in leaf.flows:
            flow.is_gone = True
        leaf.flows = self.flows_of(demand)
        for node in leaf.path():
            self._derive(node)
        if self.columns is not None and not self.columns.ask(leaf, self.root.demand):
            self.columns = None
        for (first, second), witness in self._witnesses.items():
            if witness is None:
                self._witnesses[first, second] = self._less_of(leaf.flows, first, second)

    def indexed(self, amounts: Amounts) -> dict[int, int]:
        """By resource index; without those that have no capacity."""
        return {self.index[resource]: amount for resource, amount in amounts if resource in self.index}

    def flows_of(self, demand: FlowDemand) -> list[Flow]:
        """The flows of a leaf that can get anything."""
        index, capacity = self.index, self.capacity
        flows = []
        for amounts in demand:
            try:
                asked = {index[resource]: amount for resource, amount in amounts if amount > 0}
            except KeyError:  # a resource that there is not
                continue
            if asked:
                flows.append(Flow(asked, capacity))
        return flows

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
        return self._less_of(node.below, first, second) is None

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
            self._witnesses[pair] = self._less_of(self.root.below, first, second)
        return self._witnesses[pair] is None

    def _less_of(self, flows: Sequence[Flow], first: int, second: int) -> Flow | None:
        """A flow that needs a smaller share of the first resource than of the second."""
        of_first, of_second = self.capacity[first], self.capacity[second]
        for flow in flows:
            amount = flow.asked.get(second)
            if amount is not None and flow.asked.get(first, 0) * of_second < amount * of_first:
                return flow
        return None

    def _add(self, queue: Queue, demand: FlowDemand) -> Node:
        spec = queue.spec
        node = Node(spec.id, spec.weight, self.by_id[spec.parent], len(self.resources))
        if spec.limit:
            node.limit = self.indexed(spec.limit)
        if spec.lending_limit:
            node.lending = self.indexed(spec.lending_limit)
        if spec.guaranteed:
            node.guaranteed = {r: amount for r, amount in self.indexed(spec.guaranteed).items() if amount > 0}
        if demand and not queue.children:
            node.below = node.flows = self.flows_of(demand)
        if node.limit:
            self.limited.append(node)
        if node.guaranteed:
            self.guaranteed.append(node)
        self.nodes.append(node)
        self.by_id[spec.id] = node
        return node

    def _derive(self, node: Node) -> None:
        """What follows from the flows and from what is right already below."""
        if node.children:
            node.below = list(chain.from_iterable([child.below for child in node.children]))
            node.demand = [sum(column) for column in zip(*[child.demand for child in node.children], strict=True)]
        else:
            node.below = node.flows
            node.demand = None
        if node.limit:
            self._press(node)

    def _press(self, node: Node) -> None:
        pressing = {r: Exact(a, self.capacity[r]) for r, a in node.limit.items() if node.demand[r] > a}
        node.pressing = self.essential(node, pressing)
