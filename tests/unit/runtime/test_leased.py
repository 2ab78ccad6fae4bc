"""Work under a lease runs in one replica at a time, and moves when the holder stops or is cut off."""

import asyncio
import random

import pytest

from muster.runtime import streams
from muster.runtime.lease import TTL_S, Lease
from muster.runtime.leased import work_while_held
from muster.sim.bus import SimNats
from muster.sim.loop import SimClock, VirtualTimeLoop


class Replica:
    """Counts how often its work began, and whether it is at work."""

    def __init__(self, nats, clock, name):
        self._nats, self._clock, self.name = nats, clock, name
        self.began = 0
        self.working = False
        self.fails = False

    async def start(self):
        stream = await self._nats.connect(self.name).stream(streams.leases_spec())
        lease = Lease(stream, "main.fair-share", self.name, clock=self._clock)
        self.task = asyncio.create_task(work_while_held(lease, self._work))
        return self

    async def stop(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _work(self):
        self.began += 1
        self.working = True
        try:
            while not self.fails:
                await self._clock.sleep(0.1)
            raise ValueError("no more")
        finally:
            self.working = False


def simulate(test):
    async def main():
        clock = SimClock()
        await test(SimNats(clock, random.Random(1)), clock)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_one_works_and_a_stop_hands_over_at_once():
    async def test(nats, clock):
        replicas = [await Replica(nats, clock, name).start() for name in ("f-1", "f-2")]
        await clock.sleep(2 * TTL_S)
        (at_work,) = [replica for replica in replicas if replica.working]
        (standby,) = [replica for replica in replicas if not replica.working]
        await at_work.stop()
        assert not at_work.working
        await clock.sleep(TTL_S / 2)  # released: nobody waits for the lease to run out
        assert standby.working
        await standby.stop()

    simulate(test)


def test_a_replica_that_was_cut_off_stops_when_it_sees_the_new_holder_and_may_come_back():
    async def test(nats, clock):
        one = await Replica(nats, clock, "f-1").start()
        await clock.sleep(TTL_S)
        two = await Replica(nats, clock, "f-2").start()
        nats.partition("f-1")
        await clock.sleep(3 * TTL_S)
        assert two.working
        nats.heal("f-1")
        await clock.sleep(TTL_S)
        assert (one.working, two.working) == (False, True)
        await two.stop()
        await clock.sleep(TTL_S)
        assert one.working
        assert one.began == 2
        await one.stop()

    simulate(test)


def test_what_the_work_raises_ends_the_task_and_releases_the_lease():
    async def test(nats, clock):
        one = await Replica(nats, clock, "f-1").start()
        await clock.sleep(TTL_S)
        one.fails = True
        with pytest.raises(ValueError, match="no more"):
            await one.task
        two = await Replica(nats, clock, "f-2").start()
        await clock.sleep(TTL_S / 2)
        assert two.working
        await two.stop()

    simulate(test)
