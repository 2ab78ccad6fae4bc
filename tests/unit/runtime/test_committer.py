"""LOG-4: identical bytes until the outcome is known, and only the expected sequence counts."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from muster.runtime.committer import Committer, Deposed
from muster.runtime.exit_codes import ExitCode
from muster.runtime.ports import Conflict, StreamSpec
from muster.runtime.streams import ledger_spec
from muster.sim.bus import Faults, SimNats
from muster.sim.loop import SimClock, run


def test_every_transaction_is_stored_once_over_a_bad_network() -> None:
    async def main(seed: int) -> int:
        faults = Faults(
            delay_max_s=0.05, request_lost_chance=0.2, answer_lost_chance=0.2, stall_chance=0.02, stall_s=5.0
        )
        nats = SimNats(SimClock(), Random(seed), faults)
        stream = await nats.connect("a").stream(ledger_spec("main"))
        committer = Committer(stream, 0, SimClock())
        for i in range(1, 30):
            assert await committer.commit(b"tx %d" % i) == i
        assert [m.data for m in nats.streams["LEDGER_main"].messages.values()] == [b"tx %d" % i for i in range(1, 30)]
        return committer.resends

    assert sum(run(main(seed)) for seed in range(5)) > 10


def test_another_writer_deposes() -> None:
    async def main() -> None:
        nats = SimNats(SimClock(), Random(1))
        stream = await nats.connect("a").stream(ledger_spec("main"))
        old, new = Committer(stream, 0, SimClock()), Committer(stream, 0, SimClock())
        await new.commit(b"LeaderElected 2")
        with pytest.raises(Deposed) as deposed:
            await old.commit(b"a placement by the old leader")
        assert deposed.value.code is ExitCode.DEPOSED
        assert (await stream.info()).last_seq == 1

    run(main())


def test_a_foreign_write_during_an_unknown_outcome_deposes() -> None:
    """The first try was lost, another leader wrote in its place: sending again must not slip in behind it."""

    async def main() -> None:
        nats = SimNats(SimClock(), Random(1))
        mine = Committer(await nats.connect("a").stream(ledger_spec("main")), 0, SimClock())
        other = Committer(await nats.connect("b").stream(ledger_spec("main")), 0, SimClock())
        nats.faults.request_lost_chance = 1.0
        committing = asyncio.create_task(mine.commit(b"mine"))
        await asyncio.sleep(1.0)
        nats.faults.request_lost_chance = 0.0
        await other.commit(b"theirs")
        with pytest.raises(Deposed):
            await committing
        assert [m.data for m in nats.streams["LEDGER_main"].messages.values()] == [b"theirs"]

    run(main())


def test_an_acknowledged_sequence_that_was_not_expected_does_not_count() -> None:
    """A stream that does not honour the expectation (it was recreated, say) is not the ledger this leader knows."""

    class Careless:
        name = "LEDGER_main"

        async def publish(self, data: bytes, **_: object) -> int:
            return 7

    async def main() -> None:
        with pytest.raises(Deposed):
            await Committer(Careless(), 3, SimClock()).commit(b"x")  # type: ignore[arg-type]

    run(main())


def test_a_conflict_with_a_write_that_came_to_nothing_is_tried_again() -> None:
    """nats-server answers 10164 while another write with the same expectation is on its way, also one's own."""

    async def main() -> None:
        nats = SimNats(SimClock(), Random(1))
        stream = await nats.connect("a").stream(ledger_spec("main"))
        answers = [Conflict("expected last sequence constraint failed"), Conflict("expected last sequence")]

        class Busy:
            name, get, info = stream.name, stream.get, stream.info

            async def publish(self, data: bytes, **more: Any) -> int:
                if answers:
                    raise answers.pop()
                return await stream.publish(data, **more)

        committer = Committer(Busy(), 0, SimClock())  # type: ignore[arg-type]
        assert await committer.commit(b"mine") == 1
        assert committer.resends == 2
        assert [m.data for m in nats.streams["LEDGER_main"].messages.values()] == [b"mine"]

    run(main())


def test_a_full_ledger_is_waited_out() -> None:
    """I9: when there is no room the cell stands still and goes on later; it neither ends nor skips."""

    async def main() -> None:
        nats = SimNats(SimClock(), Random(1))
        stream = await nats.connect("a").stream(StreamSpec("LEDGER_main", ("muster.ledger.main",), max_messages=2))
        committer = Committer(stream, 0, SimClock())
        await committer.commit(b"1")
        await committer.commit(b"2")
        third = asyncio.create_task(committer.commit(b"3"))
        await asyncio.sleep(30)
        assert not third.done()
        await stream.purge_below(2)
        assert await third == 3

    run(main())
