"""Traces that live in records, metrics every process has, and the cost of both when nobody looks."""

import asyncio
import time

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry

from muster.core import transitions as tr
from muster.core.model import InboxPosition, JobSpec
from muster.runtime import metrics, tracing
from muster.runtime.tracing import Tracing

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CLIENT[:-1] + "0"


@pytest.fixture
def collected():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Tracing(provider), exporter
    provider.shutdown()


def transaction(*transitions):
    start = InboxPosition(1, 0)
    header = tr.Header(1, "1-1", 0, 1, 5, start, InboxPosition(2, 0), 100, 1)
    return tr.Transaction(header, transitions)


def queued(job, trace):
    spec = JobSpec(id=job, namespace="n", name=job, queue="q", tasks=(), trace=trace)
    return tr.JobQueued(spec, "q1", InboxPosition(1, 0))


def test_traceparent_goes_round():
    context = tracing.extract(CLIENT)
    assert context.is_valid
    assert context.is_remote
    assert tracing.inject(context) == CLIENT


@pytest.mark.parametrize(
    "text", ["", "junk", CLIENT[:-1], CLIENT.replace("b7", "zz"), "01" + CLIENT[2:], "00-" + "0" * 32 + CLIENT[35:]]
)
def test_a_broken_traceparent_is_no_parent(text):
    assert not tracing.extract(text).is_valid


def test_the_random_flag_is_not_kept_as_sampled_text():
    assert tracing.inject(tracing.extract(CLIENT[:-2] + "03")) == CLIENT


def test_a_job_span_joins_the_stored_trace(collected):
    traces, exporter = collected
    traces.job_span(CLIENT, "place job", start_ns=10, end_ns=30, attributes={"muster.job.id": "j"}, error="too late")
    (span,) = exporter.get_finished_spans()
    assert format(span.context.trace_id, "032x") == CLIENT.split("-")[1]
    assert format(span.parent.span_id, "016x") == CLIENT.split("-")[2]
    assert (span.start_time, span.end_time) == (10, 30)
    assert span.status.description == "too late"


def test_what_is_stored_inside_the_send_span_is_that_span(collected):
    traces, exporter = collected
    with traces.span("SubmitJobs", parent=CLIENT, kind=SpanKind.SERVER), traces.send_span("muster.inbox.main", 3):
        stored = traces.current()
    send = next(s for s in exporter.get_finished_spans() if s.kind is SpanKind.PRODUCER)
    assert stored == tracing.inject(send.context)
    assert format(send.context.trace_id, "032x") == CLIENT.split("-")[1]
    assert send.attributes["messaging.batch.message_count"] == 3


def test_a_commit_is_one_span_linked_to_each_job(collected):
    traces, exporter = collected
    other = CLIENT.replace("0af7", "1bf7")
    tx = transaction(queued("a", CLIENT), queued("b", UNSAMPLED), tr.JobPlaced("c", 1, ()), tr.JobRunning("d", 1))
    traces.transaction(tx, 42, {"c": other}.get, subject="muster.ledger.main", times_ns=(1, 5, 9))
    commit, queue, place = sorted(
        exporter.get_finished_spans(), key=lambda s: ["commit ledger", "queue job", "place job"].index(s.name)
    )
    assert [link.context.trace_id for link in commit.links] == [tracing.extract(t).trace_id for t in (CLIENT, other)]
    assert commit.parent is None
    assert (commit.start_time, commit.end_time) == (5, 9)
    assert queue.context.trace_id == tracing.extract(CLIENT).trace_id
    assert place.context.trace_id == tracing.extract(other).trace_id
    assert queue.links[0].context.span_id == place.links[0].context.span_id == commit.context.span_id
    assert (place.start_time, place.end_time) == (1, 9)
    assert place.attributes["muster.ledger.seq"] == 42


def test_without_an_endpoint_there_is_no_provider_and_no_span():
    traces = Tracing.to_endpoint("", service="s", instance="s-1", cell="main", per_million=1_000_000)
    assert not traces.enabled
    assert traces.send_span("x", 1) is traces.bind_span(CLIENT, "j", "p", "n") is tracing.NO_SPAN
    with traces.span("work"):
        assert traces.current() == ""
    touched = []
    traces.transaction(transaction(tr.JobPlaced("c", 1, ())), 1, touched.append, subject="s", times_ns=(1, 2, 3))
    assert touched == []


async def test_a_blocked_event_loop_shows_in_the_metrics():
    registry = CollectorRegistry()
    shown = metrics.ProcessMetrics(registry, service="s", replica="s-1", cell="main")
    watch = asyncio.create_task(shown.watch_loop())
    await asyncio.sleep(0)
    time.sleep(0.06)  # the fault under test: code that blocks the loop
    while registry.get_sample_value("muster_event_loop_stall_max_seconds") == 0:
        await asyncio.sleep(0)
    watch.cancel()
    assert registry.get_sample_value("muster_event_loop_stall_max_seconds") >= 0.03
    assert registry.get_sample_value("muster_event_loop_stall_seconds_bucket", {"le": "0.02"}) == 0


def test_build_info_names_the_process():
    registry = CollectorRegistry()
    metrics.ProcessMetrics(registry, service="binder", replica="b-1", cell="main")
    labels = {"service": "binder", "replica": "b-1", "cell": "main", "version": metrics.version()}
    assert registry.get_sample_value("muster_build_info", labels) == 1
