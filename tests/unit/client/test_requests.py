"""Jobs that no single request takes: cut into several, or refused with the field; never mistaken for a busy cell."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from google.rpc import status_pb2
from grpc_status import rpc_status

from muster import client as mc
from muster.api.v1 import job_pb2, submission_pb2, submission_pb2_grpc
from muster.client import errors, requests
from muster.runtime.rpc import SERVER_OPTIONS
from muster.wire import errors as wire


class Server(submission_pb2_grpc.SubmissionServiceServicer):
    """Takes what is not named "bad", and remembers how it came."""

    def __init__(self, seen: list[tuple[str, int]] | None = None) -> None:
        self.seen: list[tuple[str, int]] = [] if seen is None else seen

    async def SubmitJobs(self, request: Any, context: Any) -> submission_pb2.SubmitJobsResponse:
        self.seen.append((request.request_id, len(request.jobs)))
        if request.request_id == "too many":
            status = wire.refusal("RESOURCE_EXHAUSTED", "there are 10000 queues already", [("path", "x")], "Q1")
            await context.abort_with_status(rpc_status.to_status(status))
        return submission_pb2.SubmitJobsResponse(results=[self._result(i, job) for i, job in enumerate(request.jobs)])

    def _result(self, index: int, job: job_pb2.JobSpec) -> submission_pb2.SubmitResult:
        error: status_pb2.Status | None = None
        if job.name == "bad":
            message = f"jobs[{index}].tasks: is empty"
            error = wire.refusal("INVALID_ARGUMENT", message, [(f"jobs[{index}].tasks", "is empty")], "G1")
        return submission_pb2.SubmitResult(index=index, job_id=job.name, error=error)


def submitted(
    *specs: job_pb2.JobSpec, request_id: str = "r", seen: list[tuple[str, int]] | None = None
) -> tuple[list[Any], list[tuple[str, int]]]:
    async def main() -> list[Any]:
        served = grpc.aio.server(options=SERVER_OPTIONS)
        submission_pb2_grpc.add_SubmissionServiceServicer_to_server(server, served)
        port = served.add_insecure_port("127.0.0.1:0")
        await served.start()
        try:
            async with mc.connect(f"127.0.0.1:{port}", timeout_s=30) as client:
                return list(await client.submit_many(specs, request_id=request_id))
        finally:
            await served.stop(None)

    server = Server(seen)
    return asyncio.run(main()), server.seen


def job(name: str, mebibytes: int = 0) -> job_pb2.JobSpec:
    return job_pb2.JobSpec(name=name, template="x" * (mebibytes << 20))


def test_what_fits_goes_in_one_request() -> None:
    results, seen = submitted(*(job(f"j{n}") for n in range(1000)))
    assert seen == [("r", 1000)]
    assert [result.index for result in results] == list(range(1000))


def test_more_jobs_than_a_request_takes_go_in_several() -> None:
    results, seen = submitted(*(job(f"j{n}") for n in range(1000)), job("bad"), job("last"))
    assert seen == [("r-0", 1000), ("r-1", 2)]
    assert (results[1001].index, results[1001].id) == (1001, "last")
    assert results[1000].violations == (errors.Violation("jobs[1000].tasks", "is empty"),)
    assert results[1000].message == "jobs[1000].tasks: is empty"
    assert results[1000].rule == "G1"


def test_larger_jobs_than_a_request_takes_go_in_several() -> None:
    results, seen = submitted(job("a", 3), job("b", 3), job("c", 3), job("d"))
    assert [count for _, count in seen] == [2, 2]
    assert [result.name for result in results] == ["a", "b", "c", "d"]


def test_a_job_that_no_request_takes_is_refused_by_its_place_and_the_others_go() -> None:
    results, seen = submitted(job("a"), job("b", 20), job("c"))
    assert [count for _, count in seen] == [1, 1]
    assert [results[0].index, results[2].index] == [0, 2]
    refusal = results[1]
    assert isinstance(refusal, errors.Refused)
    assert (refusal.code, refusal.rule, refusal.violations[0].field) == ("INVALID_ARGUMENT", "LOG-8", "jobs[1]")
    assert "20480 KiB, at most 256 KiB" in refusal.message


def test_a_rule_that_is_broken_is_not_asked_again() -> None:
    server: list[tuple[str, int]] = []
    with pytest.raises(errors.Unavailable) as caught:
        submitted(job("a"), request_id="too many", seen=server)
    assert (caught.value.rule, len(server)) == ("Q1", 1)


def test_where_it_is_cut_follows_from_the_jobs() -> None:
    jobs = [job(f"j{n}", n % 5) for n in range(30)]
    assert list(requests.batches(jobs, "r")) == list(requests.batches(jobs, "r"))
    assert [spec for batch in requests.batches(jobs, "r") for spec in batch.jobs] == jobs


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("CLIENT: Sent message larger than max (20971520 vs. 16777216)", errors.Refused),
        ("SERVER: Received message larger than max (20971520 vs. 16777216)", errors.Refused),
        ("Too many connections", errors.Unavailable),
    ],
)
def test_a_message_that_is_too_large_is_not_a_full_server(said: str, kind: type[errors.ClientError]) -> None:
    metadata = grpc.aio.Metadata()
    error = errors.from_call(grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, metadata, metadata, details=said))
    assert type(error) is kind
