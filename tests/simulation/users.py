"""What simulated users do: they submit jobs, cancel some, repeat themselves, and their jobs report checkpoints.

They know queues by the name of the leaf, and look up where it is now before they submit: somebody may have moved it. A
request that was on its way meanwhile, or that meets a queue that takes nothing, is refused, and that is an end as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import msgspec

from muster.core import commands
from muster.core.jobs import RUNNING_STATES
from muster.core.model import InboxPosition, JobSpec
from muster.core.state import CellState
from muster.runtime.inbox import InboxWriter
from muster.runtime.ports import OutcomeUnknown

CHECKPOINT_EVERY_S = (0.3, 4.0)


class Users:
    """`accepted`: jobs whose submission is in the inbox, and where."""

    def __init__(self, rng: Random, inbox: InboxWriter, state: Callable[[], CellState]) -> None:
        self.accepted: dict[str, InboxPosition] = {}
        self._rng = rng
        self._inbox = inbox
        self._state = state

    async def submit(self, specs: list[JobSpec]) -> None:
        """One after the other, with a word about another job in between."""
        rng = self._rng
        for spec in specs:
            await asyncio.sleep(rng.expovariate(2.0))
            item = commands.SubmitJob(msgspec.structs.replace(spec, queue=self._path(spec.queue)))
            (position,) = await write(self._inbox, [item])
            self.accepted[spec.id] = position
            if rng.random() < 0.2:  # a client that lost the answer
                await write(self._inbox, [item])
            if rng.random() < 0.15:  # any job, or this one before its pods are there
                victim = rng.choice((spec.id, rng.choice(sorted(self.accepted))))
                await asyncio.sleep(rng.uniform(0.0, 1.0))
                await write(self._inbox, [commands.CancelJob(victim, "someone", request_id=f"cancel-{spec.id}")])

    async def report_checkpoints(self) -> None:
        """Of jobs that run, and now and then of one that does not any more, or by a clock that is wrong."""
        rng = self._rng
        while True:
            await asyncio.sleep(rng.uniform(*CHECKPOINT_EVERY_S))
            jobs = [job for job in self._state().jobs.values() if job.state in RUNNING_STATES or rng.random() < 0.1]
            if jobs:
                job = rng.choice(jobs)
                now_ms = self._state().now_ms
                at_ms = rng.choice((0, 0, now_ms, now_ms - 2_000, now_ms + 60_000))
                epoch = rng.choice((0, job.epoch, job.epoch, max(job.epoch - 1, 0)))
                await write(self._inbox, [commands.ReportCheckpoint(job.id, epoch, at_ms)])

    def _path(self, path: str) -> str:
        """Where the queue is now."""
        name = path.rpartition("/")[2]
        return next((q.path for q in self._state().queues.subtree() if q.spec.name == name), path)


async def write(inbox: InboxWriter, items: list[commands.AnyItem]) -> list[InboxPosition]:
    """As a client does: the same items again for as long as the outcome is unknown."""
    while True:
        try:
            return await inbox.write(items)
        except OutcomeUnknown:
            await asyncio.sleep(0.5)
