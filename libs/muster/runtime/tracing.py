"""One job, one trace: how a client's trace goes on through records that outlive every call.

    SubmitJobs (client) > SubmitJobs (admission) > publish inbox > queue job ............... linked to commit ledger
                                                              > place job ............... linked to commit ledger
                                                              > create pod > pod running

`publish inbox` is the span whose traceparent admission stores in `JobSpec.trace`; it travels in the inbox, the ledger,
the state and the pod's annotation `muster.io/trace`, and every later span of the job names it as its parent. Work on
many jobs at once (one commit) is one span with a link to each of them, never a span with many parents.

Spans of a job are written after the fact (`job_span`), with the times the caller measured, so the fast loop builds no
object per job unless somebody collects traces: without an endpoint every method returns at its first line. A span's
name never holds a job id; attributes do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from muster.core import transitions as tr

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

LINKS_MAX: Final = 1024  # a commit span links at most so many jobs; the rest still have their own spans
EXPORT_TIMEOUT_S: Final = 5
MILLION: Final = 1_000_000
TRACEPARENT_CHARS: Final = 55
NO_SPAN: Final[AbstractContextManager[Span]] = contextlib.nullcontext(trace.INVALID_SPAN)

Attributes = Mapping[str, str | int | bool]


class Tracing:
    """The traces of one process. `Tracing.off()` costs nothing and is what simulation and benches use."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self.provider = provider
        self.enabled = provider is not None
        self._tracer = provider.get_tracer("muster") if provider else trace.NoOpTracer()

    @classmethod
    def off(cls) -> Tracing:
        return cls(None)

    @classmethod
    def to_endpoint(cls, endpoint: str, *, service: str, instance: str, cell: str, per_million: int) -> Tracing:
        """Export to an OTLP gRPC `endpoint`; "" means no traces at all."""
        if not endpoint:
            return cls.off()
        # Late: processes that export nothing start without the SDK and the exporter, which cost a third of a second.
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        resource = Resource.create(
            {
                "service.name": service,
                "service.namespace": "muster",
                "service.instance.id": instance,
                "muster.cell": cell,
            }
        )
        provider = TracerProvider(
            resource=resource,
            sampler=ParentBased(TraceIdRatioBased(min(per_million, MILLION) / MILLION)),
            span_limits=SpanLimits(max_links=LINKS_MAX),
        )
        exporter = OTLPSpanExporter(
            endpoint=endpoint, insecure=not endpoint.startswith("https"), timeout=EXPORT_TIMEOUT_S
        )
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
        return cls(provider)

    async def close(self) -> None:
        """Send what is left. The exporter blocks its thread until its deadline, so never on the event loop."""
        if self.provider:
            await asyncio.to_thread(self.provider.shutdown)

    # --- context in records -----------------------------------------------------------------------------------------

    def current(self) -> str:
        """The traceparent of the span this code runs in, "" outside of one."""
        return inject(trace.get_current_span().get_span_context()) if self.enabled else ""

    def headers(self) -> Mapping[str, str]:
        """Headers for a message sent from here."""
        traceparent = self.current()
        return {"traceparent": traceparent} if traceparent else {}

    # --- spans around code ------------------------------------------------------------------------------------------

    def span(
        self, name: str, *, parent: str = "", kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None
    ) -> AbstractContextManager[Span]:
        """A span around a block, under `parent` (a traceparent) or else under the current span."""
        if not self.enabled:
            return NO_SPAN
        context = _context_of(extract(parent)) if parent else None
        return self._tracer.start_as_current_span(name, context=context, kind=kind, attributes=attributes)

    def send_span(self, subject: str, items: int) -> AbstractContextManager[Span]:
        """Around an inbox write. Store `current()` inside of it in the records that are written."""
        if not self.enabled:
            return NO_SPAN
        attributes = {**_messaging("publish", "send", subject), "messaging.batch.message_count": items}
        return self._tracer.start_as_current_span("publish inbox", kind=SpanKind.PRODUCER, attributes=attributes)

    def bind_span(self, job_trace: str, job: str, pod: str, node: str) -> AbstractContextManager[Span]:
        """Around the API call that creates (or binds) one pod."""
        if not (self.enabled and job_trace):
            return NO_SPAN
        attributes = {"muster.job.id": job, "k8s.pod.name": pod, "k8s.node.name": node}
        return self.span("create pod", parent=job_trace, kind=SpanKind.CLIENT, attributes=attributes)

    # --- spans after the fact ---------------------------------------------------------------------------------------

    def job_span(
        self,
        job_trace: str,
        name: str,
        *,
        start_ns: int,
        end_ns: int,
        attributes: Attributes | None = None,
        link: SpanContext | None = None,
        error: str = "",
    ) -> None:
        """Record that `name` happened to the job of `job_trace` between two times (nanoseconds since the epoch)."""
        if not (self.enabled and job_trace):
            return
        span = self._tracer.start_span(
            name,
            context=_context_of(extract(job_trace)),
            links=[Link(link)] if link and link.is_valid else None,
            attributes=attributes,
            start_time=start_ns,
        )
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_ns)

    def pod_running(self, job_trace: str, job: str, pod: str, *, start_ns: int, end_ns: int) -> None:
        """From the pod's creation until the cluster showed it running."""
        if self.enabled:
            attributes = {"muster.job.id": job, "k8s.pod.name": pod}
            self.job_span(job_trace, "pod running", start_ns=start_ns, end_ns=end_ns, attributes=attributes)

    def linked_span(
        self, name: str, traces: Iterable[str], *, start_ns: int, end_ns: int, kind: SpanKind, attributes: Attributes
    ) -> SpanContext | None:
        """One span for work on many jobs, linked to each; returns its context for the jobs' own spans to link to."""
        if not self.enabled:
            return None
        contexts = (extract(text) for text in traces)
        links = [Link(context) for context in contexts if context.is_valid][:LINKS_MAX]
        root = trace.set_span_in_context(trace.INVALID_SPAN)
        span = self._tracer.start_span(
            name, context=root, links=links, kind=kind, attributes=attributes, start_time=start_ns
        )
        span.end(end_ns)
        return span.get_span_context()

    def transaction(
        self,
        tx: tr.Transaction,
        ledger_seq: int,
        trace_of: Callable[[str], str],
        *,
        subject: str,
        times_ns: tuple[int, int, int],
    ) -> None:
        """The spans of one committed transaction: `commit ledger`, and `queue job` / `place job` for each job in it.

        `trace_of` gives a job's stored traceparent; `times_ns` are: decision began, commit began, commit answered.
        """
        if not self.enabled:
            return
        jobs = _jobs_of(tx.transitions, trace_of)
        if not jobs:
            return
        began, sent, answered = times_ns
        commit = self.linked_span(
            "commit ledger",
            (job_trace for _, _, job_trace in jobs),
            start_ns=sent,
            end_ns=answered,
            kind=SpanKind.PRODUCER,
            attributes={
                **_messaging("publish", "send", subject),
                "messaging.message.id": str(ledger_seq),
                "muster.transitions": len(tx.transitions),
                "muster.epoch": tx.header.epoch,
            },
        )
        for name, job, job_trace in jobs:
            attributes: Attributes = {"muster.job.id": job, "muster.ledger.seq": ledger_seq}
            self.job_span(job_trace, name, start_ns=began, end_ns=answered, attributes=attributes, link=commit)


def inject(context: SpanContext) -> str:
    """A span context as the text that is stored in records (W3C traceparent), "" for an invalid one."""
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"


def extract(traceparent: str) -> SpanContext:
    """The span context of a stored traceparent; an invalid one for text that is none, never an error."""
    parts = traceparent.split("-")
    if len(traceparent) != TRACEPARENT_CHARS or len(parts) != 4 or parts[0] != "00":
        return trace.INVALID_SPAN_CONTEXT
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:])
    except ValueError:
        return trace.INVALID_SPAN_CONTEXT
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags & 1))


def _context_of(context: SpanContext) -> Context:
    return trace.set_span_in_context(NonRecordingSpan(context))


def _messaging(name: str, kind: str, subject: str) -> dict[str, str | int | bool]:
    return {
        "messaging.system": "nats",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": subject,
    }


def _jobs_of(transitions: Sequence[tr.AnyTransition], trace_of: Callable[[str], str]) -> list[tuple[str, str, str]]:
    """(span name, job id, traceparent) of each job that was queued or placed and has a sampled trace."""
    jobs: list[tuple[str, str, str]] = []
    for transition in transitions:
        if isinstance(transition, tr.JobQueued):
            name, job, text = "queue job", transition.spec.id, transition.spec.trace
        elif isinstance(transition, tr.JobPlaced):
            name, job, text = "place job", transition.job, trace_of(transition.job)
        else:
            continue
        if text and text.endswith("1"):  # flags: sampled
            jobs.append((name, job, text))
    return jobs
