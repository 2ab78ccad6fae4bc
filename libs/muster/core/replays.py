"""Parts of a filling again, in exact numbers, when somebody asks more closely than `bounded_filling` can answer.

What happened inside a queue follows from what it began with and from when it was told that a resource is exhausted
above it. Those levels stay open as long as possible: two siblings that were stopped at the same level are compared
without knowing it (`exact.order`), by replaying only what is below them. Asked for the level itself, the group above
is replayed, in the end everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from muster.core import filling
from muster.core.exact import ZERO, Exact
from muster.core.filling import Levels, Limits, Used
from muster.core.flows import Node

if TYPE_CHECKING:
    from muster.core.bounded_record import Level

LOCAL: Final = 1 << 20
FROM_NOTHING: Final = (ZERO, True)


class Stop(NamedTuple):
    """A group is told that a resource is exhausted somewhere above."""

    resource: int
    level: Level | None  # of its siblings; None: nothing of it has been raised
    weight: int
    begin: Exact  # the share it began with


class Again:
    """How a filling began, and what came from above to whom; of one after the other."""

    def __init__(self, top: Node) -> None:
        self.stops: dict[str, list[Stop]] = {}  # of every queue, whenever they were told
        self._top = top

    def begin(self, limits: Limits, used: Used | None, resources: int) -> None:
        """A filling begins. `used`: what queues use; None: no flow has anything, and all are open."""
        self._limits = limits
        self._used = used or {}
        self._resources = resources
        flows = self._top.below if used is not None else ()
        self._began = flows, [flow.share for flow in flows], [flow.is_open for flow in flows]
        self._begin: dict[int, tuple[Exact, bool]] = {}  # the same by flow, once somebody asks
        self._replayed: dict[str, tuple[Levels, dict[int, Exact]]] = {}

    def settle(self) -> None:
        """Give every flow its exact share."""
        self.stops.clear()
        _, shares = self._replay(self._top)
        for flow in self._top.below:
            flow.share = shares[id(flow)]

    def depth(self, node: Node) -> int:
        """Of the levels of a queue as symbols: those of a part of the tree are found out without the rest."""
        return node.depth if self._top.parent is None else node.depth + LOCAL

    def level(self, node: Node, resource: int) -> Exact:
        """The level of a group when it was told to freeze what needs the resource, made of levels above it."""
        return self._replay(node)[0][node.id, resource]

    def whole_level(self, node: Node, resource: int) -> Exact:
        """The same, made of nothing but what there was in the beginning."""
        return self._replay(self._top)[0][node.id, resource]

    def _replay(self, node: Node) -> tuple[Levels, dict[int, Exact]]:
        if node.id not in self._replayed:
            if not self._begin:
                flows, shares, opens = self._began
                self._begin = dict(zip(map(id, flows), zip(shares, opens, strict=True), strict=True))
            now = [(flow, flow.saved()) for flow in node.below]
            for flow in node.below:
                flow.share, flow.is_open = self._begin.get(id(flow), FROM_NOTHING)
            limits = self._limits if node is self._top else node.pressing
            stops = [(stop.resource, _clock(stop)) for stop in self.stops.get(node.id, ())]
            levels = filling.raise_all(node, limits, self._used, self._resources, stops)
            self._replayed[node.id] = (levels, {id(flow): flow.share for flow in node.below})
            for flow, saved in now:
                flow.restore(saved)
        return self._replayed[node.id]


def _clock(stop: Stop) -> Exact:
    """How far a group was raised."""
    return ZERO if stop.level is None else Exact(stop.weight) * stop.level.exact() - stop.begin
