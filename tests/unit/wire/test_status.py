"""What the API says of attempts that are over: node, devices, how each pod ended."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import World
from tests.unit.core.preempting import Around

from muster.api.v1 import job_pb2
from muster.core import commands as c
from muster.core import snapshot
from muster.core import transitions as tr
from muster.core.limits import ATTEMPT_PODS_KEPT_MAX, RESIZE_PODS_KEPT_MAX, RESIZES_KEPT_MAX
from muster.core.model import JobState
from muster.wire import codec, status

RUNNING, SUCCEEDED, FAILED, GONE = 2, 3, 4, 5


@pytest.fixture
def world():
    found = World()
    found.nodes(2, cpu=100_000, gpus=4)
    return found


def attempts(world, name):
    return list(status.full(world.state, world.job(name)).status.attempts)


def ends(attempt):
    return [(r.pod, job_pb2.PodPhase.Name(r.phase).removeprefix("POD_PHASE_"), r.exit_code) for r in attempt.replicas]


def test_the_exit_code_of_each_pod_is_kept_when_the_placement_is_over(world):
    world.submit("j", replicas=4, requests=(("nvidia.com/gpu", 1000),))
    world.pods("j", RUNNING)
    world.pods("j", SUCCEEDED, 0)
    world.pods("j", FAILED, 2, exit_code=3)
    (now,) = attempts(world, "j")
    assert ends(now)[2] == ("main-2", "FAILED", 3)
    world.pods("j", FAILED, 3, exit_code=137)
    world.pods("j", GONE, 1)
    assert world.job("j").state is JobState.FAILED
    (over,) = attempts(world, "j")
    assert over.exit_code == 3
    assert ends(over) == [
        ("main-2", "FAILED", 3),
        ("main-3", "FAILED", 137),
        ("main-0", "SUCCEEDED", 0),
        ("main-1", "GONE", 0),
    ]
    assert {(r.cluster, r.node, len(r.devices)) for r in over.replicas} <= {("sim-a", f"node-{n}", 1) for n in (0, 1)}


def test_each_attempt_has_its_own(world):
    world.submit("j", replicas=2)
    world.pods("j", RUNNING)
    world.cell.send(c.PlacementRejected("sim-a", world.id("j"), 1, 0, "Invalid", "no"))
    world.pods("j", FAILED, 0, exit_code=143)
    world.pods("j", GONE, 1)
    world.cell.wait(60_000)
    world.pods("j", RUNNING)
    world.pods("j", SUCCEEDED)
    first, second = attempts(world, "j")
    assert ends(first) == [("main-0", "FAILED", 143), ("main-1", "GONE", 0)]
    assert ends(second) == [("main-0", "SUCCEEDED", 0), ("main-1", "SUCCEEDED", 0)]
    assert world.job("j").attempts[1].pods == ()  # nothing to be kept where all succeeded


def test_what_is_kept_of_a_large_gang_is_bounded_and_has_the_failures(world):
    pods = ATTEMPT_PODS_KEPT_MAX + 36
    world.submit("j", replicas=pods)
    world.pods("j", RUNNING)
    world.pods("j", FAILED, pods - 1, exit_code=9)
    world.pods("j", GONE)
    (over,) = attempts(world, "j")
    kept = world.job("j").attempts[0].pods
    assert len(kept) == ATTEMPT_PODS_KEPT_MAX
    assert ends(over)[0] == (f"main-{pods - 1}", "FAILED", 9)
    assert ends(over)[1] == ("main-0", "GONE", 0)
    assert len(over.replicas) == pods
    assert ends(over)[-1] == (f"main-{pods - 2}", "UNSPECIFIED", 0)


def test_many_failures_are_the_first_many(world):
    pods = ATTEMPT_PODS_KEPT_MAX + 36
    world.submit("j", replicas=pods)
    world.pods("j", RUNNING)
    world.pods("j", FAILED, exit_code=1)
    job = world.job("j")
    assert [end.phase for end in job.attempts[0].pods] == [FAILED] * ATTEMPT_PODS_KEPT_MAX
    assert job.exits == ()


def test_a_snapshot_has_them(world):
    world.submit("j", replicas=2)
    world.pods("j", RUNNING)
    world.pods("j", FAILED, 1, exit_code=5)
    parts = [codec.encode_snapshot_part(part) for part in snapshot.dump(world.state)]
    world.cell.state = snapshot.load(map(codec.decode_snapshot_part, parts))
    assert world.job("j").exits == ((1, 5),)
    world.pods("j", GONE, 0)
    assert ends(attempts(world, "j")[0]) == [("main-1", "FAILED", 5), ("main-0", "GONE", 0)]


def test_growths_and_shrinks_are_told_and_why_pods_left():
    """Also after a snapshot, and when the placement is over."""
    world = World()
    around = Around(world.cell)
    world.nodes(2, cpu=3000)
    world.submit("e", replicas=6, least=2)
    around.calm()
    world.submit("high", cpu=2000, priority=5)
    around.answer()
    job = world.job("e")
    asked = list(job.leaving)
    assert len(asked) == 2
    world.pods("e", GONE, asked[0])
    loaded = snapshot.load(
        codec.decode_snapshot_part(codec.encode_snapshot_part(p)) for p in snapshot.dump(world.state)
    )
    for state in (world.state, loaded):
        (now,) = status.full(state, state.jobs[job.id]).status.attempts
        grown, shrunk = now.resizes
        assert (grown.replicas, grown.reason) == (4, job_pb2.REASON_UNSPECIFIED)
        assert (shrunk.replicas, shrunk.reason) == (-2, job_pb2.REASON_SHRUNK)
        assert shrunk.preempted_by == world.id("high")
        left = {r.pod: (r.left_reason, r.left_message) for r in now.replicas if r.left_reason}
        why = (job_pb2.REASON_SHRUNK, f"they make room for job {world.id('high')}")
        assert left == {f"main-{asked[0]}": why, f"main-{asked[1]}": why}, "one is gone, one is about to be"
    world.cell.send(c.CancelJob(job.id))
    world.pods("e", GONE)
    (over,) = attempts(world, "e")
    assert [resize.replicas for resize in over.resizes] == [4, -2]
    assert {r.pod for r in over.replicas if r.left_reason} == {f"main-{position}" for position in asked}


def test_what_is_kept_of_growths_and_shrinks_is_bounded(world):
    world.submit("e", replicas=150, least=2)
    world.pods("e", RUNNING)
    job = world.job("e")
    for n in range(RESIZES_KEPT_MAX + 3):
        world.cell.by_hand(tr.JobShrunk(job.id, job.epoch, (149 - n,), message=f"{n}"))
    world.cell.by_hand(tr.JobShrunk(job.id, job.epoch, tuple(range(20, 120)), message="many"))
    assert len(world.job("e").resizes) == RESIZES_KEPT_MAX
    last = world.job("e").resizes[-1]
    assert (last.shrunk, len(last.pods)) == (100, RESIZE_PODS_KEPT_MAX)
