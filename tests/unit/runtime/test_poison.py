"""LOG-9: deaths are counted at one position, across leaders and a bad network."""

from __future__ import annotations

from random import Random

from muster.core.model import InboxPosition
from muster.runtime.poison import PoisonBook, PoisonRecord
from muster.runtime.streams import leases_spec
from muster.sim.bus import Faults, SimNats
from muster.sim.loop import SimClock, run


def test_deaths_at_one_position_add_up_and_another_position_starts_again() -> None:
    async def main() -> None:
        nats = SimNats(SimClock(), Random(1))
        a, b = [PoisonBook(await nats.connect(c).stream(leases_spec()), "main", SimClock()) for c in "ab"]
        assert await a.read() is None
        here, there = InboxPosition(4, 2), InboxPosition(9, 0)
        await a.add(here, "KeyError")
        assert await b.add(here, "KeyError again") == PoisonRecord(here, 2, "KeyError again")
        assert await a.read() == PoisonRecord(here, 2, "KeyError again")
        assert (await a.add(there, "other")).deaths == 1

    run(main())


def test_a_death_is_written_down_however_long_it_takes() -> None:
    async def main() -> None:
        nats = SimNats(SimClock(), Random(2), Faults(request_lost_chance=0.7))
        book = PoisonBook(await nats.connect("a").stream(leases_spec()), "main", SimClock())
        await book.add(InboxPosition(1, 0), "x")
        record = await book.read()
        assert record is not None
        assert record.deaths == 1

    run(main())
