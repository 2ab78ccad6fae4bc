"""What simulated operators do while jobs run: they change the tree of queues, drain queues and nodes, put things right.

Each run has its own mix of works, as it has of faults. A work is a command or a few with a wait between them: a queue
is stopped, closed or drained and opened again, gets another weight, guarantee or limit, moves below another queue, is
deleted and made again, or many change as one. Nodes are cordoned, some are emptied as well. Now and then a command is
sent twice, or by somebody who has seen an older tree, and is refused.

Operators know the tree from the ledger: they wait for what became of a command before they give the next one. When the
faults have stopped `put_right` opens what is closed and takes back limits, after whatever drains has been seen to hold
nothing any more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

from msgspec.structs import replace

from muster.core import commands
from muster.core.model import QueueSpec
from muster.core.queues import Queue
from muster.core.state import CellState
from muster.sim.kube import SimKube

from .workload import HALF_LIFE_MS, Workload

WORKS = ("stop", "close", "drain", "weigh", "limit", "move", "delete", "bundle", "cordon", "empty node")
GROUP = "group"  # nobody submits to it: queues may move there
WORKS_A_RUN = (0, 3, 6, 10)  # in some runs nobody disturbs those who share
PAUSE_S = (0.3, 3.0)
SHORT_S = (1.0, 6.0)
DRAINED_WITHIN_S = 400.0  # without faults; longer than a kubelet is stuck
LOOK_EVERY_S = 0.25
FIELDS_KEPT = ("id", "name", "parent", "revision")
Write = Callable[[list[commands.AnyItem]], Awaitable[None]]  # returns when it was decided and applied


class Operators:
    """`run` until the faults stop, then `put_right`. `seen` is what only they can tell, `problems` what is wrong."""

    def __init__(
        self, rng: Random, workload: Workload, kubes: list[SimKube], state: Callable[[], CellState], write: Write
    ) -> None:
        """In a cell that is full for long they keep away: what is held there has to expire."""
        self.seen: Counter[str] = Counter()
        self.problems: list[str] = []
        self._rng = rng
        self._workload = workload
        self._kubes = kubes
        self._state = state
        self._write = write
        self._works = [work for work in WORKS if rng.random() < 0.5]
        self._count = rng.choice(WORKS_A_RUN) if self._works and not workload.lasting else 0
        self._number = 0

    async def run(self) -> None:
        rng = self._rng
        for _ in range(self._count):
            await asyncio.sleep(rng.uniform(*PAUSE_S))
            await self._work(rng.choice(self._works))

    async def put_right(self) -> None:
        for queue in list(self._state().queues.subtree()):
            if queue.spec.state == "DRAINING":
                await self._until_empty(queue.id, DRAINED_WITHIN_S)
                if not self._is_empty(queue.id):
                    self.problems.append(f"queue {queue.path} drains and still has {queue.usage}")
        for queue in list(self._state().queues.subtree()):
            limit = self._workload.limit(queue.spec.name)
            if queue.spec.state != "OPEN" or queue.spec.limit != limit:
                await self._change(queue.id, state="OPEN", limit=limit)
        for kube in self._kubes:
            for name in sorted(kube.nodes):
                kube.cordon_node(name, cordoned=False)

    # --- works --------------------------------------------------------------------------------------------------------

    async def _work(self, work: str) -> None:
        queues = list(self._state().queues.subtree())
        if not queues:
            return  # nobody has been heard yet
        queue = self._rng.choice([queue for queue in queues if not queue.children] * 3 + queues)
        if work in ("stop", "close"):
            await self._shut(queue.id, "STOPPED" if work == "stop" else "CLOSED")
        elif work == "drain":
            await self._drain(queue.id)
        elif work == "weigh":
            await self._weigh(queue)
        elif work == "limit":
            await self._limit(queue)
        elif work == "move":
            await self._move(queue)
        elif work == "delete":
            await self._delete(queue)
        elif work == "bundle":
            await self._bundle(queues)
        else:
            await self._cordon(empty=work == "empty node")

    async def _shut(self, queue: str, state: str) -> None:
        await self._change(queue, state=state)
        await asyncio.sleep(self._rng.uniform(*SHORT_S))
        await self._change(queue, state="OPEN")

    async def _drain(self, queue: str) -> None:
        await self._change(queue, state="DRAINING")
        if self._rng.random() < 0.25:
            return  # `put_right` opens it
        await self._until_empty(queue, self._rng.uniform(2.0, 12.0))
        await self._change(queue, state="OPEN")

    async def _weigh(self, queue: Queue) -> None:
        """Another weight, guarantee, priority, policy: everything but its limits and what it keeps from lending."""
        other = self._workload.other(queue.spec)
        kept = {field: getattr(queue.spec, field) for field in ("limit", "lending_limit", "state")}
        half_life_ms = self._rng.choice((0, HALF_LIFE_MS, queue.spec.half_life_ms)) if not queue.spec.parent else 0
        spec = replace(other, half_life_ms=half_life_ms, **kept)
        await self._put(commands.UpsertQueue(queue.path, spec, self._revision(queue)))

    async def _limit(self, queue: Queue) -> None:
        """A limit, often below what is used, for a moment or until things are put right."""
        rng = self._rng
        await self._change(queue.id, limit=(("cpu", max(rng.choice((1_000, 4_000, 10_000)), _guaranteed(queue))),))
        if rng.random() < 0.5:
            await asyncio.sleep(rng.uniform(*SHORT_S))
            await self._change(queue.id, limit=self._workload.limit(queue.spec.name))

    async def _move(self, queue: Queue) -> None:
        """Below another queue, or to the top."""
        tree = self._state().queues
        if tree.find(GROUP) is None:
            await self._put(commands.UpsertQueue(GROUP, QueueSpec(id="", name="", parent="", weight=2), 0))
        parents = ["", GROUP, *(q.path for q in tree.subtree() if q.children)]
        path = "/".join(part for part in (self._rng.choice(parents), queue.spec.name) if part)
        spec = replace(queue.spec, half_life_ms=0) if self._rng.random() < 0.7 else queue.spec
        await self._put(commands.UpsertQueue(queue.path, spec, self._revision(queue), new_path=path))

    async def _delete(self, queue: Queue) -> None:
        """Refused when it has jobs or queues below it. What was deleted is made again, and is another queue then."""
        path, spec = queue.path, queue.spec
        await self._put(commands.DeleteQueue(path))
        if queue.id not in self._state().queues:
            await asyncio.sleep(self._rng.uniform(*SHORT_S))
            await self._put(commands.UpsertQueue(path, replace(spec, state="OPEN"), 0))

    async def _bundle(self, queues: list[Queue]) -> None:
        """Guarantees and weights change hands, as one; now and then with a mistake in it, so that nothing happens."""
        rng = self._rng
        chosen = rng.sample(queues, min(len(queues), 3))
        specs = [queue.spec for queue in chosen]
        rng.shuffle(specs)
        changes: list[commands.UpsertQueue | commands.DeleteQueue] = [
            commands.UpsertQueue(
                queue.path, replace(queue.spec, weight=spec.weight, guaranteed=spec.guaranteed, priority=spec.priority)
            )
            for queue, spec in zip(chosen, specs, strict=True)
        ]
        if rng.random() < 0.3:
            changes.append(commands.DeleteQueue("there-is-none"))
        before = {queue.id: queue.spec for queue in self._state().queues.subtree()}
        await self._put(commands.ChangeQueues(tuple(changes)))
        after = {queue.id: queue.spec for queue in self._state().queues.subtree()}
        self.seen["many queues changed"] += before != after
        if len(changes) > len(chosen) and before != after:
            self.problems.append(f"a refused change of many queues left {after}, there was {before}")

    async def _cordon(self, *, empty: bool) -> None:
        """Nothing new may come to a node; or what is there has to leave as well, as `kubectl drain` does."""
        rng = self._rng
        kube = rng.choice(self._kubes)
        name = rng.choice(sorted(kube.nodes))
        kube.cordon_node(name, cordoned=True)
        if empty:
            await asyncio.sleep(rng.uniform(0.0, 1.5))
            for key, pod in sorted(kube.pods.items()):
                if pod["spec"].get("nodeName") == name and not pod["metadata"].get("deletionTimestamp"):
                    kube.delete_unasked(*key)
                    self.seen["pod of a drained node deleted"] += 1
        await asyncio.sleep(rng.uniform(*SHORT_S))
        if name in kube.nodes:
            kube.cordon_node(name, cordoned=False)

    # --- commands -----------------------------------------------------------------------------------------------------

    async def _change(self, queue: str, **fields: object) -> None:
        """Some fields of the queue, wherever it is now, if it still is."""
        if queue in self._state().queues:
            now = self._state().queues.get(queue)
            await self._put(commands.UpsertQueue(now.path, replace(now.spec, **fields)))

    async def _put(self, item: commands.AnyItem) -> None:
        self._number += 1
        named = replace(item, request_id=f"operator-{self._number}")
        await self._write([named, named] if self._rng.random() < 0.1 else [named])

    def _revision(self, queue: Queue) -> int:
        """Whatever it is, the one they have seen, or one before that: refused."""
        return self._rng.choice((-1, -1, queue.spec.revision, max(queue.spec.revision - 1, 1)))

    async def _until_empty(self, queue: str, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        held = queue in self._state().queues and not self._is_empty(queue)
        while loop.time() < until_s:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._is_empty(queue):
                self.seen["queue drained"] += held
                return

    def _is_empty(self, queue: str) -> bool:
        """It drains, and nothing of it is on any node, by the ledger."""
        tree = self._state().queues
        return queue not in tree or not (tree.get(queue).usage or tree.get(queue).held)


def _guaranteed(queue: Queue) -> int:
    return dict(queue.spec.guaranteed).get("cpu", 0)
