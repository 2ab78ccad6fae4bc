"""Agents on virtual time with a scripted kubelet, and against a real socket of a simulated one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from muster import podresources as api
from muster.core.commands import NodesReported, NodeTopologyReported
from muster.core.model import NodeSpec, Zone
from muster.sim import loop
from muster_topology_updater.agents import Agents, BadSockets, NodeAgent, SocketPlace, parse_sockets
from muster_topology_updater.kubelet import Answers, Kubelet, KubeletAway, KubeletBusy, cpu_zones
from muster_topology_updater.metrics import TopologyMetrics

GPU = "nvidia.com/gpu"
Cell = Any
New = Callable[[], Cell]


def answers(used: int = 0, offered: int = 4) -> Answers:
    devices = [
        api.ContainerDevices(
            resource_name=GPU, device_ids=[f"GPU-{n}"], topology=api.TopologyInfo(nodes=[api.NUMANode(ID=n // 2)])
        )
        for n in range(offered)
    ]
    pods = [api.PodResources(name="p", containers=[api.ContainerResources(devices=devices[:used])])]
    return Answers(api.AllocatableResourcesResponse(devices=devices), pods)


class Scripted:
    """A kubelet that answers, or fails, as told; the last answer stays."""

    def __init__(self, *script: Answers | Exception) -> None:
        self.script = deque(script)
        self.asked = 0

    async def ask(self) -> Answers:
        self.asked += 1
        answer = self.script.popleft() if len(self.script) > 1 else self.script[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        pass


def agent(cell: Cell, source: Scripted) -> NodeAgent:
    return NodeAgent(
        "sim",
        "n0",
        source,
        cpus={},
        state=lambda: cell.state,
        inbox=cell,
        clock=loop.SimClock(),
        random=Random(1),
        poll_s=5.0,
        metrics=TopologyMetrics(CollectorRegistry()),
    )


async def with_node(cell: Cell) -> Cell:
    await cell.write([NodesReported("sim", (NodeSpec("sim", "n0", (("cpu", 8000),)),), first=True, complete=True)])
    del cell.items[:]
    return cell


def zones(cell: Cell) -> tuple[Zone, ...]:
    zones: tuple[Zone, ...] = cell.state.nodes.zones(0)
    return zones


def test_zones_are_reported_when_they_change_and_only_then(new_cell: New) -> None:
    async def scenario() -> None:
        cell = await with_node(new_cell())
        source = Scripted(answers(), answers(), answers(), answers(used=1))
        task = asyncio.create_task(agent(cell, source).run())
        await asyncio.sleep(14)
        (report,) = cell.items
        assert (report.device_resource, report.devices) == (GPU, 4)
        assert zones(cell) == tuple(Zone(n, ((GPU, 2000),), (), (2 * n, 2 * n + 1)) for n in (0, 1))
        await asyncio.sleep(60)
        assert len(cell.items) == 2
        assert zones(cell)[0].used == ((GPU, 1000),)
        task.cancel()

    loop.run(scenario())


def test_a_node_that_is_not_known_yet_is_reported_once_it_is(new_cell: New) -> None:
    async def scenario() -> None:
        cell = new_cell()
        one = agent(cell, Scripted(answers()))
        await one.step()
        assert cell.items == []
        await with_node(cell)
        await one.step()
        assert [type(item) for item in cell.items] == [NodeTopologyReported]

    loop.run(scenario())


def test_a_restarted_agent_repeats_nothing(new_cell: New) -> None:
    async def scenario() -> None:
        cell = await with_node(new_cell())
        await agent(cell, Scripted(answers())).step()
        await agent(cell, Scripted(answers())).step()
        assert len(cell.items) == 1

    loop.run(scenario())


def test_a_drop_just_after_a_reconnect_is_not_believed_at_once(new_cell: New) -> None:
    async def scenario() -> None:
        cell = await with_node(new_cell())
        source = Scripted(answers(used=3))
        one = agent(cell, source)
        await one.step()
        assert dict(zones(cell)[0].used) == {GPU: 2000}
        source.script = deque([KubeletAway("UNAVAILABLE", "restarting"), answers(used=0)])
        await one.step()
        await one.step()
        assert dict(zones(cell)[0].used) == {GPU: 2000}  # the kubelet is still listing its pods
        await asyncio.sleep(31)
        await one.step()
        assert zones(cell)[0].used == ()

    loop.run(scenario())


def test_more_in_use_is_believed_at_once(new_cell: New) -> None:
    async def scenario() -> None:
        cell = await with_node(new_cell())
        source = Scripted(answers(used=1), answers(used=2))
        one = agent(cell, source)
        await one.step()
        await one.step()
        assert dict(zones(cell)[0].used) == {GPU: 2000}

    loop.run(scenario())


@pytest.mark.parametrize("error", [KubeletBusy("rate"), KubeletAway("UNAVAILABLE", "gone")])
def test_failures_back_off(new_cell: New, error: Exception) -> None:
    async def scenario() -> None:
        cell = await with_node(new_cell())
        one = agent(cell, Scripted(error, error, error, error, error, error, error, error, answers()))
        pauses = [await one.step() for _ in range(8)]
        assert pauses[0] <= 0.5
        assert pauses[-1] > 14
        assert 4 <= await one.step() <= 6

    loop.run(scenario())


def test_sockets_setting(tmp_path: Path) -> None:
    assert parse_sockets("a=/run/sockets, b=/x/*/kubelet.sock,c=/y/kubelet.sock#n7") == (
        SocketPlace("a", "/run/sockets/*/kubelet.sock"),
        SocketPlace("b", "/x/*/kubelet.sock"),
        SocketPlace("c", "/y/kubelet.sock", "n7"),
    )
    for bad in ("/run/sockets", "a=", "a=/y/kubelet.sock"):
        with pytest.raises(BadSockets):
            parse_sockets(bad)
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "kubelet.sock").touch()
    assert parse_sockets(f"a={tmp_path}")[0].find() == {"n1": tmp_path / "n1" / "kubelet.sock"}


def test_cpus_are_found_in_sysfs(tmp_path: Path) -> None:
    for node, cpus in ((0, "0-1"), (1, "2,3")):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    assert cpu_zones(tmp_path) == {0: 0, 1: 0, 2: 1, 3: 1}
    assert cpu_zones(tmp_path / "none") == {}


class Lister:
    """A kubelet on a real socket. `changing` counts how often what it offers still changes."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = None
        self.changing = 0

    async def List(self, _request: Any, context: Any) -> Any:
        if self.code is not None:
            await context.abort(self.code, "rejected")
        return api.ListPodResourcesResponse(pod_resources=answers(used=1).pods)

    async def GetAllocatableResources(self, _request: Any, context: Any) -> Any:
        self.changing -= 1
        return answers(offered=4 if self.changing <= 0 else 1 + self.changing % 3).allocatable

    async def Get(self, _request: Any, context: Any) -> Any:
        raise AssertionError("not asked for")


async def test_a_real_socket_is_asked_until_both_answers_fit(tmp_path: Path) -> None:
    lister, path = Lister(), tmp_path / "kubelet.sock"
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((api.handler(lister),))
    server.add_insecure_port(f"unix://{path}")
    await server.start()
    kubelet = Kubelet(path)
    lister.changing = 3
    found = await kubelet.ask()
    assert len(found.allocatable.devices) == 4
    assert len(found.pods[0].containers[0].devices) == 1
    lister.changing = 100
    with pytest.raises(KubeletBusy):
        await kubelet.ask()
    lister.changing, lister.code = 0, grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(KubeletBusy):
        await kubelet.ask()
    lister.code = grpc.StatusCode.UNKNOWN
    with pytest.raises(KubeletAway) as away:
        await kubelet.ask()
    assert away.value.code == "UNKNOWN"
    await server.stop(None)
    with pytest.raises(KubeletAway):
        await kubelet.ask()
    await kubelet.close()


def test_agents_come_and_go_with_their_sockets(tmp_path: Path, new_cell: New, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_topology_updater.agents.Kubelet", lambda _path: Scripted(answers()))

    async def scenario() -> None:
        cell = await with_node(new_cell())
        registry = CollectorRegistry()
        agents = Agents(
            parse_sockets(f"sim={tmp_path}"),
            sysfs=tmp_path,
            state=lambda: cell.state,
            inbox=cell,
            clock=loop.SimClock(),
            random=Random(1),
            poll_s=5.0,
            metrics=TopologyMetrics(registry),
        )
        task = asyncio.create_task(agents.run())
        await asyncio.sleep(6)
        assert cell.items == []
        (tmp_path / "n0").mkdir()
        (tmp_path / "n0" / "kubelet.sock").touch()
        await asyncio.sleep(12)
        assert len(cell.items) == 1
        (tmp_path / "n0" / "kubelet.sock").unlink()
        await asyncio.sleep(12)
        assert registry.get_sample_value("muster_topology_sockets", {"cluster": "sim"}) == 0
        task.cancel()

    loop.run(scenario())
