"""How long a preempted job waits (rule P5), and who says so."""

from __future__ import annotations

import pytest

from muster.core.model import JobState

MINUTE_MS = 60_000


def waits_ms(world, around, name, times):
    """By preemption: how long the job waits afterwards."""
    found = []
    for n in range(times):
        world.submit(f"high-{n}", cpu=4000, priority=5, queue=world.state.queues.path(world.job(name).queue))
        around.answer()
        around.obey()
        job = world.job(name)
        assert job.state is JobState.QUEUED
        found.append(job.not_before_ms - world.state.now_ms)
        world.pods(f"high-{n}", 3)
        world.cell.wait(found[-1])
        assert world.job(name).charged
    return found


@pytest.mark.parametrize(
    ("root", "leaf", "expected"),
    [
        ({}, {}, [1, 2, 4, 8]),
        ({}, {"preemption_backoff_ms": 3 * MINUTE_MS}, [3, 6, 12, 24]),
        ({"preemption_backoff_ms": 3 * MINUTE_MS}, {"preemption_backoff_max_ms": 10 * MINUTE_MS}, [3, 6, 10, 10]),
        ({"preemption_backoff_max_ms": MINUTE_MS}, {"preemption_backoff_max_ms": 2 * MINUTE_MS}, [1, 2, 2, 2]),
    ],
    ids=["as it is", "of the queue", "of the queue above", "the nearest counts"],
)
def test_a_preempted_job_waits_as_its_queue_says(world, around, root, leaf, expected):
    world.nodes(1)
    world.queue("team", **root)
    world.queue("team/leaf", **leaf)
    world.submit("low", cpu=4000, queue="team/leaf")
    assert waits_ms(world, around, "low", 4) == [minutes * MINUTE_MS for minutes in expected]


@pytest.mark.parametrize("field", ["preemption_backoff", "preemption_backoff_max"])
@pytest.mark.parametrize("value", [-1, 7 * 24 * 3600 * 1000 + 1])
def test_a_pause_has_bounds(world, field, value):
    refusal = world.reject(world.queue("research", **{f"{field}_ms": value}))
    assert refusal.field.endswith(field)
    assert refusal.rule == "Q1"
