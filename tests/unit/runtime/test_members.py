"""Work is spread over the replicas that live, and moves when one comes or goes."""

import asyncio
import random

from muster.runtime import streams
from muster.runtime.members import TTL_S, Members
from muster.sim.bus import SimNats
from muster.sim.loop import SimClock, VirtualTimeLoop

KEYS = [f"job-{i}" for i in range(300)]


def simulate(test):
    async def main():
        clock = SimClock()
        await test(SimNats(clock, random.Random(1)), clock)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


async def join(nats, clock, name):
    stream = await nats.connect(name).stream(streams.leases_spec())
    members = Members(stream, "main.preemptor", name, clock=clock)
    return members, asyncio.create_task(members.run())


def owners(*members):
    """Who takes each key, by the replicas' own views."""
    return {key: [m._name for m in members if m.mine(key)] for key in KEYS}


async def stop(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_every_key_has_one_owner_and_all_replicas_get_some():
    async def test(nats, clock):
        joined = [await join(nats, clock, name) for name in ("p-1", "p-2", "p-3")]
        members, tasks = zip(*joined, strict=True)
        assert not any(m.mine("job-1") for m in members)  # nobody knows anybody yet
        await clock.sleep(TTL_S)
        taken = owners(*members)
        assert all(len(by) == 1 for by in taken.values())
        counts = [sum(by == [m._name] for by in taken.values()) for m in members]
        assert min(counts) > len(KEYS) / 6
        await stop(*tasks)

    simulate(test)


def test_a_dead_replica_s_work_moves_after_the_ttl_and_only_that():
    async def test(nats, clock):
        (one, task_one), (two, task_two), (three, task_three) = [
            await join(nats, clock, n) for n in ("p-1", "p-2", "p-3")
        ]
        await clock.sleep(TTL_S)
        before = owners(one, two, three)
        told = []
        one.changed(lambda: told.append(one.live))
        await stop(task_three)
        await clock.sleep(2 * TTL_S)
        assert told == [("p-1", "p-2")]
        after = owners(one, two)
        assert all(len(by) == 1 for by in after.values())
        assert all(after[key] == by for key, by in before.items() if by != ["p-3"])
        await stop(task_one, task_two)

    simulate(test)


def test_a_replica_that_leaves_is_gone_at_once():
    async def test(nats, clock):
        (one, task_one), (two, task_two) = [await join(nats, clock, n) for n in ("p-1", "p-2")]
        await clock.sleep(TTL_S)
        await stop(task_two)
        await two.leave()
        await clock.sleep(0.1)
        assert one.live == ("p-1",)
        assert all(one.mine(key) for key in KEYS)
        await stop(task_one)

    simulate(test)


def test_a_replica_cut_off_from_the_bus_keeps_itself_out():
    async def test(nats, clock):
        (one, task_one), (two, task_two) = [await join(nats, clock, n) for n in ("p-1", "p-2")]
        await clock.sleep(TTL_S)
        nats.partition("p-2")
        await clock.sleep(2 * TTL_S)
        assert one.live == ("p-1",)
        assert two.live == ()
        nats.heal("p-2")
        await clock.sleep(2 * TTL_S)
        assert one.live == two.live == ("p-1", "p-2")
        await stop(task_one, task_two)

    simulate(test)
