"""Submissions a second through admission: real nats-server, real process, batches of 100, durable on answer.

    python loadtest/bench_admission.py [--jobs 20000] [--connections 4] [--in-flight 8]

Also times the parts of one submission in this process (parsing, declared rules, conversion, encoding): that is where
the next microsecond is to be found. No queue-manager runs: what is measured is the front door.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import uvloop

from muster import client
from muster.api.v1 import job_pb2, submission_pb2
from muster.core import decide
from muster.core.apply import apply_transaction
from muster.core.commands import SubmitJob, UpsertQueue
from muster.core.model import InboxPosition, QueueSpec
from muster.core.state import CellState
from muster.runtime.nats_bus import connect
from muster.runtime.nats_server import NatsServer
from muster.runtime.streams import ledger_spec
from muster.wire import codec
from muster.wire.jobs import JobReader, Origin
from muster_admission.calls import violations

BATCH_JOBS = 100
TEMPLATE = json.dumps({"spec": {"containers": [{"name": "main", "image": "registry.example/train:1"}]}})


def batch(number: int, shapes: int = 20) -> list[job_pb2.JobSpec]:
    """100 jobs of so many shapes."""
    return [
        job_pb2.JobSpec(
            name=f"job-{number}-{n}",
            queue="bench",
            template=TEMPLATE,
            labels={"team": "bench"},
            tasks=[
                job_pb2.TaskGroup(name="main", replicas=1, resources={"cpu": str(1 + n % shapes), "memory": "4Gi"}),
            ],
        )
        for n in range(BATCH_JOBS)
    ]


def parts() -> None:
    """Median microseconds a job of each step."""
    request = submission_pb2.SubmitJobsRequest(request_id="bench", jobs=batch(0))
    data = request.SerializeToString()
    reader, origin = JobReader(), Origin(cell="main", request_id="bench", submitter="bench")
    items = [SubmitJob(reader.to_core(spec, n, origin)) for n, spec in enumerate(request.jobs)]
    steps: dict[str, Callable[[], object]] = {
        "parse": lambda: submission_pb2.SubmitJobsRequest.FromString(data),
        "declared rules": lambda: violations(request),
        "to the core's form": lambda: [reader.to_core(spec, n, origin) for n, spec in enumerate(request.jobs)],
        "encode": lambda: codec.encode_inbox(items),
    }
    for name, step in steps.items():
        step()
        times = []
        for _ in range(30):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        print(f"  {name:<20}{statistics.median(times) / BATCH_JOBS * 1e6:6.1f} us a job")


async def make_queue(url: str) -> None:
    """The ledger of a cell with one queue, as its leader would have written it."""
    bus = await connect(url)
    ledger = await bus.stream(ledger_spec("main"))
    state = CellState("main")
    now_ms = int(time.time() * 1000)
    elected = decide.leader_elected(state, leader="bench", now_ms=now_ms)
    apply_transaction(state, elected, await ledger.publish(codec.encode_transaction(elected)))
    command = UpsertQueue(path="bench", spec=QueueSpec(id="", name="bench", parent=""))
    decision = decide.decide(state, [(InboxPosition(1, 0), command)], now_ms, 10_000)
    tx = decide.transaction(state, decision, transaction_id="1-1", now_ms=now_ms, work_limit=10_000)
    await ledger.publish(codec.encode_transaction(tx))
    await bus.close()


async def drive(address: str, jobs: int, connections: int, in_flight: int) -> list[float]:
    """Submit everything; the latency of each batch in seconds."""
    left = jobs // BATCH_JOBS
    latencies: list[float] = []

    async def worker(m: client.Client) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            specs = batch(left)
            began = time.perf_counter()
            results = await m.submit_many(specs)
            latencies.append(time.perf_counter() - began)
            bad = [r for r in results if isinstance(r, client.ClientError)]
            if bad:
                raise bad[0]

    clients = [client.connect(address, timeout_s=60) for _ in range(connections)]
    await asyncio.gather(*(worker(m) for m in clients for _ in range(in_flight)))
    for m in clients:
        await m.close()
    return latencies


def run(jobs: int, connections: int, in_flight: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        nats = NatsServer(folder / "nats")
        nats.start()
        uvloop.run(make_queue(nats.url))
        ready = folder / "ready"
        environment = os.environ | {
            "MUSTER_NATS_URL": nats.url,
            "MUSTER_READY_FILE": str(ready),
            "MUSTER_INBOX_BACKLOG_MAX": "1000000",  # nobody reads this inbox
        }
        service = subprocess.Popen(
            [sys.executable, "-m", "muster_admission"], env=environment, stderr=subprocess.DEVNULL
        )
        try:
            while not ready.exists():
                time.sleep(0.05)
            address = json.loads(ready.read_text())["grpc"]
            uvloop.run(drive(address, 2000, connections, in_flight))  # warm
            before, began = psutil.Process(service.pid).cpu_times(), time.perf_counter()
            latencies = uvloop.run(drive(address, jobs, connections, in_flight))
            elapsed, after = time.perf_counter() - began, psutil.Process(service.pid).cpu_times()
            cpu_s = after.user + after.system - before.user - before.system
        finally:
            service.terminate()
            service.wait(20)
            nats.stop()
    latencies.sort()
    p50, p99 = (latencies[int(len(latencies) * q)] * 1000 for q in (0.5, 0.99))
    print(
        f"  {jobs / elapsed:,.0f} jobs a second durably accepted, admission {cpu_s / jobs * 1e6:.0f} us CPU a job, "
        f"batch p50 {p50:.0f} ms, p99 {p99:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Submissions a second through admission.")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=8, help="batches of each connection")
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    parts()
    for _ in range(arguments.runs):
        run(arguments.jobs, arguments.connections, arguments.in_flight)


if __name__ == "__main__":
    main()
