"""A dry run names who becomes reclaimable: exactly those who leave when the change is made (rules P2 to P4)."""

from __future__ import annotations

import pytest
from tests.unit.core.preempting import many

from muster.core import commands as c
from muster.core.demand import demand, startable
from muster.core.entitlements import entitlements
from muster.core.model import QueueSpec
from muster.core.queue_changes import plan
from muster.core.whatif import TreeForecast, forecast_queues

GPU = "nvidia.com/gpu"
ONE = (("cpu", 100), (GPU, 1000))
SECONDS = 20  # until preemption has come to rest: less than anybody who left is in backoff


def gpus(count: int) -> tuple[tuple[str, int], ...]:
    return (("cpu", 100), (GPU, 1000 * count))


class Teams:
    """A cell of 24 GPUs with two teams, and fair-share at work."""

    def __init__(self, world, around, *, nodes: int = 6, **devices: int) -> None:
        self.world = world
        self.around = around
        world.nodes(nodes, cpu=16_000, gpus=devices.get("gpus", 4))

    @property
    def state(self):
        return self.world.state

    def settle(self, seconds: int = 2) -> None:
        """Fair-share publishes, preemption comes to rest, for a few seconds."""
        for _ in range(seconds):
            asked = startable(self.state, self.state.queues, demand(self.state))
            found = entitlements(self.state.queues, asked, self.state.nodes.capacity())
            sent = tuple(c.Entitlement(queue, amounts) for queue, amounts in sorted(found.items()))
            self.around.note(self.world.cell.send(c.EntitlementsComputed(self.state.ledger_seq, sent)))
            self.around.calm()
            self.around.note(self.world.cell.wait(1000))

    def ask(self, **wanted: QueueSpec) -> TreeForecast:
        changes = plan(self.state.queues, {path.replace("_", "/"): spec for path, spec in wanted.items()})
        self.changes = changes
        return forecast_queues(self.state, c.ChangeQueues(changes), self.world.cell.now_ms)

    def told(self, **wanted: QueueSpec) -> tuple[list[str], dict[str, int]]:
        """Who would go, and how many replicas of which jobs."""
        told = self.ask(**wanted)
        assert all(len(found.first) == found.jobs for found in told.reclaimable)
        whole = [job for found in told.reclaimable for job in found.first]
        shrunk = {job: found.replicas for found in told.reclaimable for job in found.first_shrunk}
        return sorted(whole), shrunk

    def done(self, seconds: int = SECONDS) -> tuple[list[str], dict[str, int]]:
        """The same, as it is when the changes are made."""
        self.around.evicted.clear()
        self.around.shrunk.clear()
        self.around.note(self.world.cell.send(c.ChangeQueues(self.changes)))
        self.settle(seconds)
        shrunk: dict[str, int] = {}
        for job, count in self.around.shrunk:
            if job not in self.around.evicted:
                shrunk[job] = shrunk.get(job, 0) + count
        return sorted(self.around.evicted), shrunk


def spec(**more) -> QueueSpec:
    return QueueSpec("", "", "", **more)


@pytest.fixture
def teams(world, around) -> Teams:
    return Teams(world, around)


def later(teams: Teams) -> None:
    teams.settle()
    teams.world.cell.now_ms += 1000


def fill(teams: Teams, queue: str, count: int, **more) -> None:
    """One after the other, all of them running."""
    many(teams.world, queue, count, queue, requests=ONE, **more)
    later(teams)


def test_a_policy_that_lets_a_queue_take_back(teams):
    teams.world.queue("q1")
    teams.world.queue("q2", preemption="NEVER")
    fill(teams, "q1", 24)
    fill(teams, "q2", 12)
    told = teams.told(q2=spec(preemption="ANY"))
    assert len(told[0]) == 12
    assert told == teams.done()


def test_a_guarantee_with_the_policy(teams):
    teams.world.queue("q1", weight=3)
    teams.world.queue("q2", preemption="NEVER")
    fill(teams, "q1", 24)
    fill(teams, "q2", 12)
    told = teams.told(q2=spec(preemption="ANY", guaranteed=((GPU, 12_000),)))
    assert len(told[0]) == 12
    assert told == teams.done()


def test_priority_counts_where_only_lower_ones_are_taken(teams):
    teams.world.queue("q1")
    teams.world.queue("q2", preemption="NEVER")
    fill(teams, "q1", 24)
    many(teams.world, "equal", 11, "q2", requests=ONE)
    later(teams)
    assert teams.told(q2=spec(preemption="LOWER_PRIORITY")) == ([], {})
    many(teams.world, "more", 1, "q2", requests=ONE, priority=1)
    later(teams)
    told = teams.told(q2=spec(preemption="LOWER_PRIORITY"))
    assert len(told[0]) == 12  # an upper bound: the others who wait take nothing
    gone, _ = teams.done()
    assert len(gone) == 1
    assert set(gone) <= set(told[0])


def test_equals_take_nothing_from_each_other_whatever_the_weights_are(teams):
    teams.world.queue("q1")
    teams.world.queue("q2")
    fill(teams, "q1", 24)
    fill(teams, "q2", 12)
    assert teams.told(q2=spec(weight=3)) == ([], {})
    assert teams.done() == ([], {})


@pytest.mark.parametrize("least", [4, 16])
def test_of_an_elastic_job_only_replicas_beyond_its_minimum_go(teams, least):
    teams.world.queue("q1")
    teams.world.queue("q2", state="STOPPED", preemption="ANY")
    teams.world.submit("el", queue="q1", requests=ONE, replicas=24, least=least)
    later(teams)
    assert sum(teams.around.live(job) for job in teams.around.running("q1")) == 24
    size = min(12, 24 - least)
    teams.world.submit("gang", queue="q2", requests=ONE, replicas=size)
    told = teams.ask(q2=spec(state="OPEN", preemption="ANY"))
    (found,) = told.reclaimable
    assert (found.jobs, found.shrunk, found.first_shrunk) == (0, 1, (teams.world.id("el"),))
    assert found.replicas == size
    assert dict(found.usage)[GPU] == found.replicas * 1000
    assert teams.done() == ([], {teams.world.id("el"): found.replicas})
    assert len(teams.around.running("q1")) == 1


def test_a_borrower_that_grows_as_well_as_one_that_waits(teams):
    """Further replicas are taken back for, too."""
    teams.world.queue("q1")
    teams.world.queue("q2", preemption="NEVER")
    teams.world.submit("el", queue="q2", requests=ONE, replicas=16, least=2)
    teams.around.start()
    for n in range(8):
        teams.world.submit(f"big{n}", queue="q1", requests=ONE)
    later(teams)
    teams.world.queue("q1", weight=3)
    later(teams)
    teams.world.queue("q1", weight=1)
    told = teams.told(q2=spec(weight=3, preemption="ANY"))
    assert told == teams.done()


def test_who_is_left_alone_is_passed_over(teams):
    teams.world.queue("q1", min_runtime_ms=3_600_000)
    teams.world.queue("q2", preemption="NEVER")
    fill(teams, "q1", 24)
    fill(teams, "q2", 12)
    assert teams.told(q2=spec(weight=3, preemption="ANY")) == ([], {})
    told = teams.told(q1=spec(min_runtime_ms=0), q2=spec(preemption="ANY"))
    assert len(told[0]) == 12
    assert told == teams.done()


def test_protection_ends_while_the_ledger_stands_still(teams):
    teams.world.queue("q1", min_runtime_ms=40_000)
    teams.world.queue("q2", preemption="NEVER")
    fill(teams, "q1", 24)
    fill(teams, "q2", 12)
    assert teams.told(q2=spec(preemption="ANY")) == ([], {})
    teams.world.cell.now_ms += 50_000
    told = teams.told(q2=spec(preemption="ANY"))
    assert len(told[0]) == 12
    assert told == teams.done()


def test_others_of_the_leaf_leave_in_place_of_the_protected(teams):
    """Who is past the entitlement is not preemptible, or ran too short: those before them go (rules P3, P4)."""
    teams.world.queue("q1")
    teams.world.queue("q2", preemption="NEVER")
    fill(teams, "q1", 18)
    many(teams.world, "fixed", 3, "q1", requests=ONE, preemptible=False)
    many(teams.world, "plain", 3, "q1", requests=ONE)
    later(teams)
    fill(teams, "q2", 12)
    told = teams.told(q2=spec(preemption="ANY"))
    running = len(teams.around.running("q1"))
    assert len(told[0]) == running - 12
    assert not {teams.world.id(f"fixed-{n}") for n in range(3)} & set(told[0])
    assert told == teams.done()


def test_a_job_that_would_cut_its_queue_too_deep_stays(teams):
    """Two jobs of 8 GPUs, entitled to 12: the second goes for one that gains more than its queue loses, only."""
    teams.world.queue("q1")
    teams.world.queue("q2", preemption="NEVER")
    many(teams.world, "big", 6, "q1", requests=gpus(4))
    later(teams)
    many(teams.world, "small", 9, "q2", requests=ONE)
    later(teams)
    told = teams.told(q2=spec(preemption="ANY"))
    assert told == teams.done()


def test_a_queue_that_starts_nothing_takes_nothing(teams):
    teams.world.queue("q1")
    teams.world.queue("q2", preemption="NEVER", state="STOPPED")
    fill(teams, "q1", 24)
    fill(teams, "q2", 12)
    assert teams.told(q2=spec(preemption="ANY", state="STOPPED")) == ([], {})
    told = teams.told(q2=spec(preemption="ANY"))
    assert len(told[0]) == 12
    assert told == teams.done()


def test_a_limit_makes_its_own_queue_give_way(teams):
    teams.world.queue("q1")
    teams.world.queue("q2", preemption="ANY")
    fill(teams, "q1", 24)
    fill(teams, "q2", 4)
    told = teams.told(q1=spec(limit=((GPU, 22_000),)))
    gone, shrunk = teams.done()
    assert set(gone) <= set(told[0])
    assert shrunk == told[1] == {}


def test_what_they_lose_is_counted_until_now(teams):
    teams.world.queue("q1")
    teams.world.queue("q2", preemption="NEVER")
    fill(teams, "q1", 24)
    fill(teams, "q2", 12)
    teams.around.start()
    before = teams.ask(q2=spec(preemption="ANY")).reclaimable[0].work
    teams.world.cell.now_ms += 3_600_000
    after = teams.ask(q2=spec(preemption="ANY")).reclaimable[0].work
    assert dict(after)[GPU] - dict(before)[GPU] == 12_000 * 3_600_000
