from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.sim.cluster.dispatch import Reply
from muster.sim.cluster.nodes import NodeShape, NodeSpecError, node_object, parse_nodes
from muster.sim.cluster.routes import Request
from muster.sim.cluster.tables import age
from muster.sim.cluster.timers import Timers, parse_timestamp_ms, timestamp

PODS = "/api/v1/namespaces/default/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def test_openb_has_the_traces_size() -> None:
    shapes = parse_nodes("openb")
    assert len(shapes) == 1213
    assert sum(shape.gpus for shape in shapes) == 6212
    assert len({shape.name for shape in shapes}) == 1213
    assert shapes == parse_nodes("openb")
    assert parse_nodes("openb", prefix="b-")[0].name == "b-openb-node-0000"


def test_openb_csv(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn-1,32000,262144,0,\nn-2,64000,262144,2,P100\n", encoding="utf-8"
    )
    assert parse_nodes(f"openb-csv:{path}") == [
        NodeShape("n-1", 32_000, 262_144, 0, ""),
        NodeShape("n-2", 64_000, 262_144, 2, "P100"),
    ]


def test_uniform() -> None:
    shapes = parse_nodes("uniform:3x32cpu128Gi+8gpu")
    assert [shape.name for shape in shapes] == ["node-0000", "node-0001", "node-0002"]
    assert (shapes[0].cpu_millis, shapes[0].memory_mib, shapes[0].gpus) == (32_000, 131_072, 8)
    assert parse_nodes("uniform:1x2cpu512Mi")[0].gpus == 0


@pytest.mark.parametrize(
    "spec", ["", "openbb", "openb-csv:", "openb-csv:/nowhere", "uniform:3x", "uniform:30000x1cpu1Gi"]
)
def test_a_bad_spec_is_refused(spec: str) -> None:
    with pytest.raises(NodeSpecError):
        parse_nodes(spec)


def test_a_node_has_its_place_in_the_topology() -> None:
    node = node_object(NodeShape("n", 82_500, 1024, 8, "V100M16"), 130, "now")
    labels = node["metadata"]["labels"]
    assert labels["kubernetes.io/hostname"] == "n"
    assert labels["nvidia.com/gpu.product"] == "V100M16"
    assert (labels["muster.io/rack"], labels["muster.io/block"]) == ("rack-008", "block-01")
    assert labels["topology.kubernetes.io/zone"] == "zone-0"
    allocatable = node["status"]["allocatable"]
    assert (allocatable["cpu"], allocatable["memory"], allocatable["pods"]) == ("82500m", "1024Mi", "110")
    assert allocatable["nvidia.com/gpu"] == "8"


def cells(world: Any, path: str) -> list[dict[str, Any]]:
    reply = world.cluster.handle(Request("GET", path, accept=TABLE))
    assert isinstance(reply, Reply)
    table = json.loads(reply.body)
    assert table["kind"] == "Table"
    names = [column["name"] for column in table["columnDefinitions"]]
    return [dict(zip(names, row["cells"], strict=True)) for row in table["rows"]]


def test_tables_of_pods(world: Any, pod: Any) -> None:
    fails = {"sim.muster.io/run-seconds": "1", "sim.muster.io/exit-code": "1"}
    world.ok("POST", PODS, pod("a", "node-0000"))
    world.ok("POST", PODS, pod("b", "node-0001", annotations=fails))
    world.ok("POST", PODS, pod("c"))
    world.ok("POST", PODS, pod("d", "node-0000", limits={"cpu": "99"}))
    world.ok("POST", PODS, pod("e", "node-0002", annotations={"sim.muster.io/stop-seconds": "20"}))
    world.advance(90_000)
    world.ok("DELETE", f"{PODS}/e")
    world.advance(100)
    rows = cells(world, "/api/v1/pods")
    shown = [(row["Name"], row["Ready"], row["Status"], row["Node"]) for row in rows]
    assert shown == [
        ("a", "1/1", "Running", "node-0000"),
        ("b", "0/1", "Error", "node-0001"),
        ("c", "0/1", "Pending", "<none>"),
        ("d", "0/1", "OutOfcpu", "node-0000"),
        ("e", "1/1", "Terminating", "node-0002"),
    ]
    assert rows[0]["Age"] == "90s"
    assert cells(world, f"{PODS}/a")[0]["Name"] == "a"


def test_tables_of_nodes_and_others(world: Any) -> None:
    world.cluster.cut_off_node("node-0001")
    world.advance(60_000)
    merge = "application/merge-patch+json"
    world.ok("PATCH", "/api/v1/nodes/node-0002", {"spec": {"unschedulable": True}}, content_type=merge)
    statuses = [row["Status"] for row in cells(world, "/api/v1/nodes")]
    assert statuses == ["Ready", "NotReady", "Ready,SchedulingDisabled"]
    assert cells(world, "/api/v1/namespaces")[0] == {"Name": "default", "Status": "Active", "Age": "60s"}
    assert cells(world, "/apis/batch/v1/jobs") == []


def test_a_watch_can_be_shown_as_tables(world: Any, pod: Any, events: Any) -> None:
    watch = world.watch(PODS, accept=TABLE).watch
    world.ok("POST", PODS, pod("a", "node-0000"))
    [(type_, table)] = events(watch)
    assert (type_, table["kind"], table["rows"][0]["cells"][0]) == ("ADDED", "Table", "a")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (660, "11m"),
        (3 * 3600, "3h"),
        (4 * 3600 + 120, "4h2m"),
        (9 * 3600, "9h"),
        (49 * 3600, "2d"),
    ],
)
def test_ages(seconds: int, expected: str) -> None:
    assert age(timestamp(1_000_000_000_000), 1_000_000_000_000 + seconds * 1000) == expected


def test_timestamps_go_both_ways() -> None:
    assert timestamp(1_800_000_000_999) == "2027-01-15T08:00:00Z"
    assert parse_timestamp_ms("2027-01-15T08:00:00Z") == 1_800_000_000_000


def test_timers_run_in_order_of_time_then_of_asking() -> None:
    clock = [0]
    timers = Timers(lambda: clock[0])
    ran: list[str] = []
    earlier: list[int | None] = []
    timers.on_earlier = lambda: earlier.append(timers.next_due_ms())
    timers.at(20, ran.append, "c")
    timers.at(10, ran.append, "a")
    timers.at(10, ran.append, "b")
    timers.after(30, ran.append, "d")
    assert earlier == [20, 10]
    assert timers.run_due() == 0
    clock[0] = 10
    assert timers.run_due(limit=1) == 1
    clock[0] = 30
    assert timers.run_due() == 3
    assert ran == list("abcd")
    assert timers.next_due_ms() is None
