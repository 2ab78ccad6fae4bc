"""The caller's trace goes along with every call, if the program collects traces at all."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace


def interceptors() -> list[Any] | None:
    """Client interceptors for the tracer provider that the program has set; None without one."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    from opentelemetry.instrumentation.grpc import aio_client_interceptors

    return list(aio_client_interceptors(tracer_provider=provider))  # type: ignore[no-untyped-call]
