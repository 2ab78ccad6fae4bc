"""Where queues stand, against a walk over all of them."""

from __future__ import annotations

import random

import pytest

from muster.core import commands as c
from muster.core.model import JobState
from muster.core.standing import standings


def jobs_below(state, queue):
    live = [job for job in state.jobs.values() if job.live and queue in state.queues.get(job.queue).chain]
    waiting = [job for job in live if job.state is JobState.QUEUED]
    return waiting, len(live) - len(waiting)


@pytest.mark.parametrize("seed", [0, 1, 2, 4])
def test_what_waits_runs_and_is_lent(world, seed):
    draw = random.Random(seed)
    world.nodes(3, cpu=4000)
    leaves = []
    for top in ("a", "b", "c"):
        world.queue(top, guaranteed=(("cpu", 1000 * draw.randrange(7)),))
        for name in ("x", "y")[: draw.randrange(1, 3)]:
            leaves.append(f"{top}/{name}")
            kept = 1000 * draw.randrange(4)
            world.queue(leaves[-1], guaranteed=(("cpu", kept),), lending_limit=(("cpu", kept // 2),))
    for n in range(30):
        world.submit(f"job-{n}", queue=draw.choice(leaves), cpu=500 * draw.randrange(1, 4))
    for n in draw.sample(range(30), 5):
        world.cell.send(c.CancelJob(world.id(f"job-{n}")))
    state = world.state
    found = standings(state)
    assert list(found) == [queue.id for queue in state.queues.subtree()]
    lenders = 0
    for queue in state.queues.subtree():
        standing = found[queue.id]
        waiting, running = jobs_below(state, queue)
        assert (standing.pending_jobs, standing.running_jobs) == (len(waiting), running)
        assert dict(standing.pending).get("cpu", 0) == sum(dict(job.gang.full)["cpu"] for job in waiting)
        mine = dict(queue.spec.guaranteed).get("cpu", 0)
        kept = dict(standing.withheld).get("cpu", 0)
        assert dict(standing.lent).get("cpu", 0) <= max(mine - queue.usage.get("cpu", 0) - kept, 0)
        lenders += bool(standing.lent)
        assert standings(state, queue.id) == {below.id: found[below.id] for below in state.queues.subtree(queue.id)}
    assert lenders
