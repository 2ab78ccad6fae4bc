"""The topology-updater as it is deployed: Node objects over HTTP, zones over kubelets' unix sockets."""

from __future__ import annotations

from pathlib import Path

import aiohttp
from tests.integration.cluster_cell import job, running_cell

from muster.core.model import JobState, Zone

GPU = "nvidia.com/gpu"


async def test_nodes_and_zones_reach_the_cell_and_follow_what_runs(short_path: Path) -> None:
    async with running_cell(short_path, "uniform:3x8cpu32Gi+4gpu", sockets=2) as cell, cell.binder("binder-1"):
        nodes = cell.state.nodes
        assert len(nodes) == 3
        assert (nodes.spec(0).device_resource, nodes.spec(0).devices, nodes.spec(0).ready) == (GPU, 4, True)
        await cell.until(lambda: sum(bool(nodes.zones(n)) for n in range(3)) == 2)
        idle = tuple(Zone(z, ((GPU, 2000),), (), (2 * z, 2 * z + 1)) for z in (0, 1))
        assert [nodes.zones(n) for n in range(3)].count(idle) == 2
        wide = job(1, replicas=3, seconds=None, gpus=4)  # fills every node
        await cell.write(wide)
        await cell.until(lambda: cell.state.jobs[wide.spec.id].state is JobState.RUNNING)
        busy = tuple(Zone(z, ((GPU, 2000),), ((GPU, 2000),), (2 * z, 2 * z + 1)) for z in (0, 1))
        await cell.until(lambda: [nodes.zones(n) for n in range(3)].count(busy) == 2)


async def test_a_node_that_is_cordoned_or_removed_is_known_at_once(tmp_path: Path) -> None:
    async with running_cell(tmp_path, "uniform:2x8cpu32Gi") as cell:
        nodes = cell.state.nodes
        name = nodes.spec(0).name
        url = f"http://127.0.0.1:{cell.server.port}/api/v1/nodes/{name}"
        patch, media_type = '{"spec":{"unschedulable":true}}', "application/merge-patch+json"
        async with aiohttp.ClientSession() as operator:
            (await operator.patch(url, data=patch, headers={"Content-Type": media_type})).raise_for_status()
            await cell.until(lambda: nodes.spec(0).cordoned)
            (await operator.delete(url)).raise_for_status()
            await cell.until(lambda: nodes.is_removed(0))
