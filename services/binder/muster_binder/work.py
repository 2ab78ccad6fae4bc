"""The writes to one cluster: a queue, a limited number of workers, and patience by kind of error.

Placements arrive in bursts of thousands; the API server gets at most `in_flight_max` requests at once (and, if set,
`per_second_max` a second). What it throttles waits as long as it says, all of it; what failed for an unknown reason
comes back after an exponential pause of its own, so one bad pod never holds up the others. What an operation means,
and what to do when it is not wanted any more, is the business of `perform`, which runs anew for every attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import IntEnum
from random import Random
from typing import Final

from muster.runtime import kube
from muster.runtime.logs import get_logger
from muster.runtime.ports import Clock
from muster_binder.metrics import BinderMetrics
from muster_binder.names import PodKey

RETRY_FIRST_S: Final = 0.2
RETRY_MAX_S: Final = 15.0
WARN_AFTER_TRIES: Final = 5

log = get_logger(__name__)


class Kind(IntEnum):
    CREATE = 0  # or bind an existing pod
    DELETE = 1
    CONFIRM = 2  # get it, to learn whether it exists


class Op:
    """One thing to do to one pod. `fresh`: this replica held the partition when the pod was placed, so nobody else can
    have tried it. `finished`: the containers of the pod to delete have stopped."""

    __slots__ = ("cluster", "finished", "fresh", "key", "kind", "name", "namespace", "not_before_s", "tries", "uid")

    def __init__(
        self,
        kind: Kind,
        key: PodKey,
        cluster: str,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        fresh: bool = False,
        finished: bool = False,
    ) -> None:
        self.kind = kind
        self.key = key
        self.cluster = cluster
        self.namespace = namespace
        self.name = name
        self.uid = uid
        self.fresh = fresh
        self.finished = finished
        self.not_before_s = 0.0  # when a create may be sent: until then an earlier one may still arrive
        self.tries = 0


Perform = Callable[[Op], Awaitable[None]]


class ClusterWork:
    """Runs operations of one cluster. `perform` raises Throttled or Transient to be called again later."""

    def __init__(
        self,
        cluster: str,
        perform: Perform,
        *,
        in_flight_max: int,
        per_second_max: int,
        clock: Clock,
        random: Random,
        metrics: BinderMetrics,
    ) -> None:
        self._cluster = cluster
        self._perform = perform
        self._in_flight_max = in_flight_max
        self._spacing_s = 1 / per_second_max if per_second_max else 0.0
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._queue: asyncio.Queue[Op] = asyncio.Queue()
        self._closed_until_s = 0.0  # nothing is sent before: the server throttles
        self._next_s = 0.0

    def submit(self, op: Op) -> None:
        self._queue.put_nowait(op)

    def submit_later(self, op: Op, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(max(0.0, delay_s), self._queue.put_nowait, op)

    def waiting(self) -> int:
        return self._queue.qsize()

    async def run(self) -> None:
        """For ever; ends by cancellation."""
        async with asyncio.TaskGroup() as workers:
            for number in range(self._in_flight_max):
                workers.create_task(self._work(), name=f"write {self._cluster} {number}")

    async def _work(self) -> None:
        while True:
            op = await self._queue.get()
            await self._admit()
            try:
                await self._perform(op)
            except kube.Throttled as busy:
                self._metrics.retries.labels(self._cluster, "throttled").inc()
                self._closed_until_s = max(self._closed_until_s, self._clock.monotonic() + busy.retry_after_s)
                self.submit_later(op, busy.retry_after_s * (1 + self._random.random() / 4))
            except kube.Transient as error:
                self._metrics.retries.labels(self._cluster, "transient").inc()
                self._retry(op, error)

    async def _admit(self) -> None:
        """Wait while the server asked for a pause and for this write's turn."""
        while (pause_s := self._closed_until_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(pause_s)
        if self._spacing_s:
            now_s = self._clock.monotonic()
            turn_s = max(now_s, self._next_s)
            self._next_s = turn_s + self._spacing_s
            if turn_s > now_s:
                await self._clock.sleep(turn_s - now_s)

    def _retry(self, op: Op, error: kube.Transient) -> None:
        pause_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(op.tries, 10))
        op.tries += 1
        if op.tries == WARN_AFTER_TRIES:
            log.warning("still trying", cluster=self._cluster, pod=op.name, kind=op.kind.name, error=str(error))
        self.submit_later(op, pause_s * (0.5 + self._random.random() / 2))
