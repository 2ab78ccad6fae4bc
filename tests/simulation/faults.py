"""What goes wrong in a run, drawn from its seed: each has its own mix of bad networks and strikes.

Some runs lose messages, some nodes, some both, some nothing. A strike hits one process, one node or some pods for a
moment. One of them is there for facts that are late (LOG-15): a process's path to the bus is choked, and while its
words are on their way somebody deletes pods, so others speak for it before they arrive.
"""

from __future__ import annotations

import asyncio
from random import Random

from muster.sim.bus import Faults, SimNats
from muster.sim.kube import KubeFaults, SimKube

from .processes import Process

CHAOS_S = 25.0
STRIKES = ("kill", "partition", "kube-cut", "restart", "node", "skew", "choke", "evict", "cluster")
NODES_LEFT = 2  # of a cluster that loses one: a large gang still fits on it
CHOKED_S = (4.0, 9.0)
STUCK_CHANCE = 0.9  # that a kubelet cannot end a pod for long, where kubelets are stuck


class Chaos:
    """`run` for CHAOS_S, then `heal`. `stuck`: so are the kubelets, and holds expire."""

    def __init__(
        self, rng: Random, nats: SimNats, kubes: list[SimKube], processes: list[Process], *, stuck: bool
    ) -> None:
        self.kills = 0
        self._stuck = stuck
        self._rng = rng
        self._nats = nats
        self._kubes = kubes
        self._processes = processes
        self._removed: dict[str, None] = {}  # clusters that have lost a node for good

    async def run(self) -> None:
        rng, loop = self._rng, asyncio.get_running_loop()
        self._draw()
        kinds = [kind for kind in STRIKES if rng.random() < 0.5]
        until_s = loop.time() + CHAOS_S
        while loop.time() < until_s:
            await asyncio.sleep(rng.uniform(0.2, 2.0))
            if kinds:
                await self._strike(rng.choice(kinds))

    def heal(self) -> None:
        self._nats.faults = Faults()
        for kube in self._kubes:
            kube.faults = KubeFaults()
        for process in self._processes:
            process.clock.offset_ms = 0

    def _draw(self) -> None:
        maybe = self._maybe
        self._nats.faults = Faults(
            delay_max_s=maybe(0.05),
            request_lost_chance=maybe(0.03),
            answer_lost_chance=maybe(0.05),
            stall_chance=maybe(0.003),
            repeat_chance=maybe(0.5),
            repeating=("binder-1", "binder-2"),
            short_batch_chance=maybe(0.5),
        )
        for kube in self._kubes:
            kube.faults = KubeFaults(
                delay_max_s=maybe(0.1),
                request_lost_chance=maybe(0.05),
                answer_lost_chance=maybe(0.1),
                late_chance=maybe(0.15),
                throttled_chance=maybe(0.1),
                watch_cut_chance=maybe(0.05),
                admission_refused_chance=maybe(0.05),
                vanish_chance=maybe(0.3),
                stuck_chance=STUCK_CHANCE if self._stuck else 0.0,
            )

    def _maybe(self, most: float) -> float:
        return self._rng.random() * most if self._rng.random() < 0.5 else 0.0

    async def _strike(self, kind: str) -> None:
        rng = self._rng
        process = rng.choice(self._processes)
        if kind == "kill":
            self.kills += 1
            await process.kill()
        elif kind == "partition":
            self._nats.partition(process.name)
            await asyncio.sleep(rng.uniform(0.1, 5.0))
            self._nats.heal(process.name)
        elif kind == "kube-cut":
            for api in process.apis.values():
                api.cut()
            await asyncio.sleep(rng.uniform(0.1, 4.0))
            for api in process.apis.values():
                api.restore()
        elif kind == "cluster":
            await self._strike_cluster()
        elif kind == "restart":
            self._nats.restart()
        elif kind == "skew":
            process.clock.offset_ms = rng.choice((-10_000, -500, 0, 500, 10_000))
        elif kind == "choke":
            self._nats.stall(
                rng.choice([p.name for p in self._processes if p.name.startswith("binder")]), rng.uniform(*CHOKED_S)
            )
            self._evict()
        elif kind == "evict":
            self._evict()
        else:
            await self._strike_node()

    async def _strike_cluster(self) -> None:
        """Nobody reaches one of the clusters."""
        cluster = self._rng.choice(self._kubes).cluster
        for process in self._processes:
            if cluster in process.apis:
                process.apis[cluster].cut()
        await asyncio.sleep(self._rng.uniform(0.5, 5.0))
        for process in self._processes:
            if cluster in process.apis:
                process.apis[cluster].restore()

    def _evict(self) -> None:
        """Somebody deletes a few pods."""
        kube = self._rng.choice(self._kubes)
        running = sorted(key for key, pod in kube.pods.items() if pod["status"]["phase"] == "Running")
        for namespace, name in self._rng.sample(running, min(len(running), self._rng.randint(1, 6))):
            kube.delete_unasked(namespace, name)

    async def _strike_node(self) -> None:
        rng, kube = self._rng, self._rng.choice(self._kubes)
        name = rng.choice(sorted(kube.nodes))
        kube.set_node_ready(name, False)
        await asyncio.sleep(rng.uniform(0.5, 5.0))
        if rng.random() < 0.3 and len(kube.nodes) > NODES_LEFT and kube.cluster not in self._removed:
            kube.remove_node(name)
            self._removed[kube.cluster] = None
        else:
            kube.set_node_ready(name, True)
