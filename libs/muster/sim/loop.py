"""An asyncio event loop whose time is virtual: the shell's code runs unchanged, in microseconds and deterministically.

Nothing here waits. When no callback is ready the loop jumps to the next timer; when there is no timer either, nothing
can ever happen again and `Deadlock` says so. Callbacks run in the order they became ready, timers by their time, so
the same program and the same seed give the same run. There are no sockets, threads, signals or subprocesses.

`SimClock` is the wall clock of one node on that loop; nodes may have offsets, as real ones do (LOG-2).
"""

from __future__ import annotations

import asyncio
import math
from asyncio import base_events
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Final, TypeVar

EPOCH_MS: Final = 1_750_000_000_000  # where simulated wall clocks start
T = TypeVar("T")


class Deadlock(Exception):
    """No callback is ready and no timer is set, but the main task has not ended."""


class _JumpingSelector:
    """In place of the selector the base loop polls: instead of waiting for `timeout`, time moves on by it."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[tuple[Any, int]]:
        if timeout is None:
            raise Deadlock(f"nothing is left to happen at {self._loop.time():.3f} s of virtual time")
        if timeout > 0:
            self._loop.jump()
        return []

    def close(self) -> None:
        pass


class VirtualTimeLoop(base_events.BaseEventLoop):
    """See the module. Use `run`, or `asyncio.Runner(loop_factory=VirtualTimeLoop)`."""

    _scheduled: list[asyncio.TimerHandle]  # the base loop's heap

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._selector = _JumpingSelector(self)
        self.set_debug(False)  # debug mode reads the real clock

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._now_s

    @property
    def _clock_resolution(self) -> float:
        """The base loop runs timers that are due within it. A timer must not run before its time: who then looks at the
        clock, sees that it is too early and sleeps for the rest, would do so for ever, because no time passes here."""
        return math.ulp(self._now_s)

    @_clock_resolution.setter
    def _clock_resolution(self, real: float) -> None:
        pass  # the real clock's

    def jump(self) -> None:
        """Go to the next timer's time, exactly: adding up differences would lose bits."""
        self._now_s = max(self._now_s, self._scheduled[0].when())

    def call_soon_threadsafe(  # type: ignore[override]  # the same, for callers that stay in this thread
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """There is only this thread."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]  # as above
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[..., T],
        *args: Any,
    ) -> asyncio.Future[T]:
        """At once, in this thread: a thread's timing would not be deterministic."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in virtual time. Raises Deadlock when it waits for something that nothing can bring."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


class SimClock:
    """A node's `Clock` on the running loop. `offset_ms` may be changed at any time."""

    def __init__(self, offset_ms: int = 0) -> None:
        self.offset_ms = offset_ms

    def now_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + int(asyncio.get_running_loop().time() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@contextmanager
def skewed(clock: SimClock, offset_ms: int) -> Generator[None, None, None]:
    """The clock is off by `offset_ms` inside the block."""
    before, clock.offset_ms = clock.offset_ms, offset_ms
    try:
        yield
    finally:
        clock.offset_ms = before
