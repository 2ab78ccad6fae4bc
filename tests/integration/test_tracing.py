"""One job, one trace, as a real OTLP collector receives it."""

import contextlib
import time

import grpc
import grpc.aio
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry
from tests.integration.otlp_receiver import Receiver, belongs_to

from muster.core import transitions as tr
from muster.core.model import InboxPosition, JobSpec
from muster.runtime import rpc
from muster.runtime.metrics import ProcessMetrics
from muster.runtime.tracing import Tracing

JOB = "0123456789abcdef0123456789abcdef"
METHOD = "/test.Submission/SubmitJobs"


def tracing_of(endpoint, service):
    return Tracing.to_endpoint(endpoint, service=service, instance=f"{service}-1", cell="main", per_million=1_000_000)


@contextlib.asynccontextmanager
async def collector():
    receiver = Receiver()
    endpoint, server = await receiver.start()
    yield receiver, endpoint
    await server.stop(0)


@contextlib.asynccontextmanager
async def submission_server(tracing):
    """A gRPC server as a service has it, whose one method stores a job's trace the way admission does."""
    metrics = ProcessMetrics(CollectorRegistry(), service="admission", replica="a-1", cell="main")
    server = rpc.RpcServer("127.0.0.1:0", metrics, tracing)

    async def submit(request, _context):
        with tracing.send_span("muster.inbox.main", 1):
            return tracing.current().encode()

    def register(handler, grpc_server):
        handlers = {"SubmitJobs": grpc.unary_unary_rpc_method_handler(handler)}
        grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Submission", handlers),))

    server.add(register, submit, "test.Submission")
    await server.start()
    await server.serving(True)
    yield server.address
    await server.stop(1)


async def test_a_job_is_one_trace_from_the_client_to_the_running_pod():
    async with collector() as (receiver, endpoint):
        processes = {name: tracing_of(endpoint, name) for name in ("client", "admission", "queue-manager", "binder")}
        async with (
            submission_server(processes["admission"]) as address,
            rpc.channel(address, processes["client"]) as channel,
        ):
            with processes["client"].span("submit job.yaml"):
                stored = (await channel.unary_unary(METHOD)(b"")).decode()
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")

        began = time.time_ns()
        spec = JobSpec(id=JOB, namespace="n", name="j", queue="q", tasks=(), trace=stored)
        start = InboxPosition(1, 0)
        tx = tr.Transaction(
            tr.Header(1, "1-1", 0, 1, 5, start, InboxPosition(2, 0), 100, 1),
            (tr.JobQueued(spec, "q1", start), tr.JobPlaced(JOB, 1, ())),
        )
        times = (began, began + 1_000_000, began + 2_000_000)
        processes["queue-manager"].transaction(tx, 7, {JOB: stored}.get, subject="muster.ledger.main", times_ns=times)
        with processes["binder"].bind_span(stored, JOB, "j-main-0-1-0", "node-1"):
            pass
        now = time.time_ns()
        processes["binder"].pod_running(stored, JOB, "j-main-0-1-0", start_ns=now, end_ns=now + 1_000_000)
        for tracing in processes.values():
            await tracing.close()

        await receiver.wait_for("queue job", "place job", "commit ledger", "create pod", "pod running", "publish inbox")
        (root,) = receiver.named("submit job.yaml")
        assert not [
            span for span in receiver.spans if not belongs_to(span, root.trace_id) and "Health" not in span.name
        ]
        call = next(
            s
            for s in receiver.spans
            if s.kind == SpanKind.CLIENT.name and s.service == "client" and METHOD[1:] in s.name
        )
        serve = next(s for s in receiver.spans if s.kind == SpanKind.SERVER.name)
        (send,) = receiver.named("publish inbox")
        assert [span.parent_id for span in (call, serve, send)] == [root.span_id, call.span_id, serve.span_id]
        assert not [s for s in receiver.spans if s.service == "admission" and "Health" in s.name]
        (commit,) = receiver.named("commit ledger")
        assert commit.attributes["messaging.message.id"] == "7"
        for name, service in (
            ("queue job", "queue-manager"),
            ("place job", "queue-manager"),
            ("create pod", "binder"),
            ("pod running", "binder"),
        ):
            (span,) = receiver.named(name)
            assert (span.service, span.parent_id) == (service, send.span_id)
            assert span.attributes["muster.job.id"] == JOB
        assert receiver.named("place job")[0].linked_spans == (commit.span_id,)


async def test_closing_sends_what_is_left_without_blocking_the_loop():
    async with collector() as (receiver, endpoint):
        tracing = tracing_of(endpoint, "binder")
        with tracing.span("work"):
            pass
        await tracing.close()  # the receiver runs on this very loop: a blocking close would wait for its deadline
        assert [span.name for span in receiver.spans] == ["work"]
