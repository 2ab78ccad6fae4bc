"""LOG-2: a machine whose clock is more than 2 s off JetStream's does not lead."""

from __future__ import annotations

from random import Random

import pytest

from muster.runtime.exit_codes import ExitCode
from muster.runtime.skew import ClockSkewed, check_clock, clock_offset_ms
from muster.runtime.streams import leases_spec
from muster.sim.bus import Faults, SimNats
from muster.sim.loop import SimClock, run


@pytest.mark.parametrize(
    ("offset_ms", "refused"), [(0, False), (1500, False), (-1500, False), (2600, True), (-2600, True), (10**9, True)]
)
def test_the_offset_is_measured_in_both_directions(offset_ms: int, refused: bool) -> None:
    async def main() -> None:
        nats = SimNats(SimClock(), Random(1), Faults(delay_min_s=0.05, delay_max_s=0.2))
        leases = await nats.connect("a").stream(leases_spec())
        clock = SimClock(offset_ms)
        measured_ms = await clock_offset_ms(leases, "qm-1", clock)
        assert abs(measured_ms - offset_ms) <= 400, "within a round trip"
        if refused:
            with pytest.raises(ClockSkewed) as skewed:
                await check_clock(leases, "qm-1", clock)
            assert skewed.value.code is ExitCode.CLOCK_SKEW
        else:
            await check_clock(leases, "qm-1", clock)

    run(main())


def test_a_slow_network_is_no_skew() -> None:
    async def main() -> None:
        nats = SimNats(SimClock(), Random(1), Faults(delay_min_s=1.9, delay_max_s=2.0))
        leases = await nats.connect("a").stream(leases_spec())
        assert await clock_offset_ms(leases, "qm-1", SimClock()) == 0

    run(main())
