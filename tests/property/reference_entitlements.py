"""Entitlements as rules F1-F3 say them, in plain fractions: to be compared with, not to be fast.

Everything is worked out anew after every event, from the definitions: levels, waiting, rates. Nothing is shared with
the core but the meaning of the words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

from muster.core.model import QueueSpec
from muster.core.queues import QueueTree


@dataclass(eq=False)
class Queue:
    """A queue; `flows` are the demands of a leaf, one for each set of resources."""

    name: str
    weight: int = 1
    guaranteed: dict = field(default_factory=dict)
    limit: dict = field(default_factory=dict)
    lending: dict = field(default_factory=dict)
    children: list = field(default_factory=list)
    flows: list = field(default_factory=list)

    def walk(self):
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(eq=False)
class Flow:
    demand: dict
    full: Fraction  # dominant share of the demand
    direction: dict  # shares at dominant share 1
    weight: int = 1
    at: Fraction = Fraction(0)


class Reference:
    """All of it for one tree. `exact` are the entitlements of leaves before rounding, by path."""

    def __init__(self, root: Queue, capacity: dict):
        self.root = root
        self.capacity = {r: Fraction(amount) for r, amount in capacity.items() if amount > 0}
        self.members = {}  # queue -> what shares its level: child queues, or flows of a leaf
        self.below = {}  # queue -> flows of the subtree
        for queue in reversed(list(root.walk())):
            self.members[queue] = list(queue.children) or [
                self._flow(demand) for demand in queue.flows if demand and set(demand) <= set(self.capacity)
            ]
            self.below[queue] = [f for m in self.members[queue] for f in self._flows(m)]
        self._floors()
        self._scale_floors()
        self._share_the_rest()
        self.exact = {path: self._use(self.below[queue]) for path, queue in self.paths()}
        self.whole = self._rounded()

    def paths(self):
        def walk(queue, path):
            yield path, queue
            for child in queue.children:
                yield from walk(child, f"{path}/{child.name}" if path else child.name)

        return list(walk(self.root, ""))

    def _flow(self, demand):
        shares = {r: amount / self.capacity[r] for r, amount in demand.items()}
        full = max(shares.values())
        return Flow(demand, full, {r: share / full for r, share in shares.items()})

    def _flows(self, member):
        return [member] if isinstance(member, Flow) else self.below[member]

    def _use(self, flows):
        """In amounts."""
        return {
            r: capacity * sum((f.at * f.direction.get(r, 0) for f in flows), Fraction(0))
            for r, capacity in self.capacity.items()
        }

    def _share(self, member):
        used = self._use(self._flows(member))
        return max((used[r] / self.capacity[r] for r in self.capacity), default=Fraction(0))

    # --- floors -----------------------------------------------------------------------------------------------------

    def _floors(self):
        for queue in reversed(list(self.root.walk())):
            named = {r: amount for r, amount in queue.guaranteed.items() if amount > 0}
            covered = [f for f in self.below[queue] if any(part == 1 and r in named for r, part in f.direction.items())]
            if covered:
                inside = [
                    (q.limit, self.below[q]) for q in self.root.walk() if set(self.below[q]) <= set(self.below[queue])
                ]
                self._fill(queue, covered, [*inside, (named, self.below[queue])])

    def _scale_floors(self):
        flows = self.below[self.root]
        floors = {f: f.at for f in flows}
        rising = {f for f in flows if f.at}
        bounds = [(self.capacity, flows), *((q.limit, self.below[q]) for q in self.root.walk())]
        for f in flows:
            f.at = Fraction(0)
        reached = Fraction(0)
        while rising and reached < 1:
            step = 1 - reached
            for limit, below in bounds:
                for r in set(limit) & set(self.capacity):
                    speed = sum(floors[f] * f.direction.get(r, 0) for f in below if f in rising) * self.capacity[r]
                    if speed:
                        step = min(step, (limit[r] - self._use(below)[r]) / speed)
            reached += step
            for f in rising:
                f.at += floors[f] * step
            for limit, below in bounds:
                used = self._use(below)
                rising -= {f for f in below for r in f.direction if r in limit and used[r] >= limit[r]}

    # --- filling ----------------------------------------------------------------------------------------------------

    def _share_the_rest(self):
        flows = self.below[self.root]
        used = self._use(flows)
        available = {
            r: capacity - min(self._withheld(self.root, r), capacity - used[r]) for r, capacity in self.capacity.items()
        }
        limits = [(q.limit, self.below[q]) for q in self.root.walk()]
        self._fill(self.root, flows, [(available, flows), *limits])

    def _demand(self, queue, r):
        if queue.children:
            demand = sum(self._demand(child, r) for child in queue.children)
        else:
            demand = sum(f.demand.get(r, 0) for f in self.below[queue])
        return min(demand, queue.limit[r]) if r in queue.limit else demand

    def _withheld(self, queue, r):
        kept = sum(self._withheld(child, r) for child in queue.children)
        if r in queue.guaranteed and r in queue.lending:
            unused = queue.guaranteed[r] - min(queue.guaranteed[r], self._demand(queue, r))
            kept = max(kept, unused - queue.lending[r])
        return max(kept, 0)

    def _fill(self, top, flows, bounds):
        unfrozen, levels = set(flows), {}
        while True:
            unfrozen -= {f for f in unfrozen if f.at >= f.full}
            for limit, below in bounds:
                used = self._use(below)
                unfrozen -= {f for f in below for r in f.direction if r in limit and used[r] >= limit[r]}
            if not unfrozen & set(self.below[top]):
                return
            rates, level_rates, until_awake = {}, {}, []
            self._rates(
                top, Fraction(1), self._directions(top, unfrozen, levels, {}), (rates, level_rates, until_awake)
            )
            step = min([*((f.full - f.at) / rate for f, rate in rates.items()), *until_awake])
            for limit, below in bounds:
                used = self._use(below)
                for r in set(limit) & set(self.capacity):
                    speed = sum(rates[f] * f.direction.get(r, 0) for f in below if f in rates) * self.capacity[r]
                    if speed:
                        step = min(step, (limit[r] - used[r]) / speed)
            for f, rate in rates.items():
                f.at += rate * step
            for key, rate in level_rates.items():
                levels[key] += rate * step

    def _directions(self, queue, unfrozen, levels, known):
        """Of a queue and those active below: (key of the level, scale, active and their weights, waits, direction)."""
        alive = [m for m in self.members[queue] if any(f in unfrozen for f in self._flows(m))]
        weighty = [m for m in alive if m.weight > 0]
        weights = {m: m.weight for m in weighty} or dict.fromkeys(alive, 1)
        key = (queue, bool(weighty))
        shares = {m: self._share(m) for m in weights}
        level = levels.setdefault(key, Fraction(0))
        if all(w * level < shares[m] for m, w in weights.items()):
            level = levels[key] = min(shares[m] / w for m, w in weights.items())
        active = [(m, w) for m, w in weights.items() if w * level >= shares[m]]
        sums = {}
        for member, weight in active:
            if isinstance(member, Flow):
                direction = member.direction
            else:
                direction = self._directions(member, unfrozen, levels, known)[member][-1]
            for r, part in direction.items():
                sums[r] = sums.get(r, Fraction(0)) + weight * part
        scale = 1 / max(sums.values())
        waits = [shares[m] / w - level for m, w in weights.items() if w * level < shares[m]]
        known[queue] = (key, scale, active, waits, {r: part * scale for r, part in sums.items()})
        return known

    def _rates(self, queue, rate, directions, out):
        rates, level_rates, until_awake = out
        key, scale, active, waits, _ = directions[queue]
        level_rates[key] = rate * scale
        until_awake += [wait / level_rates[key] for wait in waits]
        for member, weight in active:
            if isinstance(member, Flow):
                rates[member] = rate * scale * weight
            else:
                self._rates(member, rate * scale * weight, directions, out)

    # --- rounding ---------------------------------------------------------------------------------------------------

    def _rounded(self):
        whole = {"": {r: floor(amount) for r, amount in self.exact[""].items()}}
        for path, queue in self.paths():
            children = {child.name: f"{path}/{child.name}" if path else child.name for child in queue.children}
            for below in children.values():
                whole[below] = {}
            for r in self.capacity:
                parts = {name: self.exact[below][r] for name, below in children.items()}
                left = whole[path][r] - sum(map(floor, parts.values()))
                ranked = sorted(parts, key=lambda name: (floor(parts[name]) - parts[name], name))
                for position, name in enumerate(ranked):
                    whole[children[name]][r] = floor(parts[name]) + (position < left)
        return whole


def queue_tree(root: Queue):
    """The same as the core has it: (tree, demand by leaf id, id by path)."""
    tree, demand, ids = QueueTree(), {}, {"": ""}

    def add(queue, path, parent):
        queue_id = ids[path] = f"q{len(ids)}"
        settings = {
            "guaranteed": tuple(sorted(queue.guaranteed.items())),
            "limit": tuple(sorted(queue.limit.items())),
            "lending_limit": tuple(sorted(queue.lending.items())),
        }
        tree.put(QueueSpec(queue_id, queue.name, parent, weight=queue.weight, **settings))
        if queue.flows:
            demand[queue_id] = tuple(tuple(sorted(flow.items())) for flow in queue.flows)
        for child in queue.children:
            add(child, f"{path}/{child.name}", queue_id)

    for child in root.children:
        add(child, child.name, "")
    return tree, demand, ids
