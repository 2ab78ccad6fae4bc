"""Structured logs: one line an event, with service, replica and (inside a span) trace_id and span_id.

Libraries that use `logging` go through the same renderer. `configure` is called once by `service.run_service`; modules
take a logger with `get_logger(__name__)` and log facts as key-values, never formatted sentences with values in them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import msgspec
import structlog
from opentelemetry import trace

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
NOISY = ("grpc", "nats", "aiohttp.access", "asyncio", "kubernetes_asyncio", "opentelemetry")

Event = MutableMapping[str, Any]


def configure(
    *,
    service: str,
    replica: str,
    level: str = "info",
    form: Literal["json", "console"] = "json",
    out: TextIO | None = None,
) -> None:
    """Set up logging of this process, to standard error unless `out` is given. The last call counts."""
    out = out or sys.stderr

    def add_origin(_logger: Any, _method: str, event: Event) -> Event:
        event["service"] = service
        event["replica"] = replica
        return event

    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_origin,
        add_trace_ids,
    ]
    if form == "json":
        # Never the local variables: they may hold the whole state of a cell.
        as_dict = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        shared.append(structlog.processors.ExceptionRenderer(as_dict))
        render: structlog.types.Processor = structlog.processors.JSONRenderer(serializer=_to_json)
    else:
        render = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared[:2], add_module, *shared[2:]],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    for name in NOISY:  # libraries log at info what is no event of ours
        logging.getLogger(name).setLevel(max(logging.WARNING, LEVELS[level]))


def get_logger(name: str) -> Any:
    """A logger whose events carry `module=<name>`; may be taken before `configure`."""
    return structlog.get_logger(module=name.removeprefix("muster."))


def add_module(_logger: Any, _method: str, event: Event) -> Event:
    """Lines that came through `logging` say which library they are from."""
    event["module"] = event["_record"].name
    return event


def add_trace_ids(_logger: Any, _method: str, event: Event) -> Event:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = format(context.trace_id, "032x")
        event["span_id"] = format(context.span_id, "016x")
    return event


def _to_json(event: Any, **_options: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
