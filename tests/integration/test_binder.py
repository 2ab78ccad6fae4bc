"""The binder as it is deployed: a real NATS, a leader, the API server over HTTP."""

from __future__ import annotations

from pathlib import Path

from tests.integration.cluster_cell import job, running_cell

from muster.core.commands import CancelJob
from muster.core.model import JobState
from muster.sim.cluster import audit
from muster.sim.cluster.cluster import FaultOrder
from muster.sim.cluster.faults import FaultRule


async def test_jobs_run_through_two_binders_of_which_one_leaves(tmp_path: Path) -> None:
    async with running_cell(tmp_path, "uniform:8x64cpu256Gi+8gpu") as cell, cell.binder("binder-1"):
        async with cell.binder("binder-2"):
            await cell.write(*(job(n, replicas=1 + n % 3, gpus=n % 2) for n in range(60)))
            await cell.until(lambda: JobState.SUCCEEDED in cell.states())
        await cell.write(*(job(n) for n in range(60, 90)))
        await cell.until(lambda: set(cell.states()) == {JobState.SUCCEEDED})  # creates on their way are waited for
    verdict = audit.judge(list(cell.sim.audit.records))
    assert verdict.ok, verdict


async def test_a_cancelled_gang_leaves_nothing_running(tmp_path: Path) -> None:
    async with running_cell(tmp_path, "uniform:4x64cpu256Gi") as cell, cell.binder("binder-1"):
        gang = job(1, replicas=20, seconds=None)
        await cell.write(gang)
        await cell.until(lambda: cell.state.jobs[gang.spec.id].state is JobState.RUNNING)
        await cell.write(CancelJob(gang.spec.id))
        await cell.until(lambda: cell.state.jobs[gang.spec.id].state is JobState.CANCELLED)
        page = cell.sim.store.table(next(kind for kind in cell.sim.api.kinds if kind.plural == "pods"))
        assert len(page) == 0


async def test_a_hostile_api_server_delays_and_duplicates_nothing(tmp_path: Path) -> None:
    async with running_cell(tmp_path, "uniform:8x64cpu256Gi") as cell, cell.binder("binder-1"):
        rule = FaultRule(
            resource="pods", share_429=0.1, share_500=0.1, share_drop=0.1, share_reply_lost=0.2, latency_jitter_ms=20
        )
        cell.sim.order(FaultOrder(rules=[rule]))
        await cell.write(*(job(n, replicas=1 + n % 2) for n in range(40)))
        await cell.until(lambda: set(cell.states()) == {JobState.SUCCEEDED})
    verdict = audit.judge(list(cell.sim.audit.records))
    assert verdict.ok, verdict
