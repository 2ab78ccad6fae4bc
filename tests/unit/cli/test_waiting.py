"""`submit --wait` against a server that tells of two jobs at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster.api.v1 import (
    events_pb2,
    job_pb2,
    query_pb2,
    query_pb2_grpc,
    submission_pb2,
    submission_pb2_grpc,
)
from muster.cli import main, show

JOBS = "name: {}\nqueue: q\ntasks: [{{name: w, replicas: 1, resources: {{cpu: 1}}}}]\n---\n"
STEPS = (  # (job, state, second)
    ("a", job_pb2.JOB_STATE_QUEUED, 1000),
    ("b", job_pb2.JOB_STATE_QUEUED, 1001),
    ("b", job_pb2.JOB_STATE_SUCCEEDED, 2000),
    ("other", job_pb2.JOB_STATE_FAILED, 2001),
    ("a", job_pb2.JOB_STATE_SUCCEEDED, 3000),
)


class Server(submission_pb2_grpc.SubmissionServiceServicer, query_pb2_grpc.QueryServiceServicer):
    """Takes everything; `known` jobs were submitted before. Streams never end by themselves."""

    def __init__(self, steps: tuple[tuple[str, int, int], ...] = STEPS, known: tuple[str, ...] = ()) -> None:
        self.steps = steps
        self.known = known
        self.watches: list[query_pb2.WatchJobsRequest] = []

    def SubmitJobs(self, request: Any, context: Any) -> submission_pb2.SubmitJobsResponse:
        results = [
            submission_pb2.SubmitResult(index=i, job_id=f"id-{job.name}", known=job.name in self.known)
            for i, job in enumerate(request.jobs)
        ]
        return submission_pb2.SubmitJobsResponse(results=results, ledger_sequence=40)

    def GetJob(self, request: Any, context: Any) -> query_pb2.GetJobResponse:
        job = job_pb2.Job(id=request.job, spec=job_pb2.JobSpec(name=request.job.removeprefix("id-")))
        job.status.state = job_pb2.JOB_STATE_SUCCEEDED
        job.status.finish_time.seconds = 500
        return query_pb2.GetJobResponse(job=job)

    def WatchJobs(self, request: Any, context: Any) -> Iterator[query_pb2.WatchJobsResponse]:
        self.watches.append(request)
        for at, (name, state, second) in enumerate(self.steps):
            event = events_pb2.JobEvent(type="job.x", job_id=f"id-{name}", name=name, ledger_sequence=50 + at)
            event.state = state  # type: ignore[assignment]
            event.time.seconds = second
            yield query_pb2.WatchJobsResponse(event=event, ledger_sequence=50 + at)
        while context.is_active():
            time.sleep(0.01)


def submitted(server: Server, folder: Path, names: str) -> int:
    served = grpc.server(ThreadPoolExecutor(4))
    submission_pb2_grpc.add_SubmissionServiceServicer_to_server(server, served)
    query_pb2_grpc.add_QueryServiceServicer_to_server(server, served)
    port = served.add_insecure_port("127.0.0.1:0")
    served.start()
    file = folder / "jobs.yaml"
    file.write_text("".join(JOBS.format(name) for name in names))
    try:
        return main.run(["submit", "-f", str(file), "--wait", "--address", f"127.0.0.1:{port}"])
    finally:
        served.stop(0)


def test_all_jobs_are_watched_together_and_told_by_the_time_of_the_event(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    assert submitted(server, tmp_path, "ab") == 0
    told = capfd.readouterr().out.splitlines()[2:]
    wanted = [(1000, "a  Queued"), (1001, "b  Queued"), (2000, "b  Succeeded"), (3000, "a  Succeeded")]
    assert told == [f"{show.clock(second)}  {what}" for second, what in wanted]
    (watch,) = server.watches
    assert (list(watch.filter.job_ids), watch.from_sequence) == (["id-a", "id-b"], 41)


def test_one_that_fails_gives_the_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps = (("a", job_pb2.JOB_STATE_FAILED, 1), ("b", job_pb2.JOB_STATE_SUCCEEDED, 2))
    assert submitted(Server(steps), tmp_path, "ab") == 7
    assert "no pod template" in capfd.readouterr().err


def test_one_that_has_ended_before_is_not_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    server = Server(known=("a",))
    assert submitted(server, tmp_path, "a") == 0
    assert server.watches == []
    assert f"{show.clock(500)}  a  Succeeded" in capfd.readouterr().out
