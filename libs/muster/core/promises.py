"""What is guaranteed in a subtree (rule Q1): the queue's own, or what all below it are guaranteed, where that is more.

A limit must not be below it. Rules ask for it with every change of a queue, so each queue keeps what was found until
something changes in its subtree: a change costs its path to the root, not the whole tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from muster.core import resources
from muster.core.model import Amounts

if TYPE_CHECKING:
    from muster.core.queues import Queue, QueueTree


def promised(tree: QueueTree, queue: str) -> Amounts:
    """By id."""
    found = tree.by_id[queue]
    if found.promised is None:
        below = resources.total(promised(tree, child) for child in found.children.values())
        found.promised = resources.larger(found.spec.guaranteed, below)
    return found.promised


def overpromised(tree: QueueTree, capacity: Amounts) -> tuple[str, ...]:
    """For people: what is guaranteed in all beyond what there is. No fault (nodes come and go), but not everybody's
    guarantee is met when all of them are asked for: rule F2 scales them down."""
    has = dict(capacity)
    whole = resources.total(promised(tree, root) for root in tree.roots.values())
    return tuple(
        f"queues are guaranteed {resources.format_pair(resource, amount)} together, and there are "
        f"{resources.format_amount(resource, has.get(resource, 0))} now: when all ask for it, each gets its part"
        for resource, amount in whole
        if amount > has.get(resource, 0)
    )


def forget(chain: Iterable[Queue]) -> None:
    """Something has changed in the subtrees of these queues."""
    for queue in chain:
        queue.promised = None
