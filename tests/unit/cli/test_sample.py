"""The bundled workload: the same everywhere, of the trace's mix, and short enough for a first look."""

from collections import Counter

from muster.cli import sample
from muster.cli.timescale import Capacity, squeeze


def kind(job):
    per_pod = job.tasks[0].gpu_millis
    if not per_pod:
        return "cpu"
    if per_pod < 1000:
        return "share"
    return "one" if per_pod == 1000 else "several"


def test_the_same_for_the_same_seed():
    assert sample.generate().jobs == sample.generate().jobs
    assert sample.generate(seed=1).jobs != sample.generate().jobs


def test_the_mix_is_that_of_the_trace():
    jobs = sample.generate().jobs
    shares = {what: count / len(jobs) for what, count in Counter(map(kind, jobs)).items()}
    assert len(jobs) == 2000
    for what, wanted in (("cpu", 0.13), ("share", 0.38), ("one", 0.48), ("several", 0.01)):
        assert abs(shares[what] - wanted) < 0.03, what


def test_gangs_and_failures_by_design():
    jobs = sample.generate().jobs
    gangs = [job for job in jobs if job.pods > 1]
    assert len(gangs) > 20
    assert all(2 <= job.pods <= 8 and job.tasks[0].gpu_millis == 1000 for job in gangs)
    assert 0.01 < sum(job.exit_code == 1 for job in jobs) / len(jobs) < 0.03


def test_arrivals_are_bursty():
    per_second = Counter(int(job.arrival_s) for job in sample.generate().jobs)
    mean = sum(per_second.values()) / sample.SPAN_S
    assert max(per_second.values()) > 3 * mean


def test_queues_overflow_at_times_but_drain():
    trace = sample.generate()
    for queue, limit in trace.queue_gpu_limits.items():
        jobs = [job for job in trace.jobs if job.queue == queue]
        work_s = sum(job.gpu_millis / 1000 * job.runtime_s for job in jobs) / limit
        assert 0.5 * sample.SPAN_S < work_s < 1.2 * sample.SPAN_S, queue
        assert max(job.gpu_millis for job in jobs) <= limit * 1000


def test_it_takes_about_two_minutes():
    found = squeeze(sample.generate().jobs, target_s=1, capacity=Capacity(6_212_000, 107_018_000), factor=1.0)
    assert found.wall_s < 135
