"""HTTP around a simulated cluster, and the loop that runs its timers.

aiohttp's low-level server is used (one handler, no router, no middleware): at hundreds of pods a second the API server
must not be the bottleneck of what it is there to test. Watches are streams of lines that are encoded once and written
in batches: whatever has gathered since the last write goes out in one.

`/sim/...` is the way in for whoever plays fate: faults, audit log, verdict.
"""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from .audit import judge
from .cluster import FaultOrder, SimCluster
from .dispatch import JSON, MAX_BODY_BYTES, WatchReply
from .faults import Outcome
from .routes import Request
from .status import StatusError, bad_request, no_such_path

MAX_CALLS_PER_TURN = 500  # of the timer heap, before requests get their turn
AUDIT_FLUSH_S = 0.5
MAX_AUDIT_PAGE = 50_000


class TimerDriver:
    """Runs a cluster's timers on an asyncio loop."""

    def __init__(self, cluster: SimCluster) -> None:
        self._timers = cluster.timers
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._timers.on_earlier = self._arm
        self._arm()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        due_ms = self._timers.next_due_ms()
        if due_ms is None:
            self._handle = None
            return
        delay_ms = max(0, due_ms - self._timers.now_ms())
        self._handle = self._loop.call_later(delay_ms / 1000, self._run)

    def _run(self) -> None:
        self._timers.on_earlier = None  # arm once at the end, not for every call made meanwhile
        try:
            self._timers.run_due(MAX_CALLS_PER_TURN)
        finally:
            self._timers.on_earlier = self._arm
            self._handle = None
            self._arm()

    def stop(self) -> None:
        self._timers.on_earlier = None
        if self._handle is not None:
            self._handle.cancel()


class ClusterServer:
    """One cluster on one port. `start` binds, `stop` ends watches first and then the listener."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.port = 0
        self.requests = 0
        self._runner: web.ServerRunner | None = None
        self._driver: TimerDriver | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._streams: set[asyncio.Event] = set()
        self._stopping = False

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self._driver = TimerDriver(self.cluster)
        server = web.Server(self._handle, access_log=None, keepalive_timeout=300, max_line_size=1 << 16)
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._flusher = asyncio.create_task(self._flush_audit())

    async def stop(self) -> None:
        self._stopping = True
        self.cluster.cut_watches()
        for wake in self._streams:
            wake.set()
        if self._flusher is not None:
            self._flusher.cancel()
        if self._driver is not None:
            self._driver.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        self.cluster.close()

    async def _flush_audit(self) -> None:
        while True:
            await asyncio.sleep(AUDIT_FLUSH_S)
            self.cluster.audit.flush()

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        try:
            request = await self._read(http)
            if request.path.startswith("/sim/"):
                return await self._control(request)
            return await self._serve(http, request)
        except StatusError as error:
            headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
            return web.Response(status=error.code, body=error.encode(), content_type=JSON, headers=headers)

    async def _read(self, http: web.BaseRequest) -> Request:
        path, query = http.rel_url.path, http.rel_url.raw_query_string
        headers = http.headers
        length = http.content_length
        if length is not None and length > MAX_BODY_BYTES:
            raise StatusError(413, "Request entity too large", reason="RequestEntityTooLarge")
        body = await http.content.read() if http.body_exists else b""
        return Request(
            http.method,
            path,
            dict(parse_qsl(query, keep_blank_values=True)) if query else {},
            body,
            headers.get("Content-Type", "").partition(";")[0].strip(),
            headers.get("Accept", ""),
            headers.get("User-Agent", ""),
        )

    async def _serve(self, http: web.BaseRequest, request: Request) -> web.StreamResponse:
        await self._pause()
        outcome = Outcome.NORMAL
        route = self.cluster.dispatcher.route(request) if self.cluster.faults.faults.rules else None
        if route is not None:
            draw = self.cluster.faults.draw(route.verb, route.resource)
            if draw.delay_ms:
                await asyncio.sleep(draw.delay_ms / 1000)
            if draw.refusal is not None:
                raise draw.refusal
            outcome = draw.outcome
        if outcome is Outcome.DROP:
            return _cut(http)
        reply = self.cluster.handle(request)
        if isinstance(reply, WatchReply):
            return await self._stream(http, reply)
        if outcome is Outcome.REPLY_LOST:
            return _cut(http)
        return web.Response(status=reply.code, body=reply.body, content_type=reply.content_type)

    async def _pause(self) -> None:
        while not self._stopping:
            left_ms = self.cluster.paused_until_ms - self.cluster.timers.now_ms()
            if left_ms <= 0:
                return
            await asyncio.sleep(min(left_ms, 100) / 1000)

    # -- watches -----------------------------------------------------------------------------------------------------

    async def _stream(self, http: web.BaseRequest, reply: WatchReply) -> web.StreamResponse:
        watch = reply.watch
        wake = asyncio.Event()
        watch.wake = wake.set
        self._streams.add(wake)
        response = web.StreamResponse(headers={"Content-Type": JSON})
        response.enable_chunked_encoding()
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + reply.timeout_s if reply.timeout_s else None
        try:
            await response.prepare(http)
            await self._pump(response, reply, wake, ends_at)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client went away
        finally:
            self.cluster.store.unwatch(watch)
            self._streams.discard(wake)
        return response

    async def _pump(
        self, response: web.StreamResponse, reply: WatchReply, wake: asyncio.Event, ends_at: float | None
    ) -> None:
        """Write what gathers until the watch is cut or its time is up; bookmarks while it is quiet and at the end."""
        watch, loop = reply.watch, asyncio.get_running_loop()
        bookmark_s = self.cluster.settings.bookmark_ms / 1000
        bookmark_at = loop.time() + bookmark_s
        while True:
            await self._pause()
            if lines := watch.take():
                wake.clear()
                await response.write(lines)
                continue
            if watch.closed or self._stopping:
                break
            now = loop.time()
            if ends_at is not None and now >= ends_at:
                if reply.bookmarks:
                    await response.write(self.cluster.dispatcher.bookmark(watch))
                break
            if now >= bookmark_at:
                bookmark_at = now + bookmark_s
                if reply.bookmarks:
                    await response.write(self.cluster.dispatcher.bookmark(watch))
                    continue
            wake.clear()
            until = bookmark_at if ends_at is None else min(bookmark_at, ends_at)
            try:
                await asyncio.wait_for(wake.wait(), until - now)
            except TimeoutError:
                pass  # time for a bookmark, or for the end
        await response.write_eof()

    # -- /sim --------------------------------------------------------------------------------------------------------

    async def _control(self, request: Request) -> web.Response:
        cluster = self.cluster
        if request.path == "/sim/faults":
            if request.method == "PUT":
                try:
                    cluster.order(msgspec.json.decode(request.body, type=FaultOrder))
                except msgspec.DecodeError as error:
                    raise bad_request(str(error)) from error
            return _json(cluster.faults.faults)
        if request.path == "/sim/audit":
            since = int(request.query.get("since", "0"))
            limit = min(int(request.query.get("limit", MAX_AUDIT_PAGE)), MAX_AUDIT_PAGE)
            records = cluster.audit.since(since, limit)
            next_seq = records[-1].seq + 1 if records else max(since, cluster.audit.dropped)
            return _json({"records": records, "next": next_seq, "dropped": cluster.audit.dropped})
        if request.path == "/sim/verdict":
            verdict = await asyncio.to_thread(judge, list(cluster.audit.records))
            return _json({"ok": verdict.ok, **msgspec.structs.asdict(verdict)})
        if request.path == "/sim/stats":
            objects = {kind.plural: len(cluster.store.table(kind)) for kind in cluster.api.kinds}
            return _json(
                {
                    "objects": {name: count for name, count in objects.items() if count},
                    "requests": self.requests,
                    "watches": len(cluster.store.watches()),
                    "resource_version": cluster.store.rv,
                    "audit_records": cluster.audit.dropped + len(cluster.audit.records),
                    "timers": len(cluster.timers),
                }
            )
        raise no_such_path()


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type=JSON)


def _cut(http: web.BaseRequest) -> web.Response:
    """End the connection without an answer, as a crashed or partitioned server does."""
    if http.transport is not None:
        http.transport.abort()
    return web.Response(status=500)


async def serve(cluster: SimCluster, port: int = 0) -> ClusterServer:
    """Start serving a cluster on 127.0.0.1; port 0 takes a free one (`.port` tells which)."""
    server = ClusterServer(cluster)
    await server.start(port)
    return server
