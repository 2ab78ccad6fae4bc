"""preemptor: looks for the victims of a job that is entitled but does not fit.

    ledger: PreemptionRequested -> follower -> Planner on a copy -> PreemptionPlanned -> inbox

The oldest open request says whose turn it is: by its number it belongs to one of the live replicas (`Members`), and
that one answers it together with the others that are open. The planner counts each plan as committed before it makes
the next, and the answers go into the inbox together; a request that needs what only the next state has stays open. The
replica waits until they are decided; only then is another request the oldest, perhaps with another replica's turn. So
no two plans name the same victims, however many replicas there are, but for the moment in which one comes or goes, and
then the leader takes the first (rule P6). That there is no plan is an answer too, so that the leader knows and backs
off.
"""

from __future__ import annotations

import asyncio
from heapq import nsmallest
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from muster.core import transitions as tr
from muster.core.commands import PreemptionPlanned
from muster.core.limits import ENTITLEMENT_LATE_MS
from muster.core.model import InboxPosition
from muster.core.preemption import Planner
from muster.core.state import CellState
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.members import Members

PLAN_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
ROUND_MAX: Final = 16  # requests that are looked at together; the event loop stands still meanwhile


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
            self._drop_closed()
            while self._open and self._members.mine(str(min(self._open.values()))):
                await self._round()
                self._drop_closed()
            self._metrics.open.set(len(self._open))

    async def _round(self) -> None:
        """Answer the oldest requests, and see the answers decided."""
        answers = self._answers()
        if not answers:
            return
        positions = await self._inbox.write(answers)
        for answer in answers:
            self._metrics.plans.labels("plan" if answer.placement else "none").inc()
        await self._decided(positions[-1])
        for answer in answers:  # decided, or overtaken: the leader has said so, or will ask again
            if self._open.get(answer.job) == answer.request:
                del self._open[answer.job]

    def _answers(self) -> list[PreemptionPlanned]:
        """For the oldest requests, from one state."""
        state = self._follower.state
        planner = Planner(state, ENTITLEMENT_LATE_MS)
        answers: list[PreemptionPlanned] = []
        oldest = nsmallest(ROUND_MAX, ((request, job) for job, request in self._open.items()))
        for request, job in oldest:
            with self._metrics.plan_seconds.time():
                answer = planner.plan(job)
            plan = answer.plan
            if answer.later:
                continue  # in the next round, when the plans of this one are decided; the oldest is never put off
            if plan is None:
                why, again_at_ms = answer.reason, answer.again_at_ms
                answers.append(
                    PreemptionPlanned(job, request, ledger_seq=state.ledger_seq, again_at_ms=again_at_ms, reason=why)
                )
            else:
                answers.append(
                    PreemptionPlanned(job, request, plan.victims, plan.placement, state.ledger_seq, plan.shrinks)
                )
        return answers

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
            elif self._open and getattr(transition, "job", "") in self._open:
                self._wake.set()  # if that closes it, it may be this replica's turn now

    def _drop_closed(self) -> None:
        """Requests that were answered, or that nobody asks any more: every replica sees the same ones open."""
        asks = self._follower.state.asks
        for job, request in list(self._open.items()):
            ask = asks.get(job)
            if ask is None or ask.answered or ask.request != request:
                del self._open[job]

    def _reloaded(self, state: CellState) -> None:
        """Requests that were made before this replica watched, or while it could not."""
        asked = sorted((ask.request, job) for job, ask in state.asks.items() if not ask.answered)
        self._open = {job: request for request, job in asked}
        self._wake.set()
