"""A small living cell on virtual time, for services that follow the ledger and write to the inbox.

One leader decides with the production core over a simulated JetStream; the test writes commands and facts as anybody
would, and looks at a follower of its own.
"""

import asyncio
import random
from contextlib import asynccontextmanager

from muster.core import commands
from muster.core.model import JobSpec, JobState, NodeSpec, PodPhase, QueueSpec, TaskGroup
from muster.runtime import streams
from muster.runtime.candidate import Candidate
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.sim.bus import SimNats
from muster.sim.loop import SimClock, VirtualTimeLoop
from muster.wire import codec

CELL = "main"
SOON_S = 30.0  # of virtual time


def simulate(test):
    """Run `test(cell)` on virtual time."""

    async def main():
        async with live_cell() as cell:
            await test(cell)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


@asynccontextmanager
async def live_cell():
    cell = LiveCell(SimClock())
    await cell.start()
    yield cell
    await cell.stop()


class LiveCell:
    def __init__(self, clock):
        self.clock = clock
        self.nats = SimNats(clock, random.Random(1))
        self.tasks = []

    async def start(self):
        leader = self.nats.connect("leader")
        inbox, leases = await leader.stream(streams.inbox_spec(CELL)), await leader.stream(streams.leases_spec())
        follower = await self.follower("leader")
        self.run(Candidate(follower, inbox, leases, replica="qm-1", clock=self.clock).run())
        self.seen = await self.follower("test")
        self.inbox_stream = await self.nats.connect("test").stream(streams.inbox_spec(CELL))
        self.inbox = InboxWriter(self.inbox_stream, clock=self.clock)

    async def stop(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def run(self, work):
        task = asyncio.create_task(work)
        self.tasks.append(task)
        return task

    async def reap(self):
        """For ever, in place of a binder: pods of stopping jobs are gone a moment later."""
        while True:
            await self.clock.sleep(0.5)
            stopping = [j for j in self.state.jobs.values() if j.state is JobState.STOPPING]
            facts = [
                commands.PodFact(j.id, j.epoch, pod, PodPhase.GONE) for j in stopping for pod in range(j.gang.pods)
            ]
            if facts:
                await self.write(commands.PodsObserved("c", tuple(facts)))

    async def follower(self, client):
        follower = Follower(self.nats.connect(client), CELL, clock=self.clock)
        await follower.start()
        self.run(follower.wait_stopped())
        return follower

    async def writer(self, client):
        return InboxWriter(await self.nats.connect(client).stream(streams.inbox_spec(CELL)), clock=self.clock)

    async def leases(self, client):
        return await self.nats.connect(client).stream(streams.leases_spec())

    @property
    def state(self):
        return self.seen.state

    async def write(self, *items):
        """Write, and return when all is decided and applied."""
        positions = await self.inbox.write(items)
        await self.seen.wait_applied(positions[-1], SOON_S)

    async def until(self, condition):
        """Until `condition()` holds; fails when virtual time runs on without it."""
        async with asyncio.timeout(SOON_S):
            while not condition():
                await self.clock.sleep(0.01)

    async def written(self, kind):
        """All items of a kind in the inbox so far, in order."""
        last = (await self.inbox_stream.info()).last_seq
        messages = [await self.inbox_stream.get(seq) for seq in range(1, last + 1)]
        return [item for message in messages for item in codec.decode_inbox(message.data) if isinstance(item, kind)]


def queue(path, **fields):
    return commands.UpsertQueue(path, QueueSpec("", path.rpartition("/")[2], "", **fields))


def nodes(count, cpu=4000, cluster="c"):
    specs = tuple(
        NodeSpec(cluster, f"node-{i}", (("cpu", cpu), ("memory", 64 << 30), ("pods", 100))) for i in range(count)
    )
    return commands.NodesReported(cluster, specs, first=True, complete=True)


def job(name, queue_path, *, cpu=1000, replicas=1, priority=0, minimum=None):
    tasks = (TaskGroup("main", replicas, minimum or replicas, (("cpu", cpu),)),)
    job_id = name.encode().hex().rjust(32, "0")
    return commands.SubmitJob(
        JobSpec(id=job_id, namespace="n", name=name, queue=queue_path, tasks=tasks, priority=priority, request_id=name)
    )


def id_of(submit):
    return submit.spec.id
