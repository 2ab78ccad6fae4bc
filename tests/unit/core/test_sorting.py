"""Jobs that wait are sorted again, and those who share a queue counted again, when the queue's settings change.

After every transaction the cell compares its indexes with what the jobs say (`invariants`), so what is left to these
tests is to bring about the changes.
"""

from __future__ import annotations

import random

import pytest

from muster.core import commands as c
from muster.core import snapshot
from muster.core.members import NAMESPACE, USER
from muster.core.model import Allowance, JobState, PodPhase, QueueSpec

SETTINGS = (
    {"ordering": "PRIORITY"},
    {"ordering": "FIFO"},
    {"ordering": "FAIR"},
    {"ordering": "FAIR", "fair_by": "USER"},
    {"per_user": Allowance(running_jobs=100)},
    {"ordering": "FIFO", "per_namespace": Allowance(pending_jobs=100)},
)


def waiting(world, queue="research"):
    """Names of the jobs that wait, class by class."""
    found = world.state.pending.of_queue.get(world.state.queues.find(queue).id, {})
    return [[world.state.jobs[key[2]].spec.name for key in of.keys[of.head :]] for of in found.values()]


def orders(pending):
    """The jobs of every class, in their order. Classes of two states are told apart by what is in them."""
    return sorted([key[2] for key in found.keys[found.head :]] for found in pending.classes.values())


@pytest.mark.parametrize("back", [{"ordering": "PRIORITY"}, {"ordering": "FIFO"}])
def test_protected_jobs_of_several_members_can_leave_after_the_queue_became_fair(world, back):
    for who in ("ann", "bob", "cyd"):
        world.submit(f"of-{who}", submitter=who, preemptible=False)
        world.submit(f"later-of-{who}", submitter=who, preemptible=False)
    world.queue("research", ordering="FAIR", fair_by="USER")
    assert len(waiting(world)) == 3
    world.cell.send(c.CancelJob(world.id("of-ann")), c.CancelJob(world.id("later-of-ann")))
    world.cell.send(c.CancelJob(world.id("of-bob")))
    world.queue("research", **back)
    (left,) = waiting(world)
    assert sorted(left) == ["later-of-bob", "later-of-cyd", "of-cyd"]
    for name in ("later-of-bob", "of-cyd", "later-of-cyd"):
        world.cell.send(c.CancelJob(world.id(name)))
    assert not world.state.pending.protected
    assert waiting(world) == []


def test_every_ordering_comes_after_every_other(world):
    for n, (who, priority) in enumerate((("ann", 1), ("bob", 5), ("ann", 5), ("bob", 0))):
        world.submit(f"job-{n}", submitter=who, priority=priority)
        world.cell.now_ms += 10
    orders = {
        "PRIORITY": [["job-1", "job-2", "job-0", "job-3"]],
        "FIFO": [["job-0", "job-1", "job-2", "job-3"]],
        "FAIR": [["job-1", "job-3"], ["job-2", "job-0"]],
    }
    for before in orders:
        for after, want in orders.items():
            world.queue("research", ordering=before)
            world.queue("research", ordering=after)
            assert sorted(waiting(world)) == want, (before, after)


def test_a_queue_that_moves_takes_its_members_with_it(world):
    world.nodes(1, cpu=2000)
    for top in ("left", "right"):
        world.queue(top, per_user=Allowance(running_jobs=100))
    world.queue("left/team")
    world.queue("left/stays")
    for n in range(3):
        world.submit(f"job-{n}", queue="left/team", submitter="ann", namespace="x")
    world.submit("other", queue="left/stays", submitter="ann", namespace="y")
    world.queue("left/team", to="right/team")
    left, right = (world.state.queues.find(path).members for path in ("left", "right"))
    assert (left[USER, "ann"].pending, left[USER, "ann"].running) == (1, 0)
    assert (NAMESPACE, "x") not in left
    assert (right[USER, "ann"].pending, right[USER, "ann"].running) == (1, 2)
    assert right[NAMESPACE, "x"].usage["cpu"] == 2000


def test_one_command_may_change_a_queue_and_what_is_above_it(world):
    world.queue("top")
    world.queue("top/team")
    for n in range(4):
        world.submit(f"job-{n}", queue="top/team", submitter=f"user-{n % 2}", priority=n)
        world.cell.now_ms += 10
    top = QueueSpec("", "", "", per_user=Allowance(running_jobs=9))
    team = QueueSpec("", "", "", ordering="FIFO")
    world.cell.send(c.ChangeQueues((c.UpsertQueue("top", top), c.UpsertQueue("top/team", team))))
    assert sorted(waiting(world, "top/team")) == [["job-0", "job-2"], ["job-1", "job-3"]]
    assert world.state.queues.find("top").members[USER, "user-1"].pending == 2


def test_a_job_with_a_hold_stays_a_class_of_its_own(world, around):
    world.nodes(1, cpu=2000)
    world.submit("old", cpu=2000, preemptible=True)
    for name in ("first", "second"):
        world.submit(name, cpu=2000, priority=9, submitter="ann")
    around.answer()
    assert len(world.state.holds) == 1
    for ordering in ("FAIR", "FIFO", "PRIORITY"):
        world.queue("research", ordering=ordering)
        assert [len(jobs) for jobs in waiting(world)] == [1, 1]
    around.calm()
    assert world.state.queues.find("research").usage["cpu"] == 2000
    assert not world.state.holds


@pytest.mark.parametrize("seed", range(8))
def test_any_changes_in_any_order(world, seed):
    """Jobs wait, run, stop and go back while queues change and move; a loaded snapshot has them in the same order."""
    draw = random.Random(seed)
    world.nodes(2, cpu=3000)
    for path in ("a", "b", "a/x", "b/y"):
        world.queue(path)
    leaf = {"x": "a/x", "y": "b/y"}
    for n in range(60):
        path = draw.choice(list(leaf))
        kind = draw.randrange(6)
        if kind <= 2:
            more = {"priority": draw.randrange(3), "preemptible": draw.random() < 0.6}
            who = {"submitter": f"user-{draw.randrange(3)}", "namespace": f"ns-{draw.randrange(2)}"}
            world.submit(f"job-{n}", queue=leaf[path], cpu=draw.choice((500, 1000)), **more, **who)
            world.cell.now_ms += draw.randrange(3)
        elif kind == 3:
            running = [job for job in world.state.jobs.values() if job.state is JobState.PLACED]
            if running:
                chosen = draw.choice(running).spec.name
                end = draw.randrange(3)
                if end == 0:
                    world.pods(chosen, int(draw.choice((PodPhase.SUCCEEDED, PodPhase.RUNNING))))
                elif end == 1:
                    world.cell.send(c.CancelJob(world.id(chosen)))
                else:  # it goes back and waits out a backoff
                    world.cell.send(c.PlacementRejected("sim-a", world.id(chosen), world.job(chosen).epoch, 0))
                    world.pods(chosen, int(PodPhase.GONE))
        elif kind == 4:
            world.queue(draw.choice((leaf[path], leaf[path], "a", "b")), **draw.choice(SETTINGS))
        else:
            to = f"{draw.choice('ab')}/{path}"
            if to != leaf[path]:
                world.queue(leaf[path], to=to, **draw.choice(SETTINGS))
                leaf[path] = to
        loaded = snapshot.load(snapshot.dump(world.state)).pending
        assert orders(loaded) == orders(world.state.pending)
        assert loaded.protected == world.state.pending.protected
