"""`python -m muster.sim.cluster` as a process, with kubectl and the pod-resources sockets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.patience import PATIENCE_S, until

from muster.podresources import (
    AllocatableResourcesRequest,
    GetPodResourcesRequest,
    ListerStub,
    ListPodResourcesRequest,
)
from muster.sim.cluster.audit import judge, read_file

KUBECTL = shutil.which("kubectl")

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "trainer",
        "namespace": "default",
        "labels": {"muster.io/job": "j1", "muster.io/pod": "0", "muster.io/epoch": "1", "muster.io/attempt": "0"},
        "annotations": {"muster.io/devices": "1,4"},
    },
    "spec": {
        "restartPolicy": "Never",
        "nodeName": "openb-node-0001",
        "containers": [
            {
                "name": "main",
                "image": "train",
                "resources": {"limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}},
            }
        ],
    },
}


class Process:
    def __init__(self, process: asyncio.subprocess.Process, ready: dict[str, Any], folder: Path) -> None:
        self.process = process
        self.clusters: list[dict[str, Any]] = ready["clusters"]
        self.folder = folder

    async def kubectl(self, *arguments: str, stdin: object = None, check: bool = True) -> str:
        assert KUBECTL is not None
        environment = {**os.environ, "KUBECONFIG": os.devnull, "HOME": str(self.folder)}
        command = [KUBECTL, f"--server={self.clusters[0]['url']}", *arguments]
        text = None if stdin is None else json.dumps(stdin)
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            input=text,
            capture_output=True,
            text=True,
            env=environment,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done.stdout if check else done.stderr


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    started: list[asyncio.subprocess.Process] = []

    async def run(*arguments: str) -> Process:
        command = [sys.executable, "-W", "error", "-m", "muster.sim.cluster", *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        ready = json.loads(line)
        assert ready["event"] == "ready"
        return Process(process, ready, tmp_path)

    yield run
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def stop(started: Process) -> None:
    started.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(started.process.wait(), PATIENCE_S) == 0


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_kubectl(start: Callable[..., Any], tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    started = await start("--nodes", "openb", "--audit", str(audit))
    assert started.clusters[0]["nodes"] == 1213
    assert started.clusters[0]["gpus"] == 6212
    nodes = (await started.kubectl("get", "nodes", "-o", "wide", "--no-headers")).splitlines()
    assert len(nodes) == 1213
    assert nodes[0].split()[:2] == ["openb-node-0000", "Ready"]

    assert await started.kubectl("create", "-f", "-", stdin=POD) == "pod/trainer created\n"

    async def running() -> bool:
        return "Running" in await started.kubectl("get", "pods", "-A", "-o", "wide", "--no-headers")

    await until(running)
    shown = (await started.kubectl("get", "pods", "-A", "-o", "wide", "--no-headers")).split()
    assert shown[:4] == ["default", "trainer", "1/1", "Running"]
    assert "openb-node-0001" in shown
    described = await started.kubectl("describe", "pod", "trainer")
    assert "muster.io/devices: 1,4" in described
    assert "nvidia.com/gpu:  2" in described
    assert "default                     trainer" in await started.kubectl("describe", "node", "openb-node-0001")
    both = await started.kubectl("get", "pods,nodes", "--no-headers")
    assert "pod/trainer" in both
    assert "node/openb-node-1212" in both

    await started.kubectl("label", "pod", "trainer", "team=a")
    assert "trainer" in await started.kubectl("get", "pods", "-l", "team in (a)", "--no-headers")
    await started.kubectl("cordon", "openb-node-0002")
    assert "SchedulingDisabled" in await started.kubectl("get", "node", "openb-node-0002")
    assert "(NotFound)" in await started.kubectl("get", "pod", "nobody", check=False)

    follower = asyncio.create_task(
        started.kubectl("wait", "--for=delete", "pod/trainer", f"--timeout={PATIENCE_S:.0f}s")
    )
    assert 'pod "trainer" deleted' in await started.kubectl("delete", "pod", "trainer", "--wait=true")
    await follower
    assert await started.kubectl("get", "pods", "--no-headers") == ""
    await stop(started)
    verdict = judge(read_file(audit))
    assert verdict.ok
    assert (verdict.counts["created"], verdict.counts["started"], verdict.counts["removed"]) == (1, 1, 1)


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_kubectl_watches(start: Callable[..., Any]) -> None:
    started = await start("--nodes", "uniform:2x8cpu16Gi+8gpu", "--time-scale", "10")
    url = started.clusters[0]["url"]

    def pod(name: str, annotations: dict[str, str]) -> dict[str, Any]:
        spec = {**POD["spec"], "nodeName": "node-0000"}  # type: ignore[dict-item]
        return {**POD, "metadata": {"name": name, "annotations": annotations}, "spec": spec}

    await started.kubectl("create", "-f", "-", stdin=pod("old", {"muster.io/devices": "0,1"}))
    assert KUBECTL is not None
    watcher = await asyncio.create_subprocess_exec(
        KUBECTL,
        f"--server={url}",
        "get",
        "pods",
        "-w",
        stdout=subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": os.devnull, "HOME": str(started.folder)},
    )
    seen: list[list[str]] = []

    async def told(name: str, status: str) -> None:
        assert watcher.stdout is not None
        while not seen or (seen[-1][0], seen[-1][2]) != (name, status):
            seen.append((await asyncio.wait_for(watcher.stdout.readline(), PATIENCE_S)).decode().split())

    await told("old", "Running")  # from now on it follows, and misses nothing of what begins now
    await started.kubectl("create", "-f", "-", stdin=pod("trainer", {"sim.muster.io/run-seconds": "5"}))
    await told("trainer", "Completed")
    watcher.terminate()
    await watcher.wait()
    assert seen[0][:3] == ["NAME", "READY", "STATUS"]
    assert "Running" in [line[2] for line in seen if line[0] == "trainer"]
    await stop(started)


async def test_pod_resources_sockets(start: Callable[..., Any], short_path: Path) -> None:
    folder = short_path / "pr"
    started = await start("--nodes", "openb", "--pod-resources-dir", str(folder), "--pod-resources-nodes", "2")
    paths = started.clusters[0]["pod_resources"]
    assert paths == [str(folder / f"openb-node-000{index}" / "kubelet.sock") for index in range(2)]
    import aiohttp

    async with (
        aiohttp.ClientSession(started.clusters[0]["url"]) as http,
        grpc.aio.insecure_channel(f"unix://{paths[1]}") as channel,
    ):
        stub = ListerStub(channel)
        allocatable = await stub.GetAllocatableResources(AllocatableResourcesRequest())
        assert sorted(allocatable.cpu_ids) == list(range(96))
        ids = [(list(entry.device_ids), [node.ID for node in entry.topology.nodes]) for entry in allocatable.devices]
        assert ids == [([f"GPU-openb-node-0001-{index}"], [index // 4]) for index in range(8)]
        assert (await stub.List(ListPodResourcesRequest())).pod_resources == []

        await http.post("/api/v1/namespaces/default/pods", json=POD)

        found: list[Any] = []

        async def listed() -> bool:
            found[:] = (await stub.List(ListPodResourcesRequest())).pod_resources
            return bool(found)

        await until(listed)
        [held] = found
        [container] = held.containers
        assert (held.namespace, held.name, container.name) == ("default", "trainer", "main")
        assert len(set(container.cpu_ids)) == 4
        assert {cpu // 48 for cpu in container.cpu_ids} in ({0}, {1})
        assert [entry.device_ids[0] for entry in container.devices] == [
            "GPU-openb-node-0001-1",
            "GPU-openb-node-0001-4",
        ]
        assert {entry.resource_name for entry in container.devices} == {"nvidia.com/gpu"}
        got = await stub.Get(GetPodResourcesRequest(pod_name="trainer", pod_namespace="default"))
        assert got.pod_resources == held
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Get(GetPodResourcesRequest(pod_name="nobody", pod_namespace="default"))
        assert caught.value.code() is grpc.StatusCode.UNKNOWN

        async def limited() -> bool:
            try:
                await asyncio.gather(*(stub.List(ListPodResourcesRequest()) for _ in range(50)))
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return False

        await until(limited)
        await http.put("/sim/faults", json={"cut_off_nodes": ["openb-node-0001"]})
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.List(ListPodResourcesRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await stop(started)
    assert list(folder.iterdir()) == []


async def test_several_clusters_in_one_process(start: Callable[..., Any], tmp_path: Path) -> None:
    audit = tmp_path / "audit-{cluster}.jsonl"
    names = ["--cluster", "sim-a", "--cluster", "sim-b", "--nodes", "uniform:2x4cpu8Gi", "--nodes", "uniform:3x4cpu8Gi"]
    started = await start(*names, "--audit", str(audit), "--namespaces", "team-a,team-b")
    assert [(cluster["cluster"], cluster["nodes"]) for cluster in started.clusters] == [("sim-a", 2), ("sim-b", 3)]
    import aiohttp

    seen = []
    for cluster in started.clusters:
        async with aiohttp.ClientSession(cluster["url"]) as http:
            nodes = await (await http.get("/api/v1/nodes")).json()
            seen.append([item["metadata"]["name"] for item in nodes["items"]])
            assert (await http.get("/api/v1/namespaces/team-b")).status == 200
    assert seen == [[f"sim-a-node-000{i}" for i in range(2)], [f"sim-b-node-000{i}" for i in range(3)]]
    await stop(started)
    assert (tmp_path / "audit-sim-a.jsonl").exists()


@pytest.mark.parametrize(
    "arguments", [["--nodes", "wombat"], ["--cluster", "a", "--cluster", "a"], ["--port", "1", "--port", "2"]]
)
async def test_a_wrong_command_line_says_so(arguments: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "muster.sim.cluster", *arguments, stderr=subprocess.PIPE
    )
    _, stderr = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 2
    assert b"error:" in stderr
