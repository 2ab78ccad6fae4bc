"""A cell with everything around it that preemption needs: a preemptor, a fair-share, clusters that obey at once."""

from __future__ import annotations

from typing import Any

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.jobs import Job, is_over
from muster.core.model import Amounts
from muster.core.preemption import Planner
from muster.core.prospect import leaving_positions
from muster.sim.cell import Cell

RUNNING, GONE = 2, 5


class Around:
    """Drives a cell until it is silent. `evicted` and `shrunk` collect what preemption did, `plans` counts plans."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.evicted: list[str] = []
        self.shrunk: list[tuple[str, int]] = []
        self.requests = 0
        self.plans = 0
        self.dropped: list[str] = []

    @property
    def state(self) -> Any:
        return self.cell.state

    def note(self, transitions: list[tr.Transition]) -> list[tr.Transition]:
        for t in transitions:
            if isinstance(t, tr.JobPreempted):
                self.evicted.append(t.job)
            elif isinstance(t, tr.JobShrunk) and t.by:
                self.shrunk.append((t.job, len(t.pods)))
            elif isinstance(t, tr.PreemptionRequested):
                self.requests += 1
            elif isinstance(t, tr.HoldMade):
                self.plans += 1
            elif isinstance(t, tr.PreemptionAnswered):
                self.dropped.append(t.reason)
        return transitions

    def entitle(self, **paths: Amounts) -> None:
        """As fair-share would: queue names with dots for slashes."""
        found = {path.replace("_", "/"): amounts for path, amounts in paths.items()}
        sent = tuple(c.Entitlement(self.state.queues.find(path).id, amounts) for path, amounts in found.items())
        self.note(self.cell.send(c.EntitlementsComputed(self.state.ledger_seq, sent)))

    def answer(self) -> bool:
        """As a preemptor does: every open request, from one state, in one message."""
        asked = sorted((ask.request, job) for job, ask in self.state.asks.items() if not ask.answered)
        if not asked:
            return False
        planner = Planner(self.state)
        self.note(self.cell.send(*[planned(planner, job, request) for request, job in asked]))
        return True

    def obey(self) -> bool:
        """As the clusters do: whoever was asked to leave is gone."""
        facts = [
            c.PodFact(job.id, job.epoch, position, GONE, job.attempt_of(position))
            for job in list(self.state.jobs.values())
            for position in leaving_positions(job)
        ]
        if facts:
            self.note(self.cell.send(c.PodsObserved("sim-a", tuple(facts))))
        return bool(facts)

    def start(self) -> None:
        """As the clusters do: what was placed runs, as long as nobody says that it ends."""
        facts = [
            c.PodFact(job.id, job.epoch, position, RUNNING, job.attempt_of(position))
            for job in list(self.state.jobs.values())
            if job.charged
            for position, phase in enumerate(job.phases)
            if phase < RUNNING
        ]
        if facts:
            self.note(self.cell.send(c.PodsObserved("sim-a", tuple(facts))))

    def calm(self, rounds: int = 200) -> None:
        """Until nobody has anything to do at this moment."""
        self.note(self.cell.settle())
        for _ in range(rounds):
            answered = self.answer()
            if not self.obey() and not answered:
                self.start()
                return
        raise AssertionError("preemption does not come to rest")

    def wait(self, milliseconds: int, step_ms: int = 1000) -> None:
        """Time passes; requests are answered and orders obeyed on the way."""
        for _ in range(milliseconds // step_ms):
            self.note(self.cell.wait(step_ms))
            self.calm()

    def running(self, queue: str = "") -> list[Job]:
        """Jobs that are placed and stay, of a queue or of all."""
        wanted = self.state.queues.find(queue).id if queue else ""
        return [j for j in self.state.jobs.values() if j.charged and not j.next_state and wanted in ("", j.queue)]

    def used(self, queue: str, resource: str = "cpu") -> int:
        found: int = self.state.queues.find(queue).usage.get(resource, 0)
        return found

    def live(self, job: Job) -> int:
        return sum(not is_over(phase) for phase in job.phases)


def planned(planner: Planner, job: str, request: int) -> c.PreemptionPlanned:
    """What a preemptor writes."""
    answer = planner.plan(job)
    if answer.plan is None:
        return c.PreemptionPlanned(job, request, again_at_ms=answer.again_at_ms, reason=answer.reason)
    plan = answer.plan
    return c.PreemptionPlanned(job, request, plan.victims, plan.placement, shrinks=plan.shrinks)


def many(world: Any, prefix: str, count: int, queue: str, **more: Any) -> None:
    """So many equal jobs."""
    world.cell.send(*[c.SubmitJob(world.spec(f"{prefix}-{n}", queue=queue, **more)) for n in range(count)])


def cpu(amount: int) -> Amounts:
    return (("cpu", amount),)
