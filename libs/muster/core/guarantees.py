"""What queues get before anything is shared, and what they keep back unused (rule F2: floors and withheld).

Bottom-up, each queue with a guarantee raises the flows its guarantee covers, from where the guarantees below it have
left them. A flow is covered when any of its dominant resources is guaranteed. If what comes out does not fit into the
capacity or a limit (nodes were lost), all flows are raised again from nothing in proportion to it, and those whose
capacity or limit is met stop.

Inside a queue count the limits of queues that have no flows elsewhere: its own, those below it, and those above it as
long as everything they limit is inside. So a queue put between another and its only child changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.core.bounded_filling import fill, stop
from muster.core.exact import ONE, ZERO, Exact
from muster.core.filling import Limits, Used, total
from muster.core.flow_tree import Tree
from muster.core.flows import Flow, Node

Floors = dict[str, list[Exact]]  # by id of a queue with a guarantee: the shares of the flows below it


def raise_to_floors(tree: Tree, known: Floors) -> None:
    """Set the share of every flow to its floor. `known` are the floors of queues below which nothing has changed.

    They may not `fit`.
    """
    for flow in tree.root.below:
        flow.share, flow.is_open = ZERO, False
    if tree.guaranteed:
        for node in reversed(tree.nodes):  # children first
            if node.guaranteed and node.below:
                _raise_to_floor(tree, node, known)


def withheld(tree: Tree) -> list[int]:
    """What is neither lent nor borrowed, by resource."""
    nothing = [0] * len(tree.resources)
    if not any(node.lending for node in tree.guaranteed):
        return nothing
    kept: dict[str, list[int]] = {}
    asked: dict[str, list[int]] = {}  # demand, capped by the limits on the way up
    for node in reversed(tree.nodes):
        sums, capped = list(nothing), list(node.demand)
        if node.children:
            sums = [sum(column) for column in zip(*(kept[child.id] for child in node.children), strict=True)]
            capped = [sum(column) for column in zip(*(asked[child.id] for child in node.children), strict=True)]
        for r, limit in node.limit.items():
            capped[r] = min(capped[r], limit)
        for r, guaranteed in node.guaranteed.items():
            if r in node.lending:
                sums[r] = max(sums[r], guaranteed - node.lending[r] - min(guaranteed, capped[r]))
        kept[node.id], asked[node.id] = sums, capped
    return kept[tree.root.id]


def _raise_to_floor(tree: Tree, node: Node, known: Floors) -> None:
    shares = known.get(node.id)
    if shares is not None:
        for flow, share in zip(node.below, shares, strict=True):
            flow.share = share
        return
    named = sum(1 << r for r in node.guaranteed)
    covered = [flow for flow in node.below if flow.dominant & named]
    if covered:
        limits = _limits_inside(tree, node)
        if node.below is node.flows and len(node.flows) == 1:
            covered[0].share = stop(covered[0], limits)
        else:
            for flow in covered:
                flow.is_open = True
            fill(node, limits, tree.capacity)
            for flow in covered:
                flow.is_open = False
    known[node.id] = [flow.share for flow in node.below]


def _limits_inside(tree: Tree, node: Node) -> dict[int, Exact]:
    """Up to where the flows of a queue are raised by its guarantee."""
    limits = dict(node.pressing)
    for r, amount in node.guaranteed.items():
        if amount < node.demand[r]:
            share = Exact(amount, tree.capacity[r])
            limits[r] = min(limits.get(r, share), share)
    for above in node.path():
        if len(above.below) > len(node.below):
            break
        for r, limit in above.pressing.items():
            limits[r] = min(limits.get(r, limit), limit)
    return limits


def fit(tree: Tree, used: Used) -> bool:
    """Scale the floors down where they do not fit: where queues use too much. Returns whether that was so."""
    exceeded: list[tuple[Sequence[Flow], int, Exact]] = []
    bounds: list[tuple[Node, Limits]] = [(tree.root, dict.fromkeys(range(len(tree.resources)), ONE))]
    bounds += [(node, node.pressing) for node in tree.limited if node.pressing]
    for node, limits in bounds:
        amounts = used.get(node.id)
        if amounts:
            raised = [flow for flow in node.below if flow.share is not ZERO]
            exceeded += [(raised, r, limit) for r, limit in limits.items() if limit < amounts[r]]
    if exceeded:
        _scale([flow for flow in tree.root.below if flow.share is not ZERO], exceeded)
    return bool(exceeded)


def _scale(flows: Sequence[Flow], exceeded: Sequence[tuple[Sequence[Flow], int, Exact]]) -> None:
    """Raise all flows from nothing, in proportion to their floors, until what they exceed is met."""
    floors = {id(flow): flow.share for flow in flows}
    rising = {id(flow): flow for flow in flows}
    left = list(exceeded)
    while left:
        clocks = []  # the part of the floors at which each is met
        for below, r, limit in left:
            needing = [flow for flow in below if flow.needs >> r & 1]
            fixed = total(flow.share * flow.direction[r] for flow in needing if id(flow) not in rising)
            speed = total(floors[id(flow)] * flow.direction[r] for flow in needing if id(flow) in rising)
            if speed > ZERO:
                clocks.append(((limit - fixed) / speed, needing))
        reached = min((clock for clock, _ in clocks), default=ONE)
        if not reached < ONE:
            break
        for clock, needing in clocks:
            if clock == reached:
                for flow in needing:
                    if rising.pop(id(flow), None) is not None:
                        flow.share = floors[id(flow)] * reached
        left = [(below, r, limit) for below, r, limit in left if any(id(flow) in rising for flow in below)]
