"""LOG-11: how old the oldest request id is that is still remembered."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from tests.unit.core.conftest import World

from muster.core import commands as c
from muster.core.limits import FINISHED_TTL_MS
from muster.runtime.tracing import Tracing
from muster_queue_manager.metrics import Watch


def test_the_age_of_the_oldest_request_id_is_told(monkeypatch):
    monkeypatch.setattr("muster.core.housekeeping.REQUEST_IDS_MAX", 1)
    world = World()
    registry = CollectorRegistry()
    Watch(registry, Tracing.off(), world.state)

    def told():
        names = ("muster_queue_manager_request_ids", "muster_queue_manager_request_ids_oldest_age_seconds")
        return tuple(registry.get_sample_value(name) for name in names)

    assert told() == (0, 0)
    world.submit("a")
    world.cell.send(c.CancelJob(world.id("a")))
    world.cell.wait(FINISHED_TTL_MS)
    world.cell.now_ms += 90_000
    world.submit("b")
    assert told() == (1, 90)
    world.cell.send(c.CancelJob(world.id("b")))
    world.cell.wait(FINISHED_TTL_MS)
    assert told() == (1, 0), "there are too many, so the oldest is gone"
