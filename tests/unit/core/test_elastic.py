"""Elastic jobs grow and shrink, never below their minimum, charged and released exactly: rules G1, F6, I2."""

from __future__ import annotations

import pytest
from tests.unit.core.test_turns import entitle

from muster.core import commands as c
from muster.core import layout, snapshot
from muster.core import transitions as tr
from muster.core.errors import InvariantBroken
from muster.core.limits import START_TIMEOUT_MS
from muster.core.model import GroupPlacement, JobState, TaskGroup
from muster.wire import codec

GONE = 5


def usage(world, path="research"):
    return world.state.queues.find(path).usage.get("cpu", 0)


def there(world, name):
    """How many pods of the job are placed and stay."""
    job = world.job(name)
    return sum(phase < 3 for phase in job.phases) - len(job.leaving)


def shrink(world, name, *positions):
    """As if these pods had been lost, but they are there still; the transition is written by hand."""
    job = world.job(name)
    world.cell.by_hand(tr.JobShrunk(job.id, job.epoch, positions))


def grown(transitions):
    return [t for t in transitions if isinstance(t, tr.JobGrown)]


@pytest.fixture
def elastic(world):
    """Job `e` of 2 to 6 pods of one core; six cores."""
    world.nodes(3, cpu=2000)
    world.submit("e", replicas=6, least=2)
    return world


def test_a_job_starts_with_its_minimum_and_grows_at_once(world):
    world.nodes(3, cpu=2000)
    done = world.submit("e", replicas=6, least=2)
    (placed,) = [t for t in done if isinstance(t, tr.JobPlaced)]
    assert sum(layout.pods_placed(group) for group in placed.groups) == 2
    assert len(grown(done)) == 1
    assert there(world, "e") == 6
    assert usage(world) == 6000


def test_others_start_before_it_grows(world):
    """F6: what is entitled starts first, then grows; then what is borrowed starts, then grows."""
    world.submit("e", replicas=6, least=2)
    world.cell.now_ms += 1
    for n in range(3):
        world.submit(f"other-{n}")
    entitle(world, research=9000)
    world.nodes(3, cpu=2000)
    assert there(world, "e") == 3
    assert all(world.job(f"other-{n}").charged for n in range(3))


def test_growth_within_the_entitlement_comes_before_borrowed_starts(world):
    world.queue("a")
    world.queue("b")
    world.submit("e", queue="a", replicas=6, least=2)
    for n in range(4):
        world.submit(f"b-{n}", queue="b")
    entitle(world, a=4000, b=())
    world.nodes(1, cpu=6000)
    assert (there(world, "e"), usage(world, "b")) == (4, 2000)


def test_it_grows_when_something_becomes_free(world):
    world.nodes(1, cpu=4000)
    world.submit("other", cpu=2000)
    world.submit("e", replicas=6, least=2)
    assert there(world, "e") == 2
    done = world.pods("other", 3)
    assert [layout.pods_placed(t.groups[0]) for t in grown(done)] == [2]
    assert usage(world) == 4000


def test_it_grows_no_further_than_the_limit(world):
    world.queue("research", limit=(("cpu", 5000),))
    world.nodes(1, cpu=9000)
    world.submit("e", replicas=6, least=2)
    assert there(world, "e") == 5
    world.queue("research")
    assert there(world, "e") == 6


def test_two_jobs_grow_in_turns(world):
    world.queue("a")
    world.queue("b")
    world.submit("in-a", queue="a", replicas=6, least=1)
    world.submit("in-b", queue="b", replicas=6, least=1)
    entitle(world, a=4000, b=4000)
    world.nodes(4, cpu=2000)
    assert (there(world, "in-a"), there(world, "in-b")) == (4, 4)


def test_every_group_keeps_its_own_minimum_and_grows_by_itself(world):
    world.nodes(1, cpu=6000)
    tasks = (TaskGroup("ps", 2, 1, (("cpu", 2000),)), TaskGroup("worker", 5, 2, (("cpu", 1000),)))
    world.cell.send(c.SubmitJob(world.spec("e", tasks=tasks)))
    job = world.job("e")
    assert list(job.phases) == [0, 0, 0, 0, GONE, GONE, GONE]
    world.nodes(1, cpu=8000)
    assert list(world.job("e").phases) == [0, 0, 0, 0, 0, 0, GONE]


def test_new_replicas_stay_in_the_cluster_of_the_gang(world):
    world.nodes(1, cpu=2000)
    world.nodes(1, cpu=9000, cluster="sim-b")
    world.submit("big", cpu=8000)
    world.submit("e", replicas=4, least=2, cluster_selector=())
    world.pods("big", 3)
    clusters = {world.state.nodes.spec(n).cluster for g in world.job("e").placement for n, _ in g.runs}
    assert len(clusters) == 1


def test_a_job_whose_pods_have_begun_to_end_does_not_grow(world):
    world.nodes(1, cpu=3000)
    world.submit("other")
    world.submit("e", replicas=6, least=2)
    world.pods("e", 3, 0)
    assert not grown(world.pods("other", 3))
    world.pods("e", 3, 1)
    assert world.job("e").state is JobState.SUCCEEDED


# --- shrinking ------------------------------------------------------------------------------------------------------


def test_what_leaves_is_charged_until_it_is_gone_and_not_committed(elastic):
    shrink(elastic, "e", 1, 4)
    queue = elastic.state.queues.find("research")
    assert (usage(elastic), queue.committed["cpu"]) == (6000, 4000)
    assert elastic.job("e").leaving == (1, 4)
    assert not grown(elastic.pods("e", 1, 0))  # nothing is free yet
    elastic.queue("research", state="STOPPED")
    elastic.pods("e", GONE, 1)
    assert (usage(elastic), queue.committed["cpu"], elastic.job("e").leaving) == (5000, 4000, (4,))
    elastic.pods("e", GONE, 4)
    assert (usage(elastic), queue.committed["cpu"], elastic.job("e").unplaced) == (4000, 4000, 2)


def test_a_position_that_is_free_again_is_used_again_as_another_attempt(elastic):
    elastic.pods("e", 2)
    shrink(elastic, "e", 1)
    (growth,) = grown(elastic.pods("e", GONE, 1))
    job = elastic.job("e")
    assert (list(job.phases), job.regrown) == ([2, 0, 2, 2, 2, 2], {1: 1})
    assert layout.pods_placed(growth.groups[0]) == 1
    assert elastic.pods("e", GONE, 1) == []  # the old run of the position
    elastic.pods("e", 2, 1, attempt=1)
    assert elastic.job("e").phases[1] == 2


@pytest.mark.parametrize("phase", [3, 4, 5])
def test_however_a_pod_that_leaves_ends_the_job_goes_on(elastic, phase):
    elastic.pods("e", 2)
    shrink(elastic, "e", 5)
    elastic.pods("e", phase, 5, exit_code=143)
    assert elastic.job("e").state is JobState.RUNNING
    assert usage(elastic) == 6000  # it has grown again
    elastic.pods("e", 3, 0, 1, 2, 3, 4)
    elastic.pods("e", 3, 5, attempt=1)
    assert elastic.job("e").state is JobState.SUCCEEDED


def test_the_job_ends_while_pods_are_leaving(elastic):
    elastic.pods("e", 2)
    shrink(elastic, "e", 4, 5)
    elastic.pods("e", 3, 0, 1, 2, 3)
    assert elastic.job("e").state is JobState.RUNNING
    elastic.pods("e", GONE, 4, 5)
    assert elastic.job("e").state is JobState.SUCCEEDED
    assert usage(elastic) == 0


def test_a_cancelled_job_takes_its_leaving_pods_along(elastic):
    elastic.pods("e", 2)
    shrink(elastic, "e", 4, 5)
    elastic.cell.send(c.CancelJob(elastic.id("e")))
    elastic.pods("e", GONE)
    assert elastic.job("e").state is JobState.CANCELLED
    queue = elastic.state.queues.find("research")
    assert (queue.usage, queue.leaving, queue.committed) == ({}, {}, {})


def test_never_below_the_minimum(elastic):
    with pytest.raises(InvariantBroken, match="I2"):
        shrink(elastic, "e", 0, 1, 2, 3, 4)


def test_a_snapshot_in_the_middle_goes_on_the_same(elastic):
    elastic.pods("e", 2)
    shrink(elastic, "e", 1, 3)
    elastic.pods("e", GONE, 3)
    parts = [codec.encode_snapshot_part(part) for part in snapshot.dump(elastic.state)]
    elastic.cell.state = snapshot.load(map(codec.decode_snapshot_part, parts))
    assert [codec.encode_snapshot_part(part) for part in snapshot.dump(elastic.state)] == parts
    elastic.pods("e", GONE, 1)
    assert there(elastic, "e") == 6
    assert elastic.job("e").regrown == {1: 1, 3: 1}


# --- losing pods ----------------------------------------------------------------------------------------------------


def test_a_lost_replica_above_the_minimum_is_replaced_not_the_gang(elastic):
    elastic.pods("e", 2)
    done = elastic.pods("e", GONE, 5)
    assert [type(t).__name__ for t in done[:2]] == ["PodsChanged", "JobShrunk"]
    assert (done[1].reason, done[1].message) == ("PodDeletedByOthers", "lost main-5")
    assert (elastic.job("e").state, there(elastic, "e")) == (JobState.RUNNING, 5)
    assert grown(elastic.cell.wait(1000))
    assert there(elastic, "e") == 6


def test_each_time_a_position_is_lost_the_pause_doubles(elastic):
    elastic.pods("e", 2)
    pauses = []
    for attempt in range(4):
        elastic.pods("e", GONE, 5, attempt=attempt)
        pauses.append(elastic.job("e").grow_after_ms - elastic.cell.now_ms)
        elastic.cell.wait(pauses[-1])
    assert pauses == [1000, 2000, 4000, 8000]


def test_a_loss_below_the_minimum_takes_the_gang_down(elastic):
    elastic.pods("e", 2)
    elastic.pods("e", GONE, 0, 1, 2, 3)
    assert elastic.job("e").state is JobState.RUNNING
    done = elastic.pods("e", GONE, 4)
    assert any(isinstance(t, tr.JobStopping) and t.next == "Queued" for t in done)


def test_a_rejected_replica_leaves_alone_and_its_node_is_avoided(elastic):
    elastic.pods("e", 2, 0, 1, 2, 3)
    node = elastic.job("e").placement[0].runs[-1][0]
    elastic.cell.send(c.PlacementRejected("sim-a", elastic.id("e"), 1, 5, "Invalid", "no"))
    job = elastic.job("e")
    assert (job.state, job.leaving, job.suspects) == (JobState.RUNNING, (5,), (node,))
    assert elastic.cell.send(c.PlacementRejected("sim-a", elastic.id("e"), 1, 5, "Invalid", "no")) == []
    elastic.pods("e", GONE, 5)
    elastic.nodes(4, cpu=2000)
    elastic.cell.wait(1000)
    assert there(elastic, "e") == 6
    assert elastic.job("e").placement[0].runs[-1][0] == 3


def test_a_replica_that_its_kubelet_refuses_does_not_take_the_gang_down(elastic):
    elastic.pods("e", 2, 0, 1, 2, 3, 4)
    elastic.pods("e", 4, 5, reason="OutOfcpu")
    job = elastic.job("e")
    assert (job.state, job.phases[5], job.unplaced) == (JobState.RUNNING, GONE, 1)
    assert len(job.suspects) == 1


def test_a_replica_that_fails_fails_the_job(elastic):
    elastic.pods("e", 2)
    elastic.pods("e", 4, 5, exit_code=1)
    assert (elastic.job("e").state, elastic.job("e").next_state) == (JobState.STOPPING, "Failed")


def test_replicas_that_do_not_start_leave_again(elastic):
    elastic.pods("e", 2, 0, 1, 2)
    assert elastic.job("e").state is JobState.RUNNING
    done = elastic.cell.wait(START_TIMEOUT_MS)
    (shrunk,) = [t for t in done if isinstance(t, tr.JobShrunk)]
    assert (shrunk.pods, shrunk.reason) == ((3, 4, 5), "StartTimeout")
    assert shrunk.not_before_ms == elastic.cell.now_ms + 1000
    assert shrunk.suspects_until_ms == elastic.cell.now_ms + 60_000
    elastic.pods("e", GONE, 3, 4, 5)
    assert there(elastic, "e") == 3
    elastic.cell.wait(60_000)
    assert there(elastic, "e") == 6


def test_a_removed_node_takes_only_its_replicas(elastic):
    elastic.pods("e", 2)
    elastic.cell.send(c.NodesReported("sim-a", removed=("node-2",)))
    assert (elastic.job("e").state, there(elastic, "e")) == (JobState.RUNNING, 4)


# --- layout ---------------------------------------------------------------------------------------------------------


def test_positions_keep_their_devices_when_others_are_used_again():
    tasks = (TaskGroup("w", 6, 1, (("nvidia.com/gpu", 2000),)),)
    placement = (GroupPlacement(0, ((1, 2), (2, 1)), b"\x00\x01\x02\x03\x04\x05"),)
    added = (GroupPlacement(0, ((7, 1), (8, 1)), b"\x06\x07\x08\x09"),)
    merged, positions = layout.grown(tasks, placement, added, [1, 3, 4, 5])
    assert positions == [1, 3]
    assert [(p.position, p.node, p.devices) for p in layout.each_pod(tasks, merged)] == [
        (0, 1, b"\x00\x01"),
        (1, 7, b"\x06\x07"),
        (2, 2, b"\x04\x05"),
        (3, 8, b"\x08\x09"),
    ]


def test_a_group_without_any_pod_can_grow():
    tasks = (TaskGroup("a", 1, 1, ()), TaskGroup("b", 2, 1, ()))
    merged, positions = layout.grown(tasks, (GroupPlacement(0, ((1, 1),)),), (GroupPlacement(1, ((2, 2),)),), [1, 2])
    assert positions == [1, 2]
    assert [group.group for group in merged] == [0, 1]
