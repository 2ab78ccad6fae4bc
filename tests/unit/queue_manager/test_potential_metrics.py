"""What operators see of the potential (rule P1)."""

from prometheus_client import CollectorRegistry
from tests.unit.core.conftest import World
from tests.unit.core.preempting import Around

from muster_queue_manager.potential import PotentialMetrics


def test_the_part_of_the_cell_used_within_entitlements_and_what_is_on_its_way():
    world = World()
    around = Around(world.cell)
    registry = CollectorRegistry()
    registry.register(PotentialMetrics(lambda: world.state))
    world.nodes(2)
    around.entitle(research=(("cpu", 2000),))
    for n in range(8):
        world.submit(f"job-{n}")
    name, cpu = "muster_potential_entitled_use_ratio", {"resource": "cpu", "min_priority": ""}
    assert registry.get_sample_value(name, cpu) == 0.25  # 8 are used, 2 of them within E
    assert registry.get_sample_value(name, {"resource": "pods", "min_priority": ""}) is None
    world.submit("high", cpu=2000, priority=1)
    around.answer()
    assert registry.get_sample_value("muster_preemption_holds") == 1
    assert registry.get_sample_value("muster_jobs_leaving") == 2
    assert registry.get_sample_value(name, cpu) == 0.25, "it was all used before"
    assert registry.get_sample_value(name, cpu | {"min_priority": "1"}) == 0.25, "and now by what matters more"
    assert registry.get_sample_value("muster_potential_placed_replicas") == 7
    around.calm()
    assert registry.get_sample_value("muster_preemption_holds") == 0
    assert registry.get_sample_value("muster_jobs_leaving") == 0
