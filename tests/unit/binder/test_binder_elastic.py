"""Replicas that come and go while their job runs on: rule G1, LOG-15."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from muster.core import transitions as tr
from muster.core.model import GroupPlacement, InboxPosition, JobSpec, PodPhase, TaskGroup
from muster.runtime import kube

World = Any
Run = Callable[..., None]


def run_elastic(world: World, id_of: Any, template: Any, pods: int = 2) -> None:
    task = TaskGroup("worker", 5, 2, (("cpu", 1000),), template=msgspec.json.encode(template()))
    spec = JobSpec(id_of(1), "team-a", "job-1", "research", (task,))
    world.ledger.commit(tr.JobQueued(spec, "q1", InboxPosition(1, 1)))
    world.place(1, runs=((0, pods),))


def grow(world: World, *runs: tuple[int, int]) -> None:
    world.ledger.commit(tr.JobGrown(world.job(1).id, 1, (GroupPlacement(0, runs),)))


def shrink(world: World, *pods: int) -> None:
    world.ledger.commit(tr.JobShrunk(world.job(1).id, 1, pods, "f" * 32))


async def settle(world: World) -> None:
    for _ in range(20):
        await asyncio.sleep(0.2)
        world.acknowledge()


def running(world: World) -> list[int]:
    return [position for position, phase in enumerate(world.job(1).phases) if phase == PodPhase.RUNNING]


def test_grown_replicas_are_created_and_shrunk_ones_deleted(in_world: Run, id_of: Any, template: Any) -> None:
    async def scenario(world: World) -> None:
        run_elastic(world, id_of, template)
        await settle(world)
        grow(world, (1, 1), (2, 1))
        await settle(world)
        assert [pod["spec"]["nodeName"] for pod in world.pods] == ["n0", "n0", "n1", "n2"]
        assert running(world) == [0, 1, 2, 3]
        shrink(world, 1, 2)
        await settle(world)
        assert [pod["metadata"]["labels"]["muster.io/pod"] for pod in world.pods] == ["0", "3"]
        assert list(world.job(1).phases) == [2, 5, 5, 2, 5]
        assert world.job(1).leaving == ()
        assert world.inbox.rejections == []

    in_world(scenario)


def test_a_position_that_is_used_again_is_another_attempt(in_world: Run, id_of: Any, template: Any) -> None:
    async def scenario(world: World) -> None:
        run_elastic(world, id_of, template, pods=3)
        await settle(world)
        shrink(world, 1)
        await settle(world)
        grow(world, (3, 1))
        await settle(world)
        names = world.pod_names
        assert f"job-1-{id_of(1)[:8]}-worker-1-1-1" in names
        assert f"job-1-{id_of(1)[:8]}-worker-1-1-0" not in names
        assert running(world) == [0, 1, 2]
        again = [fact for fact in world.inbox.facts if fact.pod == 1 and fact.attempt == 1]
        assert [fact.phase for fact in again][-1] == PodPhase.RUNNING

    in_world(scenario)


def test_a_replica_that_leaves_before_it_was_created(in_world: Run, id_of: Any, template: Any) -> None:
    async def scenario(world: World) -> None:
        run_elastic(world, id_of, template)
        await settle(world)
        world.api.creates.extend([("before", kube.Transient("no answer"))] * 3)
        grow(world, (1, 1))
        await asyncio.sleep(0.05)
        shrink(world, 2)
        for _ in range(10):
            await settle(world)
        assert list(world.job(1).phases) == [2, 2, 5, 5, 5]
        assert len(world.pods) == 2

    in_world(scenario)


def test_a_replica_that_is_refused_is_told_by_itself(in_world: Run, id_of: Any, template: Any) -> None:
    async def scenario(world: World) -> None:
        run_elastic(world, id_of, template)
        await settle(world)
        world.api.creates.extend([("before", kube.Invalid("no", status=422, reason="Invalid"))] * 2)
        grow(world, (1, 2))
        await settle(world)
        assert sorted(rejection.pod for rejection in world.inbox.rejections) == [2, 3]
        world.ledger.commit(tr.JobShrunk(world.job(1).id, 1, (2, 3), reason="PlacementRejected"))
        await settle(world)
        told = len(world.inbox.rejections)
        await settle(world)
        assert list(world.job(1).phases) == [2, 2, 5, 5, 5]
        assert len(world.inbox.rejections) == told

    in_world(scenario)


def test_a_new_owner_finishes_what_was_grown_and_shrunk(in_world: Run, id_of: Any, template: Any) -> None:
    async def scenario(world: World) -> None:
        run_elastic(world, id_of, template, pods=3)
        await settle(world)
        world.partitions.lose_all()
        await asyncio.sleep(0.1)
        shrink(world, 0)
        grow(world, (2, 2))
        await asyncio.sleep(1)
        assert len(world.pods) == 3
        world.partitions.take_all(2)
        await settle(world)
        assert running(world) == [1, 2, 3, 4]
        assert len(world.pods) == 4

    in_world(scenario)
