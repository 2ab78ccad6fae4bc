"""Jobs that are checked from memory are judged as those that are checked in full."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.api.v1 import job_pb2, submission_pb2
from muster.wire.jobs import without_name
from muster_admission import checked
from muster_admission.calls import violations
from muster_admission.checked import JOBS_MAX, CheckedJobs


def job(name: str = "a", **fields: object) -> job_pb2.JobSpec:
    task = job_pb2.TaskGroup(name="main", replicas=1, resources={"cpu": "1"})
    values: dict[str, object] = {"queue": "team", "labels": {"team": "x"}, "tasks": [task]}
    return job_pb2.JobSpec(name=name, **(values | fields))


def request(*jobs: job_pb2.JobSpec, request_id: str = "r") -> submission_pb2.SubmitJobsRequest:
    return submission_pb2.SubmitJobsRequest(request_id=request_id, jobs=jobs)


def judged(known: CheckedJobs, asked: submission_pb2.SubmitJobsRequest) -> checked.Violations:
    return known.violations(asked, [without_name(spec) for spec in asked.jobs])


def warm() -> CheckedJobs:
    known = CheckedJobs()
    assert judged(known, request(job("first"))) == []
    return known


names = st.one_of(
    st.text(max_size=70),
    st.text(alphabet="abz09-", max_size=70),
    st.from_regex(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\n?", fullmatch=True),
)


@settings(deadline=None)
@given(st.lists(names, min_size=1, max_size=3), st.sampled_from(["", "r", "r" * 129]))
def test_names_and_the_request_are_judged_as_in_full(found: list[str], request_id: str) -> None:
    asked = request(*(job(name) for name in found), request_id=request_id)
    assert judged(warm(), asked) == violations(asked)


def test_what_is_not_known_is_checked_in_full() -> None:
    known = warm()
    asked = request(job("b"), job("c", priority=2_000_000_000), job("d", queue=""))
    assert [field for field, *_ in judged(known, asked)] == ["jobs[1].priority", "jobs[2].queue"]
    assert [field for field, *_ in judged(known, asked)] == ["jobs[1].priority", "jobs[2].queue"], "nor remembered"


def test_equal_jobs_are_checked_once() -> None:
    known, calls = warm(), []
    full = checked.violations
    try:
        checked.violations = lambda message: calls.append(len(message.jobs)) or full(message)
        assert judged(known, request(*(job(f"job-{n}") for n in range(100)))) == []
    finally:
        checked.violations = full
    assert calls == [1]


def test_the_number_of_jobs_is_judged_as_in_full() -> None:
    rule = submission_pb2.SubmitJobsRequest.DESCRIPTOR.fields_by_name["jobs"].GetOptions()
    assert f"max_items: {JOBS_MAX}" in str(rule)
    known = warm()
    assert judged(known, request(*[job()] * JOBS_MAX)) == []
    assert [field for field, *_ in judged(known, request(*[job()] * (JOBS_MAX + 1)))] == ["jobs"]
    assert [field for field, *_ in judged(known, request())] == ["jobs"]


def test_a_request_is_left_as_it_was() -> None:
    asked = request(job("b"), job("c"))
    before = asked.SerializeToString(deterministic=True)
    known = warm()
    judged(known, asked)
    judged(known, asked)
    assert asked.SerializeToString(deterministic=True) == before


def test_memory_is_bounded() -> None:
    known = CheckedJobs()
    for n in range(0, 2 * checked.REMEMBERED_MAX, JOBS_MAX):
        assert judged(known, request(*(job(priority=n + i) for i in range(JOBS_MAX)))) == []
    judged(known, request(job(template="x" * checked.REMEMBERED_BYTES_MAX)))
    assert len(known._good) == checked.REMEMBERED_MAX
