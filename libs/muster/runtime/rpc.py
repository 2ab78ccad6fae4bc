"""The gRPC side of a process: a server with health, reflection, metrics and traces, and channels to other processes.

Services add their servicers through `RpcServer.add`; the generated code stays in the services, this module only needs
the function that registers a servicer and the service's full name. Interceptors are passed explicitly, nothing is
patched. Health is kept per service name and says SERVING only while the process is ready.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from time import perf_counter
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.metrics import ProcessMetrics
from muster.runtime.tracing import Tracing

MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
CALLS_MAX: Final = 2_000  # at once, watches included; more are refused with RESOURCE_EXHAUSTED
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)
SERVER_OPTIONS: Final = (
    *OPTIONS,
    ("grpc.so_reuseport", 0),  # a second process on the same port must fail, not share it
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
CHANNEL_OPTIONS: Final = (*OPTIONS, ("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000))


class RpcServer:
    """One grpc.aio server. Add servicers, then start; `serving` follows the readiness of the process."""

    def __init__(self, address: str, metrics: ProcessMetrics, tracing: Tracing) -> None:
        interceptors: list[Any] = [CallMetrics(metrics)]
        if tracing.enabled:
            from opentelemetry.instrumentation.grpc import aio_server_interceptor, filters

            no_health = filters.negate(filters.health_check())
            interceptors.append(
                aio_server_interceptor(  # type: ignore[no-untyped-call]
                    tracer_provider=tracing.provider, filter_=no_health
                )
            )
        self.server = grpc.aio.server(
            interceptors=interceptors, options=SERVER_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX
        )
        self._health = health.aio.HealthServicer()
        self._names: list[str] = []
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        host, _, _ = address.rpartition(":")
        try:
            port = self.server.add_insecure_port(address)
        except RuntimeError as error:
            raise ProcessMustEnd(ExitCode.UNAVAILABLE, f"gRPC address {address} cannot be bound: {error}") from error
        self.address = f"{host}:{port}"

    def add(self, register: Callable[[Any, grpc.aio.Server], None], servicer: Any, service_name: str) -> None:
        """Serve `servicer`. `register` is the generated add_..._to_server; `service_name` as in the proto, in full."""
        register(servicer, self.server)
        self._names.append(service_name)

    async def start(self) -> None:
        names = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.server)
        await self.serving(False)
        await self.server.start()

    async def serving(self, ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in ("", *self._names):
            await self._health.set(name, status.SERVING if ready else status.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Take no new call, let those in progress finish within the grace, then cancel them."""
        await self._health.enter_graceful_shutdown()
        await self.server.stop(grace_s)


def channel(address: str, tracing: Tracing) -> grpc.aio.Channel:
    """A channel to another process, with the limits of the server and, if traces are collected, its spans."""
    interceptors: list[Any] = []
    if tracing.enabled:
        from opentelemetry.instrumentation.grpc import aio_client_interceptors

        interceptors += aio_client_interceptors(  # type: ignore[no-untyped-call]
            tracer_provider=tracing.provider
        )
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS, interceptors=interceptors)


class CallMetrics(grpc.aio.ServerInterceptor):
    """Counts and times every call by method and status code; health checks and reflection are left out."""

    def __init__(self, metrics: ProcessMetrics) -> None:
        self._metrics = metrics

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or method.startswith("/grpc."):
            return handler
        wrap = {
            (False, False): (grpc.unary_unary_rpc_method_handler, self._answer, handler.unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, self._stream, handler.unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, self._answer, handler.stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, self._stream, handler.stream_stream),
        }
        build, timed, inner = wrap[handler.request_streaming, handler.response_streaming]
        return build(
            timed(method, inner),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _answer(self, method: str, inner: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            started = self._begin()
            code = "UNKNOWN"
            try:
                answer = await inner(request, context)
                code = _code(context)
                return answer
            except grpc.aio.AbortError:
                code = _code(context)
                raise
            finally:
                self._end(method, code, started)

        return call

    def _stream(self, method: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.isasyncgenfunction(inner):  # a coroutine that writes to the context itself
            return self._answer(method, inner)

        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            started = self._begin()
            code = "CANCELLED"  # the client left: the generator is closed where it stands
            try:
                async for answer in inner(request, context):
                    yield answer
                code = _code(context)
            except grpc.aio.AbortError:
                code = _code(context)
                raise
            except Exception:
                code = "UNKNOWN"
                raise
            finally:
                self._end(method, code, started)

        return call

    def _begin(self) -> float:
        self._metrics.rpcs_active.inc()
        return perf_counter()

    def _end(self, method: str, code: str, started: float) -> None:
        self._metrics.rpcs_active.dec()
        self._metrics.rpc_seconds.labels(method.rpartition("/")[2], code).observe(perf_counter() - started)


def _code(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The status of a call that ended; nothing set means OK. grpc.aio gives an int or a StatusCode."""
    code = context.code()
    if not code:
        return "OK"
    if isinstance(code, grpc.StatusCode):
        return str(code.name)
    return next((str(c.name) for c in grpc.StatusCode if c.value[0] == code), "UNKNOWN")
