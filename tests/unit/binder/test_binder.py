"""The binder's loop on virtual time: creating, watching, telling, deleting, cleaning up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from muster.core import transitions as tr
from muster.core.model import JobState, PodPhase
from muster.runtime import kube
from muster_binder.binder import BinderOptions

World = Any
Run = Callable[..., None]


def transient() -> kube.Transient:
    return kube.Transient("no answer")


def test_a_placed_gang_becomes_bound_pods_with_their_labels(in_world: Run, id_of: Any) -> None:
    async def scenario(world: World) -> None:
        world.queue(1, replicas=3)
        world.place(1, runs=((0, 2), (3, 1)))
        await asyncio.sleep(1)
        assert world.pod_names == [f"job-1-{id_of(1)[:8]}-worker-{i}-1-0" for i in range(3)]
        assert [pod["spec"]["nodeName"] for pod in world.pods] == ["n0", "n0", "n3"]
        pod = world.pods[2]
        assert pod["spec"]["schedulerName"] == "muster"
        assert pod["spec"]["restartPolicy"] == "Never"
        assert pod["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1"}}
        assert pod["metadata"]["labels"] == {
            "app": "trainer",
            "muster.io/cell": "main",
            "muster.io/job": id_of(1),
            "muster.io/job-name": "job-1",
            "muster.io/group": "worker",
            "muster.io/pod": "2",
            "muster.io/index": "2",
            "muster.io/epoch": "1",
            "muster.io/attempt": "0",
            "muster.io/queue": "research",
        }
        await world.acknowledge_until(lambda: bytes(world.job(1).phases) == bytes([PodPhase.RUNNING] * 3))

    in_world(scenario)


def test_a_finished_pod_is_told_once_and_removed_after_its_ttl(in_world: Run, template: Any) -> None:
    async def scenario(world: World) -> None:
        world.submit(1, template=template(run_seconds=2))
        await world.acknowledge_until(lambda: world.job(1).phases[0] == PodPhase.SUCCEEDED)
        world.ledger.commit(tr.JobStarting(world.job(1).id, 1), tr.JobSucceeded(world.job(1).id, 1))
        told = len(world.inbox.facts)
        await asyncio.sleep(20)
        assert len(world.pods) == 1  # the ttl is 30 s here
        await asyncio.sleep(20)
        assert world.pods == []
        assert len(world.inbox.facts) == told

    in_world(scenario)


def test_finished_pods_leave_when_their_job_is_forgotten(in_world: Run, template: Any) -> None:
    async def scenario(world: World) -> None:
        world.submit(1, template=template(run_seconds=1))
        await world.acknowledge_until(lambda: world.job(1).phases[0] == PodPhase.SUCCEEDED)
        world.ledger.commit(tr.JobSucceeded(world.job(1).id, 1), tr.JobForgotten(world.job(1).id))
        await asyncio.sleep(2)
        assert world.pods == []

    in_world(scenario)


def test_a_failed_pod_tells_its_exit_code(in_world: Run, template: Any) -> None:
    async def scenario(world: World) -> None:
        world.submit(1, template=template(run_seconds=1, exit_code=3))
        await asyncio.sleep(3)
        fact = world.inbox.facts[-1]
        assert (fact.phase, fact.exit_code) == (PodPhase.FAILED, 3)
        assert fact.uid == world.pods[0]["metadata"]["uid"]

    in_world(scenario)


def test_a_kubelet_that_refuses_rejects_the_placement_and_fails_no_pod(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.server.faults.admission_refused_chance = 1.0
        world.submit(1)
        await asyncio.sleep(1)
        (rejection,) = world.inbox.rejections
        assert (rejection.code, rejection.pod, rejection.epoch, rejection.by_node) == ("OutOfcpu", 0, 1, True)
        assert PodPhase.FAILED not in world.phases(1)
        world.stop(1, JobState.QUEUED)  # what the leader does then
        await world.acknowledge_until(lambda: world.job(1).phases[0] == PodPhase.FAILED)

    in_world(scenario)


def test_stopping_deletes_with_the_uid_and_tells_gone_when_it_is_gone(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.submit(1)
        await world.acknowledge_until(lambda: world.job(1).phases[0] == PodPhase.RUNNING)
        world.stop(1)
        await asyncio.sleep(0.2)
        assert PodPhase.GONE not in world.phases(1)  # it still has its grace
        await asyncio.sleep(1)
        assert world.phases(1)[-1] == PodPhase.GONE
        assert world.pods == []
        assert world.api.calls.count("delete") == 1

    in_world(scenario)


def test_a_pod_deleted_by_others_is_told_as_gone(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.submit(1)
        await world.acknowledge_until(lambda: world.job(1).phases[0] == PodPhase.RUNNING)
        world.server.delete_unasked("team-a", world.pod_names[0])
        await asyncio.sleep(2)
        assert world.phases(1)[-1] == PodPhase.GONE
        assert world.api.calls.count("create") == 1  # never created again in the same epoch

    in_world(scenario)


def test_pods_of_an_old_epoch_are_deleted_and_their_facts_not_told(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.submit(1)
        await world.acknowledge_until(lambda: world.job(1).phases[0] == PodPhase.RUNNING)
        world.stop(1, JobState.QUEUED)
        world.ledger.commit(
            tr.PodsChanged(world.job(1).id, 1, (tr.PodChange(0, PodPhase.GONE),)),  # as if somebody had said so
            tr.JobRequeued(world.job(1).id, "Preempted"),
        )
        world.place(1, epoch=2)
        await asyncio.sleep(3)
        assert [name[-3:] for name in world.pod_names] == ["2-0"]
        assert all(fact.phase != PodPhase.GONE for fact in world.inbox.facts if fact.epoch == 2)

    in_world(scenario)


def test_running_pods_of_an_unknown_job_get_a_grace_before_they_are_deleted(in_world: Run, id_of: Any) -> None:
    async def scenario(world: World) -> None:
        labels = {
            "muster.io/cell": "main",
            "muster.io/job": id_of(9),
            "muster.io/epoch": "1",
            "muster.io/pod": "0",
            "muster.io/attempt": "0",
        }
        world.server.create("team-a", {"metadata": {"name": "x", "labels": labels}, "spec": {"nodeName": "n0"}}, "old")
        await asyncio.sleep(30)
        assert len(world.pods) == 1
        await asyncio.sleep(60)
        assert world.pods == []

    in_world(scenario)


def test_an_existing_pod_is_labelled_and_bound(in_world: Run, id_of: Any) -> None:
    async def scenario(world: World) -> None:
        world.server.create("team-a", {"metadata": {"name": "rank-0"}, "spec": {"schedulerName": "muster"}}, "operator")
        world.submit(1, template={"existingPod": "rank-0"})
        await world.acknowledge_until(lambda: world.job(1).phases[0] == PodPhase.RUNNING)
        (pod,) = world.pods
        assert pod["spec"]["nodeName"] == "n0"
        assert pod["metadata"]["labels"]["muster.io/job"] == id_of(1)

    in_world(scenario)


def test_an_existing_pod_that_is_bound_elsewhere_rejects_the_placement(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        manifest = {"metadata": {"name": "rank-0"}, "spec": {"schedulerName": "muster", "nodeName": "n2"}}
        world.server.create("team-a", manifest, "operator")
        world.submit(1, template={"existingPod": "rank-0"})
        await asyncio.sleep(1)
        assert [rejection.code for rejection in world.inbox.rejections] == ["AlreadyBound"]

    in_world(scenario)


def test_writes_stay_within_their_limits(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.submit(1, replicas=60)
        await asyncio.sleep(2.05)
        assert len(world.pods) == 21  # ten a second, the first at once
        assert world.api.in_flight_peak <= 3

    in_world(scenario, BinderOptions(in_flight_max=3, per_second_max=10))


def test_a_new_epoch_begins_when_the_pods_of_the_old_one_are_removed(in_world: Run, template: Any) -> None:
    async def scenario(world: World) -> None:
        world.submit(1, template=template(run_seconds=1, exit_code=1))
        await world.acknowledge_until(lambda: world.job(1).phases[0] == PodPhase.FAILED)
        world.stop(1, JobState.QUEUED)
        world.ledger.commit(tr.JobRequeued(world.job(1).id, "PodFailed"))
        world.api.deletes += [("before", transient())] * 3
        world.place(1, epoch=2)
        seen: set[tuple[str, ...]] = set()
        for _ in range(100):
            await asyncio.sleep(0.05)
            seen.add(tuple(pod["metadata"]["labels"]["muster.io/epoch"] for pod in world.pods))
        assert seen - {()} == {("1",), ("2",)}  # never both at once

    in_world(scenario)


def test_a_large_gang_is_created_in_linear_time(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.submit(1, replicas=2000)
        await world.acknowledge_until(lambda: world.job(1).phases.count(PodPhase.RUNNING) == 2000)
        assert world.api.calls == ["create"] * 2000

    in_world(scenario)
