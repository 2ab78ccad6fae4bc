"""Entitlements on random trees: equal to the reference, and what rules F1-F3 promise of them."""

import os
import random
from contextlib import contextmanager

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.property.reference_entitlements import Queue, Reference, queue_tree

from muster.core import bounded_groups, bounded_jump, bounded_rise, exact, rounding
from muster.core.entitlements import EntitlementEngine, entitlements

INSTANCES = int(os.environ.get("INSTANCES", "300"))
DEPTH_MAX = 5
QUEUES_MAX = 60
RESOURCES = ("cpu", "gpu", "memory", "pods")
many = settings(max_examples=INSTANCES, deadline=None)
seeds = st.integers(0, 1 << 32)  # hypothesis shrinks towards small trees: the size is drawn from the seed's low bits


class Maker:
    """Random trees. The larger the seed, the larger they may be."""

    def __init__(self, seed, resources=None):
        self.rng = random.Random(seed)
        self.resources = RESOURCES[: resources or self.rng.randint(1, 4)]
        self.size = self.rng.choice([4, 10, 1000])
        self.left = min(QUEUES_MAX, 2 + seed % QUEUES_MAX)
        self.equal_weights = self.rng.random() < 0.3
        self.kinds = [self.amounts(0.7, 1) for _ in range(3)] if self.rng.random() < 0.4 else []

    def capacity(self):
        rng = self.rng
        return {r: 0 if rng.random() < 0.06 else rng.randint(1, 3 * self.size) for r in self.resources}

    def amounts(self, probability, least=0):
        return {r: self.rng.randint(least, self.size) for r in self.resources if self.rng.random() < probability}

    def flow(self):
        if not self.kinds:
            return self.amounts(0.6, 1)
        times = self.rng.randint(1, 30)
        return {r: times * amount for r, amount in self.rng.choice(self.kinds).items()}

    def queue(self, name, depth, settings=True):
        rng = self.rng
        self.left -= 1
        queue = Queue(name, 1 if self.equal_weights else rng.choice([0, 1, 1, 2, 3, 5, rng.randint(1, 50)]))
        if settings and rng.random() < 0.35:
            queue.guaranteed = self.amounts(0.6)
            if rng.random() < 0.3:
                queue.limit = dict(queue.guaranteed)
        if settings and rng.random() < 0.25:
            queue.limit = self.amounts(0.6)
        if settings and rng.random() < 0.3:
            queue.lending = self.amounts(0.5)
        if depth < DEPTH_MAX and rng.random() < 0.5:
            queue.children = self.queues(depth + 1, settings)
        if not queue.children:
            asked = {tuple(sorted(flow)): flow for flow in (self.flow() for _ in range(rng.randint(0, 3)))}
            queue.flows = [flow for kind, flow in asked.items() if kind]
        return queue

    def queues(self, depth, settings=True):
        return [self.queue(f"n{number}", depth, settings) for number in range(self.rng.randint(1, 6)) if self.left > 0]

    def tree(self, settings=True):
        return Queue("", children=self.queues(1, settings))


def computed(root, capacity, engine=None):
    """Entitlements by path, without zeros."""
    tree, demand, ids = queue_tree(root)
    compute = engine.entitlements if engine else entitlements
    result = compute(tree, demand, tuple(sorted(capacity.items())))
    return {path: dict(result[queue]) for path, queue in ids.items() if path}


def expected(root, capacity):
    whole = Reference(root, capacity).whole
    return {path: {r: amount for r, amount in amounts.items() if amount} for path, amounts in whole.items() if path}


@many
@example(158619350)  # a queue stops at its own limit where it has been looked at, but not where the first limit is met
@given(seeds)
def test_they_are_what_the_rules_say(seed):  # rules F2, F3
    maker = Maker(seed)
    root, capacity = maker.tree(), maker.capacity()
    assert computed(root, capacity) == expected(root, capacity)


@many
@given(seeds)
def test_they_are_what_the_rules_say_where_all_jobs_are_alike(seed):
    maker = Maker(seed)
    maker.kinds = [maker.amounts(0.7, 1) or {RESOURCES[0]: 1}]
    root, capacity = maker.tree(), maker.capacity()
    assert computed(root, capacity) == expected(root, capacity)


@contextmanager
def few_digits(bits):
    with pytest.MonkeyPatch.context() as patch:
        for module in (exact, bounded_rise, bounded_groups, bounded_jump):
            patch.setattr(module, "PRECISION_BITS", bits)
        for module in (exact, bounded_rise):
            patch.setattr(module, "UNIT", 1 << bits)
        patch.setattr(exact.ONE, "middle", 1 << bits)
        yield


@pytest.mark.parametrize("bits", [12, 40])
@settings(max_examples=max(INSTANCES // 2, 50), deadline=None)
@given(seed=seeds)
def test_they_are_the_same_however_little_the_bounds_tell(bits, seed):
    """With few digits nearly everything is left open, and no bound may claim what is not so."""
    maker = Maker(seed)
    root, capacity = maker.tree(), maker.capacity()
    with few_digits(bits):
        coarse = computed(root, capacity)
    assert coarse == computed(root, capacity)


@many
@given(seeds)
def test_nothing_is_passed_and_parents_have_what_their_children_have(seed):
    maker = Maker(seed)
    root, capacity = maker.tree(), maker.capacity()
    result = computed(root, capacity)
    demand = {}
    for path, queue in reversed(paths(root)):
        below = [f"{path}/{child.name}" for child in queue.children]
        for r in maker.resources:
            mine = result[path].get(r, 0)
            if queue.children:
                demand[path, r] = sum(demand[child, r] for child in below)
                assert mine == sum(result[child].get(r, 0) for child in below)
            else:
                asked = [flow for flow in queue.flows if all(capacity[needed] for needed in flow)]
                demand[path, r] = sum(flow.get(r, 0) for flow in asked)
            demand[path, r] = min(demand[path, r], queue.limit.get(r, demand[path, r]))
            assert 0 <= mine <= demand[path, r]
    for r in maker.resources:
        assert sum(result[child.name].get(r, 0) for child in root.children) <= capacity[r]


def paths(root):
    def walk(queue, path):
        yield path, queue
        for child in queue.children:
            yield from walk(child, f"{path}/{child.name}")

    return [pair for child in root.children for pair in walk(child, child.name)]


@many
@given(seeds)
def test_all_of_one_resource_is_given_away_as_long_as_somebody_may_have_it(seed):
    maker = Maker(seed, resources=1)
    root, capacity = maker.tree(settings=False), maker.capacity()
    wanted = sum(flow.get("cpu", 0) for _, queue in paths(root) for flow in queue.flows)
    result = computed(root, capacity)
    assert sum(result[child.name].get("cpu", 0) for child in root.children) == min(wanted, capacity["cpu"])


@many
@example(1164)  # ties between levels that had been found out in between
@given(seeds)
def test_the_order_in_which_queues_came_does_not_matter(seed):
    maker = Maker(seed)
    root, capacity = maker.tree(), maker.capacity()
    before = computed(root, capacity)
    for _, queue in [("", root), *paths(root)]:
        maker.rng.shuffle(queue.children)
        maker.rng.shuffle(queue.flows)
    assert computed(root, capacity) == before


@many
@given(seeds)
def test_of_one_resource_more_weight_never_gives_less(seed):
    maker = Maker(seed, resources=1)
    root, capacity = maker.tree(), maker.capacity()
    all_paths = paths(root)
    if all_paths:
        path, queue = maker.rng.choice(all_paths)
        before = computed(root, capacity)[path].get("cpu", 0)
        queue.weight += maker.rng.randint(1, 5)
        # Exactly it is monotone; one unit may go elsewhere by rounding.
        assert computed(root, capacity)[path].get("cpu", 0) >= before - 1


@many
@given(seeds)
def test_of_one_resource_a_higher_guarantee_never_gives_less(seed):
    maker = Maker(seed, resources=1)
    root, capacity = maker.tree(), maker.capacity()
    for _, queue in paths(root):
        queue.lending = {}
    leaves = [(path, queue) for path, queue in paths(root) if not queue.children]
    if leaves:
        path, queue = maker.rng.choice(leaves)
        before = computed(root, capacity)[path].get("cpu", 0)
        queue.guaranteed["cpu"] = queue.guaranteed.get("cpu", 0) + maker.rng.randint(1, maker.size)
        assert computed(root, capacity)[path].get("cpu", 0) >= before - 1


@many
@given(seeds)
def test_guarantees_that_fit_are_kept(seed):
    maker = Maker(seed, resources=1)
    root, capacity = maker.tree(settings=False), maker.capacity()
    leaves = [(path, queue) for path, queue in paths(root) if not queue.children]
    left = capacity["cpu"]
    for _, queue in leaves:
        amount = maker.rng.randint(0, left)
        left -= amount
        queue.guaranteed = {"cpu": amount}
    result = computed(root, capacity)
    for path, queue in leaves:
        demand = sum(flow.get("cpu", 0) for flow in queue.flows) if capacity["cpu"] else 0
        assert result[path].get("cpu", 0) >= min(queue.guaranteed["cpu"], demand) - 1


@contextmanager
def picked_queues():
    """As in a large tree: only of some queues of each depth it is worked out again what their children get."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "FEW", 0)
        yield


@many
@given(seeds)
@example(31535)  # a flow that stops again at a level at which it has stopped before
def test_computing_again_after_changes_is_computing_anew(seed):
    maker = Maker(seed)
    root, capacity = maker.tree(), maker.capacity()
    engine = EntitlementEngine()
    leaves = [queue for _, queue in paths(root) if not queue.children]
    for _ in range(6):
        with picked_queues():
            again = computed(root, capacity, engine)
        assert again == computed(root, capacity)
        match maker.rng.randint(0, 8):
            case 0:
                capacity = maker.capacity()
            case 1 if leaves:
                maker.rng.choice(leaves).weight = maker.rng.randint(0, 3)
            case 2 | 3 | 4 if leaves:
                asked = [flow for flow in (maker.flow() for _ in range(maker.rng.randint(0, 3))) if flow]
                maker.rng.choice(leaves).flows = list({tuple(sorted(flow)): flow for flow in asked}.values())
            case _ if leaves:
                queue, factor = maker.rng.choice(leaves), maker.rng.randint(1, 3)
                queue.flows = [{r: factor * amount for r, amount in flow.items()} for flow in queue.flows]


def without_settings(maker, size):
    """A tree in which only the capacity limits anybody."""
    maker.left = size
    root = maker.tree(settings=False)
    capacity = maker.capacity()
    for r in capacity:
        wanted = sum(flow.get(r, 0) for _, queue in paths(root) for flow in queue.flows)
        capacity[r] = max(wanted * maker.rng.randint(1, 8) // 8, 1)
    return root, capacity


def change_something(maker, leaves):
    queue = maker.rng.choice(leaves)
    match maker.rng.randint(0, 5):
        case 0:
            queue.flows = [flow for flow in [maker.flow()] if flow]
        case 1:
            queue.flows = [{r: 3 * amount for r, amount in flow.items()} for flow in queue.flows]
        case _:
            queue.flows = [{r: amount + maker.rng.randint(0, 2) for r, amount in flow.items()} for flow in queue.flows]


@pytest.mark.parametrize("bits", [12, 40, 192])
@settings(max_examples=max(INSTANCES // 6, 25), deadline=None)
@given(seed=seeds)
def test_small_changes_of_a_scarce_cell_are_followed_exactly(bits, seed):
    """Nothing has a guarantee here, so what happened in queues that have not changed is used again."""
    maker = Maker(seed)
    root, capacity = without_settings(maker, 80 if bits > 40 else 20)  # with few digits all is done the slow way
    engine = EntitlementEngine()
    leaves = [queue for _, queue in paths(root) if not queue.children]
    for _ in range(5):
        with few_digits(bits), picked_queues():
            again = computed(root, capacity, engine)
        assert again == computed(root, capacity)
        change_something(maker, leaves)


@many
@given(seeds)
def test_changes_that_move_no_level_are_followed_exactly(seed):
    """One resource decides everything: what leaves ask for of another one moves only what queues have of that one."""
    maker = Maker(seed)
    rng, root = maker.rng, maker.tree(settings=False)
    leaves = [queue for _, queue in paths(root) if not queue.children]
    for leaf in leaves:
        leaf.flows = [{"memory": rng.randint(1, 12) * 1000, "cpu": rng.randint(1, 40)} for _ in leaf.flows[:1]]
    wanted = sum(flow["memory"] for leaf in leaves for flow in leaf.flows)
    capacity = {"memory": max(wanted * rng.randint(1, 8) // 8, 1), "cpu": 1000 * wanted + 1}
    engine = EntitlementEngine()
    for _ in range(6):
        with picked_queues():
            again = computed(root, capacity, engine)
        assert again == computed(root, capacity)
        if leaves:
            leaf = rng.choice(leaves)
            leaf.flows = [{**flow, "cpu": rng.randint(1, 40)} for flow in leaf.flows]


@many
@given(seeds)
def test_amounts_of_any_size(seed):
    maker = Maker(seed)
    root, capacity = maker.tree(), maker.capacity()
    before = computed(root, capacity)
    factor = 1 << maker.rng.choice([30, 50, 60, 90])
    for _, queue in paths(root):
        for amounts in (queue.guaranteed, queue.limit, queue.lending, *queue.flows):
            amounts.update({r: factor * amount for r, amount in amounts.items()})
    larger = {r: factor * amount for r, amount in capacity.items()}
    assert computed(root, larger) == expected(root, larger)
    # What is divided more finely is divided alike.
    for path, amounts in computed(root, larger).items():
        for r in maker.resources:
            assert abs(amounts.get(r, 0) // factor - before[path].get(r, 0)) <= len(before)
