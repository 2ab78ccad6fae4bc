"""Where other systems went round in circles or starved somebody, one scenario each, in virtual time (rules P1 to P6).

Each drives the production core with a preemptor and obedient clusters around it; P1 and the sums of usage are checked
at every commit. The names say what went wrong elsewhere.
"""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import World
from tests.unit.core.preempting import Around

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.jobs import RUNNING_STATES
from muster.core.model import Amounts, JobState

HOUR_MS = 3600_000
STEP_MS = 60_000


class Trap(World):
    """A cell and those around it."""

    def __init__(self) -> None:
        super().__init__()
        self.around = Around(self.cell)

    def many(self, prefix: str, count: int, queue: str, **more: object) -> None:
        self.around.note(
            self.cell.send(*[c.SubmitJob(self.spec(f"{prefix}-{n}", queue=queue, **more)) for n in range(count)])
        )
        self.cell.now_ms += 10

    def used(self, queue: str) -> int:
        return self.around.used(queue)

    def runs(self, name: str) -> bool:
        return self.job(name).state in RUNNING_STATES

    def is_silent(self) -> None:
        """For hours nobody is evicted and nobody shrunk."""
        before = (list(self.around.evicted), list(self.around.shrunk))
        self.around.wait(3 * HOUR_MS, STEP_MS)
        assert (self.around.evicted, self.around.shrunk) == before


@pytest.fixture
def trap() -> Trap:
    return Trap()


def cpu(millis: int) -> Amounts:
    return (("cpu", millis),)


def test_infinite_preemption_between_siblings_in_a_deep_tree(trap):
    """Four levels deep, every queue may reclaim from every other, jobs too large for their shares."""
    trap.nodes(3, cpu=4000)
    leaves = []
    for team in "ab":
        for path in (team, f"{team}/x", f"{team}/x/y"):
            trap.queue(path, preemption="ANY")
        for leaf in "12":
            leaves.append(f"{team}/x/y/{leaf}")
            trap.queue(leaves[-1], preemption="ANY")
    shares = {leaf.replace("/", "_"): cpu(3000) for leaf in leaves}
    trap.around.entitle(**shares)
    for leaf in leaves:
        trap.many(leaf.replace("/", "-"), 2, leaf, cpu=4000)
        trap.around.calm()
    trap.around.wait(3 * HOUR_MS, STEP_MS)
    assert sum(trap.used(leaf) > 0 for leaf in leaves) == 3
    trap.is_silent()


def test_thrash_because_freed_capacity_is_taken_by_another(trap):
    """The victims of a wide job die one after the other, and small jobs of all queues wait for room."""
    trap.nodes(1, cpu=8000)
    for name in ("owner", "borrower", "third"):
        trap.queue(name, preemption="ANY")
    trap.around.entitle(owner=(), borrower=cpu(8000), third=())
    trap.many("b", 8, "borrower")
    trap.around.entitle(owner=cpu(4000), borrower=cpu(2000), third=cpu(2000))
    trap.submit("wide", cpu=4000, queue="owner")
    trap.around.answer()
    trap.many("small", 20, "third", preemptible=True)
    trap.many("again", 20, "borrower")
    leaving = [job for job in trap.state.jobs.values() if job.state is JobState.STOPPING]
    for job in leaving:
        assert not trap.runs("wide")
        trap.around.note(trap.cell.send(c.PodsObserved("sim-a", (c.PodFact(job.id, job.epoch, 0, 5),))))
    assert trap.runs("wide")
    trap.around.calm()
    assert [trap.used(q) for q in ("owner", "borrower", "third")] == [4000, 2000, 2000]
    trap.is_silent()


def test_a_large_gang_starved_by_overlapping_victim_sets(trap):
    """A gang that needs every node asks at the same moment as many small jobs, each with a plan of its own."""
    trap.nodes(4, cpu=4000)
    trap.queue("low")
    trap.queue("research", preemption="ANY")
    trap.around.entitle(low=(), research=cpu(16_000))
    trap.many("l", 16, "low")
    trap.submit("gang", replicas=4, cpu=3000, priority=5)
    trap.many("s", 8, "research", cpu=1000, priority=5)
    trap.around.calm()
    assert trap.runs("gang")
    assert trap.used("research") == 16_000
    trap.is_silent()


def test_weight_zero(trap):
    """A queue of weight 0 has no entitlement while others want everything: it takes from nobody and gives all."""
    trap.nodes(2, cpu=4000)
    trap.queue("nobody", weight=0, preemption="ANY")
    trap.queue("team", preemption="ANY")
    trap.around.entitle(nobody=cpu(8000), team=())
    trap.many("n", 8, "nobody")
    trap.around.entitle(nobody=(), team=cpu(8000))
    trap.many("t", 12, "team")
    trap.around.calm()
    assert (trap.used("nobody"), trap.used("team")) == (0, 8000)
    trap.is_silent()
    assert len(trap.around.evicted) == 8


def test_a_tiny_sibling_triggers_evictions(trap):
    """A sibling with next to nothing must not set off more than the one job it needs."""
    trap.nodes(4, cpu=4000)
    trap.queue("team")
    trap.queue("team/large", preemption="ANY")
    trap.queue("team/tiny", preemption="ANY")
    trap.around.entitle(team=cpu(16_000), team_large=cpu(15_900), team_tiny=cpu(100))
    trap.many("l", 16, "team/large")
    trap.submit("tiny", cpu=100, queue="team/tiny")
    trap.around.calm()
    assert len(trap.around.evicted) <= 1
    trap.is_silent()
    assert len(trap.around.evicted) <= 1


def test_a_preemptor_that_does_not_fit_after_its_victims_died(trap):
    """The node that was freed is lost: the hold ends, and the job gets another plan."""
    trap.nodes(2, cpu=4000)
    trap.many("low", 2, "research", cpu=4000)
    trap.submit("high", cpu=4000, priority=5)
    trap.around.answer()
    (victim,) = (trap.state.jobs[job] for job in trap.around.evicted)
    ((node, _),) = victim.placement[0].runs
    name = trap.state.nodes.spec(node).name
    trap.around.note(trap.cell.send(c.NodesReported("sim-a", (trap.node(name, cordoned=True),))))
    trap.around.calm()
    assert not trap.runs("high")
    trap.around.wait(HOUR_MS, STEP_MS)
    assert trap.runs("high")
    assert len(trap.around.evicted) == 2
    assert not trap.state.holds
    trap.is_silent()


def test_a_whole_bundle_is_evicted_where_one_suffices(trap):
    """Gangs and single jobs side by side: one single job is enough, and no gang loses its last member."""
    trap.nodes(2, cpu=4000)
    trap.queue("low")
    trap.queue("research", preemption="ANY")
    trap.around.entitle(low=cpu(7000), research=())
    trap.many("gang", 1, "low", replicas=4)
    trap.many("single", 4, "low")
    trap.around.entitle(low=cpu(7000), research=cpu(1000))
    trap.submit("mine", queue="research")
    trap.around.calm()
    assert len(trap.around.evicted) == 1
    assert trap.runs("gang-0")
    trap.is_silent()


def test_quota_leaks_on_partial_deletion(trap):
    """Some pods of a victim go, some stay for long: exactly those are charged, at every step."""
    trap.nodes(1, cpu=4000)
    trap.submit("victim", replicas=4)
    trap.submit("high", cpu=4000, priority=5)
    trap.around.answer()
    for pod in range(4):
        assert trap.used("research") == (4 - pod) * 1000
        trap.pods("victim", 5, pod)
    assert trap.runs("high")
    assert trap.used("research") == 4000
    trap.pods("high", 3)
    assert trap.used("research") == 0


def test_over_admission_after_pods_finished_one_by_one(trap):
    """A gang ends pod by pod: what ended is free, what runs is not, and the limit is never passed."""
    trap.nodes(4, cpu=4000)
    trap.queue("research", limit=cpu(4000))
    trap.submit("gang", replicas=4)
    trap.many("next", 8, "research")
    for pod in range(4):
        assert trap.used("research") == 4000
        trap.pods("gang", 3, pod)
    assert trap.used("research") == 4000
    assert trap.job("gang").state is JobState.SUCCEEDED


def test_a_queue_whose_entitlement_is_smaller_than_its_only_job(trap):
    """It gets its turn when that brings the cell nearer to the entitlements, once, and not the other way round."""
    trap.nodes(1, cpu=9000)
    for name in ("small", "large"):
        trap.queue(name, preemption="ANY")
    trap.around.entitle(small=(), large=cpu(9000))
    trap.many("l", 3, "large", cpu=3000)
    trap.around.entitle(small=cpu(2000), large=cpu(7000))
    trap.submit("only", cpu=3000, queue="small")
    trap.around.calm()
    assert trap.runs("only")
    assert (trap.used("small"), trap.used("large")) == (3000, 6000)
    assert len(trap.around.evicted) == 1
    trap.is_silent()


def test_nobody_leaves_in_vain_for_a_job_larger_than_what_was_borrowed(trap):
    """Small jobs are borrowed for 2, the job needs 3: two of them would leave for nothing, so none does."""
    trap.nodes(1, cpu=8000)
    for name in ("small", "large"):
        trap.queue(name, preemption="ANY")
    trap.around.entitle(small=(), large=cpu(8000))
    trap.many("l", 8, "large")
    trap.around.entitle(small=cpu(2000), large=cpu(6000))
    trap.submit("only", cpu=3000, queue="small")
    trap.is_silent()
    assert trap.around.evicted == []


def test_a_borrower_that_became_immune(trap):
    """Whoever was preempted as often as may be does not start on loan any more, so its lender is safe."""
    trap.nodes(1, cpu=4000)
    for name in ("lender", "borrower"):
        trap.queue(name, preemption="ANY")
    trap.around.entitle(lender=(), borrower=())
    trap.submit("immune", cpu=4000, queue="borrower")
    trap.around.calm()
    for n in range(5):
        trap.around.entitle(lender=cpu(4000))
        trap.submit(f"own-{n}", cpu=4000, queue="lender")
        trap.around.calm()
        trap.pods(f"own-{n}", 3)
        trap.around.entitle(lender=())
        trap.around.wait((60_000 << n) + STEP_MS, STEP_MS)
    assert trap.job("immune").preemptions == 5
    trap.around.entitle(lender=cpu(4000))
    trap.submit("mine", cpu=4000, queue="lender")
    trap.around.calm()
    assert trap.runs("mine")
    assert not trap.runs("immune")
    assert len(trap.around.evicted) == 5
    told = [t for t in trap.cell.settle() if isinstance(t, tr.JobPreempted)]
    assert told == []
