"""What queues have lent adds up: against the sums of its definition, over random trees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.core.lent import Loans
from muster.core.model import QueueSpec
from muster.core.promises import promised
from muster.core.queues import QueueTree

AMOUNTS = st.integers(0, 20)


def put(tree, number, parent, guaranteed, *, limit=0):
    own, most = ((("cpu", amount),) if amount else () for amount in (guaranteed, limit))
    tree.put(QueueSpec(f"q{number}", f"n{number:02}", parent, guaranteed=own, limit=most))
    return f"q{number}"


def use(tree, queue, amount):
    tree.charge(queue, (("cpu", amount),) if amount else ())


def mine(tree, queue):
    return dict(promised(tree, queue.id)).get("cpu", 0)


def used(queue):
    return queue.usage.get("cpu", 0)


def unused(tree, queue):
    return max(mine(tree, queue) - used(queue), 0)


def excess(tree, queues):
    return sum(max(used(queue) - mine(tree, queue), 0) for queue in queues)


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS, st.integers(0, 5)), min_size=1, max_size=7), st.integers(0, 80))
def test_siblings_lend_in_all_what_others_use_beyond_what_is_free_of_guarantees(queues, capacity):
    tree, kept = QueueTree(), {}
    for number, (guaranteed, amount, keeps) in enumerate(queues, 1):
        queue = put(tree, number, "", guaranteed)
        use(tree, queue, amount)
        kept[queue] = {"cpu": keeps}
    loans = Loans(tree, {"cpu": capacity}, lambda queue: kept[queue.id])
    lent = {queue.id: loans.of(queue).get("cpu", 0) for queue in tree.by_id.values()}
    may = {queue.id: max(unused(tree, queue) - kept[queue.id]["cpu"], 0) for queue in tree.by_id.values()}
    beyond = excess(tree, tree.by_id.values())
    free_of_guarantees = max(capacity - sum(guaranteed for guaranteed, _, _ in queues), 0)
    over_promised = max(sum(guaranteed for guaranteed, _, _ in queues) - capacity, 0)
    owed = min(max(beyond + over_promised - free_of_guarantees, 0), beyond)
    assert sum(lent.values()) == min(owed, sum(may.values()))
    whole = sum(may.values())
    for queue, amount in lent.items():
        assert abs(amount * whole - sum(lent.values()) * may[queue]) < max(whole, 1)  # in proportion, rounded


def trees():
    """(parent's place or -1, guaranteed, used if it is a leaf) for each queue."""
    return st.lists(st.tuples(st.integers(-1, 8), AMOUNTS, AMOUNTS, st.booleans()), min_size=1, max_size=9)


@given(trees(), st.integers(0, 120))
def test_at_every_level_no_more_is_lent_than_is_used_beyond_guarantees(shape, capacity):
    tree = QueueTree()
    for number, (parent, guaranteed, _, _) in enumerate(shape, 1):
        put(tree, number, f"q{parent + 1}" if 0 <= parent < number - 1 else "", guaranteed)
    for number, (_, _, amount, _) in enumerate(shape, 1):
        if not tree.by_id[f"q{number}"].children:
            use(tree, f"q{number}", amount)
    for number, (_, guaranteed, _, is_limited) in enumerate(shape, 1):
        queue = tree.by_id[f"q{number}"]
        if is_limited:
            least = max(used(queue), mine(tree, queue))
            put(tree, number, queue.spec.parent, guaranteed, limit=least)
    loans = Loans(tree, {"cpu": capacity}, lambda _queue: {})

    def lent(queue):
        return loans.of(queue).get("cpu", 0)

    roots = [tree.by_id[queue] for queue in tree.roots.values()]
    for above in (None, *tree.by_id.values()):
        level = [tree.by_id[queue] for queue in above.children.values()] if above else roots
        assert sum(map(lent, level)) <= excess(tree, level) + (lent(above) if above else 0)
        assert all(0 <= lent(queue) <= unused(tree, queue) for queue in level)
        if above and not above.spec.limit and not lent(above):
            free = max(capacity - sum(max(used(q), mine(tree, q)) for q in roots), 0)
            if above in roots and free + max(used(above), mine(tree, above)) >= sum(
                max(used(queue), mine(tree, queue)) for queue in level
            ):
                assert not any(map(lent, level))  # there is room beside all guarantees


def test_a_guarantee_is_lent_once_by_its_queue_and_once_by_the_one_above():
    tree = QueueTree()
    top, other = put(tree, 1, "", 10), put(tree, 2, "", 0)
    low = put(tree, 3, top, 4)
    use(tree, other, 15)
    loans = Loans(tree, {"cpu": 20}, lambda _queue: {})
    assert loans.of(tree.by_id[top]) == {"cpu": 5}
    assert loans.of(tree.by_id[low]) == {}  # the other 5 would be enough for it
    use(tree, other, 3)
    loans = Loans(tree, {"cpu": 20}, lambda _queue: {})
    assert loans.of(tree.by_id[top]) == {"cpu": 8}
    assert loans.of(tree.by_id[low]) == {"cpu": 2}


def test_below_a_limit_a_sibling_sits_on_a_guarantee_however_empty_the_cell():
    tree = QueueTree()
    top = put(tree, 1, "", 0, limit=10)
    low, beside = put(tree, 2, top, 6), put(tree, 3, top, 0)
    use(tree, beside, 7)
    loans = Loans(tree, {"cpu": 100}, lambda _queue: {})
    assert loans.of(tree.by_id[low]) == {"cpu": 3}
