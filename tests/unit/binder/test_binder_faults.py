"""Every way a write, a watch or a partition of the binder can go wrong, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from muster.core.model import JobState, PodPhase
from muster.runtime import kube
from muster.runtime.ports import OutcomeUnknown

World = Any
Run = Callable[..., None]


def transient() -> kube.Transient:
    return kube.Transient("no answer")


def test_a_job_stopped_before_its_create_was_sent_is_gone_without_a_request(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.submit(1)
        world.stop(1)  # before the workers ran
        await asyncio.sleep(1)
        assert world.api.calls == []
        assert world.phases(1) == [PodPhase.GONE]

    in_world(scenario)


def test_a_job_stopped_while_its_create_is_on_the_wire_is_deleted_afterwards(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.api.create_gate = asyncio.Event()
        world.submit(1)
        await asyncio.sleep(0.01)
        world.stop(1)
        await asyncio.sleep(0.3)
        assert PodPhase.GONE not in world.phases(1)
        world.api.create_gate.set()
        await asyncio.sleep(3)
        assert world.phases(1)[-1] == PodPhase.GONE
        assert world.pods == []

    in_world(scenario)


@pytest.mark.parametrize("happened", ["before", "after"])
def test_a_create_without_answer_is_repeated_and_happens_once(in_world: Run, happened: str) -> None:
    async def scenario(world: World) -> None:
        world.server.faults.watch_cut_chance = 1.0  # so that only the answer can tell
        world.api.creates.append((happened, transient()))
        world.submit(1)
        await world.acknowledge_until(lambda: world.job(1).phases[0] >= PodPhase.CREATED)
        assert len(world.pods) == 1
        assert world.inbox.rejections == []

    in_world(scenario)


def test_a_create_of_unknown_outcome_is_not_told_gone_before_it_has_settled(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.api.creates.append(("before", transient()))
        world.submit(1)
        await asyncio.sleep(0.01)
        assert world.api.calls == ["create"]
        world.stop(1)
        await asyncio.sleep(5)
        assert world.phases(1) == []
        await asyncio.sleep(10)
        assert world.phases(1) == [PodPhase.GONE]
        assert world.api.calls.count("create") == 1

    in_world(scenario)


def test_a_create_that_lands_late_for_a_stopped_job_is_found_and_deleted(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.api.creates.append(("before", transient()))
        world.submit(1)
        await asyncio.sleep(0.01)
        body = world.binder._reviewer.gang(world.job(1)).manifest(world.binder._reviewer.gang(world.job(1)).slots[0])
        world.stop(1)
        world.server.create("team-a", msgspec.json.decode(body), "late")  # the lost request arrives after all
        await asyncio.sleep(3)
        assert world.pods == []
        assert world.phases(1)[-1] == PodPhase.GONE

    in_world(scenario)


def test_a_throttled_cluster_gets_its_pause(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.api.creates.append(("before", kube.Throttled("slow down", retry_after_s=3.0)))
        world.submit(1)
        await asyncio.sleep(0.01)
        world.submit(2)
        await asyncio.sleep(2.5)
        assert world.api.calls == ["create"]
        await asyncio.sleep(2)
        assert len(world.pods) == 2

    in_world(scenario)


@pytest.mark.parametrize(
    "error",
    [
        kube.Invalid("spec.containers: required", status=422, reason="Invalid"),
        kube.Invalid("exceeded quota", status=403, reason="Forbidden"),
        kube.NotFound('namespaces "team-a" not found', status=404, reason="NotFound"),
    ],
)
def test_what_the_server_refuses_for_good_rejects_the_placement(in_world: Run, error: kube.KubeError) -> None:
    async def scenario(world: World) -> None:
        world.api.creates.append(("before", error))
        world.submit(1)
        await asyncio.sleep(1)
        (rejection,) = world.inbox.rejections
        assert (rejection.code, rejection.message, rejection.by_node) == (error.reason, error.message, False)
        world.stop(1, JobState.QUEUED)
        await world.acknowledge_until(lambda: world.job(1).phases[0] == PodPhase.GONE)
        assert world.api.calls.count("create") == 1

    in_world(scenario)


def test_a_name_taken_by_a_stranger_rejects_the_placement(in_world: Run, id_of: Any) -> None:
    async def scenario(world: World) -> None:
        name = f"job-1-{id_of(1)[:8]}-worker-0-1-0"
        world.server.create("team-a", {"metadata": {"name": name}, "spec": {"nodeName": "n0"}}, "kubectl")
        world.submit(1)
        await asyncio.sleep(1)
        assert [rejection.code for rejection in world.inbox.rejections] == ["NameTaken"]

    in_world(scenario)


def test_a_pod_our_predecessor_created_is_adopted(in_idle_world: Run) -> None:
    async def scenario(world: World) -> None:
        async with world.running():
            world.submit(1)
            await asyncio.sleep(1)
        assert len(world.pods) == 1
        successor = type(world)()
        successor.server, successor.api._server = world.server, world.server
        successor.binder = successor._binder()
        async with successor.running():
            successor.submit(1)
            await asyncio.sleep(1)
            assert successor.phases(1)[-1] == PodPhase.RUNNING
            assert successor.inbox.rejections == []
            assert len(world.pods) == 1

    in_idle_world(scenario)


def test_a_delete_that_fails_is_tried_again(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.submit(1)
        await world.acknowledge_until(lambda: world.job(1).phases[0] == PodPhase.RUNNING)
        world.api.deletes += [("before", transient()), ("after", transient())]
        world.stop(1)
        await asyncio.sleep(5)
        assert world.pods == []
        assert world.phases(1)[-1] == PodPhase.GONE

    in_world(scenario)


def test_facts_survive_an_inbox_that_fails(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.inbox.failures += [OutcomeUnknown("nats is away")] * 3
        world.submit(1)
        await asyncio.sleep(5)
        assert world.phases(1)[-1] == PodPhase.RUNNING

    in_world(scenario)


def test_a_fact_that_was_consumed_without_effect_is_told_again(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.submit(1)
        await asyncio.sleep(1)
        told = world.phases(1)
        world.ledger.commit()  # the inbox is consumed, the ledger does not show the phase
        await asyncio.sleep(15)
        assert world.phases(1) == [*told, PodPhase.RUNNING]

    in_world(scenario)


def test_nothing_is_done_for_partitions_that_were_lost(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.queue(1)
        world.partitions.lose_all()
        world.place(1)
        await asyncio.sleep(2)
        assert world.api.calls == []
        world.partitions.take_all(term=2)
        await asyncio.sleep(2)
        assert len(world.pods) == 1

    in_world(scenario)


def test_a_lost_partition_stops_what_waits_in_the_queue(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.api.creates.append(("before", transient()))
        world.submit(1)
        await asyncio.sleep(0.01)
        world.partitions.lose_all()
        await asyncio.sleep(20)
        assert world.api.calls == ["create"]
        assert world.inbox.items == []

    in_world(scenario)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_create_that_may_still_arrive_is_remembered_while_its_partition_is_lost_for_a_moment(
    in_world: Run, stopped: bool
) -> None:
    """LOG-15: the partition comes back before the create has settled. Nobody may take the pod for missing meanwhile,
    nor send a second create after it."""

    async def scenario(world: World) -> None:
        world.api.creates.append(("before", transient()))
        world.submit(1)
        await asyncio.sleep(0.01)
        assert world.api.calls == ["create"]
        world.partitions.lose_all()
        await asyncio.sleep(2)
        world.partitions.take_all(term=2)
        if stopped:
            world.stop(1)
        await asyncio.sleep(4)
        assert world.api.calls.count("create") == 1
        assert PodPhase.GONE not in world.phases(1)
        await asyncio.sleep(20)
        assert world.api.calls.count("create") == (1 if stopped else 2)
        assert world.phases(1)[-1] == (PodPhase.GONE if stopped else PodPhase.RUNNING)

    in_world(scenario)


def test_after_taking_over_absence_is_believed_only_behind_the_fence(in_idle_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.queue(1)
        world.place(1)
        world.stop(1)
        world.partitions.since_s = asyncio.get_running_loop().time()
        async with world.running():
            await asyncio.sleep(6)
            assert world.phases(1) == []
            await asyncio.sleep(4)
            assert world.phases(1) == [PodPhase.GONE]

    in_idle_world(scenario)


def test_a_pod_that_a_relist_misses_is_gone_only_if_a_get_says_so(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.submit(1)
        world.submit(2)
        await world.acknowledge_until(lambda: world.job(2).phases[0] == PodPhase.RUNNING)
        kept = world.server.pods[("team-a", world.pod_names[1])]
        world.binder.pods_listed("sim", [])  # a list from a stale cache
        world.server.pods.clear()
        world.server.pods[("team-a", kept["metadata"]["name"])] = kept
        await asyncio.sleep(1)
        assert world.phases(1)[-1] == PodPhase.GONE
        assert PodPhase.GONE not in world.phases(2)

    in_world(scenario)


def test_a_pod_that_a_relist_misses_while_it_is_deleted_is_looked_for_afterwards(in_world: Run) -> None:
    """No watch will tell of its end: the list has passed over it."""

    async def scenario(world: World) -> None:
        world.submit(1)
        await world.acknowledge_until(lambda: world.job(1).phases[0] == PodPhase.RUNNING)
        world.api.deletes.extend([("before", transient()), ("before", transient())])
        world.stop(1)
        await asyncio.sleep(0.1)
        world.server.pods.clear()
        world.binder.pods_listed("sim", [])
        await world.acknowledge_until(lambda: world.job(1).phases[0] == PodPhase.GONE)
        assert world.phases(1)[-1] == PodPhase.GONE

    in_world(scenario)


def test_everything_ends_in_a_hostile_cluster(in_world: Run, template: Any) -> None:
    """Faults of every kind: each job still runs exactly once and everything is told."""

    async def scenario(world: World) -> None:
        faults = world.server.faults
        faults.delay_max_s, faults.request_lost_chance, faults.answer_lost_chance = 0.2, 0.2, 0.2
        faults.throttled_chance, faults.watch_cut_chance = 0.2, 0.3
        for number in range(1, 31):
            world.submit(number, template=template(run_seconds=3))
        await world.acknowledge_until(
            lambda: all(world.job(n).phases[0] == PodPhase.SUCCEEDED for n in range(1, 31)), limit_s=300
        )
        assert len(world.pods) == 30
        assert world.inbox.rejections == []

    in_world(scenario)


def test_a_new_owner_creates_when_nothing_of_the_old_one_can_arrive(in_idle_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.queue(1)
        world.place(1)
        world.partitions.since_s = asyncio.get_running_loop().time()
        async with world.running():
            await asyncio.sleep(7.5)
            assert set(world.api.calls) == {"get"}  # the fence ends at 8 s
            await asyncio.sleep(16)
            assert world.api.calls.count("create") == 1

    in_idle_world(scenario)


def test_an_unanswered_create_is_not_repeated_before_it_is_settled(in_idle_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.queue(1)
        world.place(1)
        world.api.creates.append(("before", transient()))
        world.partitions.since_s = asyncio.get_running_loop().time() - 60
        async with world.running():
            await asyncio.sleep(5.5)
            assert world.api.calls.count("create") == 1
            assert "get" in world.api.calls
            await asyncio.sleep(15)
            assert world.api.calls.count("create") == 2

    in_idle_world(scenario)


def test_a_pod_a_new_owner_never_created_is_gone_after_the_fence(in_idle_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.queue(1)
        world.place(1)
        world.partitions.since_s = asyncio.get_running_loop().time()
        async with world.running():
            assert world.api.calls == ["get"]
            world.stop(1)
            await asyncio.sleep(7.5)  # its own create has settled, but the fence ends at 8 s
            assert world.phases(1) == []
            await asyncio.sleep(3)
            assert world.phases(1) == [PodPhase.GONE]

    in_idle_world(scenario)


def test_a_pod_that_vanished_unseen_is_gone_and_not_created_again(in_world: Run) -> None:
    async def scenario(world: World) -> None:
        world.server.faults.watch_cut_chance = 1.0
        world.submit(1)
        await asyncio.sleep(1)
        world.server.pods.clear()  # and nobody says so
        await asyncio.sleep(15)
        assert world.phases(1) == [PodPhase.CREATED, PodPhase.GONE]
        assert world.api.calls.count("create") == 1

    in_world(scenario)
