"""`muster up`: a whole cell on this machine, from nothing to a running workload, and back to nothing.

    lay out > NATS > clusters and services > ready > queues > addresses > [replay > summary] > wait > stop in order

SIGINT and SIGTERM stop everything in order; a second one ends at once, and the kernel then kills the children. The run
directory keeps logs, the NATS store and the audit logs; a temporary one is removed after a clean end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster.cli import queues, replay, rundir, show, stack, summary
from muster.cli.errors import CliError, Exit, from_client
from muster.cli.progress import ReplayView
from muster.cli.replay import Wish
from muster.cli.replayer import GPU, Outcome
from muster.cli.supervisor import ChildEvent, Supervisor, cpu_seconds, peak_rss_bytes
from muster.client import Client, ClientError, connect

READY_TIMEOUT_S: Final = 60.0
SYNC_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.1
CALL_TIMEOUT_S: Final = 120.0  # a replay outlives restarts of everything
SERVICES: Final = 6
OPENB: Final = "openb"
OPENB_NODE_LIST: Final = "openb_node_list_gpu_node.csv"
QUEUES: Final = ("default", "research", "research/vision", "research/nlp")  # what docs/examples submit to
QUIET_KINDS: Final = frozenset({"started", "stopped"})  # of supervision events


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line."""

    replay: str
    oneshot: bool
    nodes: str
    clusters: int
    sockets: int
    queue_managers: int
    binders: int
    directory: str
    port: int
    target_s: float
    limit: int
    factor: float

    @property
    def wish(self) -> Wish:
        return Wish(trace=self.replay, target_s=self.target_s, limit=self.limit, factor=self.factor)


def up(options: Options) -> int:
    """Run until stopped; returns the exit code."""
    if options.oneshot and not options.replay:
        raise CliError("--oneshot needs --replay", Exit.USAGE, "for example `muster up --replay sample --oneshot`")
    if options.replay:
        replay.load(options.wish)  # a wrong path is told before anything starts
    kept = bool(options.directory)
    run_dir = Path(options.directory).expanduser().resolve() if kept else Path(tempfile.mkdtemp(prefix="muster-"))
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        code = asyncio.run(Up(options, run_dir).run())
    except BaseException:
        print(f" the run directory is kept: {run_dir}", file=sys.stderr)
        raise
    if kept or code != Exit.OK:
        print(f" the run directory is kept: {run_dir}")
    else:
        shutil.rmtree(run_dir, ignore_errors=True)
    return code


def nodes_for(trace: str) -> str:
    """The nodes a trace was recorded on, when their list lies beside it; else generated ones of the same mix."""
    listed = Path(trace).expanduser().parent / OPENB_NODE_LIST
    return f"{OPENB}-csv:{listed}" if trace and listed.is_file() else OPENB


class Up:
    """One life of a cell on this machine."""

    def __init__(self, options: Options, run_dir: Path) -> None:
        self._options = options
        self._run_dir = run_dir
        self._stop = asyncio.Event()
        self._view: ReplayView | None = None
        self._started = False

    async def run(self) -> int:
        """From start to stop. Raises CliError when something does not come up."""
        o = self._options
        size = stack.Size(
            nodes=o.nodes or nodes_for(o.replay),
            clusters=o.clusters,
            sockets=o.sockets,
            queue_managers=o.queue_managers,
            binders=o.binders,
            grpc_port=o.port,
        )
        plan = stack.plan(self._run_dir, size)
        supervisor = Supervisor(self._run_dir, self._supervised)
        code: int = Exit.OK
        with self._signals():
            try:
                code = await self._until_stopped(self._live(supervisor, plan))
            finally:
                self._say("stopping ...")
                rundir.clear()
                await supervisor.stop()
        return code

    async def _until_stopped(self, life: Coroutine[Any, Any, int]) -> int:
        """The life of the cell, cut short by a signal."""
        living = asyncio.create_task(life, name="live")
        stopping = asyncio.create_task(self._stop.wait(), name="wait for a signal")
        await asyncio.wait({living, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if living.done():
            return living.result()
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        unfinished = self._options.oneshot or not self._started
        return Exit.INTERRUPTED if unfinished else Exit.OK

    async def _live(self, supervisor: Supervisor, plan: stack.Stack) -> int:
        began = time.monotonic()
        await self._start(supervisor, plan)
        async with connect(plan.grpc, timeout_s=CALL_TIMEOUT_S) as client:
            try:
                await self._introduce(client, plan, time.monotonic() - began)
                code = await self._replay(client, supervisor, plan) if self._options.replay else Exit.OK
            except ClientError as error:
                raise from_client(error, plan.grpc) from None
        self._started = True
        if not self._options.oneshot:
            self._tell_addresses(plan)
            await self._stop.wait()
            code = Exit.OK
        return code

    async def _start(self, supervisor: Supervisor, plan: stack.Stack) -> None:
        self._say(f"run directory {self._run_dir} (logs in {self._run_dir / 'logs'})")
        nats = await supervisor.start(plan.nats)
        await supervisor.wait_ready(nats, READY_TIMEOUT_S)
        children = [await supervisor.start(spec) for spec in (*plan.clusters, *plan.services)]
        await asyncio.gather(*(supervisor.wait_ready(child, READY_TIMEOUT_S) for child in children))
        facts = {
            "grpc": plan.grpc,
            "nats_url": plan.nats_url,
            "clusters": dict(plan.cluster_urls),
            "metrics": dict(plan.metrics),
            "pids": {name: child.pid for name, child in supervisor.children.items()},
        }
        rundir.write(self._run_dir, facts, plan.env)

    async def _introduce(self, client: Client, plan: stack.Stack, took_s: float) -> None:
        """Wait until the cell knows its clusters, make the first queues, and say what runs."""
        cell = await client.cell()
        deadline = time.monotonic() + SYNC_TIMEOUT_S
        while len([c for c in cell.clusters if c.synced]) < len(plan.cluster_urls) or not cell.leader:
            if time.monotonic() > deadline:
                known = ", ".join(f"{c.name} {c.nodes} nodes" for c in cell.clusters) or "none"
                raise CliError(
                    f"the clusters were not listed within {SYNC_TIMEOUT_S:.0f} s (known: {known})",
                    Exit.UNAVAILABLE,
                    f"see {self._run_dir}/logs/topology-1.log and qm-1.log",
                )
            await asyncio.sleep(POLL_S)
            cell = await client.cell()
        for path in QUEUES:
            await queues.ensure(client, path)
        version = stack.nats_version()
        replicas = f"{self._options.queue_managers} queue-managers (leader: {cell.leader})"
        self._say(
            f"ready in {took_s:.0f} s   nats-server {version} on {plan.nats_url.removeprefix('nats://')}   "
            f"{SERVICES} services, {replicas}"
        )
        nodes_text = self._options.nodes or nodes_for(self._options.replay)
        nodes_text = "OpenB-shaped" if nodes_text == OPENB else nodes_text
        for cluster in cell.clusters:
            gpus = show.amount_of(GPU, cluster.capacity[GPU]) // 1000 if GPU in cluster.capacity else 0
            self._say(f"cluster {cluster.name}: {cluster.nodes:,} nodes, {gpus:,} GPUs ({nodes_text})")

    async def _replay(self, client: Client, supervisor: Supervisor, plan: stack.Stack) -> int:
        trace = await asyncio.to_thread(replay.load, self._options.wish)
        capacity = await replay.capacity_of(client)
        with ReplayView(capacity.gpu_millis) as view:
            self._view = view
            try:
                outcome = await replay.play(client, trace, self._options.wish, self._say, view=view)
            finally:
                self._view = None
        return await self._sum_up(outcome, supervisor, plan)

    async def _sum_up(self, outcome: Outcome, supervisor: Supervisor, plan: stack.Stack) -> int:
        seen = await replay.look_at_audit(dict(plan.cluster_urls), outcome)
        processes = []
        for child in supervisor.children.values():
            child.sample()
            processes.append(summary.Process(child.spec.name, child.peak_rss_bytes, child.cpu_s, child.restarts))
        own = os.getpid()
        processes.append(summary.Process("muster up", peak_rss_bytes(own), cpu_seconds(own), 0))
        print()
        print("\n".join(f" {line}" for line in summary.lines(outcome, seen, processes)), flush=True)
        print()
        return summary.exit_code(outcome, seen)

    def _tell_addresses(self, plan: stack.Stack) -> None:
        self._say(f"gRPC {plan.grpc}   NATS {plan.nats_url}   events: muster events --follow")
        for url in plan.cluster_urls.values():
            self._say(f"kubectl --server {url} get pods,nodes")
        for name, at in plan.metrics.items():
            self._say(f"metrics http://{at}/metrics   {name}")
        traces = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        self._say(f"traces {'to ' + traces if traces else 'off: set OTEL_EXPORTER_OTLP_ENDPOINT'}")
        self._say(f"environment for other shells: source {self._run_dir / 'env'}")
        self._say("running: try  muster submit -f docs/examples/gang.yaml   (Ctrl-C stops everything)")

    def _supervised(self, event: ChildEvent) -> None:
        if event.kind not in QUIET_KINDS:
            self._say(event.text)

    def _say(self, text: str) -> None:
        if self._view is not None:
            self._view.say(text)
        else:
            print(f" {text}", flush=True)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def asked() -> None:
            if self._stop.is_set():
                os._exit(Exit.INTERRUPTED)  # the kernel kills the children
            self._stop.set()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, asked)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
