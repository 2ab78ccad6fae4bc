"""Entitlements follow weights, demand and capacity; only changes are published, by one replica at a time."""

from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from tests.unit.live_cell import CELL, id_of, job, nodes, queue, simulate

from muster.core.commands import CancelJob, EntitlementsComputed, PodFact, PodsObserved, SubmitJob
from muster.core.model import EVERY_INDEX, PodPhase
from muster.runtime.lease import TTL_S, Lease
from muster_fair_share.service import FairShare, FairShareMetrics

INTERVAL_S = 0.25


async def start(cell, name):
    """One replica; returns its registry and the task that is its life."""
    registry = CollectorRegistry()
    service = FairShare(
        follower=await cell.follower(name),
        inbox=await cell.writer(name),
        lease=Lease(await cell.leases(name), f"{CELL}.fair-share", name, clock=cell.clock),
        clock=cell.clock,
        interval_s=INTERVAL_S,
        metrics=FairShareMetrics(registry),
    )
    return registry, cell.run(service.run())


def entitled_cpu(cell):
    """Entitlement in milli-cores by queue path, as the state has it."""
    return {
        cell.state.queues.path(queue): dict(amounts).get("cpu", 0) for queue, amounts in cell.state.entitled.items()
    }


async def two_queues(cell):
    """8 cpu; queue b has three times the weight of a; both want it all."""
    await cell.write(queue("a"), queue("b", weight=3), nodes(2))
    await cell.write(*(job(f"{q}-{i}", q) for q in "ab" for i in range(12)))


def test_entitlements_follow_weights():
    async def test(cell):
        await two_queues(cell)
        await start(cell, "f-1")
        await cell.until(lambda: entitled_cpu(cell) == {"a": 2000, "b": 6000})

    simulate(test)


def test_what_one_queue_does_not_ask_for_goes_to_the_other():
    async def test(cell):
        await two_queues(cell)
        await start(cell, "f-1")
        await cell.until(lambda: entitled_cpu(cell) == {"a": 2000, "b": 6000})
        waiting = [j for j in cell.state.jobs.values() if j.spec.queue == "b" and not j.charged]
        await cell.write(*(CancelJob(j.id) for j in waiting))
        left = sum(1 for j in cell.state.jobs.values() if j.spec.queue == "b" and j.live) * 1000
        assert left < 6000
        await cell.until(lambda: entitled_cpu(cell) == {"a": 8000 - left, "b": left})

    simulate(test)


def test_an_index_that_succeeded_is_asked_for_no_more():
    """Nothing else happens then: no job comes or ends."""

    async def test(cell):
        await cell.write(queue("a"), queue("b"), nodes(2))
        array = replace(job("array", "a", replicas=4, minimum=1).spec, completion=EVERY_INDEX)
        await cell.write(SubmitJob(array), *(job(f"b-{i}", "b") for i in range(3)))
        await start(cell, "f-1")
        await cell.until(lambda: entitled_cpu(cell) == {"a": 4000, "b": 3000})
        await cell.until(lambda: cell.state.jobs[array.id].charged and not cell.state.jobs[array.id].unplaced)
        await cell.clock.sleep(4 * INTERVAL_S)  # all that was set off by this is over
        await cell.write(PodsObserved("main", (PodFact(array.id, 1, 0, PodPhase.SUCCEEDED),)))
        await cell.until(lambda: entitled_cpu(cell) == {"a": 3000, "b": 3000})

    simulate(test)


def test_that_a_queue_is_entitled_to_nothing_is_said_once():
    """Else the leader would go by its guarantee, find that it borrows nothing, and nobody could reclaim from it."""

    async def test(cell):
        await cell.write(queue("idle"), queue("busy", weight=1), queue("leftovers", weight=0), nodes(1))
        await cell.write(*(job(f"b-{i}", "busy") for i in range(12)), job("l", "leftovers"))
        await start(cell, "f-1")
        await cell.until(lambda: entitled_cpu(cell) == {"idle": 0, "busy": 4000, "leftovers": 0})
        written = len(await cell.written(EntitlementsComputed))
        await cell.write(job("b-more", "busy"))
        await cell.clock.sleep(5 * INTERVAL_S)
        assert len(await cell.written(EntitlementsComputed)) == written

    simulate(test)


def test_only_changed_values_are_written_and_not_too_often():
    async def test(cell):
        await two_queues(cell)
        await start(cell, "f-1")
        await cell.until(lambda: len(cell.state.entitled) == 2)
        await cell.clock.sleep(5)
        first = await cell.written(EntitlementsComputed)
        assert len(first) == 1
        await cell.write(queue("c"))  # nobody asks anything of it
        began = cell.clock.monotonic()
        for i in range(40):
            await cell.write(job(f"c-{i}", "c", cpu=10))
            await cell.clock.sleep(0.05)
        await cell.clock.sleep(1)
        seconds = cell.clock.monotonic() - began
        later = (await cell.written(EntitlementsComputed))[1:]
        assert 0 < len(later) <= seconds / INTERVAL_S + 1
        known = {e.queue: e.amounts for e in first[0].entitlements}
        for message in later:
            changed = {e.queue: e.amounts for e in message.entitlements}
            assert all(known.get(q) != amounts for q, amounts in changed.items())
            known |= changed
        assert known == dict(cell.state.entitled)

    simulate(test)


def test_one_replica_publishes_and_the_other_takes_over():
    async def test(cell):
        await two_queues(cell)
        registries = dict.fromkeys(("f-1", "f-2"))
        lives = {}
        for name in registries:
            registries[name], lives[name] = await start(cell, name)

        def leading():
            return [n for n, r in registries.items() if r.get_sample_value("muster_fair_share_leading") == 1]

        await cell.until(lambda: len(cell.state.entitled) == 2)
        assert len(await cell.written(EntitlementsComputed)) == 1
        (first,) = leading()
        lives[first].cancel()
        cell.nats.crash(first)
        await cell.clock.sleep(2 * TTL_S)
        (second,) = set(registries) - {first}
        assert second in leading()
        assert len(await cell.written(EntitlementsComputed)) == 1  # nothing has changed: nothing is said again
        await cell.write(queue("a", weight=3))
        await cell.until(lambda: entitled_cpu(cell) == {"a": 4000, "b": 4000})

    simulate(test)


def test_a_message_says_which_state_it_comes_from():
    async def test(cell):
        await two_queues(cell)
        await start(cell, "f-1")
        await cell.until(lambda: len(cell.state.entitled) == 2)
        (message,) = await cell.written(EntitlementsComputed)
        assert 0 < message.ledger_seq < cell.state.ledger_seq
        assert cell.state.entitled_seq == message.ledger_seq
        assert id_of(job("a-0", "a")) in cell.state.jobs

    simulate(test)
