"""One simulated cluster, put together: what tests and simulations hold in their hands.

Synchronous and without sockets. Whoever owns it runs its timers (`timers.run_due`); `server.serve` does so on an
asyncio loop and adds HTTP.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from . import nodes
from .api import Api
from .audit import AuditLog
from .controllers import Controllers
from .dispatch import Dispatcher, Reply, WatchReply
from .faults import FaultInjector, FaultRule, Faults
from .kinds import NAMESPACES, NODES, Kinds
from .kubelets import Kubelets
from .routes import Request
from .settings import ClusterSettings
from .status import not_found
from .store import Store
from .timers import Clock, Timers, timestamp, wall_clock

MAX_PAUSE_MS = 600_000


class FaultOrder(msgspec.Struct, forbid_unknown_fields=True):
    """What `PUT /sim/faults` may ask for: standing faults (when given) and things to do once."""

    rules: list[FaultRule] | None = None
    gone_as: str | None = None
    cut_watches: bool = False
    truncate_history: bool = False
    cut_off_nodes: list[str] = []  # stop reporting, their containers run on
    power_off_nodes: list[str] = []  # stop reporting, their containers are lost
    revive_nodes: list[str] = []
    pause_ms: int = 0  # the API server answers nothing for so long


class SimCluster:
    """API server state, kubelets, controllers, faults and audit log of one cluster."""

    def __init__(
        self, settings: ClusterSettings, *, now_ms: Clock | None = None, audit_path: Path | None = None
    ) -> None:
        rng = random.Random(f"{settings.seed}/{settings.name}")
        self.settings = settings
        self.timers = Timers(now_ms or wall_clock())
        self.audit = AuditLog(settings.name, audit_path)
        self.store = Store(settings.history_events)
        self.api = Api(self.store, Kinds(), self.audit, self.timers, random.Random(rng.random()))
        self.kubelets = Kubelets(self.api, settings, random.Random(rng.random()))
        self.controllers = Controllers(self.api, self.kubelets, settings)
        self.faults = FaultInjector(random.Random(rng.random()))
        self.dispatcher = Dispatcher(self.api, self.faults)
        self.paused_until_ms = 0
        for namespace in settings.namespaces:
            self.api.create(NAMESPACES, "", {"metadata": {"name": namespace}})
        self.controllers.start()

    def add_nodes(
        self, shapes: list[nodes.NodeShape], *, pod_resources_nodes: int = 0, topology_policy: str = "none"
    ) -> list[str]:
        """Register nodes; the first few get a static CPU manager and are returned by name (they want a socket)."""
        now = timestamp(self.timers.now_ms())
        static = [shape.name for shape in shapes[:pod_resources_nodes]]
        self.kubelets.static_nodes.update(static)
        self.kubelets.topology_policy = topology_policy
        first = len(self.kubelets.agents)
        for offset, shape in enumerate(shapes):
            self.api.create(NODES, "", nodes.node_object(shape, first + offset, now))
        return static

    def handle(self, request: Request) -> Reply | WatchReply:
        """Answer a request as the API server would, without faults; StatusError for a refusal."""
        return self.dispatcher.handle(request)

    # -- faults ------------------------------------------------------------------------------------------------------

    def order(self, order: FaultOrder) -> None:
        """Carry out a fault order; 404 for an unknown node, before anything of it is done."""
        for name in (*order.cut_off_nodes, *order.power_off_nodes, *order.revive_nodes):
            if name not in self.kubelets.agents:
                raise not_found("nodes", name)
        if order.rules is not None or order.gone_as is not None:
            standing = self.faults.faults
            rules = standing.rules if order.rules is None else order.rules
            self.faults.set(Faults(rules, standing.gone_as if order.gone_as is None else order.gone_as))
        if order.truncate_history:
            self.store.truncate_history()
        if order.cut_watches:
            self.cut_watches()
        for name in order.cut_off_nodes:
            self.cut_off_node(name)
        for name in order.power_off_nodes:
            self.power_off_node(name)
        for name in order.revive_nodes:
            self.revive_node(name)
        if order.pause_ms > 0:
            self.paused_until_ms = self.timers.now_ms() + min(order.pause_ms, MAX_PAUSE_MS)

    def cut_watches(self) -> None:
        for watch in self.store.watches():
            watch.close()

    def cut_off_node(self, name: str) -> None:
        self.kubelets.silence(name, lose_containers=False)

    def power_off_node(self, name: str) -> None:
        self.kubelets.silence(name, lose_containers=True)

    def revive_node(self, name: str) -> None:
        self.kubelets.revive(name)
        self.controllers.renew(self.kubelets.agents[name])

    def close(self) -> None:
        self.cut_watches()
        self.audit.close()
