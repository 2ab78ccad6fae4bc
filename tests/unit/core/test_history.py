"""Past usage that fades: rule F4 in integers, and what it does to the order (F5) and to nothing else."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.conftest import World
from tests.unit.core.test_turns import entitle, started

from muster.core import snapshot
from muster.core import transitions as tr
from muster.core.draft import Draft
from muster.core.history import FRACTION_BITS, History
from muster.core.room import Room
from muster.core.turns import INFINITE, Head, Turns, share, share_ahead
from muster.wire import codec

UNIT = 1 << FRACTION_BITS
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
RUNNING, SUCCEEDED = 2, 3

AMOUNTS = st.integers(0, 1 << 50)


class Naive:
    """The same arithmetic, one millisecond after the other."""

    def __init__(self, half_life_ms: int, now_ms: int, total: int) -> None:
        self.half_life_ms, self.now_ms, self.total = half_life_ms, now_ms, total

    def tick(self, amount: int) -> None:
        v = self.half_life_ms + self.now_ms % self.half_life_ms
        self.total += amount * ((v + 1) ** 2 - v**2)
        self.now_ms += 1
        if self.now_ms % self.half_life_ms == 0:
            self.total //= 2

    @property
    def decayed(self) -> int:
        v = self.half_life_ms + self.now_ms % self.half_life_ms
        return self.total * UNIT // (2 * self.half_life_ms**2 + v**2)


@given(
    half_life_ms=st.integers(1, 40),
    start_ms=st.integers(0, 100),
    first=AMOUNTS,
    steps=st.lists(st.tuples(AMOUNTS, st.integers(0, 150)), max_size=6),
)
def test_what_fades_at_once_is_what_fades_step_by_step(half_life_ms, start_ms, first, steps):
    history = History.beginning(half_life_ms, {"cpu": first}, start_ms)
    naive = Naive(half_life_ms, start_ms, history.sums.get("cpu", 0))
    for amount, length_ms in steps:
        usage = {"cpu": amount} if amount else {}
        for _ in range(length_ms):
            naive.tick(amount)
        told = history.decayed(usage, naive.now_ms)
        history.count(usage, naive.now_ms)
        assert told.get("cpu", 0) == naive.decayed == history.decayed({}, naive.now_ms).get("cpu", 0)
        if "cpu" in history.sums:
            assert history.sums["cpu"] == naive.total
        else:  # forgotten: less than the smallest fraction
            assert naive.decayed == 0
            naive.total = 0


@given(st.integers(1, 366 * 24 * HOUR_MS), AMOUNTS, st.integers(0, 1 << 42), st.integers(0, 1 << 50))
def test_who_always_uses_the_same_has_used_exactly_that(half_life_ms, amount, start_ms, later_ms):
    history = History.beginning(half_life_ms, {"cpu": amount}, start_ms)
    assert history.decayed({"cpu": amount}, start_ms + later_ms) == {"cpu": amount * UNIT}


@pytest.mark.parametrize("half_lives", [1, 2, 5, 20])
def test_after_every_half_life_half_is_left(half_lives):
    history = History.beginning(HOUR_MS, {"cpu": 1 << 30}, 7 * HOUR_MS + 123)
    left = history.decayed({}, (7 + half_lives) * HOUR_MS + 123)["cpu"]
    assert abs(left - ((1 << 30) * UNIT >> half_lives)) <= 1


def test_between_two_half_lives_it_only_falls():
    history = History.beginning(HOUR_MS, {"cpu": 1000}, 0)
    seen = [history.decayed({}, minute * MINUTE_MS)["cpu"] for minute in range(0, 600, 7)]
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == len(seen)


@given(st.integers(1000, 10 * HOUR_MS), st.integers(1000, 10 * HOUR_MS), AMOUNTS, AMOUNTS, st.integers(0, 1 << 42))
def test_another_half_life_changes_the_pace_and_not_what_was_used(before, after, first, then, now_ms):
    history = History.beginning(before, {"cpu": first}, now_ms)
    history.count({"cpu": then}, now_ms + 5000)
    tuned = history.tuned(after)
    kept, left = history.decayed({}, now_ms + 5000), tuned.decayed({}, now_ms + 5000)
    assert abs(kept.get("cpu", 0) - left.get("cpu", 0)) <= 1


def test_what_has_faded_is_forgotten():
    """So a history names what was used lately, whatever the cell has seen in its life."""
    history = History.beginning(1000, {"cpu": 64_000, "licence": 1}, 0)
    history.count({}, 11 * 1000)
    assert set(history.sums) == {"cpu"}
    history.count({}, 60 * 1000)
    assert history.sums == {}


NUMBERS = st.tuples(AMOUNTS, AMOUNTS, AMOUNTS, st.integers(1, 1 << 50))


@given(NUMBERS, NUMBERS)
def test_the_order_is_that_of_the_exact_fractions(a, b):
    def both(numbers):
        used, past, need, most = numbers
        exact = Fraction(past + (used + need) * UNIT, 2 * UNIT * most)
        return share_ahead({"cpu": most}, {"cpu": used}, {"cpu": past}, {"cpu": need}), exact

    (mine, exact), (other, exact_other) = both(a), both(b)
    if abs(exact - exact_other) > Fraction(1, 1 << 120):
        assert (mine < other) == (exact < exact_other)
    if exact == exact_other:
        assert mine == other


def test_without_a_past_that_differs_from_now_the_share_is_the_plain_one():
    assert share_ahead({"cpu": 7}, {"cpu": 3}, {"cpu": 4 * UNIT}, {"cpu": 1}) == share(
        {"cpu": 7}, {"cpu": 3}, {"cpu": 1}
    )
    assert share_ahead({"cpu": 7}, {}, {}, {"gpu": 1}) == INFINITE


# --- in a cell ------------------------------------------------------------------------------------------------------


def submit(world, queue, count, name):
    """Jobs of one core each; time passes between them."""
    for n in range(count):
        world.cell.now_ms += 1
        world.submit(f"{name}-{n}", queue=queue)


def two(world, half_life_ms=HOUR_MS):
    """A tree with two leaves, of which `t/a` had the whole cell for an hour and has ended now."""
    world.queue("t", half_life_ms=half_life_ms)
    for leaf in ("t/a", "t/b"):
        world.queue(leaf)
    world.nodes(1, cpu=4000)
    entitle(world, t=4000, t_a=2000, t_b=2000)
    submit(world, "t/a", 4, "old")
    for n in range(4):
        world.pods(f"old-{n}", RUNNING)
    world.cell.wait(HOUR_MS)
    for n in range(4):
        world.pods(f"old-{n}", SUCCEEDED)


def again(world):
    """Both ask for more than there is, a first; and the cell is theirs in one moment."""
    world.nodes(1, ready=False)
    submit(world, "t/a", 4, "a")
    submit(world, "t/b", 4, "b")
    return started(world.nodes(1, cpu=4000), world)


def test_who_had_much_comes_after_who_had_little(world):
    two(world)
    assert again(world) == ["t/b", "t/b", "t/a", "t/a"]  # within E; after 2 of its own b is no longer entitled


def test_without_a_half_life_nobody_remembers(world):
    two(world, half_life_ms=0)
    assert again(world) == ["t/a", "t/b", "t/a", "t/b"]
    assert all(queue.history is None for queue in world.state.queues.subtree())


def test_what_is_long_past_matters_no_more(world):
    two(world)
    world.cell.wait(100 * HOUR_MS)
    assert again(world) == ["t/a", "t/b", "t/a", "t/b"]


def test_a_start_counts_at_once(world):
    """Equal pasts: nobody gets it all just because the past does not move in a moment."""
    world.queue("t", half_life_ms=HOUR_MS)
    world.queue("t/a")
    world.queue("t/b")
    entitle(world, t=4000, t_a=4000, t_b=4000)
    submit(world, "t/a", 4, "a")
    submit(world, "t/b", 4, "b")
    assert started(world.nodes(1, cpu=4000), world) == ["t/a", "t/b", "t/a", "t/b"]


def test_turning_it_on_begins_with_what_is_used_now(world):
    two(world, half_life_ms=0)
    submit(world, "t/a", 1, "new")
    world.queue("t", half_life_ms=HOUR_MS)
    found = {path: world.state.queues.find(path).history for path in ("t", "t/a", "t/b", "research")}
    assert found.pop("research") is None
    now_ms = world.state.now_ms
    assert {path: history.decayed({}, now_ms).get("cpu", 0) for path, history in found.items()} == {
        "t": 1000 * UNIT,
        "t/a": 1000 * UNIT,
        "t/b": 0,
    }
    world.queue("t")
    assert all(queue.history is None for queue in world.state.queues.subtree())


def test_only_a_root_has_a_half_life(world):
    two(world)
    (refused,) = [t for t in world.queue("t/a", half_life_ms=HOUR_MS) if isinstance(t, tr.CommandRefused)]
    assert (refused.field, refused.rule) == ("half_life", "F4")
    (refused,) = [
        t for t in world.queue("t", to="research/t", half_life_ms=HOUR_MS) if isinstance(t, tr.CommandRefused)
    ]
    assert (refused.field, refused.rule) == ("half_life", "F4")


def test_a_queue_that_moves_takes_its_past_along_and_leaves_its_parents_theirs(world):
    two(world)
    world.queue("t/c")
    world.queue("t/c", to="t/b/c")
    world.queue("t/a", to="t/b/a")
    now_ms = world.state.now_ms
    past = {path: world.state.queues.find(path).history.decayed({}, now_ms) for path in ("t", "t/b", "t/b/a")}
    assert past["t"]["cpu"] == past["t/b/a"]["cpu"] > 0
    assert not past["t/b"].get("cpu")
    world.queue("t/b/a", to="a")
    assert world.state.queues.find("a").history is None


def test_a_snapshot_keeps_it_and_decides_the_same(world):
    two(world)
    parts = [codec.encode_snapshot_part(part) for part in snapshot.dump(world.state)]
    other = snapshot.load(map(codec.decode_snapshot_part, parts))
    for queue in world.state.queues.subtree():
        twin = other.queues.get(queue.id)
        assert (queue.history is None) == (twin.history is None)
        if queue.history is not None:
            assert (twin.history.sums, twin.history.since_ms) == (queue.history.sums, queue.history.since_ms)
    world.cell.state = other
    assert again(world) == ["t/b", "t/b", "t/a", "t/a"]


def test_it_changes_neither_who_is_entitled_nor_the_potential(world):
    """P1, P2: two jobs that each want the whole cell do not take it from each other for ever."""
    world.queue("t", half_life_ms=MINUTE_MS)
    for leaf in ("t/a", "t/b"):
        world.queue(leaf, preemption="ANY")
    world.nodes(1, cpu=4000)
    entitle(world, t=4000, t_a=2000, t_b=2000)
    world.submit("a", queue="t/a", cpu=4000)
    world.pods("a", RUNNING)
    world.submit("b", queue="t/b", cpu=4000)
    potential = {leaf: world.state.potential.of_leaf(world.state.queues.find(leaf).id) for leaf in ("t/a", "t/b")}
    seen = []
    for _ in range(60):
        seen += world.cell.wait(10 * MINUTE_MS)
    assert world.job("a").epoch == 1
    assert world.job("b").epoch == 0
    assert not [t for t in seen if isinstance(t, (tr.JobPreempted, tr.HoldMade, tr.JobPlaced))]
    after = {leaf: world.state.potential.of_leaf(world.state.queues.find(leaf).id) for leaf in ("t/a", "t/b")}
    assert after == potential
    assert dict(world.state.entitled[world.state.queues.find("t/b").id]) == {"cpu": 2000}
    world.pods("a", SUCCEEDED)
    world.submit("a2", queue="t/a", cpu=4000)
    assert world.job("b").epoch == 1


@settings(max_examples=30)
@given(
    used=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=4, max_size=4),
    draw=st.randoms(use_true_random=False),
)
def test_the_order_is_total_whatever_the_past(used, draw):
    """F5: whatever the order in which heads are looked at, and whenever histories were brought up to date."""
    world = World()
    world.queue("t", half_life_ms=HOUR_MS)
    for leaf, (_, _, promised) in zip("abcd", used, strict=True):
        world.queue(f"t/{leaf}")
        entitle(world, **{f"t_{leaf}": 1000 * promised} if promised else {})
        world.submit(leaf, queue=f"t/{leaf}")
    for leaf, (now, past, _) in zip("abcd", used, strict=True):
        queue = world.state.queues.find(f"t/{leaf}")
        queue.usage = {"cpu": 1000 * now} if now else {}
        queue.history = History.beginning(HOUR_MS, {"cpu": 1000 * past}, 0)
    draft = Draft(world.state, world.state.now_ms + HOUR_MS, 1)
    jobs = [world.job(leaf) for leaf in "abcd"]
    heads = [Head(draft.order_key(job), number, job, job.gang.minimum_map) for number, job in enumerate(jobs)]
    orders = []
    for _ in range(3):
        draw.shuffle(heads)
        turns, order = Turns(draft.tree, Room(draft).views, heads), []
        while turns.left:
            order.append(turns.first().job.spec.name)
            turns.replace(None, used=True)
        orders.append(order)
        for queue in world.state.queues.subtree():
            if queue.history is not None and draw.random() < 0.5:
                queue.history.count(queue.usage, world.state.now_ms + draw.randrange(HOUR_MS))
    assert orders[0] == orders[1] == orders[2]
