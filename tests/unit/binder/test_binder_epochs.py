"""No two epochs of a job have pods at the same time, whatever is still on its way (LOG-15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from muster.core import transitions as tr
from muster.core.model import GroupPlacement, JobState, PodChange, PodPhase
from muster.runtime import kube

World = Any
Run = Callable[..., None]


def transient() -> kube.Transient:
    return kube.Transient("no answer")


def test_a_create_that_waits_is_held_back_by_a_pod_of_an_old_epoch(in_world: Run, id_of: Any) -> None:
    async def scenario(world: World) -> None:
        world.api.creates.append(("before", kube.Throttled("slow down", retry_after_s=2.0)))
        world.queue(1)
        world.place(1, epoch=2)
        await asyncio.sleep(1)
        labels = {
            "muster.io/cell": "main",
            "muster.io/job": id_of(1),
            "muster.io/epoch": "1",
            "muster.io/pod": "0",
            "muster.io/attempt": "0",
        }
        world.api.deletes += [("before", transient())] * 4
        world.server.create("team-a", {"metadata": {"name": "late", "labels": labels}, "spec": {"nodeName": "n0"}}, "b")
        seen: set[tuple[str, ...]] = set()
        for _ in range(200):
            await asyncio.sleep(0.05)
            seen.add(tuple(pod["metadata"]["labels"]["muster.io/epoch"] for pod in world.pods))
        assert seen - {()} == {("1",), ("2",)}  # never both at once

    in_world(scenario)


def give_up_and_place_again(world: World, number: int) -> None:
    """As the leader does when the node of a pod is removed: nobody asks the cluster first."""
    job = world.job(number)
    world.ledger.commit(
        tr.PodsChanged(job.id, 1, (PodChange(0, int(PodPhase.GONE), 0, 0, "NodeLost"),)),
        tr.JobStopping(job.id, 1, JobState.QUEUED, "NodeLost"),
        tr.JobRequeued(job.id, "NodeLost", 0),
        tr.JobPlaced(job.id, 2, (GroupPlacement(0, ((1, 1),)),)),
    )


def test_the_next_epoch_waits_for_a_create_that_is_on_the_wire(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        arrives, create = asyncio.Event(), world.api.create_pod

        async def slow(namespace: str, body: bytes) -> Any:
            await arrives.wait()
            return await create(namespace, body)

        world.api.create_pod = slow
        world.submit(1)
        await asyncio.sleep(0.01)
        world.api.create_pod = create
        give_up_and_place_again(world, 1)
        await asyncio.sleep(1)
        assert world.pods == []
        arrives.set()
        seen: set[tuple[str, ...]] = set()
        for _ in range(200):
            await asyncio.sleep(0.05)
            seen.add(tuple(pod["metadata"]["labels"]["muster.io/epoch"] for pod in world.pods))
        assert seen - {()} == {("1",), ("2",)}  # never both at once

    in_world(scenario)


def test_the_next_epoch_waits_until_an_unanswered_create_has_settled(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.api.creates.append(("before", transient()))
        world.submit(1)
        await asyncio.sleep(0.01)
        give_up_and_place_again(world, 1)
        await asyncio.sleep(4)
        assert world.api.calls.count("create") == 1
        await asyncio.sleep(10)
        assert [pod["metadata"]["labels"]["muster.io/epoch"] for pod in world.pods] == ["2"]

    in_world(scenario)
