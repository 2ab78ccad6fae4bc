"""Nodes that do not take what is sent to them, in a few words."""

from __future__ import annotations

from muster.core import commands as c
from muster.core.limits import RETRY_FIRST_MS
from muster.core.model import JobState

GONE, SUCCEEDED = 5, 3


def refuse(world, name, position=0):
    """The node does not take the pod; what else there is of the gang leaves, unless it can do without."""
    job = world.job(name)
    attempt = job.attempt_of(position)
    done = world.cell.send(c.PlacementRejected("sim-a", job.id, job.epoch, position, "no", attempt=attempt))
    leaving = [p for p, phase in enumerate(job.phases) if phase < SUCCEEDED] if not job.leaving else job.leaving
    facts = tuple(c.PodFact(job.id, job.epoch, p, GONE, job.attempt_of(p)) for p in leaving)
    return done + world.cell.send(c.PodsObserved("sim-a", facts))


def nodes_of(world, name):
    return [n for group in world.job(name).placement for n, _ in group.runs]


def often_refused(world, name="a", times=6):
    """It keeps off the node for 2 ** (times - 1) seconds from now on, and has waited for the first of them."""
    for number in range(times):
        assert world.job(name).state is JobState.PLACED
        refuse(world, name)
        if number < times - 1:
            world.cell.wait(world.job(name).suspects_until_ms - world.cell.now_ms)
    world.cell.wait(RETRY_FIRST_MS)


def add(world, *names, **more):
    return world.cell.send(c.NodesReported("sim-a", tuple(world.node(name, **more) for name in names)))
