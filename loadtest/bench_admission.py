"""Submissions through admission: real nats-server, real process, batches of 100 over gRPC, durable on answer.

No queue-manager runs: what is measured is the front door. The parts of one submission are timed in this process too
(parsing, declared rules, conversion, encoding): that is where the next microsecond is to be found.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import uvloop
from loadtest import workload
from loadtest.harness import Measure, Result, at_least, repeat
from loadtest.processes import CELL, Cell, CpuClock
from loadtest.submitter import BATCH_JOBS, Order, Submitter, batch
from loadtest.workload import OffTheBus

from muster.api.v1 import submission_pb2
from muster.core.commands import SubmitJob
from muster.runtime.nats_bus import connect
from muster.runtime.streams import inbox_spec, ledger_spec
from muster.wire import codec
from muster.wire.jobs import JobReader, Origin, without_name
from muster_admission.checked import CheckedJobs

JOBS: Final = 20_000
WARM_JOBS: Final = 2000
PART_ROUNDS: Final = 30


def parts() -> list[Measure]:
    """Microseconds a job of each step."""
    request = batch(Order(address="", jobs=0), 0, "bench")
    data = request.SerializeToString()
    checked = CheckedJobs()
    reader, origin = JobReader(), Origin(cell=CELL, request_id="bench", submitter="bench")
    bodies = [without_name(spec) for spec in request.jobs]
    items = [SubmitJob(reader.to_core(spec, n, origin, bodies[n])) for n, spec in enumerate(request.jobs)]
    steps: dict[str, Callable[[], object]] = {
        "parse": lambda: submission_pb2.SubmitJobsRequest.FromString(data),
        "bodies": lambda: [without_name(spec) for spec in request.jobs],
        "declared rules": lambda: checked.violations(request, bodies),
        "to core": lambda: [reader.to_core(spec, n, origin, bodies[n]) for n, spec in enumerate(request.jobs)],
        "encode": lambda: codec.join_inbox([codec.encode_item(item) for item in items]),
    }
    cpu: dict[str, float] = {}
    for name, step in steps.items():
        step()
        times = []
        for _ in range(PART_ROUNDS):
            began_s = time.process_time()
            step()
            times.append(time.process_time() - began_s)
        cpu[name] = statistics.median(times) / BATCH_JOBS * 1e6
    return [Measure(name="admission: steps of a submission", value=sum(cpu.values()), unit="us", cpu_us=cpu)]


async def make_queue(cell: Cell) -> None:
    """The log of a cell with one queue, as its leader would have left it."""
    bus = await connect(cell.url)
    leader = OffTheBus()
    leader.run([workload.queue()])
    await (await bus.stream(inbox_spec(CELL))).publish(codec.encode_inbox([workload.queue()]))
    ledger = await bus.stream(ledger_spec(CELL))
    for message in leader.messages:
        await ledger.publish(message)
    await bus.close()


def once() -> list[Measure]:
    with Cell() as cell:
        uvloop.run(make_queue(cell))
        admission = cell.service(
            "muster_admission", "admission", {"MUSTER_INBOX_BACKLOG_MAX": "1000000"}
        )  # nobody reads this inbox
        address = admission.facts()["grpc"]
        warm = Submitter(Order(address=address, jobs=WARM_JOBS))
        submitter = Submitter(Order(address=address, jobs=JOBS))
        warm.start()
        warm.latencies()
        cpu, began_s = CpuClock(cell), time.perf_counter()
        submitter.start()
        latencies = submitter.latencies()
        took_s = time.perf_counter() - began_s
        used = cpu.us_each(JOBS)
        stall_ms, _ = admission.stalls()
    p50_ms, p99_ms = (latencies[int(len(latencies) * part)] * 1e3 for part in (0.5, 0.99))
    note = f"batch of {BATCH_JOBS}: p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms; longest stall {stall_ms:.0f} ms"
    measure = Measure(
        name="admission: submissions accepted durably",
        value=JOBS / took_s,
        unit="/s",
        target=at_least(10_000),
        cpu_us=used,
        note=note,
    )
    return [measure, *parts()]


def main(runs: int) -> list[Result]:
    return repeat(runs, once)
