"""Whoever is taken back after a change of the queues was named by its dry run, in cells made up at random.

One large node, so that nobody leaves only because of where it is, and jobs of one priority have one size, so that age
decides between them and not the work that would be lost. What a queue's own jobs take from each other is no matter of
entitlements and not in the list; neither is what queues come to borrow after the change.
"""

from __future__ import annotations

import os
import random

import pytest
from tests.unit.core.conftest import World
from tests.unit.core.preempting import Around

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.borrowing import Borrowing
from muster.core.demand import demand, startable
from muster.core.entitlements import entitlements
from muster.core.model import QueueSpec
from muster.core.queue_changes import plan
from muster.core.takers import waiting
from muster.core.whatif import changed_tree

GPU = "nvidia.com/gpu"
QUEUES = ("a", "b", "c")
SECONDS = 20
SEEDS = max(int(os.environ.get("INSTANCES", "0")) // 10, 30)


class Reclaims(Around):
    """Notes who lost what to jobs of other queues."""

    def __init__(self, cell) -> None:
        super().__init__(cell)
        self.lost: list[tuple[str, str]] = []  # job, queue of who took its place

    def note(self, transitions):
        for t in transitions:
            by = getattr(t, "by", "")
            if not by or self.state.jobs[t.job].queue == self.state.jobs[by].queue:
                continue
            if isinstance(t, tr.JobPreempted):
                self.lost.append((t.job, self.state.jobs[by].queue))
        return super().note(transitions)


def settings(pick: random.Random) -> QueueSpec:
    return QueueSpec(
        "",
        "",
        "",
        weight=pick.choice([0, 1, 1, 2, 3]),
        preemption=pick.choice(["NEVER", "ANY", "ANY", "LOWER_PRIORITY"]),
        state=pick.choice(["OPEN", "OPEN", "OPEN", "STOPPED"]),
        min_runtime_ms=pick.choice([0, 0, 0, 3_600_000]),
        guaranteed=((GPU, 4000),) if pick.random() < 0.3 else (),
        limit=((GPU, 8000),) if pick.random() < 0.15 else (),
    )


def submit(world: World, pick: random.Random, number: int) -> None:
    priority = pick.choice([0, 0, 1])
    world.submit(
        f"job-{number}",
        queue=pick.choice(QUEUES),
        requests=(("cpu", 100), (GPU, 1000)),
        replicas=[1, 3][priority],
        priority=priority,
        preemptible=pick.random() > 0.1,
    )
    world.cell.now_ms += 10


def publish(world: World, around: Around, seconds: int) -> None:
    """Fair-share at work, until preemption rests; shorter than any backoff."""
    state = world.state
    for _ in range(seconds):
        found = entitlements(state.queues, startable(state, state.queues, demand(state)), state.nodes.capacity())
        sent = tuple(c.Entitlement(queue, amounts) for queue, amounts in sorted(found.items()))
        around.note(world.cell.send(c.EntitlementsComputed(state.ledger_seq, sent)))
        around.calm()
        around.note(world.cell.wait(1000))


def told(world: World, change: c.ChangeQueues) -> tuple[set[str], set[str]]:
    """All that could be taken back after it, which is what is named if nothing could be before; and of which leaves."""
    state, now_ms = world.state, world.cell.now_ms
    tree = changed_tree(state, change, now_ms)
    capacity = state.nodes.capacity()
    nothing_over = dict.fromkeys(state.queues.by_id, ((GPU, 1 << 40), ("cpu", 1 << 40)))
    after = entitlements(tree, startable(state, tree, demand(state)), capacity)
    found = list(Borrowing(state, now_ms, waiting(state, now_ms)).change((state.queues, nothing_over), (tree, after)))
    usage = {queue: state.potential.of_leaf(queue).get(GPU, 0) for queue in tree.by_id}
    beyond = {queue for queue, used in usage.items() if used > dict(after.get(queue, ())).get(GPU, 0)}
    return {job for leaf in found for job in leaf.first}, beyond


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whoever_leaves_was_named(seed):
    pick = random.Random(seed)
    world = World()
    around = Reclaims(world.cell)
    world.cell.send(
        c.NodesReported("sim-a", (world.node("n", cpu=64_000, gpus=16),), first=True, complete=True),
    )
    for queue in QUEUES:
        world.cell.send(c.UpsertQueue(queue, settings(pick), -1))
    for number in range(pick.randint(20, 40)):
        submit(world, pick, number)
        if pick.random() < 0.2:
            publish(world, around, 1)
    publish(world, around, 5)
    changes = plan(world.state.queues, {queue: settings(pick) for queue in pick.sample(QUEUES, 2)})
    change = c.ChangeQueues(changes)
    named, beyond = told(world, change)
    running = {job.id for job in world.state.jobs.values() if job.charged}
    around.lost.clear()
    around.note(world.cell.send(change))
    publish(world, around, SECONDS)
    # Who lost the last one may be below its entitlement then, and takes something back in its turn.
    losers = {world.state.jobs[job].queue for job, _ in around.lost}
    lost = {job for job, taker in around.lost if job in running and taker not in losers}
    assert {job for job in lost if world.state.jobs[job].queue in beyond} <= named
