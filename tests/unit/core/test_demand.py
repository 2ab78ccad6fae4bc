"""Demand (rule F1) as queues keep it is what a walk over all jobs would give."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.core import apply, demand, resources, snapshot
from muster.core import transitions as tr
from muster.core.model import (
    EVERY_INDEX,
    GroupPlacement,
    InboxPosition,
    JobSpec,
    NodeSpec,
    PodChange,
    PodPhase,
    QueueSpec,
    TaskGroup,
)
from muster.core.state import CellState

QUEUES = ("q1", "q2", "q3")


def cell():
    state = CellState("main")
    for queue in QUEUES:
        apply.apply(state, tr.QueueUpserted(QueueSpec(queue, f"name-{queue}", "")))
    return state


def queued(job, queue="q1", cpu=1000, replicas=2, *, minimum=1, gpu=0):
    requests = (("cpu", cpu), ("nvidia.com/gpu", gpu)) if gpu else (("cpu", cpu),)
    tasks = (TaskGroup("main", replicas, minimum, requests),)
    spec = JobSpec(id=job, namespace="n", name=job, queue=f"name-{queue}", tasks=tasks)
    return tr.JobQueued(spec, queue, InboxPosition(1, 0))


def follow(state, *transitions):
    for transition in transitions:
        apply.apply(state, transition)


def flows(state):
    return demand.startable(state, state.queues, demand.demand(state))


def loaded(state):
    return snapshot.load(snapshot.dump(state))


def test_elastic_jobs_count_at_their_maximum_and_leave_when_they_end():
    state = cell()
    follow(state, queued("a"), queued("b", "q2", cpu=500))
    assert flows(state) == {
        "q1": ((("cpu", 2000), ("pods", 2)),),
        "q2": ((("cpu", 1000), ("pods", 2)),),
    }
    follow(state, tr.JobCancelled("a", "CancelledByUser"))
    assert flows(state) == {"q2": ((("cpu", 1000), ("pods", 2)),)}


def test_a_job_that_comes_ends_and_is_forgotten_in_one_transaction_leaves_nothing():
    state = cell()
    follow(state, queued("a"), tr.JobCancelled("a", "CancelledByUser"), tr.JobForgotten("a"))
    assert flows(state) == {}


def test_a_stopped_queue_asks_only_for_what_it_has():
    state = cell()
    node = NodeSpec("main", "n-1", (("cpu", 8000), ("pods", 10)))
    follow(state, tr.NodeUpserted(0, node), queued("a"), queued("b"))
    follow(state, tr.QueueUpserted(QueueSpec("q1", "name-q1", "", 2, state="STOPPED")))
    assert flows(state) == {}
    follow(state, tr.JobPlaced("a", 1, (GroupPlacement(0, ((0, 2),)),)))
    assert flows(state) == {"q1": ((("cpu", 2000), ("pods", 2)),)}
    follow(state, tr.PodsChanged("a", 1, (PodChange(1, PodPhase.SUCCEEDED),)))
    assert flows(state) == {"q1": ((("cpu", 1000), ("pods", 1)),)}


def test_an_array_job_asks_for_what_has_not_succeeded_and_may_run_at_once():
    state = cell()
    spec = replace(queued("a", replicas=4).spec, completion=EVERY_INDEX, max_parallel=3)
    follow(state, tr.NodeUpserted(0, NodeSpec("main", "n-1", (("cpu", 8000), ("pods", 10)))))
    follow(state, tr.JobQueued(spec, "q1", InboxPosition(1, 0)))
    assert flows(state) == {"q1": ((("cpu", 3000), ("pods", 3)),)}
    follow(state, tr.JobPlaced("a", 1, (GroupPlacement(0, ((0, 3),)),)))
    seen = []
    for pod in range(3):
        follow(state, tr.PodsChanged("a", 1, (PodChange(pod, PodPhase.SUCCEEDED),)))
        seen.append(dict(flows(state)["q1"][0])["cpu"])
        assert flows(loaded(state)) == flows(state)
    assert seen == [3000, 2000, 1000]


def test_jobs_that_ask_for_other_resources_are_another_flow():  # rule F3
    state = cell()
    follow(state, queued("a"), queued("b", gpu=1000), queued("c", cpu=10))
    with_gpu, cpu_only = flows(state)["q1"]
    assert cpu_only == (("cpu", 2020), ("pods", 4))
    assert with_gpu == (("cpu", 2000), ("nvidia.com/gpu", 2000), ("pods", 2))


def test_a_leaf_in_which_nothing_changed_gives_the_same_object():
    state = cell()
    follow(state, queued("a"), queued("b", "q2"))
    before = flows(state)
    follow(state, queued("c", "q2"))
    after = flows(state)
    assert after["q1"] is before["q1"]
    assert after["q2"] != before["q2"]


def test_demand_of_a_moved_queue_moves_with_it():
    state = cell()
    follow(state, queued("a"), tr.QueueUpserted(QueueSpec("q1", "name-q1", "q3", 2)))
    assert flows(state) == {"q1": ((("cpu", 2000), ("pods", 2)),)}


@given(st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(1, 3), st.booleans()), max_size=12), st.randoms())
def test_demand_equals_a_walk_over_all_jobs(jobs, rng):
    state = cell()
    steps = []
    for number, (queue, replicas, ends) in enumerate(jobs):
        steps.append(queued(f"{number}", queue, 100 * number + 1, replicas, gpu=number % 2))
        if ends:
            steps.insert(
                rng.randrange(steps.index(steps[-1]) + 1, len(steps) + 1), tr.JobFailed(f"{number}", "PodFailed")
            )
    follow(state, *steps)
    walked = {}
    for job in state.jobs.values():
        if job.live:
            kinds = walked.setdefault(job.queue, {})
            kind = tuple(resource for resource, _ in job.gang.full)
            kinds[kind] = resources.add(kinds.get(kind, ()), job.gang.full)
    expected = {queue: tuple(amounts for _, amounts in sorted(kinds.items())) for queue, kinds in walked.items()}
    assert flows(state) == expected
    assert flows(loaded(state)) == expected
