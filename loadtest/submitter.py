"""Submits jobs over gRPC as fast as admission answers: `python -m loadtest.submitter '{"address": ..., ...}'`.

A process of its own, so that making requests does not slow down what is measured. All requests are encoded before the
first is sent; then a line "ready" is written, and the work begins with a line on stdin. At the end the latency of each
batch is written, in seconds, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import grpc.aio
import msgspec
import uvloop

from muster.api.v1 import job_pb2, submission_pb2

BATCH_JOBS: Final = 100
METHOD: Final = "/muster.api.v1.SubmissionService/SubmitJobs"
TEMPLATE: Final = {"spec": {"containers": [{"name": "main", "image": "registry.example/train:1"}]}}
TIMEOUT_S: Final = 60.0


class Order(msgspec.Struct):
    """What to submit."""

    address: str
    jobs: int
    connections: int = 4
    in_flight: int = 4  # batches of each connection
    queue: str = "team"
    shapes: int = 20
    cpu_millis: int = 0  # of every job; 0: 250 and more, by shape
    annotations: dict[str, str] = msgspec.field(default_factory=dict)  # of the pods


def batch(order: Order, number: int, run: str) -> submission_pb2.SubmitJobsRequest:
    template = json.dumps({"metadata": {"annotations": order.annotations}} | TEMPLATE)
    specs = [
        job_pb2.JobSpec(
            name=f"job-{run}-{number}-{n}",
            queue=order.queue,
            template=template,
            labels={"team": "bench"},
            tasks=[
                job_pb2.TaskGroup(
                    name="main",
                    replicas=1,
                    resources={
                        "cpu": f"{order.cpu_millis or 250 * (1 + n % order.shapes)}m",
                        "memory": "1Gi",
                    },
                ),
            ],
        )
        for n in range(BATCH_JOBS)
    ]
    return submission_pb2.SubmitJobsRequest(request_id=f"{run}-{number}", jobs=specs)


async def submit(order: Order, requests: list[bytes]) -> list[float]:
    latencies: list[float] = []

    async def worker(call: Callable[..., Any]) -> None:
        while requests:
            request = requests.pop()
            began_s = time.perf_counter()
            answer = submission_pb2.SubmitJobsResponse.FromString(await call(request, timeout=TIMEOUT_S))
            latencies.append(time.perf_counter() - began_s)
            if len(answer.results) != BATCH_JOBS or any(result.HasField("error") for result in answer.results):
                raise RuntimeError(f"refused: {answer.results[0]}")

    channels = [
        grpc.aio.insecure_channel(order.address, options=(("grpc.use_local_subchannel_pool", 1),))
        for _ in range(order.connections)
    ]
    await asyncio.gather(*(worker(channel.unary_unary(METHOD)) for channel in channels for _ in range(order.in_flight)))
    for channel in channels:
        await channel.close()
    return latencies


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    run = uuid.uuid4().hex[:8]
    requests = [batch(order, n, run).SerializeToString() for n in range(order.jobs // BATCH_JOBS)]
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(uvloop.run(submit(order, requests))), flush=True)


class Submitter:
    """The process, as benches use it: made, then `start`ed when all is ready, then `latencies` at its end."""

    def __init__(self, order: Order) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.submitter", msgspec.json.encode(order).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None  # piped
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError("the submitter did not start")

    def start(self) -> None:
        assert self._process.stdin is not None  # piped
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def latencies(self) -> list[float]:
        """Wait for the end; seconds of each batch, ascending."""
        out, _ = self._process.communicate()
        if self._process.returncode != 0:
            raise RuntimeError("the submitter failed")
        return sorted(json.loads(out))

    def cancel(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


if __name__ == "__main__":
    main()
