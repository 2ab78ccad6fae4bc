"""`muster replay`: one trace against one cell; also the part of `muster up --replay` after everything runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.cli import rundir, sample, show, summary, timescale, traces
from muster.cli.errors import CliError, Exit
from muster.cli.options import Format
from muster.cli.progress import ReplayView
from muster.cli.replayer import GPU, Outcome, Replayer
from muster.cli.session import run
from muster.client import Client

RUN_ID_BYTES: Final = 3


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What to replay and how. `factor` 0: chosen so that it takes about `target_s`."""

    trace: str
    target_s: float
    limit: int = 0
    factor: float = 0.0
    root: str = ""


def replay(
    trace: str,
    *,
    target_s: float,
    limit: int,
    factor: float,
    root: str,
    dry_run: bool,
    address: str,
    output: Format,
) -> int:
    """Replay a trace; returns the exit code."""
    wish = Wish(trace=trace, target_s=target_s, limit=limit, factor=factor, root=root)
    loaded = load(wish)
    machine = show.is_machine(output)
    say: Callable[[str], None] = (lambda _: None) if machine else (lambda text: print(f" {text}", flush=True))
    if dry_run:
        describe(loaded, scale(loaded, wish, timescale.Capacity()), lambda text: print(f" {text}"))
        return Exit.OK

    async def work(client: Client) -> int:
        outcome = await play(client, loaded, wish, say, quiet=machine)
        seen = await look_at_audit(rundir.last_up().get("clusters") or {}, outcome)
        if machine:
            show.emit(output, summary.data(outcome, seen))
        else:
            print("\n".join(f" {line}" for line in summary.lines(outcome, seen)))
        return summary.exit_code(outcome, seen)

    return run(address, work, timeout_s=120.0)


def load(wish: Wish) -> traces.Trace:
    """The trace that is wished for. Raises CliError."""
    if wish.trace == "sample":
        generated = sample.generate()
        generated.jobs = generated.jobs[: wish.limit or None]
        return generated
    try:
        return traces.read(Path(wish.trace).expanduser(), limit=wish.limit)
    except traces.TraceError as error:
        raise CliError(str(error), Exit.USAGE) from None


def scale(trace: traces.Trace, wish: Wish, capacity: timescale.Capacity) -> timescale.Squeezed:
    """The sample is in replay seconds already; a trace is squeezed into the target."""
    if wish.trace == "sample" and not wish.factor:
        return timescale.squeeze(trace.jobs, target_s=wish.target_s, capacity=capacity, factor=1.0)
    return timescale.squeeze(trace.jobs, target_s=wish.target_s, capacity=capacity, factor=wish.factor)


def describe(trace: traces.Trace, squeezed: timescale.Squeezed, say: Callable[[str], None]) -> None:
    """Say what is replayed and what was done to it."""
    pods = sum(job.pods for job in squeezed.jobs)
    gpus = sum(job.gpu_millis for job in squeezed.jobs) / 1000
    say(f"{trace.name} ({trace.format}): {len(squeezed.jobs):,} jobs, {pods:,} pods, {gpus:,.0f} GPUs asked for in all")
    for why, count in trace.skipped.items():
        say(f"{count:,} rows {why} are left out")
    if trace.assumed:
        say(f"assumed: {'; '.join(trace.assumed)}")
    for line in squeezed.describe():
        say(line)


async def play(
    client: Client,
    trace: traces.Trace,
    wish: Wish,
    say: Callable[[str], None],
    *,
    quiet: bool = False,
    view: ReplayView | None = None,
) -> Outcome:
    """Replay `trace` through `client` and return when it has ended. With `view` the caller owns the display."""
    capacity = await capacity_of(client)
    squeezed = scale(trace, wish, capacity)
    describe(trace, squeezed, say)
    run_id = f"r{os.urandom(RUN_ID_BYTES).hex()}"
    root = wish.root or trace.name
    say(f"queues below {root}, job names begin with {run_id}-")
    replayer = Replayer(client, trace, squeezed, root=root, run_id=run_id)
    if quiet:
        return await replayer.run(lambda _: None)
    own = view or ReplayView(capacity.gpu_millis)
    with contextlib.nullcontext(own) if view else own:
        return await replayer.run(own.show)


async def capacity_of(client: Client) -> timescale.Capacity:
    cell = await client.cell()

    def amount(resource: str) -> int:
        return show.amount_of(resource, cell.capacity[resource]) if resource in cell.capacity else 0

    return timescale.Capacity(gpu_millis=amount(GPU), cpu_millis=amount("cpu"))


async def look_at_audit(clusters: dict[str, str], outcome: Outcome) -> summary.Witness:
    """Ask the simulated clusters of the last `muster up`; no answer means nobody to ask."""
    if not clusters:
        return summary.Witness()
    try:
        records = await asyncio.to_thread(summary.fetch, clusters)
    except (OSError, ValueError):
        return summary.Witness()
    return summary.witness(records, {t.id: t.job.pods for t in outcome.jobs if t.id})
