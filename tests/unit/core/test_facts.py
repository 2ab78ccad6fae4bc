"""Facts about clusters: lists, relists, zones, entitlements."""

from __future__ import annotations

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.model import JobState, Zone


def kinds(transitions):
    return [type(t).__name__ for t in transitions if not isinstance(t, tr.CyclePaused)]


def report(world, *names, cluster="sim-a", removed=(), first=False, complete=False, **more):
    nodes = tuple(world.node(name, cluster=cluster, **more) for name in names)
    return world.cell.send(c.NodesReported(cluster, nodes, removed, first=first, complete=complete))


def live(world, cluster="sim-a"):
    table = world.state.nodes
    return [table.spec(index).name for index in table.live(cluster)]


def test_a_first_list_syncs_the_cluster(world):
    done = report(world, "a", "b", first=True, complete=True)
    assert kinds(done) == ["ClusterListStarted", "NodeUpserted", "NodeUpserted", "ClusterSynced"]
    assert [t.index for t in done if isinstance(t, tr.NodeUpserted)] == [0, 1]
    assert world.state.clusters["sim-a"].synced


def test_a_list_over_several_messages(world):
    report(world, "a", first=True)
    assert not world.state.clusters["sim-a"].synced
    report(world, "b")
    report(world, complete=True)
    assert world.state.clusters["sim-a"].synced
    assert live(world) == ["a", "b"]


def test_a_relist_writes_only_what_changed_and_drops_what_it_does_not_name(world):
    report(world, "a", "b", "c", first=True, complete=True)
    done = report(world, "a", first=True)
    assert kinds(done) == ["ClusterListStarted", "NodesSeen"]
    done = report(world, "c", complete=True)
    assert kinds(done) == ["NodesSeen", "NodeRemoved", "ClusterSynced"]
    assert live(world) == ["a", "c"]


def test_what_changes_during_a_relist_counts_as_seen(world):
    report(world, "a", "b", first=True, complete=True)
    report(world, first=True)
    report(world, "b", cpu=8000)
    report(world, removed=("a",))
    assert kinds(report(world, complete=True)) == ["ClusterSynced"]
    assert live(world) == ["b"]


def test_lists_of_one_message_see_each_other(world):
    done = world.cell.send(
        c.NodesReported("sim-a", (world.node("a"), world.node("b")), first=True, complete=True),
        c.NodesReported("sim-a", (world.node("b"), world.node("c")), first=True, complete=True),
    )
    assert [t.index for t in done if isinstance(t, tr.NodeRemoved)] == [0]
    assert live(world) == ["b", "c"]


def test_an_unchanged_node_writes_nothing(world):
    report(world, "a", first=True, complete=True)
    assert report(world, "a") == []
    assert kinds(report(world, "a", cordoned=True)) == ["NodeUpserted"]


def test_a_node_keeps_its_index_when_it_comes_back(world):
    report(world, "a", "b", first=True, complete=True)
    report(world, removed=("a", "unknown"))
    assert live(world) == ["b"]
    (upserted,) = report(world, "a")
    assert upserted.index == 0


def test_clusters_do_not_mix(world):
    report(world, "a", first=True, complete=True)
    report(world, "a", cluster="sim-b", first=True, complete=True)
    report(world, cluster="sim-b", first=True, complete=True)
    assert (live(world), live(world, "sim-b")) == (["a"], [])
    stray = c.NodesReported("sim-a", (world.node("x", cluster="sim-b"),))
    assert world.cell.send(stray) == []


def test_capacity_that_shrinks_below_what_runs_keeps_running(world):
    report(world, "a", first=True, complete=True)
    world.submit("one", cpu=3000)
    report(world, "a", cpu=2000)
    assert world.job("one").state is JobState.PLACED
    world.submit("two", cpu=100)
    assert world.job("two").state is JobState.QUEUED


def test_zones_of_a_known_node(world):
    report(world, "a", gpus=2, first=True, complete=True)
    zones = (Zone(0, devices=(0,)), Zone(1, devices=(1,)))
    fact = c.NodeTopologyReported("sim-a", "a", zones, "nvidia.com/gpu", 2)
    assert kinds(world.cell.send(fact)) == ["NodeZonesUpdated"]
    assert world.cell.send(fact) == []
    assert world.state.nodes.zones(0) == zones
    assert world.cell.send(c.NodeTopologyReported("sim-a", "b", zones)) == []


def test_entitlements_of_known_queues(world):
    known, gone = c.Entitlement("q1", (("cpu", 5),)), c.Entitlement("q9", (("cpu", 5),))
    done = world.cell.send(c.EntitlementsComputed(7, (known, gone)))
    assert done == [tr.EntitlementsSet((known,), 7)]
    assert (world.state.entitled, world.state.entitled_seq) == ({"q1": (("cpu", 5),)}, 7)
    assert world.cell.send(c.EntitlementsComputed(8, (gone,))) == []
