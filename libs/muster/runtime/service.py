"""How a service lives: the same start, readiness and graceful stop for all six.

`run_service(name, SettingsClass, build)` is the whole of a service's `__main__`. It reads the settings, sets up logs,
traces and metrics, connects to NATS, and enters the async context manager `build(context)`: what is before its `yield`
starts the service (followers caught up, servicers added), what is after it releases what it holds (leases first).
Between the two the process is ready and serves.

    start:  settings > logs > traces > /metrics > NATS > build(context) > gRPC server > ready
    stop:   not ready > `context.stop` set > gRPC drained > background tasks cancelled > build's exit > NATS > traces

A stop begins with SIGTERM or SIGINT, with a background task that crashed, or with a NATS connection closed for good. It
takes at most `stop_grace_ms`; then the process ends with its exit code anyway, because everything that matters is
durable elsewhere. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from muster.runtime import logs, settings
from muster.runtime.bus_errors import ConnectionClosed
from muster.runtime.clock import SystemClock
from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.gc import Collector
from muster.runtime.metrics import ProcessMetrics
from muster.runtime.ports import Bus, Clock
from muster.runtime.rpc import RpcServer
from muster.runtime.settings import CommonSettings
from muster.runtime.tracing import Tracing

READINESS_POLL_S: Final = 0.2
DRAIN_SHARE: Final = 0.5  # of the grace: for calls in progress; the rest is for releasing leases and closing

S = TypeVar("S", bound=CommonSettings)

log = logs.get_logger(__name__)


class ServiceContext(Generic[S]):
    """What a service gets to work with."""

    def __init__(
        self, name: str, settings: S, *, bus: Bus, clock: Clock, tracing: Tracing, registry: CollectorRegistry
    ) -> None:
        self.name = name
        self.settings = settings
        self.bus = bus
        self.clock = clock
        self.tracing = tracing
        self.registry = registry
        self.metrics = ProcessMetrics(registry, service=name, replica=settings.replica, cell=settings.cell)
        self.rpc = RpcServer(settings.grpc_address, self.metrics, tracing)
        self.stop = asyncio.Event()  # set when the process begins to stop: end long streams and loops
        self.ended: ProcessMustEnd | None = None  # why, if it was not asked to
        self._checks: dict[str, Callable[[], bool]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` beside the service. If it raises, the process logs it and ends; it is cancelled at the stop."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def ready_when(self, what: str, check: Callable[[], bool]) -> None:
        """The process is ready only while every check holds; `what` is shown by /readyz while it does not."""
        self._checks[what] = check

    def not_ready(self) -> list[str]:
        """What keeps the process from being ready; empty when it is."""
        if self.stop.is_set():
            return ["stopping"]
        return [what for what, check in self._checks.items() if not check()]

    def end(self, reason: ProcessMustEnd) -> None:
        """Stop this process and end it with the code of `reason`. The first reason counts."""
        if self.ended is None and not self.stop.is_set():
            self.ended = reason
        self.stop.set()

    async def cancel_tasks(self) -> None:
        """Cancel the background tasks and wait for their ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        reason = reason_of(error)
        if reason.code is ExitCode.BUG:
            log.error("task crashed", task=task.get_name(), exc_info=error)
        else:
            log.error("task ends the process", task=task.get_name(), reason=str(reason), code=reason.code.name)
        self.end(reason)


def reason_of(error: BaseException) -> ProcessMustEnd:
    """What an exception that nobody handled means for the process; whatever is not known here is a bug."""
    if isinstance(error, ProcessMustEnd):
        return error
    if isinstance(error, ConnectionClosed):
        return ProcessMustEnd(ExitCode.LOST_CONNECTION, str(error))
    if isinstance(error, BaseExceptionGroup):  # of a task group: the first known reason, else a bug
        reasons = [reason_of(inner) for inner in error.exceptions]
        return next((reason for reason in reasons if reason.code is not ExitCode.BUG), reasons[0])
    return ProcessMustEnd(ExitCode.BUG, repr(error))


Build = Callable[[ServiceContext[S]], AbstractAsyncContextManager[None]]


def run_service(name: str, settings_class: type[S], build: Build[S]) -> int:
    """Run a service until it is stopped; returns the exit code. `--help` prints its settings."""
    if any(flag in sys.argv[1:] for flag in ("-h", "--help")):
        sys.stdout.write(f"muster {name}: configured by environment variables\n\n{settings.describe(settings_class)}\n")
        return ExitCode.OK
    if len(sys.argv) > 1:
        sys.stderr.write(f"muster {name} takes no arguments, only environment variables (--help lists them)\n")
        return ExitCode.USAGE
    try:
        values = settings.load(settings_class, os.environ)
    except settings.ConfigError as error:
        sys.stderr.write("".join(f"muster {name}: {problem}\n" for problem in error.problems))
        return error.code
    logs.configure(service=name, replica=values.replica, level=values.log_level, form=values.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            code = runner.run(_connect_and_serve(name, values, build))
        except KeyboardInterrupt:  # before the signal handlers were in place
            code = ExitCode.KILLED
        except Exception as error:
            code = reason_of(error).code
            if code is ExitCode.BUG:
                log.exception("crashed")
            else:
                log.error("cannot go on", reason=str(error), code=code.name)
    log.info("ended", code=int(code), meaning=code.name)
    return code


async def _connect_and_serve(name: str, values: S, build: Build[S]) -> ExitCode:
    tracing = Tracing.to_endpoint(
        values.otlp_endpoint,
        service=name,
        instance=values.replica,
        cell=values.cell,
        per_million=values.trace_per_million,
    )
    try:
        bus = await _connect(name, values)
        context = ServiceContext(
            name, values, bus=bus, clock=SystemClock(), tracing=tracing, registry=CollectorRegistry()
        )
        with _signals(context):
            return await serve(context, build)
    finally:
        await tracing.close()


async def _connect(name: str, values: CommonSettings) -> Bus:
    from muster.runtime import nats_bus  # late: a service on another bus needs no NATS client

    timeout_s = values.nats_connect_timeout_ms / 1000
    try:
        async with asyncio.timeout(timeout_s):
            return await nats_bus.connect(values.nats_url, name=f"{name}/{values.replica}")
    except TimeoutError as error:
        message = f"no NATS at {values.nats_url} within {timeout_s:g} s (MUSTER_NATS_URL)"
        raise ProcessMustEnd(ExitCode.UNAVAILABLE, message) from error


async def serve(context: ServiceContext[S], build: Build[S]) -> ExitCode:
    """The life of a service on a connected bus, from `build` to the end of the stop. Returns the exit code."""
    collector = Collector()
    collector.loading()
    http = HttpServer(context)
    await http.start(context.settings.metrics_address)
    watches = [
        asyncio.create_task(context.metrics.watch_loop(), name="watch event loop"),
        asyncio.create_task(_watch_bus(context), name="watch NATS"),
    ]
    service = build(context)
    started = False
    try:
        started = await _until_stop(context, service.__aenter__())
        if started:
            await context.rpc.start()
            _announce(context, http.address)
            await _serve_until_stop(context, collector)
    finally:
        context.stop.set()
        collector.stop()
        for task in watches:
            task.cancel()
        await _stop_gracefully(context, service if started else None, http)
    if context.ended is not None:
        log.error("ending", reason=str(context.ended), code=context.ended.code.name)
        return context.ended.code
    return ExitCode.OK


async def _until_stop(context: ServiceContext[S], start: Coroutine[Any, Any, None]) -> bool:
    """Await the service's start; False if the process was asked to stop (or lost NATS) meanwhile."""
    starting = asyncio.ensure_future(start)
    stopping = asyncio.ensure_future(context.stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return False


async def _serve_until_stop(context: ServiceContext[S], collector: Collector) -> None:
    """Let health and the metric follow the readiness until the stop begins."""
    collector.start()  # what the service loaded lives as long as the process (LOG-16)
    shown: list[str] | None = None
    while not context.stop.is_set():
        missing = context.not_ready()
        if missing != shown:
            shown = missing
            await context.rpc.serving(not missing)
            context.metrics.ready.set(0 if missing else 1)
            log.info("ready" if not missing else "not ready", waiting_for=missing)
        collector.idle()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(context.stop.wait(), READINESS_POLL_S)
    context.metrics.ready.set(0)


async def _stop_gracefully(
    context: ServiceContext[S], service: AbstractAsyncContextManager[None] | None, http: HttpServer
) -> None:
    grace_s = context.settings.stop_grace_ms / 1000
    log.info("stopping", grace_s=grace_s)
    try:
        async with asyncio.timeout(grace_s):
            if service is not None:
                await context.rpc.stop(grace_s * DRAIN_SHARE)
            await context.cancel_tasks()
            if service is not None:
                await service.__aexit__(None, None, None)
            await context.bus.close()
            await http.close()
    except TimeoutError:
        log.warning("graceful stop took too long", grace_s=grace_s)
    except Exception:
        log.exception("graceful stop failed")
        context.ended = context.ended or ProcessMustEnd(ExitCode.BUG, "graceful stop failed")


async def _watch_bus(context: ServiceContext[S]) -> None:
    await context.bus.wait_closed()
    context.end(ProcessMustEnd(ExitCode.LOST_CONNECTION, "the connection to NATS is closed for good"))


def _announce(context: ServiceContext[S], metrics_address: str) -> None:
    """Log the bound addresses and, if asked, write them where `muster up` looks for them."""
    facts = {"service": context.name, "replica": context.settings.replica, "pid": os.getpid()}
    facts |= {"grpc": context.rpc.address, "metrics": metrics_address}
    log.info("serving", grpc=context.rpc.address, metrics=metrics_address, pid=os.getpid())
    if context.settings.ready_file:
        path = Path(context.settings.ready_file)
        partial = path.with_suffix(path.suffix + ".part")
        partial.write_text(json.dumps(facts))
        partial.replace(path)  # readers see nothing or the whole


@contextlib.contextmanager
def _signals(context: ServiceContext[S]) -> Any:
    loop = asyncio.get_running_loop()

    def asked(number: int) -> None:
        if context.stop.is_set():
            os._exit(ExitCode.KILLED)
        log.info("signal", signal=signal.Signals(number).name)
        context.stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, asked, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


class HttpServer:
    """/metrics for Prometheus, /healthz (alive) and /readyz (may get work) for probes."""

    def __init__(self, context: ServiceContext[Any]) -> None:
        self._context = context
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        self.address = ""

    async def start(self, address: str) -> None:
        host, port = settings.split_address(address)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            raise ProcessMustEnd(ExitCode.UNAVAILABLE, f"metrics address {address} cannot be bound: {error}") from error
        bound = self._runner.addresses[0][1]
        self.address = f"{host}:{bound}"

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._context.registry), headers={"Content-Type": content_type})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        missing = self._context.not_ready()
        text = "ready\n" if not missing else "waiting for " + ", ".join(missing) + "\n"
        return web.Response(text=text, status=200 if not missing else 503)
