"""Preemption on random cells: every plan raises PSI, no victim is needless, and with constant demand there is silence.

The driven cell checks P1 naively at every commit (`invariants_potential`), and that usage is the sum of what is placed,
queue by queue (`invariants`); now and then the cell crashes and goes on from a snapshot or from its ledger. Every plan
is judged by `plan_rules` before it is sent. `INSTANCES=5000` runs more.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.plan_rules import (
    amounts_of,
    believed,
    check_growth,
    check_rules,
    positions_of,
    smaller_plans,
)
from tests.unit.core.conftest import World
from tests.unit.core.preempting import Around, planned

from muster.core import commands as c
from muster.core import invariants, snapshot
from muster.core.apply import apply_transaction
from muster.core.claims import Claims
from muster.core.demand import demand, startable
from muster.core.entitlements import entitlements
from muster.core.further import as_job
from muster.core.housekeeping import next_wake_ms
from muster.core.jobs import Job
from muster.core.model import EVERY_INDEX, Amounts
from muster.core.overlay import Overlay
from muster.core.potential import ByPriority, add, staying
from muster.core.preemption import Planner, member_of, place
from muster.core.preemption_rules import Outlook, Taking
from muster.core.prospect import prospect
from muster.core.state import CellState
from muster.wire import codec

INSTANCES = int(os.environ.get("INSTANCES", "300"))
CRASHES = 0.2  # of the moments when victims are on their way out
STEP_MIN_MS = 1000
LONG_MS = 8 * 3600 * 1000


class Chance(Around):
    """A random cell. Entitlements follow demand as a fair-share service would publish them. `elastic`: most jobs of it
    could use many more replicas than they start with, so that they grow at the cost of others."""

    def __init__(self, seed: int, *, elastic: bool = False) -> None:
        self.elastic = elastic
        self.draw = random.Random(seed)
        self.world = World()
        super().__init__(self.world.cell)
        self.leaves: list[str] = []
        self.number = 0
        self.grew = 0  # plans for further replicas of placed jobs
        draw = self.draw
        self.world.nodes(draw.randint(1, 4), cpu=draw.choice((4000, 6000, 8000)), gpus=draw.choice((0, 0, 4)))
        for top in range(draw.randint(1, 3)):
            self._grow(f"q{top}", 1)

    def _grow(self, path: str, depth: int) -> None:
        draw = self.draw
        children = draw.choice((0, 0, 2, 3)) if depth < 3 else 0
        guaranteed = draw.choice((0, 0, 1000, 2000, 3000))  # of a parent, less than its children's may be: refused
        more = {"min_runtime_ms": 300_000} if draw.random() < 0.1 else {}
        self.world.queue(
            path,
            weight=draw.choice((0, 1, 1, 1, 2, 3)),
            preemption=draw.choice(("ANY", "ANY", "ANY", "LOWER_PRIORITY", "NEVER")),
            ordering=draw.choice(("PRIORITY", "PRIORITY", "FIFO")),
            guaranteed=(("cpu", guaranteed),) if guaranteed else (),
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
            replicas = draw.choice((1, 4, 6, 8, 12) if self.elastic else (1, 1, 1, 2, 3, 4))
            least, array = draw.randint(1, min(replicas, 2) if self.elastic else replicas), draw.random() < 0.25
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

    def obey(self) -> bool:
        if self.state.potential.leaving and self.draw.random() < CRASHES:
            self.crash()
        return super().obey()

    def wait_long(self, milliseconds: int) -> None:
        """Time passes from one thing that is due to the next, and everybody does their part each time."""
        until_ms = self.cell.now_ms + milliseconds
        while self.cell.now_ms < until_ms:
            wake_ms = next_wake_ms(self.state) or until_ms
            self.note(self.cell.wait(min(max(wake_ms - self.cell.now_ms, STEP_MIN_MS), until_ms - self.cell.now_ms)))
            self.calm()

    def crash(self) -> None:
        """Everything in memory is lost; the state comes from a snapshot or from the whole ledger, and is the same."""
        parts = [codec.encode_snapshot_part(part) for part in snapshot.dump(self.state)]
        if self.draw.random() < 0.5:
            state = snapshot.load(map(codec.decode_snapshot_part, parts))
        else:
            state = CellState(self.cell.state.cell)
            for seq, data in enumerate(self.cell.log, 1):
                apply_transaction(state, codec.decode_transaction(data), seq)
        invariants.check(state)  # usage is the sum of what is placed, and everything else that is derived
        assert [codec.encode_snapshot_part(part) for part in snapshot.dump(state)] == parts
        self.cell.state = state
        self.cell.start_term()

    def answer(self) -> bool:
        asked = sorted((ask.request, job) for job, ask in self.state.asks.items() if not ask.answered)
        if not asked:
            return False
        planner = Planner(self.state)
        facts = [planned(planner, job, request) for request, job in asked]
        self.judge(facts)
        self.note(self.cell.send(*facts))
        return True

    def judge(self, facts: list[c.PreemptionPlanned]) -> None:
        """P2, P3, P4, each plan with those before it as good as done."""
        state, now = self.state, believed(self.state)
        done: list[tuple[Job, list[Taking], c.PreemptionPlanned]] = []
        for fact in facts:
            if fact.placement:
                job = state.jobs[fact.job]
                takings = [Taking(state.jobs[v], tuple(staying(state.jobs[v])), True) for v, _ in fact.victims]
                takings += [Taking(state.jobs[v], positions, False) for v, _, positions in fact.shrinks]
                positions = positions_of(job, fact.placement)
                check_rules(now, job, takings)
                if job.charged:
                    self.grew += 1
                    (group,) = fact.placement
                    check_growth(now, job, group.group, positions)
                    self.needs_all(as_job(state.nodes, job, group.group, len(positions)), takings, done)
                else:
                    self.needs_all(job, takings, done)
                done.append((job, takings, fact))
                now.moves(job, amounts_of(job, positions), 1)
                for taking in takings:
                    now.moves(taking.victim, amounts_of(taking.victim, taking.positions), -1)

    def needs_all(
        self, job: Job, takings: list[Taking], done: list[tuple[Job, list[Taking], c.PreemptionPlanned]]
    ) -> None:
        """P3: with one victim or one replica fewer, the job would not fit."""
        state = self.state
        ahead = prospect(
            lambda: Overlay(state.nodes),
            lambda queue: queue.usage,
            member_of,
            claims=Claims(state.queues),
            leaving=[state.jobs[leaver] for leaver in state.potential.leaving],
            holds={holder: hold for holder, hold in state.holds.items() if holder != job.id},
            find=state.jobs.get,
        )
        usage = {queue.id: state.potential.usage.get(queue.id, {}) for queue in state.queues.subtree()}
        for holder, taken, fact in done:
            for taking in taken:
                ahead.leaves(taking.victim, taking.positions, whole=taking.whole)
                usage[taking.victim.queue] = plus(usage[taking.victim.queue], taking.victim, taking.amounts, -1)
            ahead.holds(holder, fact.placement)
            usage[holder.queue] = plus(usage[holder.queue], holder, holder.gang.of_groups(fact.placement), 1)
        tasks = job.asks.minimum_tasks or job.asks.tasks
        outlook = Outlook(state.queues, state.entitled, state.nodes.capacity(), usage.__getitem__, state.now_ms)
        assert place(ahead, outlook, job, takings, tasks) is not None
        for fewer in smaller_plans(takings):
            assert place(ahead, outlook, job, fewer, tasks) is None, "a victim is needless"


def plus(usage: ByPriority, job: Job, amounts: Amounts, sign: int) -> ByPriority:
    changed = {priority: dict(of) for priority, of in usage.items()}
    add(changed, job.spec.priority, amounts, sign)
    return changed


@settings(max_examples=INSTANCES, deadline=None)
@given(st.integers(0, 1 << 48))
def test_every_plan_raises_the_potential_and_then_there_is_silence(seed: int) -> None:
    falls_silent(Chance(seed))


@settings(max_examples=max(INSTANCES // 3, 25), deadline=None)
@given(st.integers(0, 1 << 48))
def test_growth_that_takes_from_others_raises_it_too_and_then_there_is_silence(seed: int) -> None:
    falls_silent(Chance(seed, elastic=True))


def falls_silent(chance: Chance) -> None:
    for _ in range(chance.draw.randint(1, 5)):
        chance.submit()
        chance.calm()
        if chance.draw.random() < 0.5:
            chance.finish_some()
            chance.calm()
    chance.wait_long(LONG_MS)
    evicted, shrunk, plans = len(chance.evicted), len(chance.shrunk), chance.plans
    chance.wait_long(LONG_MS)
    assert (len(chance.evicted), len(chance.shrunk), chance.plans) == (evicted, shrunk, plans), "it goes on and on"
    assert not chance.state.holds


@pytest.mark.parametrize("seed", range(5))
def test_fixed_seeds(seed: int) -> None:
    chance = Chance(seed)
    for _ in range(6):
        chance.submit()
        chance.calm()
    assert chance.number
