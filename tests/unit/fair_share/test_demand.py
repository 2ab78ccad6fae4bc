"""Demand (rule F1) kept up to date from transitions is what a walk over all jobs would give."""

from hypothesis import given
from hypothesis import strategies as st

from muster.core import apply, resources
from muster.core import transitions as tr
from muster.core.model import InboxPosition, JobSpec, QueueSpec, TaskGroup
from muster.core.state import CellState
from muster_fair_share.demand import DemandIndex

QUEUES = ("q1", "q2", "q3")


def cell():
    state = CellState("main")
    for queue in QUEUES:
        apply.apply(state, tr.QueueUpserted(QueueSpec(queue, f"name-{queue}", "")))
    return state


def queued(job, queue="q1", cpu=1000, replicas=2, minimum=1):
    tasks = (TaskGroup("main", replicas, minimum, (("cpu", cpu),)),)
    spec = JobSpec(id=job, namespace="n", name=job, queue=f"name-{queue}", tasks=tasks)
    return tr.JobQueued(spec, queue, InboxPosition(1, 0))


def follow(index, state, *transitions):
    for transition in transitions:
        apply.apply(state, transition)
    index.follow(state, transitions)


def test_elastic_jobs_count_at_their_maximum_and_leave_when_they_end():
    state, index = cell(), DemandIndex()
    follow(index, state, queued("a"), queued("b", "q2", cpu=500))
    assert index.amounts(state) == {"q1": (("cpu", 2000), ("pods", 2)), "q2": (("cpu", 1000), ("pods", 2))}
    follow(index, state, tr.JobCancelled("a", "CancelledByUser"))
    assert index.amounts(state) == {"q2": (("cpu", 1000), ("pods", 2))}


def test_a_job_that_comes_ends_and_is_forgotten_in_one_transaction_leaves_nothing():
    state, index = cell(), DemandIndex()
    follow(index, state, queued("a"), tr.JobCancelled("a", "CancelledByUser"), tr.JobForgotten("a"))
    assert index.amounts(state) == {}


def test_a_stopped_queue_asks_only_for_what_it_has():
    state, index = cell(), DemandIndex()
    follow(index, state, queued("a"), queued("b"), tr.QueueUpserted(QueueSpec("q1", "name-q1", "", 2, state="STOPPED")))
    assert index.amounts(state) == {}
    state.queues.charge("q1", (("cpu", 700),))
    assert index.amounts(state) == {"q1": (("cpu", 700),)}


def test_demand_of_a_moved_queue_moves_with_it():
    state, index = cell(), DemandIndex()
    follow(index, state, queued("a"), tr.QueueUpserted(QueueSpec("q1", "name-q1", "q3", 2)))
    assert index.amounts(state) == {"q1": (("cpu", 2000), ("pods", 2))}


@given(st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(1, 3), st.booleans()), max_size=12), st.randoms())
def test_the_index_equals_a_walk_over_all_jobs(jobs, rng):
    state, index = cell(), DemandIndex()
    steps = []
    for number, (queue, replicas, ends) in enumerate(jobs):
        steps.append(queued(f"{number}", queue, 100 * number + 1, replicas))
        if ends:
            steps.insert(
                rng.randrange(steps.index(steps[-1]) + 1, len(steps) + 1), tr.JobFailed(f"{number}", "PodFailed")
            )
    follow(index, state, *steps)
    walked = {}
    for job in state.jobs.values():
        if job.live:
            walked[job.queue] = resources.add(walked.get(job.queue, ()), job.gang.full)
    assert index.amounts(state) == walked
    fresh = DemandIndex()
    fresh.load(state)
    assert fresh.amounts(state) == walked
