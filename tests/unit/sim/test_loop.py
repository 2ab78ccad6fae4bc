"""Virtual time: no waiting, exact jumps, a fixed order, and deadlocks that show."""

from __future__ import annotations

import asyncio
import time

import pytest

from muster.sim.loop import EPOCH_MS, Deadlock, SimClock, run


def test_a_day_passes_at_once_and_exactly() -> None:
    async def main() -> tuple[float, int]:
        await asyncio.sleep(86_400.25)
        return asyncio.get_running_loop().time(), SimClock(offset_ms=7).now_ms()

    began_s = time.monotonic()
    assert run(main()) == (86_400.25, EPOCH_MS + 86_400_257)
    assert time.monotonic() - began_s < 1.0


def test_timers_fire_in_order_and_the_run_repeats() -> None:
    async def main() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def node(name: str, step_s: float) -> None:
            for _ in range(3):
                await asyncio.sleep(step_s)
                seen.append((name, round(asyncio.get_running_loop().time(), 3)))

        await asyncio.gather(node("a", 0.2), node("b", 0.3), node("c", 0.2))
        return seen

    first = run(main())
    assert first == run(main())
    assert [at for _, at in first] == sorted(at for _, at in first)


def test_timeouts_work_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.sleep(60)
        return asyncio.get_running_loop().time()

    assert run(main()) == 30.0


def test_whoever_sleeps_until_a_time_gets_there() -> None:
    """Timers that are less than a real clock's resolution away do not run before their time, however busy the loop is:
    whoever finds that it is too early sleeps again, and no time would pass."""

    async def main() -> int:
        clock, looks = SimClock(), 0
        until_s = 8.5 + 5e-10

        async def sleeper(number: int) -> None:
            nonlocal looks
            for _ in range(number):
                await asyncio.sleep(0)
            while (left_s := until_s - clock.monotonic()) > 0:
                looks += 1
                assert looks < 100, "time stands still"
                await clock.sleep(left_s)
                for _ in range(3):
                    await asyncio.sleep(0)

        await asyncio.sleep(8.5)
        await asyncio.gather(*(sleeper(number) for number in range(4)))
        return looks

    assert run(main()) == 4


def test_waiting_for_what_nothing_can_bring_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        run(main())


def test_threads_are_not_threads() -> None:
    async def main() -> int:
        return await asyncio.to_thread(lambda: 42)

    assert run(main()) == 42
