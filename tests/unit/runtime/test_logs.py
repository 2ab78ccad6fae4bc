"""Every log line is one JSON object that says who logged it and in which trace."""

import io
import json
import logging

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider

from muster.runtime import logs


@pytest.fixture
def out():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure(service="binder", replica="b-1", form="json", out=stream)
    yield stream
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(out):
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_has_its_origin_and_values(out):
    logs.get_logger("muster.runtime.thing").info("pod created", pod="a-0", nodes=3)
    (line,) = lines(out)
    timestamp = line.pop("timestamp")
    assert timestamp.endswith("Z")
    assert line == {
        "event": "pod created",
        "level": "info",
        "module": "runtime.thing",
        "nodes": 3,
        "pod": "a-0",
        "replica": "b-1",
        "service": "binder",
    }


def test_lines_in_a_span_carry_its_ids(out):
    tracer = TracerProvider().get_tracer("t")
    with tracer.start_as_current_span("work") as span:
        logs.get_logger("x").info("inside")
        logging.getLogger("library").warning("also inside")
    logs.get_logger("x").info("outside")
    inside, library, outside = lines(out)
    expected = format(span.get_span_context().trace_id, "032x")
    assert inside["trace_id"] == library["trace_id"] == expected
    assert inside["span_id"] == format(span.get_span_context().span_id, "016x")
    assert library["module"] == "library"
    assert "trace_id" not in outside


def test_levels_filter_and_noisy_libraries_are_kept_to_warnings(out):
    logs.get_logger("x").debug("no")
    logging.getLogger("nats").info("no")
    logging.getLogger("nats").warning("yes")
    assert [line["event"] for line in lines(out)] == ["yes"]


def test_tracebacks_are_data_without_local_variables(out):
    secret_state = "huge"
    try:
        raise ValueError(secret_state.upper())
    except ValueError:
        logs.get_logger("x").exception("failed")
    (line,) = lines(out)
    assert line["exception"][0]["exc_type"] == "ValueError"
    assert line["exception"][0]["frames"][-1]["name"] == "test_tracebacks_are_data_without_local_variables"
    assert "locals" not in line["exception"][0]["frames"][-1]
