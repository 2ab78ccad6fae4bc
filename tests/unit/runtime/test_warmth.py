"""Nobody's question is the first: what is derived from a follower's state is made, and followed, beside other work."""

from __future__ import annotations

import asyncio

from tests.unit.runtime.cells import SimCell, cancel, job, nodes, queue
from tests.unit.runtime.test_follower import Writer

from muster.core.victim_table import VictimTable
from muster.runtime.warmth import EVERY_S, Warmth
from muster.sim.loop import SimClock, run


def read(state) -> int:
    """Jobs in the table that questions look at, as it is without catching up."""
    table = state.potential.derived
    return len(table.jobs) if isinstance(table, VictimTable) else 0


def test_it_is_there_before_the_first_question_and_follows() -> None:
    async def scenario() -> None:
        cell = SimCell()
        writer = await Writer.of(cell)
        await writer.decide(queue(), nodes(3))
        await writer.decide(*[job(n) for n in range(5)])
        follower = await cell.follower()
        assert read(follower.state) == 0
        warmth = Warmth(follower, SimClock())
        await warmth.get_ready()
        assert read(follower.state) == 5
        keeping = asyncio.create_task(warmth.keep())
        await writer.decide(*[job(n) for n in range(5, 9)])
        await follower.catch_up()
        assert read(follower.state) == 5
        await asyncio.sleep(2 * EVERY_S)
        assert read(follower.state) == 9
        before = follower.state.potential.derived
        await asyncio.sleep(3 * EVERY_S)  # nothing happens: nothing is done
        assert follower.state.potential.derived is before
        await cancel(keeping)
        await follower.stop()

    run(scenario())


def test_an_empty_cell_is_ready_at_once() -> None:
    async def scenario() -> None:
        cell = SimCell()
        await Writer.of(cell)
        follower = await cell.follower()
        await Warmth(follower, SimClock()).get_ready()
        assert follower.ready
        await follower.stop()

    run(scenario())
