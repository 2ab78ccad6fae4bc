"""The life of a service: ready when it can serve, drained when it is asked to stop, ended when it cannot go on."""

import asyncio
import contextlib
import gc
import json
import logging
import sys
from types import SimpleNamespace

import aiohttp
import grpc
import grpc.aio
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry
from tests.patience import until

from muster.runtime import service, settings
from muster.runtime.bus_errors import ConnectionClosed
from muster.runtime.clock import SystemClock
from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.service import ServiceContext
from muster.runtime.settings import CommonSettings
from muster.runtime.tracing import Tracing

ECHO = "test.Echo"


class Connection:
    """A bus connection of which only the end matters."""

    def __init__(self):
        self._closed = asyncio.Event()
        self.steps = []

    async def wait_closed(self):
        await self._closed.wait()

    def lose(self):
        self._closed.set()

    async def close(self):
        self.steps.append("bus closed")


@pytest.fixture
def logging_restored():
    """`run_service` sets up the logs of the process, here of the test process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def add_echo(servicer, server):
    handlers = {
        "Say": grpc.unary_unary_rpc_method_handler(servicer.say),
        "Watch": grpc.unary_stream_rpc_method_handler(servicer.watch),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ECHO, handlers),))


class Echo:
    def __init__(self, context):
        self.context = context
        self.entered, self.release = asyncio.Event(), asyncio.Event()

    async def say(self, request, call):
        if request == b"refuse":
            await call.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
        if request == b"slow":
            self.entered.set()
            await self.release.wait()
        return request

    async def watch(self, request, call):
        yield b"first"
        await self.context.stop.wait()
        yield b"last"


@contextlib.asynccontextmanager
async def running(tmp_path, **environ):
    """A service with an echo servicer: yields its parts; leaving asks it to stop and waits for its end."""
    ready_file = tmp_path / "ready.json"
    values = settings.load(
        CommonSettings, {"MUSTER_READY_FILE": str(ready_file), "MUSTER_REPLICA": "echo-1", **environ}
    )
    bus = Connection()
    registry = CollectorRegistry()
    context = ServiceContext("echo", values, bus=bus, clock=SystemClock(), tracing=Tracing.off(), registry=registry)
    echo = Echo(context)

    @contextlib.asynccontextmanager
    async def build(inner):
        inner.rpc.add(add_echo, echo, ECHO)
        yield
        bus.steps.append("released")

    serving = asyncio.create_task(service.serve(context, build))
    await until(lambda: ready_file.exists() or serving.done())
    facts = json.loads(ready_file.read_text())
    async with grpc.aio.insecure_channel(facts["grpc"]) as channel, aiohttp.ClientSession() as http:
        yield SimpleNamespace(
            context=context, bus=bus, echo=echo, serving=serving, facts=facts, channel=channel, http=http
        )
    context.stop.set()
    await serving


async def health(parts, name=""):
    stub = health_pb2_grpc.HealthStub(parts.channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status


async def text_of(parts, path):
    async with parts.http.get(f"http://{parts.facts['metrics']}{path}") as answer:
        return answer.status, await answer.text()


async def test_serves_health_reflection_and_addresses(tmp_path):
    async with running(tmp_path) as parts:
        assert {"service": "echo", "replica": "echo-1"}.items() <= parts.facts.items()

        async def serving():
            return await health(parts, ECHO) == health_pb2.HealthCheckResponse.SERVING

        await until(serving)
        assert await text_of(parts, "/readyz") == (200, "ready\n")
        assert await text_of(parts, "/healthz") == (200, "ok\n")
        stub = reflection_pb2_grpc.ServerReflectionStub(parts.channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([asked])):
            names = {entry.name for entry in answer.list_services_response.service}
        assert {ECHO, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= names


async def test_what_the_service_has_loaded_is_frozen_while_it_serves(tmp_path):
    """LOG-16."""
    async with running(tmp_path):
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 1000
    assert gc.isenabled()


async def test_readiness_follows_the_checks(tmp_path):
    async with running(tmp_path) as parts:
        caught_up = False
        parts.context.ready_when("ledger replay", lambda: caught_up)

        async def not_serving():
            return await health(parts) == health_pb2.HealthCheckResponse.NOT_SERVING

        await until(not_serving)
        assert await text_of(parts, "/readyz") == (503, "waiting for ledger replay\n")
        assert parts.context.registry.get_sample_value("muster_ready") == 0
        caught_up = True

        async def serving():
            return await health(parts) == health_pb2.HealthCheckResponse.SERVING

        await until(serving)
        assert parts.context.registry.get_sample_value("muster_ready") == 1


async def test_calls_are_counted_by_method_and_code(tmp_path):
    async with running(tmp_path) as parts:
        say = parts.channel.unary_unary(f"/{ECHO}/Say")
        assert await say(b"hello") == b"hello"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await say(b"refuse")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        text = ""

        async def counted():  # an aborted call just after its status was sent
            nonlocal text
            _, text = await text_of(parts, "/metrics")
            return "muster_rpcs_active 0.0" in text

        await until(counted)
        assert 'muster_rpc_duration_seconds_count{code="OK",method="Say"} 1.0' in text
        assert 'muster_rpc_duration_seconds_count{code="NOT_FOUND",method="Say"} 1.0' in text
        assert 'method="Check"' not in text


async def test_a_stop_finishes_calls_in_progress_then_releases_then_disconnects(tmp_path):
    async with running(tmp_path) as parts:
        slow = parts.channel.unary_unary(f"/{ECHO}/Say")(b"slow")
        watch = parts.channel.unary_stream(f"/{ECHO}/Watch")(b"")
        assert await watch.read() == b"first"
        await parts.echo.entered.wait()
        background = parts.context.spawn("for ever", asyncio.Event().wait())
        parts.context.stop.set()
        assert await watch.read() == b"last"  # streams see the stop and end by themselves
        assert parts.bus.steps == []
        parts.echo.release.set()
        assert await slow == b"slow"
        assert await parts.serving is ExitCode.OK
        assert parts.bus.steps == ["released", "bus closed"]
        assert background.cancelled()


async def test_a_call_that_does_not_end_cannot_hold_up_the_stop(tmp_path):
    async with running(tmp_path, MUSTER_STOP_GRACE_MS="100") as parts:
        slow = parts.channel.unary_unary(f"/{ECHO}/Say")(b"slow")
        await parts.echo.entered.wait()
        parts.context.stop.set()
        assert await parts.serving is ExitCode.OK
        assert parts.bus.steps == ["released", "bus closed"]
        with pytest.raises(grpc.aio.AioRpcError):
            await slow


async def test_a_closed_connection_ends_the_process(tmp_path):
    async with running(tmp_path) as parts:
        parts.bus.lose()
        assert await parts.serving is ExitCode.LOST_CONNECTION


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProcessMustEnd(ExitCode.DEPOSED, "somebody else leads"), ExitCode.DEPOSED),
        (ConnectionClosed("gone"), ExitCode.LOST_CONNECTION),
        (ZeroDivisionError(), ExitCode.BUG),
        (ExceptionGroup("tasks", [ValueError(), ProcessMustEnd(ExitCode.CLOCK_SKEW, "late")]), ExitCode.CLOCK_SKEW),
    ],
)
async def test_a_crashed_task_ends_the_process_with_its_reason(tmp_path, error, code):
    async def crash():
        raise error

    async with running(tmp_path) as parts:
        parts.context.spawn("crash", crash())
        assert await parts.serving is code
        assert parts.bus.steps == ["released", "bus closed"]


async def test_a_start_that_fails_still_closes_what_was_opened(tmp_path):
    bus = Connection()
    values = settings.load(CommonSettings, {})
    context = ServiceContext(
        "echo", values, bus=bus, clock=SystemClock(), tracing=Tracing.off(), registry=CollectorRegistry()
    )

    @contextlib.asynccontextmanager
    async def build(_context):
        raise ProcessMustEnd(ExitCode.TOO_OLD, "ledger version 9")
        yield

    with pytest.raises(ProcessMustEnd, match="ledger version 9"):
        await service.serve(context, build)
    assert bus.steps == ["bus closed"]


async def test_a_stop_during_the_start_does_not_wait_for_it():
    bus = Connection()
    values = settings.load(CommonSettings, {})
    context = ServiceContext(
        "echo", values, bus=bus, clock=SystemClock(), tracing=Tracing.off(), registry=CollectorRegistry()
    )

    @contextlib.asynccontextmanager
    async def build(inner):
        inner.stop.set()
        await asyncio.Event().wait()
        yield

    assert await service.serve(context, build) is ExitCode.OK
    assert bus.steps == ["bus closed"]


def test_wrong_settings_and_arguments_have_their_own_codes(monkeypatch, capsys, logging_restored):
    monkeypatch.setattr(sys, "argv", ["muster-echo"])
    monkeypatch.setenv("MUSTER_STOP_GRACE_MS", "soon")
    assert service.run_service("echo", CommonSettings, lambda context: pytest.fail("must not start")) is ExitCode.CONFIG
    assert "MUSTER_STOP_GRACE_MS='soon': must be a whole number" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["muster-echo", "--help"])
    assert service.run_service("echo", CommonSettings, lambda context: pytest.fail("must not start")) is ExitCode.OK
    assert "MUSTER_NATS_URL" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["muster-echo", "extra"])
    assert service.run_service("echo", CommonSettings, lambda context: pytest.fail("must not start")) is ExitCode.USAGE


def test_no_nats_is_named_and_not_waited_for_without_end(monkeypatch, capsys, logging_restored):
    monkeypatch.setattr(sys, "argv", ["muster-echo"])
    monkeypatch.setenv("MUSTER_NATS_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("MUSTER_NATS_CONNECT_TIMEOUT_MS", "50")
    code = service.run_service("echo", CommonSettings, lambda context: pytest.fail("must not start"))
    assert code is ExitCode.UNAVAILABLE
    assert "no NATS at nats://127.0.0.1:1 within 0.05 s (MUSTER_NATS_URL)" in capsys.readouterr().err
