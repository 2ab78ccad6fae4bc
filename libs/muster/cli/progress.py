"""What people see while a replay runs: two live lines on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Final

from muster.cli import show
from muster.cli.replayer import Snapshot

LIVE_EVERY_S: Final = 0.25
PLAIN_EVERY_S: Final = 5.0
BAR_CELLS: Final = 32


class ReplayView:
    """Shows snapshots; also prints lines of others (supervision) without breaking the live part."""

    def __init__(self, gpu_capacity_millis: int) -> None:
        self._capacity = gpu_capacity_millis
        self._live: Any = None
        self._shown_at = float("-inf")

    def __enter__(self) -> ReplayView:
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, snapshot: Snapshot) -> None:
        """Show `snapshot` if it is time for it."""
        now = time.monotonic()
        if now - self._shown_at < (LIVE_EVERY_S if self._live else PLAIN_EVERY_S):
            return
        self._shown_at = now
        if self._live is not None:
            from rich.text import Text

            text = f"{counts_line(snapshot, self._capacity)}\n{bar_line(snapshot)}"
            self._live.update(Text(text, no_wrap=True, overflow="crop"))
        else:
            print(plain_line(snapshot, self._capacity), flush=True)

    def say(self, text: str) -> None:
        """A line above the live part."""
        if self._live is not None:
            self._live.console.print(f" {text}", markup=False, highlight=False)
        else:
            print(f" {text}", flush=True)


def counts_line(s: Snapshot, capacity_millis: int) -> str:
    """Where the jobs are, how full the GPUs are, how long jobs waited."""
    return (
        f" queued {s.queued:>6,} | starting {s.starting:>5,} | running {s.running:>6,} | done {s.done:>6,}"
        f"    {gpus(s.gpu_millis, capacity_millis)}   {waits(s)}"
    )


def bar_line(s: Snapshot) -> str:
    full = round(s.share_done * BAR_CELLS)
    refused = f"   {s.refused:,} refused" if s.refused else ""
    return f" {'█' * full}{'░' * (BAR_CELLS - full)}  {s.share_done:4.0%}   eta {show.countdown(s.eta_s)}{refused}"


def plain_line(s: Snapshot, capacity_millis: int) -> str:
    return (
        f" {show.countdown(s.elapsed_s):>5}  {s.share_done:4.0%}  queued {s.queued:,} | starting {s.starting:,} | "
        f"running {s.running:,} | done {s.done:,} of {s.total:,}   {gpus(s.gpu_millis, capacity_millis)}   "
        f"{waits(s)}   eta {show.countdown(s.eta_s)}"
    )


def gpus(used_millis: int, capacity_millis: int) -> str:
    if not capacity_millis:
        return f"GPUs {used_millis / 1000:,.0f}"
    share = used_millis / capacity_millis
    return f"GPUs {used_millis / 1000:,.0f} / {capacity_millis / 1000:,.0f} ({share:.0%})"


def waits(s: Snapshot) -> str:
    return f"wait p50 {show.duration(s.wait_p50_s)}  p99 {show.duration(s.wait_p99_s)}"
