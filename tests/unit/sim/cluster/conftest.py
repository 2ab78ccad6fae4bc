"""A cluster on a clock that the test turns: no sockets, no sleeping."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from muster.sim.cluster.cluster import SimCluster
from muster.sim.cluster.dispatch import Reply, WatchReply
from muster.sim.cluster.nodes import NodeShape, parse_nodes
from muster.sim.cluster.routes import Request
from muster.sim.cluster.settings import ClusterSettings
from muster.sim.cluster.status import StatusError
from muster.sim.cluster.store import Watch

START_MS = 1_800_000_000_000
PODS = "/api/v1/namespaces/default/pods"


class World:
    def __init__(self, shapes: list[NodeShape], *, static: int = 0, policy: str = "none", **settings: Any) -> None:
        self.time_ms = START_MS
        self.cluster = SimCluster(ClusterSettings(**settings), now_ms=lambda: self.time_ms)
        self.cluster.add_nodes(shapes, pod_resources_nodes=static, topology_policy=policy)

    def advance(self, ms: int) -> None:
        """Let time pass, running every timer at its own moment."""
        end_ms = self.time_ms + ms
        timers = self.cluster.timers
        while (due_ms := timers.next_due_ms()) is not None and due_ms <= end_ms:
            self.time_ms = max(self.time_ms, due_ms)
            timers.run_due()
        self.time_ms = end_ms

    def call(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json", **query: str
    ) -> tuple[int, Any]:
        raw = b"" if body is None else json.dumps(body).encode()
        request = Request(method, path, query, raw, content_type, "application/json", "test/1")
        try:
            reply = self.cluster.handle(request)
        except StatusError as error:
            return error.code, error.body()
        assert isinstance(reply, Reply)
        return reply.code, json.loads(reply.body)

    def ok(self, method: str, path: str, body: Any = None, **options: str) -> Any:
        code, answer = self.call(method, path, body, **options)
        assert code < 300, answer
        return answer

    def watch(self, path: str, *, accept: str = "application/json", **query: str) -> WatchReply:
        reply = self.cluster.handle(Request("GET", path, {"watch": "true", **query}, accept=accept))
        assert isinstance(reply, WatchReply)
        return reply

    def pod(self, name: str) -> Any:
        return self.ok("GET", f"{PODS}/{name}")

    def exists(self, name: str) -> bool:
        return self.call("GET", f"{PODS}/{name}")[0] == 200

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"]["phase"])


def events_of(watch: Watch) -> list[tuple[str, Any]]:
    """What the watch has gathered, as (type, object)."""
    lines = watch.take().splitlines()
    decoded = [json.loads(line) for line in lines]
    return [(event["type"], event["object"]) for event in decoded]


def make_pod(
    name: str,
    node: str = "",
    *,
    limits: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox", "resources": {"limits": limits or {"cpu": "1", "memory": "1Gi"}}}
    body: dict[str, Any] = {"restartPolicy": "Never", "containers": [container], **spec}
    if node:
        body["nodeName"] = node
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


@pytest.fixture
def make_world() -> Callable[..., World]:
    def make(nodes: str = "uniform:3x8cpu32Gi+4gpu", **options: Any) -> World:
        return World(parse_nodes(nodes), **options)

    return make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture
def pod() -> Callable[..., dict[str, Any]]:
    return make_pod


@pytest.fixture
def events() -> Callable[[Watch], list[tuple[str, Any]]]:
    return events_of
