"""Squeezing a trace: within the target, in order, clamped, and honest about what was cut."""

import pytest

from muster.cli import timescale
from muster.cli.timescale import Capacity, squeeze
from muster.cli.traces import TraceJob, TraceTask


def jobs(*times, gpu_millis=1000):
    task = TraceTask("main", 1, 1000, 1 << 30, gpu_millis)
    return [TraceJob(f"j{i}", "q", at, runs, (task,)) for i, (at, runs) in enumerate(times)]


def test_a_long_trace_ends_within_the_target():
    days = jobs(*((day * 86_400 + second, 60 * (second + 1)) for day in range(20) for second in range(50)))
    found = squeeze(days, target_s=120)
    assert found.wall_s <= 120
    assert all(timescale.RUNTIME_MIN_S <= job.runtime_s <= timescale.RUNTIME_MAX_S for job in found.jobs)
    arrivals = [job.arrival_s for job in found.jobs]
    assert arrivals == sorted(arrivals)
    assert found.span_s == pytest.approx(arrivals[-1])


def test_idle_gaps_are_cut_and_counted():
    found = squeeze(jobs((0, 10), (1, 10), (1_000_001, 10), (1_000_002, 10)), target_s=120, factor=1.0)
    assert [job.arrival_s for job in found.jobs] == [0, 1, 2, 3]
    assert found.gaps_cut == 1
    assert found.gap_cut_s == pytest.approx(999_999)


def test_run_times_are_clamped_and_counted():
    found = squeeze(jobs((0, 0.01), (0, 5), (0, 1e6)), target_s=120, factor=1.0)
    assert [job.runtime_s for job in found.jobs] == [0.2, 5, 60]
    assert (found.runtimes_raised, found.runtimes_lowered) == (1, 1)
    assert "1 raised, 1 lowered" in found.describe()[1]


def test_the_run_time_factor_clamps_as_few_as_possible():
    typical = [(i, 600 + i) for i in range(100)]
    found = squeeze(jobs(*typical, (100, 1e7), (101, 1)), target_s=120)
    assert (found.runtimes_raised, found.runtimes_lowered) == (1, 1)


def test_a_small_cluster_shortens_run_times():
    many = jobs(*((i, 100) for i in range(600)))
    roomy = squeeze(many, target_s=120)
    tight = squeeze(many, target_s=120, capacity=Capacity(gpu_millis=10_000))
    assert tight.wall_s <= 120
    assert sum(job.runtime_s for job in tight.jobs) < sum(job.runtime_s for job in roomy.jobs)


def test_a_short_trace_is_not_stretched():
    found = squeeze(jobs((0, 2), (1, 2)), target_s=120)
    assert found.arrival_factor == found.runtime_factor == 1.0


def test_what_cannot_fit_is_still_replayed_at_the_least_distortion():
    hopeless = jobs(*((0, 100) for _ in range(1000)), gpu_millis=8000)
    found = squeeze(hopeless, target_s=10, capacity=Capacity(gpu_millis=8000))
    assert found.wall_s > 10
    assert len(found.jobs) == 1000
