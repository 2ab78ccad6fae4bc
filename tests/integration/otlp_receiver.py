"""A collector for tests: takes OTLP over gRPC as any collector does and keeps the spans."""

import asyncio
from dataclasses import dataclass, field

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from tests.patience import PATIENCE_S


@dataclass(frozen=True)
class Received:
    """One span, with the service that sent it."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, object]
    linked_traces: tuple[str, ...]
    linked_spans: tuple[str, ...]


@dataclass
class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    spans: list[Received] = field(default_factory=list)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def Export(self, request, context):
        async with self.arrived:
            for resource_spans in request.resource_spans:
                service = _values(resource_spans.resource.attributes)["service.name"]
                for scope in resource_spans.scope_spans:
                    self.spans += [_received(service, span) for span in scope.spans]
            self.arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    async def start(self):
        """Serve on a free port; returns the endpoint and the server, which the caller stops."""
        server = grpc.aio.server()
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return f"http://127.0.0.1:{port}", server

    async def wait_for(self, *names):
        """Until at least one span of each name has arrived."""
        async with asyncio.timeout(PATIENCE_S), self.arrived:
            await self.arrived.wait_for(lambda: set(names) <= {span.name for span in self.spans})

    def named(self, name):
        return [span for span in self.spans if span.name == name]


def belongs_to(span, trace_id):
    """Under the trace or linked to it."""
    return span.trace_id == trace_id or trace_id in span.linked_traces


def _received(service, span):
    return Received(
        service=service,
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        linked_traces=tuple(link.trace_id.hex() for link in span.links),
        linked_spans=tuple(link.span_id.hex() for link in span.links),
    )


def _values(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
