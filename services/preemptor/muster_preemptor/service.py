"""preemptor: looks for the victims of a job that is entitled but does not fit.

    ledger: PreemptionRequested -> follower -> plan_preemption on a copy -> PreemptionPlanned -> inbox

Requests are spread over the live replicas by the hash of the job's id (`Members`); a request that is planned twice, or
late, does no harm: the leader checks every plan against its own state and answers each request once (rule P6). A plan
is written also when there is none, with no victims, so that the leader knows and backs off. After a plan with victims
this replica waits until it is decided, so that its next plan does not count on the same nodes.
"""

from __future__ import annotations

import asyncio
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from muster.core import transitions as tr
from muster.core.commands import PreemptionPlanned
from muster.core.model import InboxPosition, JobState
from muster.core.preemption import plan_preemption
from muster.core.state import CellState
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.members import Members

PLAN_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
CLOSES: Final = (tr.PreemptionAnswered, tr.HoldMade, tr.JobPlaced, tr.JobCancelled, tr.JobFailed)


class PreemptorMetrics:
    """What operators see of this service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = Gauge(
            "muster_preemptor_requests_open", "Requests of the cell without an answer.", registry=registry
        )
        self.members = Gauge("muster_preemptor_replicas", "Live replicas as this one sees them.", registry=registry)
        self.plans = Counter("muster_preemptor_plans_total", "Plans written.", ["result"], registry=registry)
        self.plan_seconds = Histogram(
            "muster_preemptor_plan_duration_seconds",
            "Time of one victim search.",
            buckets=PLAN_BUCKETS,
            registry=registry,
        )


class Preemptor:
    """The service, on any bus and clock. `run` for ever."""

    def __init__(
        self,
        *,
        follower: Follower,
        inbox: InboxWriter,
        members: Members,
        decided_timeout_s: float,
        metrics: PreemptorMetrics,
    ) -> None:
        self._follower = follower
        self._inbox = inbox
        self._members = members
        self._decided_timeout_s = decided_timeout_s
        self._metrics = metrics
        self._open: dict[str, int] = {}  # job -> request, oldest request first
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Answer requests, beside being a member of the group. The follower has caught up."""
        self._reloaded(self._follower.state)
        self._follower.on_reload(self._reloaded)
        self._follower.on_transaction(self._applied)
        self._members.changed(self._wake.set)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._members.run())
            tasks.create_task(self._answer())

    async def _answer(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._metrics.members.set(len(self._members.live))
            for job, request in list(self._open.items()):
                if self._open.get(job) == request and self._members.mine(job):
                    await self._plan(job, request)
            self._metrics.open.set(len(self._open))

    async def _plan(self, job: str, request: int) -> None:
        """Write a plan for one request, or that there is none."""
        state = self._follower.state
        found = state.jobs.get(job)
        if found is None or found.state is not JobState.QUEUED:
            self._open.pop(job, None)
            return
        with self._metrics.plan_seconds.time():
            plan = plan_preemption(state, job)
        answer = PreemptionPlanned(job, request, ledger_seq=state.ledger_seq)
        if plan is not None:
            answer = PreemptionPlanned(job, request, plan.victims, plan.placement, state.ledger_seq)
        positions = await self._inbox.write([answer])
        self._metrics.plans.labels("plan" if answer.victims else "none").inc()
        if self._open.get(job) == request:
            del self._open[job]
        if answer.victims:
            await self._decided(positions[-1])

    async def _decided(self, position: InboxPosition) -> None:
        try:
            await self._follower.wait_applied(position, self._decided_timeout_s)
        except TimeoutError:
            pass  # a leader is missing or behind; it checks the next plan all the same

    def _applied(self, tx: tr.Transaction, _ledger_seq: int) -> None:
        for transition in tx.transitions:
            if isinstance(transition, tr.PreemptionRequested):
                self._open.pop(transition.job, None)  # the newest request goes last
                self._open[transition.job] = transition.request
                self._wake.set()
            elif self._open and isinstance(transition, CLOSES):
                self._open.pop(transition.job, None)

    def _reloaded(self, state: CellState) -> None:
        """Requests that were made before this replica watched, or while it could not."""
        asked = sorted((ask.request, job) for job, ask in state.asks.items() if not ask.answered)
        self._open = {job: request for request, job in asked}
        self._wake.set()
