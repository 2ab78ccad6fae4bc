"""Preemption on random cells: every plan raises PSI, no victim is needless, and with constant demand there is silence.

The driven cell checks P1 naively at every commit (`invariants_potential`), and that usage is the sum of placements.
`INSTANCES=5000` runs more.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.conftest import World
from tests.unit.core.preempting import Around, planned

from muster.core import commands as c
from muster.core.entitlements import entitlements
from muster.core.jobs import Job
from muster.core.model import EVERY_INDEX
from muster.core.overlay import Overlay
from muster.core.potential import staying
from muster.core.preemption import Planner, member_of, place
from muster.core.preemption_rules import Outlook, Taking
from muster.core.prospect import prospect
from muster.core.standing import demand, startable

EXAMPLES = int(os.environ.get("INSTANCES", "60"))
BACKOFF_STEP_MS = 400_000
LONG_MS = 8 * 3600 * 1000


class Chance(Around):
    """A random cell. Entitlements follow demand as a fair-share service would publish them."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.world = World()
        super().__init__(self.world.cell)
        self.leaves: list[str] = []
        self.number = 0
        draw = self.draw
        self.world.nodes(draw.randint(1, 4), cpu=draw.choice((4000, 6000, 8000)), gpus=draw.choice((0, 0, 4)))
        for top in range(draw.randint(1, 3)):
            self._grow(f"q{top}", 1)

    def _grow(self, path: str, depth: int) -> None:
        draw = self.draw
        children = draw.choice((0, 0, 2, 3)) if depth < 3 else 0
        more = {"min_runtime_ms": 300_000} if draw.random() < 0.1 else {}
        self.world.queue(
            path,
            weight=draw.choice((0, 1, 1, 1, 2, 3)),
            preemption=draw.choice(("ANY", "ANY", "ANY", "LOWER_PRIORITY", "NEVER")),
            ordering=draw.choice(("PRIORITY", "PRIORITY", "FIFO")),
            limit=draw.choice(((), (), (), (("cpu", 8000),))),
            **more,
        )
        if not children:
            self.leaves.append(path)
        for child in range(children):
            self._grow(f"{path}/c{child}", depth + 1)

    def submit(self) -> None:
        draw = self.draw
        specs = []
        for _ in range(draw.randint(1, 8)):
            self.number += 1
            replicas = draw.choice((1, 1, 1, 2, 3, 4))
            least, array = draw.randint(1, replicas), draw.random() < 0.25
            gpu = draw.choice((0, 0, 500, 1000, 2000))
            requests = (("cpu", draw.choice((500, 1000, 1000, 2000, 3000, 4000))),)
            if gpu:
                requests += (("nvidia.com/gpu", gpu),)
            specs.append(
                self.world.spec(
                    f"job-{self.number}",
                    replicas=replicas,
                    least=least,
                    queue=draw.choice(self.leaves),
                    requests=requests,
                    priority=draw.choice((0, 0, 0, 1, 2)),
                    preemptible=draw.random() < 0.9,
                    completion=EVERY_INDEX if array else "",
                    max_parallel=draw.choice((0, least, least + 1)) if array else 0,
                    checkpoint_ms=draw.choice((0, 0, 60_000)),
                )
            )
        self.cell.now_ms += draw.choice((0, 1, 1000))
        self.note(self.cell.send(*[c.SubmitJob(spec) for spec in specs]))
        self.entitle_all()

    def finish_some(self) -> None:
        jobs = [job for job in self.running() if self.draw.random() < 0.3]
        facts = [c.PodFact(j.id, j.epoch, p, 3, j.attempt_of(p)) for j in jobs for p in self.ending(j)]
        if facts:
            self.note(self.cell.send(c.PodsObserved("sim-a", tuple(facts))))
            self.entitle_all()

    def ending(self, job: Job) -> list[int]:
        """Some indices of an array job, else all pods."""
        return [p for p in staying(job) if not job.spec.completion or self.draw.random() < 0.6]

    def entitle_all(self) -> None:
        """Rule F1: from demand alone."""
        state = self.state
        asked = startable(state, state.queues, demand(state))
        found = entitlements(state.queues, asked, state.nodes.capacity())
        sent = [c.Entitlement(queue, amounts) for queue, amounts in sorted(found.items())]
        self.note(self.cell.send(c.EntitlementsComputed(state.ledger_seq, tuple(sent))))

    def answer(self) -> bool:
        asked = sorted((ask.request, job) for job, ask in self.state.asks.items() if not ask.answered)
        if not asked:
            return False
        planner = Planner(self.state)
        request, job = asked[0]
        fact = planned(planner, job, request)
        if fact.placement:
            self.needs_all(self.state.jobs[job], fact)
        rest = [planned(planner, other, number) for number, other in asked[1:]]
        self.note(self.cell.send(fact, *rest))
        return True

    def needs_all(self, job: Job, fact: c.PreemptionPlanned) -> None:
        """P3: without any one of them, and with one replica fewer, the job would not fit."""
        state = self.state
        takings = [Taking(state.jobs[v], tuple(staying(state.jobs[v])), True) for v, _ in fact.victims]
        takings += [Taking(state.jobs[v], positions, False) for v, _, positions in fact.shrinks]
        ahead = prospect(
            lambda: Overlay(state.nodes),
            lambda queue: queue.usage,
            member_of,
            tree=state.queues,
            leaving=[state.jobs[leaver] for leaver in state.potential.leaving],
            holds={holder: hold for holder, hold in state.holds.items() if holder != job.id},
            find=state.jobs.get,
        )
        tasks = job.asks.minimum_tasks or job.asks.tasks
        outlook = Outlook(
            state.queues,
            state.entitled,
            state.nodes.capacity(),
            lambda q: state.potential.usage.get(q, {}),
            state.now_ms,
        )
        assert place(ahead, outlook, job, takings, tasks) is not None
        for taking in takings:
            left = [other for other in takings if other is not taking]
            if not taking.whole and len(taking.positions) > 1:
                left.append(taking._replace(positions=taking.positions[1:]))
            assert place(ahead, outlook, job, left, tasks) is None, "a victim is needless"


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 48))
def test_every_plan_raises_the_potential_and_then_there_is_silence(seed: int) -> None:
    chance = Chance(seed)
    for _ in range(chance.draw.randint(1, 5)):
        chance.submit()
        chance.calm()
        if chance.draw.random() < 0.5:
            chance.finish_some()
            chance.calm()
    chance.wait(LONG_MS, BACKOFF_STEP_MS)
    evicted, shrunk, plans = len(chance.evicted), len(chance.shrunk), chance.plans
    chance.wait(LONG_MS, BACKOFF_STEP_MS)
    assert (len(chance.evicted), len(chance.shrunk), chance.plans) == (evicted, shrunk, plans), "it goes on and on"
    assert not chance.state.holds


@pytest.mark.parametrize("seed", range(5))
def test_fixed_seeds(seed: int) -> None:
    chance = Chance(seed)
    for _ in range(6):
        chance.submit()
        chance.calm()
    assert chance.number
