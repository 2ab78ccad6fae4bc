"""A process that takes snapshots and ends while it does."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from tests.unit.runtime.cells import SimCell
from tests.unit.runtime.test_follower import Writer, queue

from muster.runtime.follower import Follower
from muster.runtime.lease import Lease
from muster.runtime.snapshotter import Snapshotter
from muster.runtime.streams import inbox_spec, leases_spec
from muster.runtime.trim import Trimmer
from muster.sim.bus import Faults
from muster.sim.loop import SimClock, run

SLOW = Faults(delay_min_s=0.2)


@pytest.mark.parametrize("after_s", [1.2, 1.3, 1.4, 1.5, 1.6, 1.8])
def test_a_snapshot_that_fails_while_the_process_ends_is_no_unread_error(after_s: float) -> None:
    complaints: list[str] = []

    def complain(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        complaints.append(context["message"])

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(complain)
        cell = SimCell(faults=SLOW)
        leader = await Writer.of(cell)
        await leader.decide(queue())
        bus, clock = cell.connect("standby"), SimClock()
        follower = Follower(bus, "main", clock=clock)
        await follower.start()

        async def relayed() -> int | None:
            return 1 << 60

        trimmer = Trimmer(follower.ledger, await bus.stream(inbox_spec("main")), clock=clock, relay_seq=relayed)
        lease = Lease(await bus.stream(leases_spec()), "main.snapshots", "standby", clock=clock)
        running = asyncio.create_task(Snapshotter(follower, lease, trimmer, clock=clock, every_transactions=1).run())
        await asyncio.sleep(after_s)
        cell.nats.crash("standby")
        running.cancel()
        await asyncio.wait((running,))
        if not running.cancelled():
            running.exception()
        await asyncio.gather(follower.stop(), return_exceptions=True)

    run(main())
    gc.collect()
    assert not complaints
