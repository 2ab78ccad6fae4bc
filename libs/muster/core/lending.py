"""What queues with a lending limit keep back of a guarantee that they do not ask for (rule F2).

    withheld(n, r) = max(sum of the children's, guaranteed - lending_limit - min(guaranteed, demand), 0)

the middle term only where a lending limit is set. Demand is what live jobs ask for at their maximum, capped by the
limits on the way up; of a queue that starts nothing, what it uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.core.queues import Queue, QueueTree, Usage


def withheld(tree: QueueTree, capacity: Mapping[str, int]) -> Usage:
    """By resource, of the whole cell; never so much that floors could not be met."""
    demand: dict[str, Usage] = {}
    floors: dict[str, Usage] = {}
    kept: dict[str, Usage] = {}
    for queue in reversed(list(tree.subtree())):  # children before parents
        children = queue.children.values()
        asked = demand[queue.id] = _demand(queue, demand)
        floor, keeps = _sum(floors, children), _sum(kept, children)
        lends = dict(queue.spec.lending_limit)
        for resource, own in queue.spec.guaranteed:
            wanted = min(own, asked.get(resource, 0))
            floor[resource] = max(floor.get(resource, 0), wanted)
            if resource in lends:
                keeps[resource] = max(keeps.get(resource, 0), own - lends[resource] - wanted)
        floors[queue.id], kept[queue.id] = floor, keeps
    floor, keeps = _sum(floors, tree.roots.values()), _sum(kept, tree.roots.values())
    return {r: max(min(amount, capacity.get(r, 0) - floor.get(r, 0)), 0) for r, amount in keeps.items()}


def _demand(queue: Queue, below: Mapping[str, Usage]) -> Usage:
    if queue.children:
        asked = _sum(below, queue.children.values())
    else:
        asked = queue.asked if queue.starts_jobs else dict(queue.usage)
    for resource, most in queue.spec.limit:
        if asked.get(resource, 0) > most:
            asked[resource] = most
    return asked


def _sum(parts: Mapping[str, Usage], queues: Iterable[str]) -> Usage:
    total: Usage = {}
    for queue in queues:
        for resource, amount in parts[queue].items():
            total[resource] = total.get(resource, 0) + amount
    return total
