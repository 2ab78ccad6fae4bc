"""Where the CPU time goes: a sampling profiler for this process and for services that a bench starts.

A timer that runs with the process's CPU time interrupts it every few milliseconds and notes the Python functions on
the stack, so what is not measured is hardly slowed down. Native code counts for the Python function that called it;
CPU time of native threads (gRPC) shows as "(other threads)".

    python -m loadtest.profiling REPORT MODULE      run a module like `python -m MODULE` and write a report at its end
"""

from __future__ import annotations

import runpy
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

EVERY_S: Final = 0.003
TOP: Final = 30
WHOLE_SHARE: Final = 0.9  # what is on nearly every stack is left out
OWN_THREAD_SHARE: Final = 0.3  # of the time between two samples: below this others worked
PATHS_SHOWN: Final = 3


class Sampler:
    """Between `start` and `stop` in the main thread."""

    def __init__(self) -> None:
        self.own: Counter[str] = Counter()  # the function that ran
        self.within: Counter[str] = Counter()  # the functions on the stack
        self.samples = 0
        self._thread_s = 0.0

    def start(self) -> None:
        self._thread_s = time.thread_time()
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)  # one may still be on its way

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        self.samples += 1
        now_s = time.thread_time()
        spent_s, self._thread_s = now_s - self._thread_s, now_s
        if spent_s < OWN_THREAD_SHARE * EVERY_S or frame is None:
            self.own["(other threads)"] += 1
            return
        self.own[_name(frame)] += 1
        seen: dict[str, None] = {}
        at: FrameType | None = frame
        while at is not None:
            seen[_name(at)] = None
            at = at.f_back
        self.within.update(seen.keys())

    def report(self) -> str:
        """The functions that ran most, and those under which most ran."""
        total = max(1, self.samples)
        lines = [f"{self.samples} samples, {self.samples * EVERY_S:.1f} s of CPU time"]
        below = Counter({name: n for name, n in self.within.items() if n < WHOLE_SHARE * total and _ours(name)})
        for title, counts in (("in it", self.own), ("in it and below", below)):
            lines.append(f"  {title}:")
            lines += [f"    {100 * n / total:5.1f} %  {name}" for name, n in counts.most_common(TOP)]
        return "\n".join(lines)


def _ours(name: str) -> bool:
    """Whether it says anything to find a name on the stack: the interpreter's and the loop's own are always there."""
    return not any(part in name for part in ("<frozen", "asyncio/", "uvloop/", "<module>"))


def _name(frame: FrameType) -> str:
    code = frame.f_code
    path = "/".join(code.co_filename.split("/")[-PATHS_SHOWN:])
    return f"{code.co_qualname} ({path}:{code.co_firstlineno})"


@contextmanager
def profiled(title: str, *, on: bool) -> Iterator[None]:
    """Profile the block and print the report."""
    if not on:
        yield
        return
    sampler = Sampler()
    sampler.start()
    try:
        yield
    finally:
        sampler.stop()
        print(f"\n{title}: {sampler.report()}")


def main() -> None:
    report, module = sys.argv[1:3]
    sys.argv = sys.argv[2:]
    sampler = Sampler()
    sampler.start()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sampler.stop()
        Path(report).write_text(sampler.report())


if __name__ == "__main__":
    main()
