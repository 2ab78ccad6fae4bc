"""Telling the cell what the nodes of one cluster are: list, watch, compare, write what differs.

    Node objects --------+
                         +--> view of the cluster --> what differs from the ledger --> NodesReported
    pods of others ------+

Level-triggered: what is written is the difference between what the API server shows and what the ledger has (or will
have, once it consumed what was written here), so a restart, a takeover or a lost message all end in the same state, and
a restart of this process repeats nothing. Changed nodes are looked at every `COALESCE_S`, all of them every `audit_s`.
A cluster that the ledger has no complete list of is reported in full, between the flags `first` and `complete`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

from muster.core.commands import AnyItem, NodesReported
from muster.core.model import InboxPosition, NodeSpec
from muster.core.state import CellState
from muster.runtime import kube
from muster.runtime.kube_objects import NODES, POD_REQUESTS, Node, PodRequests, WatchEvent
from muster.runtime.kube_watch import Informer, WatchSettings
from muster.runtime.logs import get_logger
from muster.runtime.ports import Clock, OutcomeUnknown, StreamFull
from muster_topology_updater.metrics import TopologyMetrics
from muster_topology_updater.nodes import OthersUse, node_spec

OTHERS_SELECTOR: Final = "!muster.io/job"
COALESCE_S: Final = 0.1
REPORT_NODES_MAX: Final = 200  # in one fact; about 600 bytes each
RETRY_S: Final = 1.0
LISTED_POLL_S: Final = 0.05

log = get_logger(__name__)


class Inbox(Protocol):
    """The part of the inbox writer that is used here."""

    async def write(self, items: Sequence[AnyItem]) -> list[InboxPosition]:
        """Durable on return."""


@dataclass(frozen=True)
class WatcherOptions:
    audit_s: float = 30.0
    watch: WatchSettings = field(default_factory=WatchSettings)


class ClusterWatcher:
    """One cluster. `run` while this replica is the one to do it (a lease), until it is cancelled."""

    def __init__(
        self,
        api: kube.KubeApi,
        *,
        state: Callable[[], CellState],
        inbox: Inbox,
        clock: Clock,
        random: Random,
        options: WatcherOptions,
        metrics: TopologyMetrics,
    ) -> None:
        self._api = api
        self._cluster = api.cluster
        self._state = state
        self._inbox = inbox
        self._clock = clock
        self._random = random
        self._options = options
        self._metrics = metrics
        self._reset()

    def _reset(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._others = OthersUse()
        self._dirty: dict[str, None] = {}  # nodes to look at, in order
        self._wake = asyncio.Event()
        self._written: dict[str, tuple[NodeSpec | None, InboxPosition]] = {}  # not consumed yet; None: removed
        self._full_at: InboxPosition | None = None  # end of a full report that is not consumed yet

    async def run(self) -> None:
        """For ever; ends by cancellation."""
        self._reset()
        nodes = self._informer(NODES, "", _Nodes(self))
        pods = self._informer(POD_REQUESTS, OTHERS_SELECTOR, _Pods(self))
        self._metrics.stale.labels(self._cluster).set_function(lambda: max(nodes.stale_s(), pods.stale_s()))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(nodes.run(), name=f"nodes of {self._cluster}")
            tasks.create_task(pods.run(), name=f"pods of others in {self._cluster}")
            while not (nodes.synced and pods.synced):
                await self._clock.sleep(LISTED_POLL_S)
            tasks.create_task(self._report(), name=f"report {self._cluster}")
            tasks.create_task(self._audit(), name=f"audit {self._cluster}")

    # --- what the API server shows ----------------------------------------------------------------------------------

    def nodes_listed(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node.metadata.name: node for node in nodes}
        self._look_at_all()

    def node_changed(self, event: WatchEvent[Node]) -> None:
        name = event.object.metadata.name
        if event.type == "DELETED":
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = event.object
        self._look_at(name)

    def pods_listed(self, pods: Sequence[PodRequests]) -> None:
        for uid in sorted(self._others.uids() - {pod.metadata.uid for pod in pods}):
            self._look_at(*self._others.remove(uid))
        for pod in pods:
            self._look_at(*self._others.put(pod))

    def pod_changed(self, event: WatchEvent[PodRequests]) -> None:
        if event.type == "DELETED":
            self._look_at(*self._others.remove(event.object.metadata.uid))
        else:
            self._look_at(*self._others.put(event.object))

    # --- what the ledger lacks --------------------------------------------------------------------------------------

    async def _report(self) -> None:
        self._look_at_all()
        while True:
            await self._wake.wait()
            await self._clock.sleep(COALESCE_S)
            self._wake.clear()
            names, self._dirty = list(self._dirty), {}
            try:
                if self._needs_full_report():
                    await self._report_all()
                else:
                    await self._report_changes(names)
            except (OutcomeUnknown, StreamFull) as error:
                log.warning("nodes cannot be reported", cluster=self._cluster, error=str(error))
                self._look_at(*names)
                await self._clock.sleep(RETRY_S)

    def _needs_full_report(self) -> bool:
        cluster = self._state().clusters.get(self._cluster)
        if cluster is not None and cluster.synced:
            return False
        return self._full_at is None or self._full_at < self._state().position  # consumed without effect

    async def _report_all(self) -> None:
        specs = [self._spec(self._nodes[name]) for name in sorted(self._nodes)]
        chunks = [specs[at : at + REPORT_NODES_MAX] for at in range(0, len(specs), REPORT_NODES_MAX)] or [[]]
        for number, chunk in enumerate(chunks):  # one after the other: the flags need their order
            last = number == len(chunks) - 1
            report = NodesReported(self._cluster, tuple(chunk), first=number == 0, complete=last)
            position = await self._write(report, {spec.name: spec for spec in chunk})
            if last:
                self._full_at = position
        log.info("cluster reported", cluster=self._cluster, nodes=len(specs))

    async def _report_changes(self, names: Sequence[str]) -> None:
        changed: dict[str, NodeSpec | None] = {}
        for name in names:
            node = self._nodes.get(name)
            spec = self._spec(node) if node is not None else None
            if spec != self._ledger_has(name):
                changed[name] = spec
        for at in range(0, len(changed), REPORT_NODES_MAX):
            chunk = dict(list(changed.items())[at : at + REPORT_NODES_MAX])
            nodes = tuple(spec for spec in chunk.values() if spec is not None)
            removed = tuple(name for name, spec in chunk.items() if spec is None)
            await self._write(NodesReported(self._cluster, nodes, removed), chunk)

    async def _write(
        self, report: NodesReported, what: dict[str, NodeSpec | None] | dict[str, NodeSpec]
    ) -> InboxPosition:
        (position,) = await self._inbox.write([report])
        self._written |= {name: (spec, position) for name, spec in what.items()}
        self._metrics.nodes_reported.labels(self._cluster).inc(len(what))
        return position

    def _ledger_has(self, name: str) -> NodeSpec | None:
        """What the ledger has of a node once it consumed what was written here."""
        state = self._state()
        written = self._written.get(name)
        if written is not None:
            if written[1] >= state.position:
                return written[0]
            del self._written[name]
        index = state.nodes.index_of(self._cluster, name)
        return None if index is None or state.nodes.is_removed(index) else state.nodes.spec(index)

    async def _audit(self) -> None:
        while True:
            await self._clock.sleep(self._options.audit_s * (0.9 + self._random.random() / 5))
            self._look_at_all()

    def _look_at_all(self) -> None:
        """Also at nodes that only the ledger knows."""
        nodes = self._state().nodes
        self._look_at(*self._nodes, *(nodes.spec(index).name for index in nodes.live(self._cluster)))
        self._wake.set()  # with no node at all there is still a full report to make

    def _look_at(self, *names: str) -> None:
        if names:
            self._dirty |= dict.fromkeys(names)
            self._wake.set()

    def _spec(self, node: Node) -> NodeSpec:
        return node_spec(self._cluster, node, self._others.of(node.metadata.name))

    def _informer(self, resource: Any, selector: str, handler: Any) -> Informer[Any]:
        errors = self._metrics.watch_errors.labels(self._cluster)

        def failed(error: kube.KubeError) -> None:
            errors.inc()
            log.warning("cannot watch", cluster=self._cluster, resource=str(resource), error=error.message)

        return Informer(
            self._api,
            resource,
            selector,
            handler,
            clock=self._clock,
            random=self._random,
            settings=self._options.watch,
            on_error=failed,
        )


class _Nodes:
    def __init__(self, watcher: ClusterWatcher) -> None:
        self._watcher = watcher

    def listed(self, objects: Sequence[Node]) -> None:
        self._watcher.nodes_listed(objects)

    def changed(self, events: Sequence[WatchEvent[Any]]) -> None:
        for event in events:
            self._watcher.node_changed(event)


class _Pods:
    def __init__(self, watcher: ClusterWatcher) -> None:
        self._watcher = watcher

    def listed(self, objects: Sequence[PodRequests]) -> None:
        self._watcher.pods_listed(objects)

    def changed(self, events: Sequence[WatchEvent[Any]]) -> None:
        for event in events:
            self._watcher.pod_changed(event)
