"""What-if: the production core asked about something that is not so, and nothing is changed."""

from __future__ import annotations

import pytest

from muster.core import commands as c
from muster.core import snapshot
from muster.core.demand import demand, startable
from muster.core.errors import Rejected
from muster.core.model import QueueSpec
from muster.core.promises import overpromised
from muster.core.queue_changes import plan
from muster.core.standing import standings
from muster.core.whatif import forecast_job, forecast_queues
from muster.wire import codec


def spec(**more):
    return QueueSpec("", "", "", **more)


def ask(world, name, **more):
    before = [codec.encode_snapshot_part(part) for part in snapshot.dump(world.state)]
    try:
        return forecast_job(world.state, world.spec(name, **more), world.cell.now_ms)
    finally:
        assert [codec.encode_snapshot_part(part) for part in snapshot.dump(world.state)] == before


def test_a_job_that_would_start_says_where_and_then_does_so(world):
    world.nodes(2)
    told = ask(world, "a", cpu=3000, replicas=2)
    assert told.starts_now
    assert told.summary == "would start now on 2 nodes of sim-a; displaces nothing"
    world.submit("a", cpu=3000, replicas=2)
    nodes = {world.state.nodes.spec(n).name for group in world.job("a").placement for n, _ in group.runs}
    assert {place.node for place in told.placement} == nodes
    assert sum(place.pods for place in told.placement) == 2


def test_a_job_that_would_wait_is_explained(world):
    world.nodes(1)
    world.submit("first", cpu=3000)
    world.submit("second", cpu=3000)
    told = ask(world, "third", cpu=3000)
    assert not told.starts_now
    assert told.explanation is not None
    assert (told.explanation.position, told.explanation.pending) == (2, 2)
    assert told.explanation.blockers[0].kind == "capacity"
    assert told.displaces == ()


def test_whom_it_would_displace(world):
    world.nodes(1)
    world.submit("low", cpu=4000)
    world.pods("low", 2)
    world.cell.wait(3_600_000)
    world.cell.send(c.CancelJob("x" * 32))
    told = ask(world, "high", cpu=4000, priority=5)
    assert not told.starts_now
    (victim,) = told.displaces
    assert (victim.name, victim.queue, victim.replicas) == ("low", "research", 0)
    assert dict(victim.lost)["cpu"] == 4000 * 3_600_000
    assert [place.node for place in told.placement] == ["node-0"]
    assert told.summary == "would start on node-0 (sim-a) once 1 running job has made room"


def test_a_quiet_cell_answers_as_of_now(world):
    """Nothing is written while the time of protection and the work that would be lost go on (rules P3, P4)."""
    world.nodes(1)
    world.queue("research", min_runtime_ms=40_000)
    world.submit("low", cpu=4000)
    world.pods("low", 2)
    told = ask(world, "high", cpu=4000, priority=5)
    assert told.displaces == ()
    assert "would not preempt" in told.summary
    world.cell.now_ms += 50_000
    (victim,) = ask(world, "high", cpu=4000, priority=5).displaces
    assert (victim.name, dict(victim.lost)["cpu"]) == ("low", 4000 * 50_000)


def test_elastic_replicas_go_first(world):
    world.nodes(4, cpu=1000)
    world.submit("elastic", cpu=1000, replicas=4, least=2)
    told = ask(world, "high", cpu=1000, priority=5)
    (victim,) = told.displaces
    assert (victim.name, victim.replicas) == ("elastic", 1)
    assert told.summary == f"would start on {told.placement[0].node} (sim-a) once 1 elastic replica has made room"


def test_a_node_that_is_out_keeps_nobody_from_preempting_on_another(world):
    world.cell.send(
        c.NodesReported("sim-a", (world.node("here"), world.node("away", cordoned=True)), first=True, complete=True)
    )
    world.submit("low", cpu=4000)
    told = ask(world, "high", cpu=4000, priority=5)
    assert [victim.name for victim in told.displaces] == ["low"]


def test_room_is_made_under_a_limit(world):
    world.nodes(2)
    world.queue("research", limit=(("cpu", 4000),))
    world.submit("low", cpu=4000)
    assert [victim.name for victim in ask(world, "high", cpu=4000, priority=5).displaces] == ["low"]


def test_why_nobody_would_be_displaced(world):
    world.nodes(1)
    world.submit("same", cpu=4000)
    told = ask(world, "other", cpu=4000)
    assert not told.displaces
    assert "would not preempt: nobody who may be preempted" in told.summary


def test_what_would_be_refused_is_refused(world):
    world.nodes(1)
    with pytest.raises(Rejected, match="largest node"):
        ask(world, "a", cpu=9000)
    with pytest.raises(Rejected, match="does not exist"):
        ask(world, "a", queue="nowhere")
    world.queue("research", state="CLOSED")
    with pytest.raises(Rejected, match="closed"):
        ask(world, "a")


def test_a_stopped_queue_is_in_the_way_and_nobody_would_be_displaced(world):
    world.nodes(1)
    world.submit("low", cpu=4000)
    world.queue("research", state="STOPPED")
    told = ask(world, "high", cpu=4000, priority=5)
    assert told.explanation.blockers[0].kind == "queue-state"
    assert told.displaces == ()


def test_entitlements_count_the_job_that_is_thought_of(world):
    """Its queue has all it is entitled to as long as it wants no more; with this job to more (rule F1)."""
    world.nodes(4, cpu=1000)
    world.queue("batch")
    world.submit("mine", cpu=1000)
    for n in range(3):
        world.submit(f"b{n}", queue="batch", cpu=1000)
    published = (("research", 1000), ("batch", 3000))
    sent = tuple(c.Entitlement(world.state.queues.find(path).id, (("cpu", cpu),)) for path, cpu in published)
    world.cell.send(c.EntitlementsComputed(world.state.ledger_seq, sent))
    told = ask(world, "another", cpu=1000, priority=1)
    assert [victim.queue for victim in told.displaces] == ["batch"]
    assert "made room" in told.summary


# --- queues ---------------------------------------------------------------------------------------------------------


def test_a_weight_moves_entitlements_and_makes_jobs_reclaimable(world):
    world.nodes(6, cpu=1000)
    world.queue("batch")
    world.queue("research", preemption="ANY")
    for n in range(6):
        world.submit(f"b{n}", queue="batch", cpu=1000)
        world.pods(f"b{n}", 2)
        world.cell.now_ms += 1
    for n in range(6):
        world.submit(f"r{n}", cpu=1000)
    world.cell.wait(3_600_000)
    changes = plan(world.state.queues, {"research": spec(weight=2, preemption="ANY")})
    told = forecast_queues(world.state, c.ChangeQueues(changes), world.cell.now_ms)
    assert [(d.path, d.kind, d.fields) for d in told.changes] == [("research", "changed", (("weight", 1, 2),))]
    cpu = {path: (dict(before)["cpu"], dict(after)["cpu"]) for path, before, after in told.entitlements}
    assert cpu == {"batch": (3000, 2000), "research": (3000, 4000)}
    (batch,) = told.reclaimable
    assert (batch.jobs, dict(batch.usage)["cpu"]) == (1, 1000)
    assert batch.leaf == world.state.queues.find("batch").id
    assert batch.first == (world.id("b2"),)  # b0 and b1 stay within, b3 to b5 were past the entitlement before
    assert world.state.queues.find("research").spec.weight == 1


def test_nobody_is_reclaimable_where_nobody_reclaims(world):
    world.nodes(2, cpu=1000)
    for queue in ("research", "batch"):
        world.queue(queue, preemption="NEVER")
    for n in range(2):
        world.submit(f"b{n}", queue="batch", cpu=1000)
    for n in range(2):
        world.submit(f"r{n}", cpu=1000)
    changes = plan(world.state.queues, {"batch": spec(weight=0, preemption="NEVER")})
    told = forecast_queues(world.state, c.ChangeQueues(changes), world.cell.now_ms)
    assert told.entitlements
    assert not told.reclaimable
    changes = plan(world.state.queues, {"batch": spec(weight=0), "research": spec(preemption="ANY")})
    told = forecast_queues(world.state, c.ChangeQueues(changes), world.cell.now_ms)
    assert [found.jobs for found in told.reclaimable] == [2]


def test_a_queue_that_drains_gives_all_it_has_to_the_others(world):
    world.nodes(6, cpu=1000)
    world.queue("batch")
    for n in range(4):
        world.submit(f"b{n}", queue="batch", cpu=1000)
        world.submit(f"r{n}", cpu=1000)
    world.pods("b0", 2)
    world.cell.wait(3_600_000)
    running = len(world.state.queues.find("batch").running)
    changes = plan(world.state.queues, {"batch": spec(state="DRAINING")})
    told = forecast_queues(world.state, c.ChangeQueues(changes), world.cell.now_ms)
    cpu = {path: (dict(before).get("cpu", 0), dict(after).get("cpu", 0)) for path, before, after in told.entitlements}
    assert cpu == {"batch": (3000, 0), "research": (3000, 4000)}
    (leaving,) = told.leaving
    assert (leaving.jobs, dict(leaving.usage)["cpu"]) == (running, running * 1000)
    assert dict(leaving.work)["cpu"] > 0
    world.queue("batch", state="DRAINING")
    told = forecast_queues(world.state, c.ChangeQueues(()), world.cell.now_ms)
    assert (told.entitlements, told.leaving) == ((), ())


def test_a_change_that_would_be_refused(world):
    with pytest.raises(Rejected):
        forecast_queues(world.state, c.ChangeQueues((c.DeleteQueue("nowhere"),)), world.cell.now_ms)


# --- standing -------------------------------------------------------------------------------------------------------


def test_standing_counts_what_waits_runs_and_backs_off(world):
    world.nodes(1)
    world.queue("research/a")
    world.submit("runs", queue="research/a", cpu=3000)
    world.submit("waits", queue="research/a", cpu=2000, replicas=2, least=1)
    world.submit("tries", queue="research/a", cpu=500)
    world.cell.send(c.PlacementRejected("sim-a", world.id("tries"), 1, 0))
    world.pods("tries", 5)
    world.submit("ends", queue="research/a", cpu=100)
    world.cell.send(c.CancelJob(world.id("ends")))
    world.queue("other")
    found = {world.state.queues.path(queue): standing for queue, standing in standings(world.state).items()}
    for path in ("research", "research/a"):
        assert (found[path].pending_jobs, found[path].running_jobs) == (2, 2)
        assert dict(found[path].pending) == {"cpu": 4500, "pods": 3}
    assert found["other"].pending == ()
    (flows,) = demand(world.state).values()
    assert [dict(flow) for flow in flows] == [{"cpu": 4500 + 3000 + 100, "pods": 5}]
    world.queue("research/a", state="STOPPED")
    (flows,) = startable(world.state, world.state.queues, demand(world.state)).values()
    assert flows == ((("cpu", 3100), ("pods", 2)),)


def test_guarantees_beyond_what_there_is_are_told(world):
    """Not refused: nodes come and go."""
    asked = QueueSpec("", "", "", guaranteed=(("cpu", 30_000), ("memory", 1)))

    def warnings():
        change = c.ChangeQueues(plan(world.state.queues, {"big": asked}))
        return forecast_queues(world.state, change, world.cell.now_ms).warnings

    assert warnings() == (), "nothing is known of the nodes yet"
    world.cell.send(c.NodesReported("sim-a", (world.node("n", cpu=24_000),), first=True, complete=True))
    (cpu, memory) = warnings()
    assert cpu.startswith("queues are guaranteed 30 cpu together, and there are 24 now")
    assert "memory" in memory or "byte" in memory
    world.queue("a/b", guaranteed=(("cpu", 10_000),))
    world.queue("a", guaranteed=(("cpu", 14_000),))
    assert overpromised(world.state.queues, world.state.nodes.capacity()) == (), "the child's is a part of it"
    world.queue("c", guaranteed=(("cpu", 10_001),))
    (told,) = overpromised(world.state.queues, world.state.nodes.capacity())
    assert "24.001 cpu" in told


def test_what_is_borrowed_and_lent(world):
    world.nodes(10, cpu=1000)
    world.queue("a", guaranteed=(("cpu", 6000),), lending_limit=(("cpu", 5000),))
    world.queue("b")
    queues = {path: world.state.queues.find(path).id for path in ("a", "b")}
    for n in range(5):
        world.submit(f"b{n}", queue="b", cpu=1000)
    # it could still have all of its guarantee but the 1000 that nothing is left for
    entitled = (c.Entitlement(queues["a"], ()), c.Entitlement(queues["b"], (("cpu", 4000),)))
    world.cell.send(c.EntitlementsComputed(1, entitled))
    found = standings(world.state)
    assert dict(found[queues["a"]].withheld) == {"cpu": 1000}
    assert dict(found[queues["a"]].lent) == {"cpu": 1000}
    assert dict(found[queues["b"]].borrowed) == {"cpu": 1000}
