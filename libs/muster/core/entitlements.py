"""Who deserves how much: weighted shares of every resource, level by level (rules F1, F2 as far as they are built).

For one resource at a time, the capacity is given to the root queues in proportion to their weights, nobody gets more
than it asks for (demand, capped by its limit), and what one leaves is shared by the others; a queue's entitlement is
given on to its children in the same way. Queues of weight 0 get what nobody else wants. Guarantees, lending limits and
dominant shares come with the full rule F2.

Integers all the way: what does not divide goes to the largest remainders, then by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muster.core.model import Amounts
from muster.core.queues import Queue, QueueTree


class Claim(NamedTuple):
    """One of those who share: at most `most` of it."""

    name: str
    weight: int
    most: int


def entitlements(tree: QueueTree, demand: Mapping[str, Amounts], capacity: Amounts) -> dict[str, Amounts]:
    """Entitlement of every queue by id. `demand` is by leaf queue id (rule F1), `capacity` of the whole cell."""
    asked: dict[str, dict[str, int]] = {}
    order = list(tree.subtree())
    for queue in reversed(order):  # children before parents
        asked[queue.id] = _asked(queue, demand, asked)
    given: dict[str, dict[str, int]] = {queue.id: {} for queue in order}
    for resource, total in capacity:
        shared = _share(tree, "", resource, total, asked)
        for queue in order:
            got = shared.get(queue.id, 0)
            if got:
                given[queue.id][resource] = got
                shared |= _share(tree, queue.id, resource, got, asked)
    return {queue: tuple(sorted(amounts.items())) for queue, amounts in given.items()}


def _asked(queue: Queue, demand: Mapping[str, Amounts], asked: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Demand of a subtree, capped by the limits in it."""
    sums = dict(demand.get(queue.id, ())) if not queue.children else {}
    for child in queue.children.values():
        for resource, amount in asked[child].items():
            sums[resource] = sums.get(resource, 0) + amount
    for resource, most in queue.spec.limit:
        if resource in sums:
            sums[resource] = min(sums[resource], most)
    return sums


def _share(
    tree: QueueTree, parent: str, resource: str, total: int, asked: Mapping[str, Mapping[str, int]]
) -> dict[str, int]:
    """What the children of a queue ("": the roots) get of `total`, by id."""
    children = tree.children_of(parent)
    claims = [
        Claim(name, tree.get(children[name]).spec.weight, asked[children[name]].get(resource, 0))
        for name in sorted(children)
    ]
    return {children[name]: amount for name, amount in divide(total, claims).items()}


def divide(total: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Weighted max-min of `total`; those with weight 0 share equally what is left."""
    shares = dict.fromkeys((claim.name for claim in claims), 0)
    left = _fill(total, [claim for claim in claims if claim.weight > 0], shares)
    _fill(left, [Claim(claim.name, 1, claim.most) for claim in claims if claim.weight == 0], shares)
    return shares


def _fill(total: int, claims: Sequence[Claim], shares: dict[str, int]) -> int:
    """Give up to `total` to the claims; returns what nobody wants."""
    open_claims = [claim for claim in claims if claim.most > 0]
    while open_claims:
        weights = sum(claim.weight for claim in open_claims)
        full = [claim for claim in open_claims if claim.most * weights <= total * claim.weight]
        if not full:
            break
        for claim in full:  # who is content leaves, the others share the rest
            shares[claim.name] = claim.most
        total -= sum(claim.most for claim in full)
        open_claims = [claim for claim in open_claims if claim not in full]
    if not open_claims:
        return total
    weights = sum(claim.weight for claim in open_claims)
    parts = [(total * claim.weight % weights, claim) for claim in open_claims]
    for _, claim in parts:
        shares[claim.name] = total * claim.weight // weights
    rest = total - sum(shares[claim.name] for claim in open_claims)
    for _, claim in sorted(parts, key=lambda part: (-part[0], part[1].name))[:rest]:
        shares[claim.name] += 1
    return 0
