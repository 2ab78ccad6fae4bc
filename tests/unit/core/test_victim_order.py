"""Less lost work leaves first (rule P3), but not who would come back for the place of a newer job of its queue."""

from __future__ import annotations

import random

import pytest
from tests.unit.core.conftest import World
from tests.unit.core.preempting import RUNNING, cpu, many

from muster.core.members import fair_member
from muster.core.preemption_rules import Outlook
from muster.core.resources import PODS
from muster.core.victim_table import CORE
from muster.core.victims import SIZE_UNITS, Ranking

HOUR_MS = 3600 * 1000


def start(world, names, *, apart_ms):
    """They begin to run one after the other, in this order."""
    for name in names:
        world.cell.now_ms += apart_ms
        world.pods(name, RUNNING)


@pytest.mark.parametrize("after_ms", [1000, 24 * HOUR_MS])
def test_one_leaves_for_one_although_a_batch_started_at_random(world, around, after_ms):
    """Milliseconds between the starts of equal jobs make no chain of evictions; each would be a step up for P1."""
    world.nodes(3, cpu=10_000)
    world.queue("owner", guaranteed=cpu(1000), preemption="ANY")
    world.queue("research", preemption="ANY")
    around.entitle(owner=cpu(1000), research=())
    many(world, "lent", 30, "research")
    names = [f"lent-{n}" for n in range(30)]
    start(world, random.Random(1).sample(names, 30), apart_ms=100)
    world.cell.now_ms += after_ms
    world.submit("mine", queue="owner")
    around.wait(2 * HOUR_MS, 30_000)
    newest = max((world.job(name) for name in names), key=lambda job: (job.submit_ms, job.spec.id))
    assert around.evicted == [newest.spec.id]


def ann_leaves(world, around, **research):
    """Whether of two, of ann and then of bob, that of ann leaves, who started last."""
    world.nodes(1, cpu=2000)
    world.queue("owner", guaranteed=cpu(1000), preemption="ANY")
    world.queue("research", **research)
    around.entitle(owner=cpu(1000), research=())
    for name in ("ann", "bob"):
        world.cell.now_ms += 1000
        world.submit(name, queue="research", submitter=name)
    start(world, ["bob", "ann"], apart_ms=60_000)
    world.submit("mine", queue="owner")
    around.calm()
    (gone,) = around.evicted
    return gone == world.id("ann")


@pytest.mark.parametrize(
    ("research", "ann"),
    [
        ({"preemption": "ANY"}, False),  # ann is older: bob would be out in the end, and both would have lost
        ({"preemption": "LOWER_PRIORITY"}, True),
        ({"preemption": "NEVER"}, True),
        ({"preemption": "ANY", "ordering": "FIFO"}, True),
        ({"preemption": "ANY", "ordering": "FAIR", "fair_by": "USER"}, True),  # she takes no place of his
        ({"preemption": "ANY", "ordering": "FAIR", "fair_by": "NAMESPACE"}, False),
    ],
)
def test_who_has_lost_least_leaves_unless_it_would_take_the_place_of_a_newer_one(world, around, research, ann):
    assert ann_leaves(world, around, **research) == ann


def alone(job, state):
    """What the core would lose itself."""
    capacity = dict(state.nodes.capacity())
    size = max(-(-amount * SIZE_UNITS // capacity[r]) for r, amount in job.gang.full if r != PODS)
    return (state.now_ms - job.started_ms) * size


def in_turn(job, others, state):
    """The most that it or who would leave after it would lose."""
    queue = state.queues.by_id[job.queue]
    lost = [alone(job, state)]
    for other in others:
        same = other.queue == job.queue and other.spec.priority == job.spec.priority
        same = same and fair_member(queue.spec, other.spec) == fair_member(queue.spec, job.spec)
        newer = (other.submit_ms, other.spec.id) > (job.submit_ms, job.spec.id)
        if queue.spec.preemption == "ANY" and queue.spec.ordering != "FIFO" and same and newer:
            lost.append(alone(other, state))
    return max(lost)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_maximum_over_the_newer_ones(around, seed):
    draw, world = random.Random(seed), World()
    world.nodes(2, cpu=64_000)
    world.queue("owner", guaranteed=cpu(1000), preemption="ANY")
    leaves = [f"lent-{n}" for n in range(4)]
    for leaf in leaves:
        ordering, fair_by = draw.choice(
            (("PRIORITY", "USER"), ("FAIR", "USER"), ("FAIR", "NAMESPACE"), ("FIFO", "USER"))
        )
        world.queue(leaf, preemption=draw.choice(("ANY", "ANY", "LOWER_PRIORITY")), ordering=ordering, fair_by=fair_by)
    names = [f"job-{n}" for n in range(60)]
    for name in names:
        world.cell.now_ms += draw.choice((0, 5))
        who = {"submitter": draw.choice("ab"), "namespace": draw.choice("cd"), "priority": draw.choice((0, 0, 3))}
        world.submit(name, queue=draw.choice(leaves), cpu=draw.choice((500, 1000, 2000)), **who)
    start(world, draw.sample(names, len(names)), apart_ms=1000)
    world.submit("mine", queue="owner", cpu=60_000)
    state = world.state
    nothing: dict[str, tuple] = {queue.id: () for queue in state.queues.subtree()}
    published = {**nothing, state.queues.find("owner").id: cpu(128_000)}
    used = state.potential.usage
    outlook = Outlook(state.queues, published, state.nodes.capacity(), lambda q: used.get(q, {}), state.now_ms)
    ranking = Ranking(state, world.job("mine"), outlook, {})
    jobs = [world.job(name) for name in names]
    expected = {job.spec.id: in_turn(job, jobs, state) for job in jobs}
    got = {job: int(ranking.lost[line, CORE]) for line, job in enumerate(ranking.table.jobs) if job in expected}
    assert got == expected
    assert any(expected[job.spec.id] > alone(job, state) for job in jobs)
