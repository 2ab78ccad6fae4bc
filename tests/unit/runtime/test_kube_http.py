"""The HTTP layer against the simulated API server: each answer becomes the right value or the right error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.patience import PATIENCE_S

from muster.runtime import kube, kube_config
from muster.runtime.kube_http import HttpKubeApi
from muster.runtime.kube_objects import NODES, PODS
from muster.sim.cluster.cluster import FaultOrder, SimCluster
from muster.sim.cluster.faults import FaultRule
from muster.sim.cluster.nodes import parse_nodes
from muster.sim.cluster.server import serve
from muster.sim.cluster.settings import ClusterSettings

LONG_MS = 600_000


@asynccontextmanager
async def cluster(**settings: Any) -> AsyncIterator[tuple[SimCluster, HttpKubeApi]]:
    sim = SimCluster(ClusterSettings(name="sim", **settings))
    sim.add_nodes(parse_nodes("uniform:3x8cpu16Gi+2gpu"))
    server = await serve(sim)
    api = await kube_config.connect(kube_config.ClusterAddress("sim", url=f"http://127.0.0.1:{server.port}"))
    try:
        yield sim, api
    finally:
        await api.close()
        await server.stop()


def manifest(name: str, node: str = "", labels: dict[str, str] | None = None) -> bytes:
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Never"}
    if node:
        spec["nodeName"] = node
    return json.dumps({"metadata": {"name": name, "labels": labels or {}}, "spec": spec}).encode()


async def test_create_get_patch_delete() -> None:
    async with cluster(start_latency_ms=LONG_MS, stop_latency_ms=LONG_MS) as (_, api):  # so that it is still there
        page = await api.list_page(NODES)
        node = page.items[0].metadata.name
        created = await api.create_pod("default", manifest("a", node, {"x": "1"}))
        assert (created.metadata.name, created.spec.node_name) == ("a", node)
        patched = await api.patch_pod("default", "a", b'{"metadata":{"labels":{"y":"2"}}}')
        assert patched.metadata.labels == {"x": "1", "y": "2"}
        with pytest.raises(kube.Conflict):
            await api.delete_pod("default", "a", uid="somebody-else")
        await api.delete_pod("default", "a", uid=created.metadata.uid)
        again = await api.get_pod("default", "a")
        assert again.metadata.deletion_timestamp


async def test_errors_say_what_to_do() -> None:
    async with cluster() as (sim, api):
        await api.create_pod("default", manifest("a"))
        with pytest.raises(kube.Conflict) as conflict:
            await api.create_pod("default", manifest("a"))
        assert conflict.value.reason == "AlreadyExists"
        with pytest.raises(kube.NotFound):
            await api.get_pod("default", "b")
        with pytest.raises(kube.NotFound):
            await api.create_pod("no-such-namespace", manifest("a"))
        with pytest.raises(kube.Invalid) as invalid:
            await api.create_pod("default", b'{"metadata":{"name":"c"},"spec":{}}')
        assert invalid.value.status == 422
        sim.order(FaultOrder(rules=[FaultRule(share_429=1.0, retry_after_s=7)]))
        with pytest.raises(kube.Throttled) as throttled:
            await api.get_pod("default", "a")
        assert throttled.value.retry_after_s == 7
        for fault in (FaultRule(share_500=1.0), FaultRule(share_drop=1.0), FaultRule(share_reply_lost=1.0)):
            sim.order(FaultOrder(rules=[fault]))
            with pytest.raises(kube.Transient):
                await api.create_pod("default", manifest("d"))
        sim.order(FaultOrder(rules=[]))
        assert (await api.get_pod("default", "d")).metadata.name == "d"  # the answer was lost, not the write


async def test_binding_succeeds_once() -> None:
    async with cluster() as (_, api):
        pod = await api.create_pod("default", manifest("a"))
        node = (await api.list_page(NODES)).items[1].metadata.name
        await api.bind_pod("default", "a", node, uid=pod.metadata.uid)
        assert (await api.get_pod("default", "a")).spec.node_name == node
        with pytest.raises(kube.Conflict):
            await api.bind_pod("default", "a", node, uid=pod.metadata.uid)


async def test_a_name_never_reaches_another_path() -> None:
    async with cluster() as (_, api):
        with pytest.raises(kube.KubeError):
            await api.get_pod("default/pods/x/../../..", "a")


async def test_lists_come_in_pages_of_the_selected() -> None:
    async with cluster() as (_, api):
        for number in range(5):
            await api.create_pod("default", manifest(f"p{number}", labels={"odd": str(number % 2)}))
        names: list[str] = []
        token, pages = "", 0
        while True:
            page = await api.list_page(PODS, "odd=0", limit=2, continue_token=token)
            names += [pod.metadata.name for pod in page.items]
            token, pages = page.metadata.continue_, pages + 1
            if not token:
                break
        assert (names, pages) == (["p0", "p2", "p4"], 2)


async def test_a_watch_tells_changes_and_bookmarks_in_order() -> None:
    async with cluster(bookmark_ms=50) as (_, api):
        version = (await api.list_page(PODS)).metadata.resource_version
        seen: list[tuple[str, str]] = []
        async with aclosing(api.watch(PODS, "", version, 10)) as batches:
            await api.create_pod("default", manifest("a"))
            async for batch in batches:
                seen += [(event.type, event.object.metadata.name) for event in batch]
                if ("BOOKMARK", "") in seen and ("ADDED", "a") in seen:
                    break
        assert seen.index(("ADDED", "a")) < len(seen) - 1 - seen[::-1].index(("BOOKMARK", ""))


@pytest.mark.parametrize("gone_as", ["event", "http"])
async def test_a_forgotten_version_is_gone(gone_as: str) -> None:
    async with cluster() as (sim, api):
        version = (await api.list_page(PODS)).metadata.resource_version
        for number in range(3):
            await api.create_pod("default", manifest(f"p{number}"))
        sim.order(FaultOrder(truncate_history=True, gone_as=gone_as))
        async with aclosing(api.watch(PODS, "", version, 10)) as batches:
            with pytest.raises(kube.Gone):
                await anext(batches)


async def test_a_cut_watch_just_ends_or_is_transient() -> None:
    async with cluster() as (sim, api):
        version = (await api.list_page(PODS)).metadata.resource_version
        await api.create_pod("default", manifest("a"))
        seen = 0
        async with aclosing(api.watch(PODS, "", version, PATIENCE_S)) as batches:
            async for batch in batches:
                seen += len(batch)
                sim.cut_watches()
        assert seen


async def test_requests_at_once_are_limited() -> None:
    busy = peak = 0
    full = asyncio.Event()

    async def slow(_request: web.BaseRequest) -> web.Response:
        nonlocal busy, peak
        busy += 1
        peak = max(peak, busy)
        if busy == 3:
            full.set()
        await full.wait()  # the first ones until there are as many as may be
        await asyncio.sleep(0.01)  # a fourth would have time to come
        busy -= 1
        return web.json_response({"metadata": {"name": "a"}})

    runner = web.ServerRunner(web.Server(slow))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = await kube_config.connect(kube_config.ClusterAddress("sim", url=url), in_flight_max=3)
    await asyncio.gather(*(api.get_pod("default", "a") for _ in range(12)))
    assert peak == 3
    await api.close()
    await runner.cleanup()


async def test_a_proxy_that_does_not_speak_kubernetes_is_transient() -> None:
    async def broken(_request: web.BaseRequest) -> web.Response:
        return web.Response(status=502, text="<html>bad gateway</html>")

    runner = web.ServerRunner(web.Server(broken))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = await kube_config.connect(kube_config.ClusterAddress("sim", url=url))
    with pytest.raises(kube.Transient, match="bad gateway"):
        await api.get_pod("default", "a")
    await api.close()
    await runner.cleanup()


async def test_nobody_there_is_transient() -> None:
    api = await kube_config.connect(kube_config.ClusterAddress("sim", url="http://127.0.0.1:9"))
    with pytest.raises(kube.Transient):
        await api.get_pod("default", "a")
    await api.close()
