"""The simulated API server over HTTP, used by kubernetes-asyncio as it comes, and misbehaving when told to."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from kubernetes_asyncio import client, watch
from kubernetes_asyncio.client.exceptions import ApiException
from tests.patience import PATIENCE_S, until

from muster.sim.cluster.cluster import SimCluster
from muster.sim.cluster.nodes import parse_nodes
from muster.sim.cluster.server import ClusterServer, serve
from muster.sim.cluster.settings import ClusterSettings

SETTINGS = ClusterSettings(time_scale=100.0, start_latency_ms=1, stop_latency_ms=1, bookmark_ms=200)
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def server() -> AsyncIterator[ClusterServer]:
    cluster = SimCluster(SETTINGS)
    cluster.add_nodes(parse_nodes("uniform:4x8cpu32Gi+4gpu"))
    running = await serve(cluster)
    yield running
    await running.stop()


@pytest.fixture
async def api(server: ClusterServer) -> AsyncIterator[client.ApiClient]:
    configuration = client.Configuration(host=f"http://127.0.0.1:{server.port}")
    async with client.ApiClient(configuration) as opened:
        yield opened


@pytest.fixture
async def http(server: ClusterServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        yield session


def pod(name: str, node: str | None = None, *, run_seconds: str = "5", **metadata: Any) -> client.V1Pod:
    limits = {"cpu": "1", "memory": "1Gi"}
    container = client.V1Container(name="main", image="busybox", resources=client.V1ResourceRequirements(limits=limits))
    annotations = {"sim.muster.io/run-seconds": run_seconds}
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, annotations=annotations, **metadata),
        spec=client.V1PodSpec(containers=[container], restart_policy="Never", node_name=node),
    )


async def test_the_typed_client_reads_and_writes(api: client.ApiClient) -> None:
    core = client.CoreV1Api(api)
    nodes = await core.list_node(label_selector="nvidia.com/gpu.product=SIM")
    assert len(nodes.items) == 4
    assert nodes.items[0].status.allocatable["nvidia.com/gpu"] == "4"
    created = await core.create_namespaced_pod("default", pod("a", labels={"app": "x"}))
    assert created.status.phase == "Pending"
    with pytest.raises(ApiException) as caught:
        await core.create_namespaced_pod("default", pod("a"))
    assert caught.value.status == 409
    patched = await core.patch_namespaced_pod("a", "default", {"metadata": {"labels": {"tier": "y"}}})
    assert patched.metadata.labels == {"app": "x", "tier": "y"}
    replaced = await core.replace_namespaced_pod("a", "default", patched)
    assert replaced.metadata.resource_version == patched.metadata.resource_version
    page = await core.list_namespaced_pod("default", limit=1, field_selector="status.phase=Pending")
    assert [item.metadata.name for item in page.items] == ["a"]
    body = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=created.metadata.uid))
    await core.delete_namespaced_pod("a", "default", body=body)
    with pytest.raises(ApiException) as caught:
        await core.read_namespaced_pod("a", "default")
    assert caught.value.status == 404


async def test_binding_and_eviction(api: client.ApiClient) -> None:
    core = client.CoreV1Api(api)
    await core.create_namespaced_pod("default", pod("a", run_seconds="100000"))
    binding = client.V1Binding(
        metadata=client.V1ObjectMeta(name="a"), target=client.V1ObjectReference(kind="Node", name="node-0002")
    )
    await core.create_namespaced_pod_binding("a", "default", binding, _preload_content=False)

    async def runs() -> bool:
        seen = await core.read_namespaced_pod("a", "default")
        return (seen.spec.node_name, seen.status.phase) == ("node-0002", "Running")

    await until(runs)
    with pytest.raises(ApiException) as caught:
        await core.create_namespaced_pod_binding("a", "default", binding)
    assert caught.value.status == 409
    await core.create_namespaced_pod_eviction("a", "default", client.V1Eviction(metadata=client.V1ObjectMeta(name="a")))


async def test_the_clients_watch_follows_a_pod_to_its_end(api: client.ApiClient) -> None:
    core = client.CoreV1Api(api)
    listed = await core.list_pod_for_all_namespaces()
    phases = []
    async with watch.Watch() as stream:
        rv = listed.metadata.resource_version
        await core.create_namespaced_pod("default", pod("a", "node-0000"))
        patience_s = int(PATIENCE_S)
        async for event in stream.stream(
            core.list_pod_for_all_namespaces, resource_version=rv, timeout_seconds=patience_s
        ):
            phases.append((event["type"], event["object"].status.phase))
            if event["object"].status.phase == "Succeeded":
                break
    assert phases == [("ADDED", "Pending"), ("MODIFIED", "Running"), ("MODIFIED", "Succeeded")]


async def test_bookmarks_while_it_is_quiet(http: aiohttp.ClientSession) -> None:
    query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": "600", "resourceVersion": "0"}
    async with http.get("/api/v1/nodes", params=query) as response:
        types = [json.loads(await response.content.readline())["type"] for _ in range(6)]
    assert types == ["ADDED"] * 4 + ["BOOKMARK"] * 2


async def test_the_end_of_a_watch(http: aiohttp.ClientSession) -> None:
    query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": "1", "resourceVersion": "0"}
    async with http.get("/api/v1/nodes", params=query) as response:
        lines = [json.loads(line) async for line in response.content]
    types = [line["type"] for line in lines]
    assert types[:4] == ["ADDED"] * 4
    assert set(types[4:]) == {"BOOKMARK"}


async def test_cut_watches_and_lost_history_force_a_relist(api: client.ApiClient, http: aiohttp.ClientSession) -> None:
    core = client.CoreV1Api(api)
    await core.create_namespaced_pod("default", pod("a"))
    async with http.get(PODS, params={"watch": "true", "resourceVersion": "1"}) as response:
        assert json.loads(await response.content.readline())["type"] == "ADDED"
        await http.put("/sim/faults", json={"cut_watches": True, "truncate_history": True})
        assert await response.content.read() == b""  # ended, cleanly
    async with http.get(PODS, params={"watch": "true", "resourceVersion": "1"}) as response:
        event = json.loads(await response.content.readline())
    assert (response.status, event["type"], event["object"]["code"]) == (200, "ERROR", 410)
    await http.put("/sim/faults", json={"gone_as": "http"})
    async with http.get(PODS, params={"watch": "true", "resourceVersion": "1"}) as response:
        assert (response.status, (await response.json())["reason"]) == (410, "Expired")


async def test_a_refused_and_a_lost_create(
    api: client.ApiClient, http: aiohttp.ClientSession, server: ClusterServer
) -> None:
    core = client.CoreV1Api(api)
    rule = {"verb": "create", "resource": "pods", "share_429": 1.0, "retry_after_s": 7}
    await http.put("/sim/faults", json={"rules": [rule]})
    with pytest.raises(ApiException) as caught:
        await core.create_namespaced_pod("default", pod("a"))
    assert (caught.value.status, dict(caught.value.headers or ())["Retry-After"]) == (429, "7")
    await http.put("/sim/faults", json={"rules": [{"verb": "create", "share_drop": 1.0}]})
    with pytest.raises(aiohttp.ClientError):
        await http.post(PODS, json=api.sanitize_for_serialization(pod("b")))
    await http.put("/sim/faults", json={"rules": [{"verb": "create", "share_reply_lost": 1.0}]})
    with pytest.raises(aiohttp.ClientError):
        await http.post(PODS, json=api.sanitize_for_serialization(pod("c")))
    await http.put("/sim/faults", json={"rules": []})
    names = [item.metadata.name for item in (await core.list_namespaced_pod("default")).items]
    assert names == ["c"]  # only the lost reply had been carried out
    assert await (await http.get("/sim/faults")).json() == {}
    assert [r.code for r in server.cluster.audit.records if r.verb == "create"] == [201]


async def test_latency_and_a_pause_hold_answers_back(http: aiohttp.ClientSession) -> None:
    """How much too early an answer is: however slow the machine, none may come before its time."""
    loop = asyncio.get_running_loop()
    ordered_s = loop.time()
    await http.put("/sim/faults", json={"rules": [{"verb": "list", "latency_ms": 60}], "pause_ms": 150})
    await http.get("/api/v1/namespaces/default/configmaps/none")
    asked_s = loop.time()
    assert asked_s - ordered_s >= 0.13
    await http.get(PODS)
    assert loop.time() - asked_s >= 0.05


async def test_a_bad_order_is_refused(http: aiohttp.ClientSession) -> None:
    for body, code in ((b"{", 400), (b'{"what": 1}', 400), (b'{"cut_off_nodes": ["x"]}', 404)):
        async with http.put("/sim/faults", data=body) as response:
            assert response.status == code
    async with http.get("/sim/nothing") as response:
        assert response.status == 404


async def test_the_audit_log_and_the_verdict_can_be_asked_for(
    api: client.ApiClient, http: aiohttp.ClientSession
) -> None:
    core = client.CoreV1Api(api)
    labels = {"muster.io/job": "j", "muster.io/pod": "0", "muster.io/epoch": "1", "muster.io/attempt": "0"}
    await core.create_namespaced_pod("default", pod("a", "node-0000", labels=labels))

    async def succeeded() -> bool:
        return bool((await (await http.get("/sim/verdict")).json())["counts"]["succeeded"])

    await until(succeeded)
    verdict = await (await http.get("/sim/verdict")).json()
    assert verdict["ok"]
    assert verdict["counts"]["started"] == 1
    first = await (await http.get("/sim/audit", params={"since": "0", "limit": "1"})).json()
    rest = await (await http.get("/sim/audit", params={"since": str(first["next"])})).json()
    assert [record["verb"] for record in first["records"] + rest["records"]] == ["create", "run", "stop"]
    assert first["records"][0]["job"] == "j"
    stats = await (await http.get("/sim/stats")).json()
    assert stats["objects"]["nodes"] == 4


async def test_a_body_that_is_too_large_is_refused(http: aiohttp.ClientSession) -> None:
    big = io.BytesIO(json.dumps({"metadata": {"name": "big"}, "data": {"x": "y" * (4 << 20)}}).encode())
    async with http.post("/api/v1/namespaces/default/configmaps", data=big) as response:
        assert response.status == 413
    async with http.get("/healthz") as response:
        assert await response.text() == "ok"
