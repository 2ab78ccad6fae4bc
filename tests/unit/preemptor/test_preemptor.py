"""Requests to preempt are answered once, by one of the live replicas, with a plan the leader takes or drops."""

from prometheus_client import CollectorRegistry
from tests.unit.live_cell import CELL, id_of, job, nodes, queue, simulate

from muster.core.commands import CancelJob, PreemptionPlanned
from muster.core.model import JobState
from muster.runtime.members import TTL_S, Members
from muster_preemptor.service import Preemptor, PreemptorMetrics


async def start(cell, name):
    """One replica; returns its registry and the task that is its life."""
    registry = CollectorRegistry()
    service = Preemptor(
        follower=await cell.follower(name),
        inbox=await cell.writer(name),
        members=Members(await cell.leases(name), f"{CELL}.preemptor", name, clock=cell.clock),
        decided_timeout_s=2.0,
        metrics=PreemptorMetrics(registry),
    )
    return registry, cell.run(service.run())


def plans(registry, result):
    return registry.get_sample_value("muster_preemptor_plans_total", {"result": result}) or 0


async def full_cell(cell, *, low=4):
    """A node of 4 cpu full of low-priority jobs of queue q."""
    jobs = [job(f"low-{i}", "q") for i in range(low)]
    await cell.write(queue("q"), nodes(1), *jobs)
    await cell.until(lambda: all(cell.state.jobs[id_of(j)].state is JobState.PLACED for j in jobs))
    return jobs


def test_a_higher_job_gets_a_minimal_plan_and_a_hold():
    async def test(cell):
        low = await full_cell(cell)
        registry, _ = await start(cell, "p-1")
        high = job("high", "q", cpu=2000, priority=10)
        await cell.write(high)
        await cell.until(lambda: id_of(high) in cell.state.holds)
        (plan,) = await cell.written(PreemptionPlanned)
        assert plan.job == id_of(high)
        assert {victim for victim, _ in plan.victims} <= {id_of(j) for j in low}
        assert len(plan.victims) == 2
        stopping = [j for j in low if cell.state.jobs[id_of(j)].state is JobState.STOPPING]
        assert {id_of(j) for j in stopping} == {victim for victim, _ in plan.victims}
        assert plans(registry, "plan") == 1

    simulate(test)


def test_a_request_that_was_open_before_the_start_is_answered():
    async def test(cell):
        await full_cell(cell)
        high = job("high", "q", priority=10)
        await cell.write(high)
        await cell.until(lambda: id_of(high) in cell.state.asks)
        await cell.clock.sleep(5)
        assert await cell.written(PreemptionPlanned) == []
        await start(cell, "p-1")
        await cell.until(lambda: id_of(high) in cell.state.holds)

    simulate(test)


def test_no_plan_is_an_answer_too():
    async def test(cell):
        mixed = [job("low", "q"), *(job(f"high-{i}", "q", priority=20) for i in range(3))]
        await cell.write(queue("q"), nodes(1), *mixed)
        await cell.until(lambda: all(cell.state.jobs[id_of(j)].state is JobState.PLACED for j in mixed))
        registry, _ = await start(cell, "p-1")
        wide = job("wide", "q", cpu=4000, priority=10)  # the one lower job's place is not enough
        await cell.write(wide)
        await cell.until(lambda: id_of(wide) in cell.state.asks and cell.state.asks[id_of(wide)].answered)
        (answer,) = await cell.written(PreemptionPlanned)
        assert (answer.job, answer.victims, answer.placement) == (id_of(wide), (), ())
        assert plans(registry, "none") == 1
        assert not cell.state.holds

    simulate(test)


def test_replicas_share_the_requests_and_take_over_a_dead_one_s():
    async def test(cell):
        low = [job(f"low-{i}", "q") for i in range(40)]
        await cell.write(queue("q"), nodes(40, cpu=1000), *low)
        await cell.until(lambda: all(cell.state.jobs[id_of(j)].state is JobState.PLACED for j in low))
        cell.run(cell.reap())
        one, _ = await start(cell, "p-1")
        two, life_of_two = await start(cell, "p-2")
        await cell.clock.sleep(TTL_S)

        async def all_placed(first_cpu, *, jobs=12):
            high = [job(f"high-{first_cpu - i}", "q", cpu=first_cpu - i, priority=10) for i in range(jobs)]
            await cell.write(*high)
            await cell.until(lambda: all(cell.state.jobs[id_of(j)].state is JobState.PLACED for j in high))

        for wave in range(6):
            await all_placed(1000 - 20 * wave, jobs=2)
        assert plans(one, "plan") > 0
        assert plans(two, "plan") > 0
        answered = await cell.written(PreemptionPlanned)
        victims = [victim for plan in answered for victim in plan.victims]
        assert len(victims) == len(set(victims)), "a victim was planned twice"
        assert len(answered) == len({(plan.job, plan.request) for plan in answered}), "a request was planned twice"
        life_of_two.cancel()
        cell.nats.crash("p-2")
        await all_placed(800)
        assert plans(one, "plan") + plans(two, "plan") == len(await cell.written(PreemptionPlanned))

    simulate(test)


def test_a_job_that_no_longer_waits_is_not_planned_for():
    async def test(cell):
        await full_cell(cell)
        high = job("high", "q", priority=10)
        await cell.write(high)
        await cell.until(lambda: id_of(high) in cell.state.asks)
        await cell.write(CancelJob(id_of(high)))
        registry, _ = await start(cell, "p-1")
        await cell.clock.sleep(2 * TTL_S)
        assert await cell.written(PreemptionPlanned) == []
        assert registry.get_sample_value("muster_preemptor_requests_open") == 0

    simulate(test)
