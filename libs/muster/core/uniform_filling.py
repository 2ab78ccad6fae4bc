"""FILL of rule F2 where all jobs are alike: every flow asks for the same resources in the same proportions.

Then there is one thing to share, and each queue's part is a formula, `clamp(level * weight, floor, cap)`, with the
level at which the parts of siblings add up to what their parent has. Caps come from below (demand and limits), amounts
from above; everything is an integer or a fraction with a small denominator, so it is worked out exactly at once.
Amounts here are of one resource, the measure; the others follow in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from muster.core.bounded_record import Filled
from muster.core.exact import ZERO, Exact
from muster.core.filling import Limits
from muster.core.flow_tree import Tree
from muster.core.flows import Flow, Node

Amount = Fraction | int  # an integer as long as it is one


class Claim(NamedTuple):
    """What one of the siblings has already, and can have at most."""

    weight: int
    floor: Amount
    cap: Amount


def are_alike(flows: Sequence[Flow]) -> bool:
    """Whether all flows have one direction."""
    if not flows:
        return False
    first = flows[0]
    asked, resources = first.amounts, first.resources
    amount = asked[resources[0]]
    for flow in flows:
        if flow.needs != first.needs:
            return False
        mine = flow.amounts[resources[0]]
        for r in resources:
            if flow.amounts[r] * amount != asked[r] * mine:
                return False
    return True


def fill(tree: Tree, limits: Limits) -> Filled:
    """FILL of the root, for flows that are alike and all open."""
    return _Filling(tree).fill(limits)


class _Filling:
    def __init__(self, tree: Tree) -> None:
        first = tree.root.below[0]
        self._root = tree.root
        self._asked = {r: first.amounts[r] for r in first.resources}
        self._main = next(r for r in first.resources if first.dominant >> r & 1)  # the measure
        self._capacity = tree.capacity
        self._claims: dict[str, Claim] = {}
        self._filled: Filled = {}

    def fill(self, limits: Limits) -> Filled:
        self._give(self._root, self._claim(self._root, limits).cap)
        return self._filled

    def _claim(self, node: Node, limits: Limits) -> Claim:
        claims = [self._flow_claim(flow) for flow in node.flows]
        claims += [self._claim(child, child.pressing) for child in node.children if child.below]
        floor: Amount = sum(claim.floor for claim in claims)
        cap: Amount = sum(claim.cap for claim in claims)
        for r, limit in limits.items():
            if r in self._asked:
                most = limit.value() * self._capacity[r] * self._asked[self._main] / self._asked[r]
                cap = min(cap, most if most.denominator > 1 else most.numerator)
        claim = self._claims[node.id] = Claim(node.weight, floor, max(floor, cap))
        return claim

    def _flow_claim(self, flow: Flow) -> Claim:
        floor: Amount = 0
        if flow.share is not ZERO:
            floor = flow.share.value() * self._capacity[self._main]
        return Claim(1, floor, flow.amounts[self._main])

    def _give(self, node: Node, amount: Amount) -> None:
        """Share out what a queue has."""
        if node.flows:
            parts = divided(amount, [self._flow_claim(flow) for flow in node.flows])
            for flow, part in zip(node.flows, parts, strict=True):
                flow.share = self._share(flow, part)
            return
        below = amount.denominator * self._asked[self._main]
        self._filled[node.id] = {
            r: Exact(amount.numerator * asked, below * self._capacity[r]) for r, asked in self._asked.items()
        }
        children = [child for child in node.children if child.below]
        parts = divided(amount, [self._claims[child.id] for child in children])
        for child, part in zip(children, parts, strict=True):
            self._give(child, part)

    def _share(self, flow: Flow, part: Amount) -> Exact:
        if not part:
            return ZERO
        if part == flow.amounts[self._main]:
            return flow.full
        return Exact(part.numerator, part.denominator * self._capacity[self._main])


def divided(amount: Amount, claims: Sequence[Claim]) -> list[Amount]:
    """Weighted max-min of an amount between the sums of floors and of caps; weight 0 gets what is left."""
    if len(claims) == 1:
        return [amount]
    weighty = [number for number, claim in enumerate(claims) if claim.weight]
    parts = [claim.floor for claim in claims]
    left = amount - sum(claim.floor for claim in claims if not claim.weight)
    level = _level(left, [claims[number] for number in weighty])
    for number in weighty:
        parts[number] = claims[number].cap if level is None else _part(level, claims[number])
    if level is None and len(weighty) < len(claims):
        rest = [number for number, claim in enumerate(claims) if not claim.weight]
        left = amount - sum(parts[number] for number in weighty)
        equal = [claims[number]._replace(weight=1) for number in rest]
        for number, part in zip(rest, divided(left, equal), strict=True):
            parts[number] = part
    return parts


def _part(level: Fraction, claim: Claim) -> Amount:
    """`clamp(level * weight, floor, cap)`."""
    weight, floor, cap = claim
    above, below = level.numerator * weight, level.denominator
    if above * cap.denominator >= cap.numerator * below:
        return cap
    return floor if above * floor.denominator <= floor.numerator * below else Fraction(above, below)


def _level(amount: Amount, claims: Sequence[Claim]) -> Fraction | None:
    """Where the parts add up to the amount; None when all have their caps."""
    if amount >= sum(claim.cap for claim in claims):
        return None
    # Levels are counted in parts of `common`, and all in parts of `unit`, so that everything is an integer.
    common = lcm(*[claim.weight for claim in claims])
    bounds = [(claim.weight, claim.floor.as_integer_ratio(), claim.cap.as_integer_ratio()) for claim in claims]
    unit = lcm(amount.denominator, *[ratio[1] for bound in bounds for ratio in bound[1:]])
    turns: list[tuple[int, int]] = []
    wanted = amount.numerator * (unit // amount.denominator) * common
    for weight, floor, cap in bounds:
        each = common // weight
        begin = floor[0] * (unit // floor[1]) * each
        turns.append((begin, weight))  # from here on it rises
        turns.append((cap[0] * (unit // cap[1]) * each, -weight))  # and from here on not
        wanted -= begin * weight
    turns.sort()
    speed, at = 0, turns[0][0]
    for turn, change in turns:
        more = (turn - at) * speed
        if more >= wanted and speed:
            break
        wanted -= more
        speed, at = speed + change, turn
    return Fraction(at * speed + wanted, speed * common * unit) if speed else Fraction(at, common * unit)
