"""The agents: one poll loop a kubelet socket, and the search for sockets.

Normally a process serves the one kubelet of its own node; it may as well serve a folder full of them (the simulated
cluster, a virtual-kubelet host). A report is written when the zones differ from what the ledger has, or will have once
it consumed what was written here. Just after a kubelet comes back it lists its pods one by one and its devices may be
missing, so for `HOLD_DOWN_S` anything that says less is in use, or offered, than before is not believed.
"""

from __future__ import annotations

import asyncio
import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Protocol

from muster.core.commands import AnyItem, NodeTopologyReported
from muster.core.model import InboxPosition, Zone
from muster.core.state import CellState
from muster.runtime.logs import get_logger
from muster.runtime.ports import Clock, OutcomeUnknown, StreamFull
from muster_topology_updater.kubelet import Answers, Kubelet, KubeletAway, KubeletBusy, cpu_zones
from muster_topology_updater.metrics import TopologyMetrics
from muster_topology_updater.zones import DeviceIndex, device_resource_of, zones_of

HOLD_DOWN_S: Final = 30.0
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
SEARCH_EVERY_S: Final = 5.0
SOCKET_NAME: Final = "kubelet.sock"

log = get_logger(__name__)


class BadSockets(ValueError):
    """The sockets setting cannot be read."""


class Inbox(Protocol):
    async def write(self, items: Sequence[AnyItem]) -> list[InboxPosition]:
        """Durable on return."""


class Source(Protocol):
    """Where an agent asks (`kubelet.Kubelet`)."""

    async def ask(self) -> Answers: ...
    async def close(self) -> None: ...


@dataclass(frozen=True)
class SocketPlace:
    """Where sockets of a cluster are: a pattern of paths, or one path and the name of its node."""

    cluster: str
    pattern: str
    node: str = ""  # "": the name of the folder that the socket is in

    def find(self) -> dict[str, Path]:
        """node -> socket, of those that exist now."""
        paths = [Path(found) for found in sorted(glob.glob(self.pattern))]
        return {self.node or path.parent.name: path for path in paths}


def parse_sockets(text: str) -> tuple[SocketPlace, ...]:
    """Read `cluster=folder`, `cluster=pattern` or `cluster=path#node`, by commas. Raises BadSockets.

    A folder holds `<node>/kubelet.sock`.
    """
    places = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        cluster, equals, where = part.partition("=")
        path, _, node = where.partition("#")
        if not equals or not cluster or not path:
            raise BadSockets(f"{part!r} is not cluster=folder, cluster=pattern or cluster=path#node")
        if not path.endswith(".sock"):
            path = f"{path.rstrip('/')}/*/{SOCKET_NAME}"
        elif not node and not glob.has_magic(path):
            raise BadSockets(f"{part!r} names one socket: say whose it is ({part}#node)")
        places.append(SocketPlace(cluster, path, node))
    return tuple(places)


class NodeAgent:
    """Polls one kubelet. `step` is one poll and returns the pause until the next."""

    def __init__(
        self,
        cluster: str,
        node: str,
        source: Source,
        *,
        cpus: Mapping[int, int],
        state: Callable[[], CellState],
        inbox: Inbox,
        clock: Clock,
        random: Random,
        poll_s: float,
        metrics: TopologyMetrics,
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._source = source
        self._cpus = cpus
        self._state = state
        self._inbox = inbox
        self._clock = clock
        self._random = random
        self._poll_s = poll_s
        self._metrics = metrics
        self._devices = DeviceIndex()
        self._believed: tuple[Zone, ...] | None = None
        self._written: tuple[tuple[Zone, ...], InboxPosition] | None = None
        self._away = True
        self._back_s = clock.monotonic()  # when it was first heard after an absence
        self._failures = 0

    async def run(self) -> None:
        """For ever; ends by cancellation."""
        try:
            await self._clock.sleep(self._random.random() * min(1.0, self._poll_s))  # many agents, one process
            while True:
                await self._clock.sleep(await self.step())
        finally:
            await self._source.close()

    async def step(self) -> float:
        try:
            answers = await self._source.ask()
        except KubeletBusy:
            self._metrics.poll_errors.labels(self._cluster, "RESOURCE_EXHAUSTED").inc()
            return self._backoff_s()
        except KubeletAway as error:
            self._metrics.poll_errors.labels(self._cluster, error.code).inc()
            if not self._away:
                log.warning("kubelet away", cluster=self._cluster, node=self._node, code=error.code, error=str(error))
            self._away = True
            return self._backoff_s()
        self._failures = 0
        if self._away:
            self._away = False
            self._back_s = self._clock.monotonic()
        zones = zones_of(answers.allocatable, answers.pods, self._devices, self._cpus.get)
        if self._is_credible(zones):
            self._believed = zones
            try:
                await self._report(zones, device_resource_of(answers.allocatable))
            except (OutcomeUnknown, StreamFull) as error:
                log.warning("zones cannot be reported", cluster=self._cluster, node=self._node, error=str(error))
                return self._backoff_s()
        return self._poll_s * (0.8 + 0.4 * self._random.random())

    async def _report(self, zones: tuple[Zone, ...], device_resource: str) -> None:
        known = self._ledger_has()
        if known is None or known == zones:  # None: its Node object is not known yet; look again at the next poll
            return
        report = NodeTopologyReported(self._cluster, self._node, zones, device_resource, len(self._devices))
        (position,) = await self._inbox.write([report])
        self._written = (zones, position)
        self._metrics.zones_reported.labels(self._cluster).inc()

    def _ledger_has(self) -> tuple[Zone, ...] | None:
        """The zones the ledger has once it consumed what was written here; None if it does not know the node."""
        state = self._state()
        index = state.nodes.index_of(self._cluster, self._node)
        if index is None or state.nodes.is_removed(index):
            return None
        if self._written is not None and self._written[1] >= state.position:
            return self._written[0]
        return state.nodes.zones(index)

    def _is_credible(self, zones: tuple[Zone, ...]) -> bool:
        """False just after a kubelet came back, if it shows less than was there before."""
        if self._clock.monotonic() - self._back_s >= HOLD_DOWN_S:
            return True
        before = self._believed if self._believed is not None else self._ledger_has()
        if not before:
            return True
        now = {zone.id: zone for zone in zones}
        return all(
            zone.id in now
            and _at_least(now[zone.id].used, zone.used)
            and _at_least(now[zone.id].allocatable, zone.allocatable)
            for zone in before
        )

    def _backoff_s(self) -> float:
        pause_s: float = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(self._failures, 10))
        self._failures += 1
        return pause_s * (0.5 + self._random.random() / 2)


def _at_least(now: Sequence[tuple[str, int]], before: Sequence[tuple[str, int]]) -> bool:
    has = dict(now)
    return all(has.get(resource, 0) >= amount for resource, amount in before)


class Agents:
    """An agent for every socket there is, also for those that appear later; one whose socket is removed ends."""

    def __init__(
        self,
        places: Sequence[SocketPlace],
        *,
        sysfs: Path,
        state: Callable[[], CellState],
        inbox: Inbox,
        clock: Clock,
        random: Random,
        poll_s: float,
        metrics: TopologyMetrics,
    ) -> None:
        self._places = places
        self._sysfs = sysfs
        self._state = state
        self._inbox = inbox
        self._clock = clock
        self._random = random
        self._poll_s = poll_s
        self._metrics = metrics
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """For ever; ends by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                found = self._find()
                for key in [key for key in self._running if key not in found]:
                    self._running.pop(key).cancel()
                for key, (path, place) in found.items():
                    if key not in self._running:
                        self._running[key] = tasks.create_task(self._agent(*key, path, place).run(), name="/".join(key))
                for cluster in sorted({place.cluster for place in self._places}):
                    self._metrics.sockets.labels(cluster).set(sum(key[0] == cluster for key in self._running))
                await self._clock.sleep(SEARCH_EVERY_S)

    def _find(self) -> dict[tuple[str, str], tuple[Path, SocketPlace]]:
        return {(place.cluster, node): (path, place) for place in self._places for node, path in place.find().items()}

    def _agent(self, cluster: str, node: str, path: Path, place: SocketPlace) -> NodeAgent:
        # A kubelet of this machine has this machine's CPUs; one in a folder of many may bring its own description.
        sysfs = self._sysfs if place.node else path.parent / "sys"
        return NodeAgent(
            cluster,
            node,
            Kubelet(path),
            cpus=cpu_zones(sysfs),
            state=self._state,
            inbox=self._inbox,
            clock=self._clock,
            random=self._random,
            poll_s=self._poll_s,
            metrics=self._metrics,
        )
