"""P4 on random histories: protected jobs of others keep nobody waiting for what is guaranteed.

One node and jobs of one size, so that nothing is a matter of chunks; every queue reclaims from every other; what is
guaranteed fits. Jobs are protected as declared, or because they were preempted too often. Whenever the cell rests:

- what protected jobs use fits the capacity with everybody's guarantees (`invariants_claims.Kept` sees every start);
- whoever waits although its queue is below its guarantee waits for jobs that could be preempted: of a queue that is
  within its entitlement, which rule P2a leaves alone, and above its guarantee. Between two queues there is no such.
"""

from __future__ import annotations

import os
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.conftest import World
from tests.unit.core.preempting import Around

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.demand import demand, startable
from muster.core.entitlements import entitlements
from muster.core.jobs import Job
from muster.core.model import JobState, QueueSpec
from muster.core.queues import Queue

EXAMPLES = int(os.environ.get("INSTANCES", "40"))
STEP_MS = 1_800_000
LONG_MS = 2 * 3600 * 1000  # longer than any pause after a preemption
ONE = 1000  # the size of every pod


class Sharing(Around):
    """A random cell of queues that are guaranteed something."""

    def __init__(self, seed: int, *, tops: int, deep: bool) -> None:
        self.draw = random.Random(seed)
        self.world = World()
        super().__init__(self.world.cell)
        self.cores = self.draw.randint(4, 12)
        self.world.nodes(1, cpu=ONE * self.cores)
        self.leaves: list[str] = []
        self.number = 0
        left = self.cores
        for top in range(tops):
            left -= self._grow(f"q{top}", left, 1 if deep else 3)

    def _grow(self, path: str, left: int, depth: int) -> int:
        """Returns what is guaranteed to it; no more than is left."""
        draw = self.draw
        own = draw.randint(0, left) if draw.random() < 0.7 else 0
        self.world.queue(path, guaranteed=cores(own), weight=draw.choice((0, 1, 1, 2)), preemption="ANY")
        children = draw.choice((0, 2, 3)) if depth < 3 else 0
        if not children:
            self.leaves.append(path)
        below = sum([self._grow(f"{path}/c{n}", 0, 3) for n in range(children)]) if children else 0
        for n in range(children):
            share = draw.randint(0, own - below)
            below += share
            self._guarantee(f"{path}/c{n}", share)
        return own

    def _guarantee(self, path: str, own: int) -> None:
        spec = self.state.queues.find(path).spec
        self.world.cell.send(
            c.UpsertQueue(path, QueueSpec("", "", "", guaranteed=cores(own), weight=spec.weight, preemption="ANY"), -1)
        )

    def less_guaranteed(self) -> None:
        path = self.draw.choice(self.leaves)
        own = dict(self.state.queues.find(path).spec.guaranteed).get("cpu", 0) // ONE
        self._guarantee(path, self.draw.randint(0, own))

    def submit(self) -> None:
        draw = self.draw
        specs = []
        for _ in range(draw.randint(1, 6)):
            self.number += 1
            replicas = draw.choice((1, 1, 1, 4))
            specs.append(
                self.world.spec(
                    f"job-{self.number}",
                    queue=draw.choice(self.leaves),
                    replicas=replicas,
                    least=1,
                    cpu=ONE,
                    preemptible=draw.random() < 0.6,
                    max_preemptions=draw.choice((0, 1, 2, 5, 5)),
                )
            )
        self.cell.now_ms += draw.choice((0, 1, 1000))
        self.note(self.cell.send(*[c.SubmitJob(spec) for spec in specs]))

    def finish_some(self) -> None:
        for job in self.running():
            if self.draw.random() < 0.3:
                self.note(self.cell.send(c.PodsObserved("sim-a", tuple(ended(job)))))

    def tire_one(self) -> None:
        """Some job was preempted so often that it becomes protected: again and again by hand, then it waits."""
        jobs = [job for job in self.running() if job.spec.preemptible and job.preemptions < job.spec.max_preemptions]
        if not jobs:
            return
        job = self.draw.choice(jobs)
        while job.preemptions < job.spec.max_preemptions and job.charged and not job.next_state:
            self.cell.by_hand(tr.JobPreempted(job.id, job.epoch, "", 0))
            self.obey()

    def rest(self) -> None:
        """Until fair-share, preemptor and clusters have nothing to do, also when all pauses are over."""
        for _ in range(3):
            self.entitle_all()
            self.calm()
            self.wait(LONG_MS, STEP_MS)

    def entitle_all(self) -> None:
        state = self.state
        asked = startable(state, state.queues, demand(state))
        found = entitlements(state.queues, asked, state.nodes.capacity())
        sent = tuple(c.Entitlement(queue, amounts) for queue, amounts in sorted(found.items()))
        self.note(self.cell.send(c.EntitlementsComputed(state.ledger_seq, sent)))

    # --- what must be so ----------------------------------------------------------------------------------------------

    def kept_waiting(self) -> list[str]:
        """Leaves with a job that waits although all that the leaf uses, and the job, is within its guarantee."""
        found = []
        for job in self.state.jobs.values():
            if job.state is JobState.QUEUED and job.not_before_ms <= self.state.now_ms:
                queue = self.state.queues.get(job.queue)
                if self.used(queue.path) + ONE <= guaranteed(queue):
                    found.append(queue.path)
        return found

    def judge(self) -> int:
        """How many are kept waiting by jobs that could be preempted."""
        waiting = self.kept_waiting()
        fixed = dict.fromkeys(self.leaves, 0)
        for job in self.state.jobs.values():
            if job.charged and (not job.spec.preemptible or job.preemptions >= job.spec.max_preemptions):
                fixed[self.state.queues.get(job.queue).path] += ONE * self.live(job)
        loans = [path for path in self.leaves if self.is_left_alone(path, fixed[path])]
        assert not waiting or loans, (waiting, fixed, {path: self.used(path) for path in self.leaves})
        return len(waiting)

    def is_left_alone(self, path: str, fixed: int) -> bool:
        """Whether it is within E, with jobs above its guarantee that could be preempted."""
        queue = self.state.queues.find(path)
        used, most = self.used(path), dict(self.state.entitled.get(queue.id, ())).get("cpu", 0)
        return max(guaranteed(queue), fixed) < used <= most


def cores(number: int) -> tuple[tuple[str, int], ...]:
    return (("cpu", ONE * number),) if number else ()


def guaranteed(queue: Queue) -> int:
    return dict(queue.spec.guaranteed).get("cpu", 0)


def ended(job: Job) -> list[c.PodFact]:
    return [c.PodFact(job.id, job.epoch, p, 3, job.attempt_of(p)) for p, phase in enumerate(job.phases) if phase < 3]


def story(sharing: Sharing) -> int:
    draw, kept = sharing.draw, 0
    for _ in range(draw.randint(2, 6)):
        sharing.submit()
        sharing.rest()
        kept += sharing.judge()
        act = draw.choice((sharing.finish_some, sharing.tire_one, sharing.less_guaranteed, sharing.submit))
        act()
        sharing.rest()
        kept += sharing.judge()
    return kept


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 48))
def test_a_guarantee_is_never_kept_from_its_queue_by_protected_jobs(seed: int) -> None:
    story(Sharing(seed, tops=3, deep=True))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 48))
def test_between_two_queues_nobody_waits_for_what_is_guaranteed(seed: int) -> None:
    assert story(Sharing(seed, tops=2, deep=False)) == 0
