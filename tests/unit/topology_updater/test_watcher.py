"""The watcher on virtual time, with the real core deciding what it reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from muster.core.commands import NodesReported
from muster.runtime.ports import OutcomeUnknown
from muster.sim import loop
from muster.sim.kube import SimKube
from muster_topology_updater.metrics import TopologyMetrics
from muster_topology_updater.watcher import ClusterWatcher, WatcherOptions

Cell = Any
New = Callable[[], Cell]


def cluster(nodes: int) -> SimKube:
    server = SimKube("sim", Random(1))
    for number in range(nodes):
        server.add_node(f"n{number}", {"cpu": "8", "memory": "16Gi", "pods": "110"})
    return server


@asynccontextmanager
async def watching(server: SimKube, cell: Cell) -> AsyncIterator[None]:
    watcher = ClusterWatcher(
        server.client("topology"),
        state=lambda: cell.state,
        inbox=cell,
        clock=loop.SimClock(),
        random=Random(2),
        options=WatcherOptions(),
        metrics=TopologyMetrics(CollectorRegistry()),
    )
    task = asyncio.create_task(watcher.run())
    await asyncio.sleep(1)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def names(cell: Cell) -> list[str]:
    nodes = cell.state.nodes
    return sorted(nodes.spec(index).name for index in nodes.live("sim"))


def play(scenario: Callable[[], Any]) -> None:
    loop.run(scenario())


def test_the_first_report_is_complete_and_in_parts(new_cell: New) -> None:
    async def scenario() -> None:
        cell = new_cell()
        async with watching(cluster(450), cell):
            assert [(len(r.nodes), r.first, r.complete) for r in cell.items] == [
                (200, True, False),
                (200, False, False),
                (50, False, True),
            ]
            assert cell.state.clusters["sim"].synced
            assert len(names(cell)) == 450

    play(scenario)


def test_only_changes_are_reported_afterwards(new_cell: New) -> None:
    async def scenario() -> None:
        cell, server = new_cell(), cluster(3)
        async with watching(server, cell):
            del cell.items[:]
            server._record("nodes", "MODIFIED", server.nodes["n0"])  # a heartbeat
            await asyncio.sleep(60)
            assert cell.items == []
            server.set_node_ready("n1", False)
            server.remove_node("n2")
            await asyncio.sleep(1)
            (report,) = cell.items
            assert ([n.name for n in report.nodes], report.removed) == (["n1"], ("n2",))
            assert names(cell) == ["n0", "n1"]

    play(scenario)


def test_a_restart_repeats_nothing_and_finds_what_changed_meanwhile(new_cell: New) -> None:
    async def scenario() -> None:
        cell, server = new_cell(), cluster(3)
        async with watching(server, cell):
            pass
        del cell.items[:]
        async with watching(server, cell):
            assert cell.items == []
        server.remove_node("n0")
        server.add_node("n9", {"cpu": "4"})
        async with watching(server, cell):
            assert names(cell) == ["n1", "n2", "n9"]
            assert len(cell.items) == 1

    play(scenario)


def test_pods_of_others_take_from_the_node(new_cell: New) -> None:
    async def scenario() -> None:
        cell, server = new_cell(), cluster(2)
        async with watching(server, cell):
            spec = {"nodeName": "n0", "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}
            ours = {"metadata": {"name": "ours", "labels": {"muster.io/job": "x"}}, "spec": spec}
            server.create("kube-system", ours, "binder")
            server.create("kube-system", {"metadata": {"name": "dns"}, "spec": spec}, "kubectl")
            await asyncio.sleep(2)
            index = cell.state.nodes.index_of("sim", "n0")
            assert cell.state.nodes.spec(index).used_by_others == (("cpu", 2000), ("pods", 1))
            server.delete_unasked("kube-system", "dns")
            await asyncio.sleep(2)
            assert cell.state.nodes.spec(index).used_by_others == ()

    play(scenario)


def test_what_is_written_but_not_decided_is_not_written_again(new_cell: New) -> None:
    async def scenario() -> None:
        cell, server = new_cell(), cluster(2)
        cell.paused = True
        async with watching(server, cell):
            assert len(cell.items) == 1
            server.set_node_ready("n0", False)
            await asyncio.sleep(90)  # several audits
            assert len(cell.items) == 2
            cell.decide_all()
            await asyncio.sleep(90)
            assert len(cell.items) == 2

    play(scenario)


def test_an_inbox_that_fails_gets_the_newest_view_later(new_cell: New) -> None:
    async def scenario() -> None:
        cell, server = new_cell(), cluster(2)
        cell.failures += [OutcomeUnknown("away")] * 3
        async with watching(server, cell):
            await asyncio.sleep(10)
            assert names(cell) == ["n0", "n1"]
            cell.failures.append(OutcomeUnknown("away"))
            server.remove_node("n1")
            await asyncio.sleep(5)
            assert names(cell) == ["n0"]

    play(scenario)


def test_a_cluster_without_nodes_is_reported_complete(new_cell: New) -> None:
    async def scenario() -> None:
        cell = new_cell()
        async with watching(cluster(0), cell):
            assert cell.items == [NodesReported("sim", first=True, complete=True)]

    play(scenario)


def test_faults_of_the_api_server_are_survived(new_cell: New) -> None:
    async def scenario() -> None:
        cell, server = new_cell(), cluster(5)
        server.faults.request_lost_chance = server.faults.watch_cut_chance = 0.4
        async with watching(server, cell):
            for number in range(20):
                server.add_node(f"m{number}", {"cpu": "1"})
                await asyncio.sleep(0.5)
            server.remove_node("n0")
            await asyncio.sleep(120)
            assert len(names(cell)) == 24

    play(scenario)
